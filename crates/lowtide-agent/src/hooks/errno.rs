//! The C library's error convention.

use core::ffi::c_int;

pub const EPERM: isize = 1;
pub const EAGAIN: isize = 11;
pub const ENOMEM: isize = 12;
pub const EFAULT: isize = 14;
pub const EBUSY: isize = 16;
pub const EINVAL: isize = 22;

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
