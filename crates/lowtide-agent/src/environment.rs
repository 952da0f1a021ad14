//! The environment of a program, as constructors get it and exec takes it.

use core::ffi::{CStr, c_char};

/// Its variables, in order.
///
/// # Safety
/// `envp` is a NULL-terminated array of C strings, and these stay as they are for `'a`.
pub unsafe fn variables<'a>(envp: *const *const c_char) -> impl Iterator<Item = &'a CStr> {
    (0..).map_while(move |i| {
        // SAFETY: the caller answers; behind the NULL nothing is read.
        unsafe {
            let variable = *envp.add(i);
            (!variable.is_null()).then(|| CStr::from_ptr(variable))
        }
    })
}
