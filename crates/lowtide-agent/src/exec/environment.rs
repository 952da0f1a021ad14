//! A program's environment, as for constructors and exec.

use core::ffi::{CStr, c_char};

/// # Safety
/// `envp` is a NULL-terminated array of C strings that stay unchanged for `'a`.
pub unsafe fn variables<'a>(envp: *const *const c_char) -> impl Iterator<Item = &'a CStr> {
    (0..).map_while(move |i| {
        // SAFETY: as the caller promises; nothing behind the NULL is read.
        unsafe {
            let variable = *envp.add(i);
            (!variable.is_null()).then(|| CStr::from_ptr(variable))
        }
    })
}
