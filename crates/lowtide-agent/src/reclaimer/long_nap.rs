//! Naps of seconds, in a process that can't grow unseen and is not worth registering or far from
//! its limit. They end early if
//!
//! - a thread of the process maps more than the reclaimer has allowed ([`maps`]), or makes a
//!   request;
//! - `lowtide run` rings: this process has had CPU time, the run has passed its register mark, or
//!   all processes are asked something.
//!
//! `lowtide run` rings from another process, so the futex is in the segment. (Other processes may
//! ring in vain; none can prolong a nap.)

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::thread::{Timespec, futex};

use crate::process::agent;
use crate::reclaimer::request;

static ASLEEP: AtomicBool = AtomicBool::new(false);
/// Bytes of writable memory that the program has mapped so far; wraps.
static MAPPED: AtomicUsize = AtomicUsize::new(0);
/// `MAPPED` before the nap, and its allowed growth.
static BEFORE: AtomicUsize = AtomicUsize::new(0);
static ALLOWED: AtomicUsize = AtomicUsize::new(0);

#[derive(Debug, Clone, Copy)]
pub struct Before {
    bell: u32,
    mapped: usize,
}

/// For the reclaimer, before it checks what could prevent a long nap.
pub fn before() -> Before {
    // SeqCst, both: pairs with the counts in `Proc::ring` and `maps`. `sleep` finds later ones.
    Before { bell: agent::proc().bell.load(Ordering::SeqCst), mapped: MAPPED.load(Ordering::SeqCst) }
}

/// For the reclaimer: sleeps up to `us` microseconds, unless since `before` a bell has rung or the
/// program has mapped more than `allowed` bytes.
pub fn sleep(bell: u32, before: Before, us: u64, allowed: usize) {
    BEFORE.store(before.mapped, Ordering::Relaxed);
    ALLOWED.store(allowed, Ordering::Relaxed);
    // SeqCst, and the loads after it: pairs with `maps` and `wake`. Either this thread sees the
    // change, or its author sees the sleep.
    ASLEEP.store(true, Ordering::SeqCst);
    if request::bell() == bell && MAPPED.load(Ordering::SeqCst).wrapping_sub(before.mapped) <= allowed {
        let time = Timespec { tv_sec: (us / 1_000_000) as i64, tv_nsec: (us % 1_000_000 * 1000) as i64 };
        let _ = futex::wait(&agent::proc().bell, futex::Flags::empty(), before.bell, Some(&time));
    }
    ASLEEP.store(false, Ordering::SeqCst);
}

pub fn maps(bytes: usize) {
    // SeqCst, and the load: pairs with those in `sleep`.
    let mapped = MAPPED.fetch_add(bytes, Ordering::SeqCst).wrapping_add(bytes);
    if ASLEEP.load(Ordering::SeqCst)
        && mapped.wrapping_sub(BEFORE.load(Ordering::Relaxed)) > ALLOWED.load(Ordering::Relaxed)
        && ASLEEP.swap(false, Ordering::SeqCst)
    {
        agent::proc().ring();
    }
}

pub fn wake() {
    // SeqCst: pairs with the store in `sleep`.
    if ASLEEP.swap(false, Ordering::SeqCst) {
        agent::proc().ring();
    }
}

pub fn reset_after_fork() {
    ASLEEP.store(false, Ordering::Relaxed);
}
