//! Deliberate failures: `LOWTIDE_FAULTS` names a file with a [`Faults`] from a test. It is mapped,
//! so that counts of killed processes survive.

use core::ffi::{CStr, c_char};

use lowtide_core::faults::{self, Faults};
use lowtide_core::vm::{self, Whose};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::exec::environment::variables;

const VARIABLE: &[u8] = b"LOWTIDE_FAULTS=";

/// # Safety
/// `envp` is a NULL-terminated array of C strings.
pub unsafe fn install(envp: *const *const c_char) {
    // SAFETY: as the caller promises.
    let mut all = unsafe { variables(envp) }.map(CStr::to_bytes_with_nul);
    if let Some(path) = all.find_map(|variable| variable.strip_prefix(VARIABLE)) {
        map(path);
    }
}

fn map(path: &[u8]) {
    let Ok(path) = CStr::from_bytes_with_nul(path) else { return };
    let Ok(fd) = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else { return };
    let (prot, len) = (ProtFlags::READ | ProtFlags::WRITE, size_of::<Faults>());
    // SAFETY: a new mapping, unknown to other code.
    let at = unsafe { rustix::mm::mmap(core::ptr::null_mut(), len, prot, MapFlags::SHARED, &fd, 0) };
    let Ok(at) = at else { return };
    let _ = vm::own(at as usize, at as usize + vm::PAGE_SIZE, Whose::Lowtide);
    // SAFETY: the test wrote a Faults, of which only atomics change; never unmapped.
    faults::install(unsafe { &*at.cast::<Faults>() });
}
