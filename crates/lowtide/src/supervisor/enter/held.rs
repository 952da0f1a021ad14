//! Holds single threads by ptrace, wherever they are, and lets them run again.

use super::tracee::{Untraced, interrupt, request};
use lowtide_config::proc::{Stat, Status};
use rustix::process::Pid;
use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// While a [`hold`] begins: its thread may be traced and not interrupted yet.
static HOLD_BEGINS: Mutex<()> = Mutex::new(());

/// No [`hold`] begins before the guard is dropped. None: one does. Never blocks: it may wait for an
/// exec that needs the calling thread.
pub fn no_hold_begins() -> Option<MutexGuard<'static, ()>> {
    match HOLD_BEGINS.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Holds a thread: it stops before it next executes its own code. The calling thread must [let it
/// run](let_run()), as no other can.
///
/// # Errors
/// Tracing is not allowed: the thread has another tracer, or more rights. Or it died. It is not
/// held then.
pub fn hold(thread: Pid) -> Result<(), Untraced> {
    let _begins = HOLD_BEGINS.lock().unwrap_or_else(PoisonError::into_inner);
    request(libc::PTRACE_SEIZE, thread, 0, 0, "tracing")?;
    // `let_run` notices a thread that ended, or whose number an exec took over.
    let _ = interrupt(thread);
    Ok(())
}

/// Ends what [`hold`] began, of a thread of `process`; false: it has not stopped yet, call this
/// again. Delivers a signal that was under way. Reaps a thread that has ended, unless it is the
/// first of its process.
pub fn let_run(process: Pid, thread: Pid) -> bool {
    // An exec makes it the first thread of its process.
    let first_may_run = || thread == process || let_run(process, process);
    let Some(status) = Status::of(thread.as_raw_pid() as u32) else {
        // Perhaps no descriptor is left for reading it.
        return !std::fs::exists(format!("/proc/{}", thread.as_raw_pid())).unwrap_or(true) && first_may_run();
    };
    if status.number("TracerPid") != Some(rustix::thread::gettid().as_raw_pid() as u32) {
        return first_may_run();
    }
    let mut signal = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: zeroes are a valid siginfo_t, and the kernel fills it.
    let (asked, signal) =
        unsafe { (request(libc::PTRACE_GETSIGINFO, thread, 0, signal.as_mut_ptr().addr(), "signal"), signal.assume_init()) };
    let signal = match asked {
        // In a stop without a signal, `si_code` has the event above the signal.
        Ok(()) if signal.si_code >> 8 == 0 || signal.si_code < 0 => signal.si_signo,
        Err(Untraced::Died) => return has_ended(process, thread) && first_may_run(),
        _ => 0,
    };
    match request(libc::PTRACE_DETACH, thread, 0, signal as usize, "detach") {
        Err(Untraced::Died) => has_ended(process, thread) && first_may_run(),
        _ => true,
    }
}

/// Whether a held thread has ended, rather than not stopped yet.
fn has_ended(process: Pid, thread: Pid) -> bool {
    let has_ended = Stat::of(thread.as_raw_pid() as u32).is_none_or(|stat| stat.is_zombie());
    if has_ended && thread != process {
        // Its process could not end before this. The event loop's thread may have reaped it
        // already. SAFETY: the status pointer may be null.
        unsafe { libc::waitpid(thread.as_raw_pid(), std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) };
    }
    has_ended
}
