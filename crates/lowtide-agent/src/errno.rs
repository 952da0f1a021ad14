//! How the C library's functions say what has failed.

use core::ffi::c_int;

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
}

/// Whether a system call has failed, by what it returned.
pub fn is_error(r: isize) -> bool {
    (-4095..0).contains(&r)
}

/// The C library's convention: -1 and errno for an error.
pub fn result(r: isize) -> isize {
    if is_error(r) {
        // SAFETY: the C library's errno of this thread.
        unsafe { *__errno_location() = -r as c_int };
        return -1;
    }
    r
}
