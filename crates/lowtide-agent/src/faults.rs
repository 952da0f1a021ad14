//! Failures made on purpose: `LOWTIDE_FAULTS` names a file that holds a [`Faults`], written by a test. It is mapped, so that
//! the test sees the counts also of processes that were killed.

use core::ffi::{CStr, c_char};

use lowtide_core::faults::{self, Faults};
use lowtide_core::vm::{self, Whose};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::environment::variables;

const VARIABLE: &[u8] = b"LOWTIDE_FAULTS=";

/// Maps the file that the environment names, if it names one.
///
/// # Safety
/// `envp` is a NULL-terminated array of C strings.
pub unsafe fn install(envp: *const *const c_char) {
    // SAFETY: the caller answers.
    let mut all = unsafe { variables(envp) }.map(CStr::to_bytes_with_nul);
    if let Some(path) = all.find_map(|variable| variable.strip_prefix(VARIABLE)) {
        map(path);
    }
}

fn map(path: &[u8]) {
    let Ok(path) = CStr::from_bytes_with_nul(path) else { return };
    let Ok(fd) = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else { return };
    let (prot, len) = (ProtFlags::READ | ProtFlags::WRITE, size_of::<Faults>());
    // SAFETY: a new mapping that nobody else knows.
    let at = unsafe { rustix::mm::mmap(core::ptr::null_mut(), len, prot, MapFlags::SHARED, &fd, 0) };
    let Ok(at) = at else { return };
    let _ = vm::own(at as usize, at as usize + vm::PAGE_SIZE, Whose::Lowtide);
    // SAFETY: the test wrote a Faults there, and from then on only its atomics change; it is never unmapped.
    faults::install(unsafe { &*at.cast::<Faults>() });
}
