//! `LOWTIDE_SEGMENT=...` as received, for programs started with another environment.

use core::cell::UnsafeCell;
use core::ffi::c_char;

use lowtide_wire::segment::ENV_SEGMENT;

struct Variable(UnsafeCell<[u8; 128]>);
// SAFETY: the constructor writes it once, before the hooks read it.
unsafe impl Sync for Variable {}
static VARIABLE: Variable = Variable(UnsafeCell::new([0; 128]));

pub fn is_it(variable: &[u8]) -> bool {
    variable.strip_prefix(ENV_SEGMENT.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'='))
}

/// Keeps it with its NUL and returns its value; None: longer than lowtide's.
///
/// # Safety
/// Only the constructor calls it, until it succeeds.
pub unsafe fn keep(variable: &[u8]) -> Option<&'static [u8]> {
    // SAFETY: not in use yet.
    let kept = unsafe { &mut *VARIABLE.0.get() };
    kept.get_mut(..variable.len())?.copy_from_slice(variable);
    kept.get(ENV_SEGMENT.len() + 1..variable.len() - 1)
}

/// NUL-terminated.
pub fn kept() -> *const c_char {
    VARIABLE.0.get().cast()
}
