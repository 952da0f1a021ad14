//! The C library's error convention.

use core::ffi::c_int;

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
}

pub fn is_error(r: isize) -> bool {
    (-4095..0).contains(&r)
}

pub fn result(r: isize) -> isize {
    if is_error(r) {
        // SAFETY: this thread's errno.
        unsafe { *__errno_location() = -r as c_int };
        return -1;
    }
    r
}
