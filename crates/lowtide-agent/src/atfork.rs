//! Fork, on the side of the program's thread that calls it. What happens to the memory is told in the pager's `fork/`.
//!
//! All signals are blocked in that thread from before the fork until the child serves itself: for a moment nobody serves the
//! child's memory, and a handler that touched it would read zeros. They are also blocked as long as the gate is closed: a
//! handler that leaves by longjmp, ends the process or forks itself would leave it closed for ever, or open it too early. In
//! the parent, fork returns when the child can live without it: daemons leave at once. Other threads that want to end the
//! process, or to execute another program in its place, wait for that too.

use core::ffi::{c_int, c_void};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lowtide_core::steps;
use lowtide_core::turn::{Had, Turn};
use lowtide_pager::segment::{NO_PLACE, proc_state};
use rustix::thread::{Timespec, nanosleep};

use crate::mark::{self, Mark};
use crate::request::{Request, ask};
use crate::{
    HEAP, agent, clones, fork_handshake, gate, in_thread, long_nap, mlock, monitor, pid_in_run, reclaimer, request, resident,
    say, swap_file, thread, told,
};

/// Whether the fork under way was announced to the reclaimer, or is about to be.
static ANNOUNCED: AtomicBool = AtomicBool::new(false);
/// The turn of the thread that ends this process, or executes another program in its place.
static LEAVER: Turn = Turn::new();
/// What the reclaimer said when it was last asked whether the fork is over.
static IS_OVER: AtomicBool = AtomicBool::new(false);
/// The signals that were blocked before, if `BLOCKED` says that they all are. One thread forks at a time.
static SIGNALS: AtomicU64 = AtomicU64::new(0);
static BLOCKED: AtomicBool = AtomicBool::new(false);
/// How long a thread that ends the process waits for a fork, in milliseconds: longer than the fork itself takes if the child
/// gets no CPU.
const PATIENCE_MS: u32 = 65_000;
/// How long a fork waits for a thread that leaves, in milliseconds: longer than an exec takes that fails. A signal handler may
/// have taken that thread out of the call.
const LEAVERS_PATIENCE_MS: u32 = 1_000;

type Register =
    unsafe extern "C" fn(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn(), dso: *mut c_void) -> c_int;

/// glibc's own `__register_atfork`. Where the C library is another one, there is none, and the loader is not to fail for the want
/// of it: a reference is weak only if it says so in the same object file, of which the compiler makes several.
fn register() -> Option<Register> {
    let at: usize;
    // SAFETY: reads a word of this library's own, which the loader has filled in.
    unsafe {
        core::arch::asm!(
            ".weak __register_atfork",
            "mov {}, qword ptr [rip + __register_atfork@GOTPCREL]",
            out(reg) at,
            options(nostack, readonly, preserves_flags)
        )
    };
    // SAFETY: that function, as glibc declares it, or nothing.
    unsafe { core::mem::transmute::<usize, Option<Register>>(at) }
}

/// Registers the handlers. Registered first, they run closest to the fork itself: last before it, first in the child.
pub fn install() {
    let Some(register) = register() else { return };
    // SAFETY: the functions live as long as the process; this library is never unloaded.
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
        // SeqCst, and the look at `LEAVER` that follows: pairs with `leaves`. Either that thread sees the fork and waits, or the
        // fork waits for it.
        ANNOUNCED.store(true, Ordering::SeqCst);
        let_leave();
        fork_handshake::begin(agent::pid());
        steps::taken(steps::Fork::Parent);
        ask(Request::Fork);
        steps::taken(steps::Fork::Parent);
        gate::goes_on();
    }
}

/// Makes a child that copies this process's memory, as the C library's fork does, by a call of the caller's that returns twice:
/// as the system call does. `shares_files`: the child is to have this process's descriptors, and no copies.
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
        // The reclaimer does not wait for the child: threads that map memory wait for its answers.
        IS_OVER.store(false, Ordering::Relaxed);
        while let Some(pager) = agent::active().filter(|_| !IS_OVER.load(Ordering::Relaxed)) {
            pager.outlast_child();
            ask(Request::ForkIsOver);
        }
        steps::taken(steps::Fork::Parent);
        // Release: pairs with the look in `leaves`. The child needs this process no more.
        ANNOUNCED.store(false, Ordering::Release);
    }
    let signals = BLOCKED.swap(false, Ordering::Relaxed).then(|| SIGNALS.load(Ordering::Relaxed));
    gate::open();
    // Last: handlers run here and now.
    if let Some(signals) = signals {
        thread::restore_signals(signals);
    }
}

/// By the reclaimer: whether the fork is over. The thread that forks sees it when its request is answered.
pub fn answered(is_over: bool) {
    IS_OVER.store(is_over, Ordering::Relaxed);
}

/// Waits for a thread that leaves: this process ends with it, before the fork, or it stays.
fn let_leave() {
    let mut leaver = LEAVER.now();
    for _ in 0..LEAVERS_PATIENCE_MS {
        // A signal handler of the leaver itself may fork.
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

/// The calling thread ends this process, or executes another program in its place; over when dropped, if that failed.
pub struct Leaving<'a>(Had, PhantomData<&'a Mark>);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        LEAVER.end(self.0);
    }
}

/// Before this process ends or becomes another program by the will of the calling thread: lets a fork of another thread end,
/// whose child needs this process until then, and keeps others from beginning one. One thread at a time, as in the kernel.
pub fn leaves(mark: &Mark) -> Option<Leaving<'_>> {
    // A vforked child leaves by itself. (It would never take its mark off this process's memory, either.)
    agent::active()?;
    let me = mark.visit(thread::id());
    for _ in 0..PATIENCE_MS {
        let other = LEAVER.now();
        // A signal handler may have taken this thread, or another one, out of the call.
        let can_take = other.is_none_or(|other| other.who() == me.who() || mark::is_left(LEAVER.visit(other)));
        // SeqCst, in `take`, and of the look at `ANNOUNCED` that follows: pairs with `prepare`.
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

/// `has_files`: it shares its descriptors with nobody.
fn begins(has_files: bool) {
    take_over(ANNOUNCED.swap(false, Ordering::AcqRel), has_files);
    if BLOCKED.swap(false, Ordering::Relaxed) {
        thread::restore_signals(SIGNALS.load(Ordering::Relaxed));
    }
}

/// The child comes to itself: its locks, its place in the segment, its threads. `announced`: its parent's memory was adopted.
fn take_over(announced: bool, has_files: bool) {
    gate::reset_after_fork();
    request::reset_after_fork();
    clones::reset_after_fork();
    long_nap::reset_after_fork();
    mlock::reset_after_fork();
    swap_file::reset_after_fork();
    LEAVER.reset_after_fork();
    // SAFETY: this process has one thread, and the parent's operations, which allocate, were paused (or there were none: the
    // gate keeps the reclaimer from setting up a pager while it is closed).
    unsafe {
        if BLOCKED.load(Ordering::Relaxed) {
            HEAP.reset_after_fork();
        } else {
            // No handler ran before: the process that forked has no agent, and its memory is another's, or a copy that a bare
            // clone has made at any moment.
            HEAP.begin_anew();
        }
        lowtide_core::vm::reset_after_fork();
        thread::retire_stacks();
        told::reset_after_fork();
        // Else the parent may have been about to change its heap.
        if announced {
            reclaimer::forget_parents();
            monitor::forget_parents();
        }
        in_thread::reset_after_fork(announced, has_files);
    }
    if !agent::present() {
        return;
    }
    let number = pid_in_run::of_child(agent::owner());
    // A parent that had no agent threads of its own (itself made by a bare clone) leaves nothing to take over.
    let inherits = announced && agent::active().is_none();
    let parent_reclaimer = agent::RECLAIMER.load(Ordering::Relaxed);
    // Whoever has no reclaimer asks for its memory here, on the program's stack: that is not in the child's tables but in its
    // memory, and the parent serves what is missing of it meanwhile.
    let alone = || {
        if inherits
            && let Some(pager) = agent::pager()
            && let Err(why) = pager.become_whole(&|| fork_handshake::parent_serves(parent_reclaimer))
        {
            say::fatal(why);
        }
    };
    let Some(proc) = agent::segment().claim(number.there) else {
        alone();
        agent::forget_pager();
        return say::warn(NO_PLACE);
    };
    if inherits {
        // Before the parent is let go: from here on the run waits for this process too when an area is taken off.
        agent::segment().becomes_active(proc);
    } else {
        agent::forget_pager();
    }
    agent::set_proc(proc, number);
    reclaimer::forget_requests(proc);
    resident::in_child(proc);
    steps::taken(steps::Fork::Child);
    fork_handshake::child_begins();
    let entry = if inherits { reclaimer::inherited } else { reclaimer::fresh };
    if let Err(why) = thread::spawn(entry, 0) {
        alone();
        proc.state.store(proc_state::WATCHING, Ordering::Release);
        if inherits {
            fork_handshake::child_is_whole(why)
        } else {
            say::warn(reclaimer::NO_THREAD)
        }
        return;
    }
    if inherits {
        fork_handshake::wait_until_ready();
    }
}
