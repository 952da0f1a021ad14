//! Long naps of the reclaimer, seconds: in a process that is not worth registering, or far from its limit, and that can't grow
//! unseen. Who ends one before its time:
//!
//! - a thread of the process that maps more memory than the reclaimer has allowed for ([`maps`]), or asks it for something;
//! - `lowtide run`, where this process has had CPU time, or each has to look: the run has passed its register mark, or something
//!   was asked of all.
//!
//! The latter rings in another process, so the futex of these naps is in the segment. (Any process of the run may ring there for
//! no reason; none can keep the reclaimer from looking when the nap is over.)

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::thread::{Timespec, futex};

use crate::{agent, request};

/// The reclaimer takes a long nap.
static ASLEEP: AtomicBool = AtomicBool::new(false);
/// Bytes that the program has mapped and may write to, all together; wraps.
static MAPPED: AtomicUsize = AtomicUsize::new(0);
/// What `MAPPED` was before the nap, and by how much it may grow in it.
static BEFORE: AtomicUsize = AtomicUsize::new(0);
static ALLOWED: AtomicUsize = AtomicUsize::new(0);

/// What was known before the reclaimer looked.
#[derive(Debug, Clone, Copy)]
pub struct Before {
    bell: u32,
    mapped: usize,
}

/// By the reclaimer, before it looks at what may keep it from a long nap.
pub fn before() -> Before {
    // SeqCst, of both: pairs with the counts in `Proc::ring` and `maps`. What is not counted yet is found by `sleep`.
    Before { bell: agent::proc().bell.load(Ordering::SeqCst), mapped: MAPPED.load(Ordering::SeqCst) }
}

/// By the reclaimer: sleeps for `us` microseconds at most, unless or until a bell has rung, or the program has mapped more than
/// `allowed` bytes, since it looked.
pub fn sleep(bell: u32, before: Before, us: u64, allowed: usize) {
    BEFORE.store(before.mapped, Ordering::Relaxed);
    ALLOWED.store(allowed, Ordering::Relaxed);
    // SeqCst, of this and the loads after it: pairs with those in `maps` and `wake`. Either this thread sees what has happened,
    // or who did it sees that it sleeps.
    ASLEEP.store(true, Ordering::SeqCst);
    if request::bell() == bell && MAPPED.load(Ordering::SeqCst).wrapping_sub(before.mapped) <= allowed {
        let time = Timespec { tv_sec: (us / 1_000_000) as i64, tv_nsec: (us % 1_000_000 * 1000) as i64 };
        let _ = futex::wait(&agent::proc().bell, futex::Flags::empty(), before.bell, Some(&time));
    }
    ASLEEP.store(false, Ordering::SeqCst);
}

/// By threads of the program, after a call that has given them so much more memory to write to.
pub fn maps(bytes: usize) {
    // SeqCst, of this and the load: pairs with those in `sleep`.
    let mapped = MAPPED.fetch_add(bytes, Ordering::SeqCst).wrapping_add(bytes);
    if ASLEEP.load(Ordering::SeqCst)
        && mapped.wrapping_sub(BEFORE.load(Ordering::Relaxed)) > ALLOWED.load(Ordering::Relaxed)
        && ASLEEP.swap(false, Ordering::SeqCst)
    {
        agent::proc().ring();
    }
}

/// Ends a long nap, if there is one. After the request that the reclaimer is to see.
pub fn wake() {
    // SeqCst: pairs with the store in `sleep`.
    if ASLEEP.swap(false, Ordering::SeqCst) {
        agent::proc().ring();
    }
}

/// In a forked child: nobody sleeps.
pub fn reset_after_fork() {
    ASLEEP.store(false, Ordering::Relaxed);
}
