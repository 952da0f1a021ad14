//! Fork, in the thread that calls it. The pager's `fork/` describes the memory.
//!
//! All signals stay blocked until the child serves itself: earlier, a handler that touched the
//! child's memory would read zeros. They are also blocked while the gate is closed: a handler that
//! leaves by longjmp, ends the process or forks would leave it closed, or open it too early. In the
//! parent, fork returns when the child can live without it, because daemons leave at once. Exit and
//! exec in other threads wait for that too.

mod child;
pub mod child_state;
pub mod clones;
pub mod handshake;
pub mod inheritance;

use core::ffi::{c_int, c_void};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lowtide_core::steps;
use lowtide_core::turn::{Had, Turn};
use rustix::thread::{Timespec, nanosleep};

use crate::hooks::gate;
use crate::hooks::mark::{self, Mark};
use crate::process::{agent, resident, thread};
use crate::reclaimer::request::{Request, ask};

static ANNOUNCED: AtomicBool = AtomicBool::new(false);
static LEAVER: Turn = Turn::new();
static IS_OVER: AtomicBool = AtomicBool::new(false);
/// The mask to restore, if `BLOCKED`. One thread forks at a time.
static SIGNALS: AtomicU64 = AtomicU64::new(0);
static BLOCKED: AtomicBool = AtomicBool::new(false);
/// How long an exit waits for a fork: longer than one whose child gets no CPU takes.
const PATIENCE_MS: u32 = 65_000;
/// How long a fork waits for a leaving thread: longer than an exec that fails. A signal handler may
/// have left the call.
const LEAVERS_PATIENCE_MS: u32 = 1_000;

type Register =
    unsafe extern "C" fn(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn(), dso: *mut c_void) -> c_int;

/// glibc's `__register_atfork`, or none. Inline assembly: Rust emits several object files, and a
/// reference is weak only in the one that declares it so.
fn register() -> Option<Register> {
    let at: usize;
    // SAFETY: reads a word of this library that the loader has filled in.
    unsafe {
        core::arch::asm!(
            ".weak __register_atfork",
            "mov {}, qword ptr [rip + __register_atfork@GOTPCREL]",
            out(reg) at,
            options(nostack, readonly, preserves_flags)
        )
    };
    // SAFETY: that function as glibc declares it, or null.
    unsafe { core::mem::transmute::<usize, Option<Register>>(at) }
}

/// Handlers registered first run closest to the fork: last before it, first in the child.
pub fn install() {
    let Some(register) = register() else { return };
    // SAFETY: the functions live as long as the process: this library is never unloaded.
    unsafe { register(prepare, parent, child, core::ptr::null_mut()) };
}

extern "C" fn prepare() {
    if !agent::has_threads() {
        return;
    }
    let signals = thread::block_signals();
    gate::close();
    // Another thread's until the gate is closed.
    SIGNALS.store(signals, Ordering::Relaxed);
    BLOCKED.store(true, Ordering::Relaxed);
    resident::before_fork();
    if agent::active().is_some() {
        // SeqCst, with the load of `LEAVER` after it: pairs with `leaves`. Either that thread sees
        // the fork, or the fork waits for it.
        ANNOUNCED.store(true, Ordering::SeqCst);
        let_leave();
        handshake::begin(agent::pid());
        steps::taken(steps::Fork::Parent);
        ask(Request::Fork);
        steps::taken(steps::Fork::Parent);
        gate::goes_on();
    }
}

/// Forks by a `make` that returns twice. `shares_files`: the child shares the descriptor table.
pub fn fork_by(shares_files: bool, make: impl FnOnce() -> isize) -> isize {
    prepare();
    let r = make();
    if r == 0 {
        begins(!shares_files)
    } else {
        parent()
    }
    r
}

extern "C" fn parent() {
    if !gate::is_closed_by_caller() {
        return;
    }
    if ANNOUNCED.load(Ordering::Acquire) {
        // The reclaimer does not wait for the child, because threads wait for its answers.
        IS_OVER.store(false, Ordering::Relaxed);
        while let Some(pager) = agent::active().filter(|_| !IS_OVER.load(Ordering::Relaxed)) {
            pager.outlast_child();
            ask(Request::ForkIsOver);
        }
        steps::taken(steps::Fork::Parent);
        // Release: pairs with the load in `leaves`. The child no longer needs this process.
        ANNOUNCED.store(false, Ordering::Release);
    }
    let signals = BLOCKED.swap(false, Ordering::Relaxed).then(|| SIGNALS.load(Ordering::Relaxed));
    gate::open();
    // Last: handlers run here.
    if let Some(signals) = signals {
        thread::restore_signals(signals);
    }
}

pub fn answered(is_over: bool) {
    IS_OVER.store(is_over, Ordering::Relaxed);
}

/// The process ends before the fork, or stays.
fn let_leave() {
    let mut leaver = LEAVER.now();
    for _ in 0..LEAVERS_PATIENCE_MS {
        // A signal handler of the leaving thread may fork.
        if leaver.is_none_or(|leaver| leaver.who() == thread::id()) {
            return;
        }
        nap();
        if leaver.is_some_and(|leaver| mark::is_left(LEAVER.visit(leaver))) {
            break;
        }
        leaver = LEAVER.now();
    }
    if let Some(leaver) = leaver {
        LEAVER.end(leaver);
    }
}

pub struct Leaving<'a>(Had, PhantomData<&'a Mark>);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        LEAVER.end(self.0);
    }
}

/// Before exit or exec: waits for another thread's fork, whose child needs this process, and keeps
/// new ones away. One thread at a time, as in the kernel.
pub fn leaves(mark: &Mark) -> Option<Leaving<'_>> {
    // A vforked child leaves by itself, and would never remove its mark from this process's memory.
    agent::active()?;
    let me = mark.visit(thread::id());
    for _ in 0..PATIENCE_MS {
        let other = LEAVER.now();
        // A signal handler may have left the call.
        let can_take = other.is_none_or(|other| other.who() == me.who() || mark::is_left(LEAVER.visit(other)));
        // SeqCst in `take`, with the load of `ANNOUNCED` after it: pairs with `prepare`.
        if can_take && let Some(leaver) = LEAVER.take(other, me) {
            let leaving = Leaving(leaver, PhantomData);
            if !ANNOUNCED.load(Ordering::SeqCst) || gate::is_closed_by_caller() {
                return Some(leaving);
            }
        }
        nap();
    }
    None
}

fn nap() {
    let _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 });
}

extern "C" fn child() {
    begins(true);
}

fn begins(has_files: bool) {
    child::take_over(ANNOUNCED.swap(false, Ordering::AcqRel), has_files);
    if BLOCKED.swap(false, Ordering::Relaxed) {
        thread::restore_signals(SIGNALS.load(Ordering::Relaxed));
    }
}
