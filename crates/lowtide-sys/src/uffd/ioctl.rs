//! An ioctl whose argument is a structure.

use core::ffi::c_void;

use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};

/// The kernel may write to the structure even on failure.
struct Raw<'a, T> {
    opcode: Opcode,
    arg: &'a mut T,
}

// SAFETY: each use pairs `opcode` with its `T`; the kernel writes inside `T` only.
unsafe impl<T> Ioctl for Raw<'_, T> {
    type Output = i32;
    const IS_MUTATING: bool = true;
    fn opcode(&self) -> Opcode {
        self.opcode
    }
    fn as_ptr(&mut self) -> *mut c_void {
        core::ptr::from_mut(self.arg).cast()
    }
    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> Result<i32, Errno> {
        Ok(out)
    }
}

/// Runs `opcode` on `fd` with `arg`.
///
/// # Safety
/// The opcode takes a pointer to `T`; its effects on other memory are the caller's obligation.
pub unsafe fn ioctl<T>(fd: BorrowedFd<'_>, opcode: Opcode, arg: &mut T) -> Result<i32, Errno> {
    // SAFETY: the caller's obligation.
    unsafe { rustix::ioctl::ioctl(fd, Raw { opcode, arg }) }
}
