//! A program without hooks tells `lowtide run` of its execs and of calls that change memory, by a
//! system call filter (`lowtide-wire`'s `call_filter`), which descendants inherit. The kernel
//! allows one in a line of descent.

use core::ptr;

use linux_raw_sys::general as sys;
use lowtide_wire::broker::FOLLOW;
use lowtide_wire::call_filter::{self, ANOTHERS, ARGUMENTS, IS_IT_THERE, IS_THERE, Instruction, TOO_MANY};
use rustix::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::Errno;

use crate::process::thread::{syscall3, syscall6};
use crate::process::{agent, broker, say};

#[repr(C)]
struct Program {
    len: u16,
    filter: *const Instruction,
}

/// For the constructor, in the program's first thread.
pub fn calls() {
    if is_followed() || !is_allowed() {
        return;
    }
    // First: a filter without a listener blocks all execs.
    let Ok(broker) = broker::connect() else { return };
    match broker.ask(FOLLOW, None) {
        Ok(_) => {}
        // Execs of another user's processes are not followed.
        Err(Errno::PERM) => return,
        Err(_) => return say::warn(TOO_MANY.as_bytes()),
    }
    match install(&call_filter::filter(agent::settings().tells_changes != 0)) {
        Ok(listener) => drop(broker.ask(FOLLOW, Some(listener.as_fd()))),
        Err(Errno::BUSY) => say::warn(ANOTHERS.as_bytes()),
        Err(_) => {}
    }
}

pub fn is_followed() -> bool {
    // SAFETY: executes nothing: the path is null.
    unsafe { syscall6(sys::__NR_execve, 0, 0, 0, 0, 0, IS_IT_THERE as usize) == -(IS_THERE as isize) }
}

/// An ordinary user's process may only with no_new_privs.
fn is_allowed() -> bool {
    // The kernel checks permission before it reads the filter.
    // SAFETY: the filter is null, so this fails.
    unsafe { seccomp(&Program { len: 1, filter: ptr::null() }) != Err(Errno::ACCESS) }
}

fn install(filter: &[Instruction]) -> Result<OwnedFd, Errno> {
    // SAFETY: the filter forbids nothing on which a program could rely.
    let listener = unsafe { seccomp(&Program { len: filter.len() as u16, filter: filter.as_ptr() })? };
    // SAFETY: the kernel has just made it.
    Ok(unsafe { OwnedFd::from_raw_fd(listener) })
}

/// # Safety
/// The filter's effects.
unsafe fn seccomp(program: &Program) -> Result<RawFd, Errno> {
    let [mode, flags] = ARGUMENTS.map(|argument| argument as usize);
    // SAFETY: the kernel reads the program; the caller answers for the rest.
    let r = unsafe { syscall3(sys::__NR_seccomp, mode, flags, ptr::from_ref(program).addr()) };
    if r < 0 { Err(Errno::from_raw_os_error(-r as i32)) } else { Ok(r as RawFd) }
}
