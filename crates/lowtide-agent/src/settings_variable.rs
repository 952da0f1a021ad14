//! `LOWTIDE_SEGMENT=...`, the variable that names the settings, as it came: kept for programs that are started with another
//! environment.

use core::cell::UnsafeCell;
use core::ffi::c_char;

use lowtide_pager::segment::ENV_SEGMENT;

struct Variable(UnsafeCell<[u8; 128]>);
// SAFETY: written once, by the constructor, before the hooks are in that read it.
unsafe impl Sync for Variable {}
static VARIABLE: Variable = Variable(UnsafeCell::new([0; 128]));

/// Whether an environment variable is the one.
pub fn is_it(variable: &[u8]) -> bool {
    variable.strip_prefix(ENV_SEGMENT.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'='))
}

/// Keeps it, with its NUL, and returns its value; None: it is longer than any that lowtide makes.
///
/// # Safety
/// To be called by the constructor, and this has not succeeded before.
pub unsafe fn keep(variable: &[u8]) -> Option<&'static [u8]> {
    // SAFETY: nobody else uses it yet.
    let kept = unsafe { &mut *VARIABLE.0.get() };
    kept.get_mut(..variable.len())?.copy_from_slice(variable);
    kept.get(ENV_SEGMENT.len() + 1..variable.len() - 1)
}

/// The variable as it was kept, NUL-terminated.
pub fn kept() -> *const c_char {
    VARIABLE.0.get().cast()
}
