//! How a program finds the agent if its user may not follow the path: by a descriptor from its
//! executor, which the constructor closes.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicPtr, Ordering};

use lowtide_sys::Line;
use lowtide_wire::segment::transient::PREFIX;
use rustix::fd::{FromRawFd, OwnedFd, RawFd};

use crate::exec::environment::variables;

pub const PRELOAD: &[u8] = b"LD_PRELOAD=";

const FILE: &[u8] = b"/memfd:lowtide-agent (deleted)";
const MAX_PRELOAD: usize = 1024;

struct Variable(UnsafeCell<[u8; MAX_PRELOAD]>);
// SAFETY: only the constructor writes it, before other code knows it.
unsafe impl Sync for Variable {}
static VARIABLE: Variable = Variable(UnsafeCell::new([0; MAX_PRELOAD]));

/// The descriptor's LD_PRELOAD entry, NUL-terminated.
pub fn entry(fd: RawFd) -> Line {
    let mut line = Line::new();
    line.push(PREFIX.as_bytes()).number(fd as u64).push(b"\0");
    line
}

pub fn split(value: &[u8]) -> Option<(RawFd, &[u8])> {
    let rest = value.strip_prefix(PREFIX.as_bytes())?;
    let digits = rest.iter().take_while(|c| c.is_ascii_digit()).count();
    let fd = core::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
    match rest.get(digits) {
        None => Some((fd, &[])),
        Some(b':' | b' ') => Some((fd, &rest[digits + 1..])),
        Some(_) => None,
    }
}

/// Closes the agent's descriptor, if used, and makes LD_PRELOAD begin with `ours`: the program sees
/// no difference.
///
/// # Safety
/// Only the constructor calls it, once, with the environment.
pub unsafe fn finish(envp: *const *const c_char, ours: &[u8]) {
    // SAFETY: the environment is the program's and may change: by one pointer store, because
    // threads of a library may read it.
    unsafe {
        for (i, variable) in variables(envp).enumerate() {
            let Some((fd, rest)) = variable.to_bytes().strip_prefix(PRELOAD).and_then(split) else { continue };
            close(fd);
            let parts = [PRELOAD, ours, if rest.is_empty() { b"" } else { b":" }, rest, b"\0"];
            let to = &mut *VARIABLE.0.get();
            if parts.iter().map(|part| part.len()).sum::<usize>() <= to.len() {
                let mut len = 0;
                for part in parts {
                    to[len..len + part.len()].copy_from_slice(part);
                    len += part.len();
                }
                // Release: the text comes first.
                AtomicPtr::from_ptr(envp.add(i).cast_mut().cast::<*mut c_char>())
                    .store(to.as_mut_ptr().cast(), Ordering::Release);
            }
        }
    }
}

/// Closes only the agent's file: the number may mean another by now.
fn close(fd: RawFd) {
    let mut target = [0u8; 64];
    let path = entry(fd);
    let Ok(path) = CStr::from_bytes_with_nul(path.bytes()) else { return };
    if rustix::fs::readlinkat_raw(rustix::fs::CWD, path, &mut target[..]).is_ok_and(|n| target[..n] == *FILE) {
        // SAFETY: the name shows that it is lowtide's.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
}
