//! A program that has no hooks asks `lowtide run` to follow its execs and moves, and those of what descends from it: by a system
//! call filter (the pager's `call_filter`). The kernel allows one of this kind in a line of descent.

use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

use linux_raw_sys::general as sys;
use lowtide_pager::sys::broker::FOLLOW;
use lowtide_pager::sys::call_filter::{self, ANOTHERS, ARGUMENTS, IS_IT_THERE, IS_THERE, Instruction, TOO_MANY};
use rustix::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::Errno;

use crate::thread::{syscall3, syscall6};
use crate::{agent, broker, say, thread_end};

/// The kernel's `struct sock_fprog`.
#[repr(C)]
struct Program {
    len: u16,
    filter: *const Instruction,
}

/// `lowtide run` is told of the program's calls.
static IS_TOLD: AtomicBool = AtomicBool::new(false);

/// Whether `lowtide run` is told of the calls of this program's threads. (Of those of lowtide's it may not be.)
pub fn is_told() -> bool {
    IS_TOLD.load(Ordering::Relaxed)
}

/// `lowtide run` says so, or it is found out.
pub fn set_told(is_told: bool) {
    IS_TOLD.store(is_told, Ordering::Relaxed);
}

/// By the constructor, in the program's first thread.
pub fn calls() {
    let word = thread_end::word_of_this();
    if let Some(word) = word {
        thread_end::clears(word);
    }
    let is_followed = is_followed();
    set_told(is_followed);
    if is_followed || !is_allowed() {
        return;
    }
    // First: where nobody has the other end of a filter, nothing can be executed.
    let Ok(broker) = broker::connect() else { return };
    match broker.ask(FOLLOW, None) {
        Ok(_) => {}
        // What another user's processes execute is not followed.
        Err(Errno::PERM) => return,
        Err(_) => return say::warn(TOO_MANY.as_bytes()),
    }
    match install(&call_filter::filter(agent::settings().makes_moves != 0)) {
        Ok(listener) => {
            let taken = broker.ask(FOLLOW, Some(listener.as_fd()));
            set_told(taken.is_ok());
            if let Some(word) = word {
                // Once more, now that `lowtide run` is told, for the sake of forked children.
                // SAFETY: the kernel is to clear what it would clear anyway.
                unsafe { syscall3(sys::__NR_set_tid_address, word, 0, 0) };
            }
        }
        Err(Errno::BUSY) => say::warn(ANOTHERS.as_bytes()),
        Err(_) => {}
    }
}

/// Whether it has the filter, its own or an ancestor's.
pub fn is_followed() -> bool {
    // SAFETY: executes nothing: there is no path.
    unsafe { syscall6(sys::__NR_execve, 0, 0, 0, 0, 0, IS_IT_THERE as usize) == -(IS_THERE as isize) }
}

/// Whether this process may have a filter: an ordinary user's may not, unless it can get no more rights than it has.
fn is_allowed() -> bool {
    // The kernel looks at the filter when it has allowed one.
    // SAFETY: there is none, so this fails.
    unsafe { seccomp(&Program { len: 1, filter: ptr::null() }) != Err(Errno::ACCESS) }
}

fn install(filter: &[Instruction]) -> Result<OwnedFd, Errno> {
    // SAFETY: a filter that forbids nothing that a program could rely on.
    let listener = unsafe { seccomp(&Program { len: filter.len() as u16, filter: filter.as_ptr() })? };
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(listener) })
}

/// # Safety
/// What the filter does.
unsafe fn seccomp(program: &Program) -> Result<RawFd, Errno> {
    let [mode, flags] = ARGUMENTS.map(|argument| argument as usize);
    // SAFETY: the kernel reads the program; the rest is handed on to the caller.
    let r = unsafe { syscall3(sys::__NR_seccomp, mode, flags, ptr::from_ref(program).addr()) };
    if r < 0 { Err(Errno::from_raw_os_error(-r as i32)) } else { Ok(r as RawFd) }
}
