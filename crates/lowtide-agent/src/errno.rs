//! How the C library's functions say what has failed.

use core::ffi::c_int;

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
}

/// The C library's convention: -1 and errno for an error.
pub fn result(r: isize) -> isize {
    if (-4095..0).contains(&r) {
        // SAFETY: the C library's errno of this thread.
        unsafe { *__errno_location() = -r as c_int };
        return -1;
    }
    r
}
