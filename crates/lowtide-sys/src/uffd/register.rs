//! Registration of memory.

use linux_raw_sys::general as sys;
use linux_raw_sys::ioctl::{UFFDIO_CONTINUE, UFFDIO_REGISTER, UFFDIO_UNREGISTER};
#[cfg(feature = "faults")]
use lowtide_core::faults::Op;
use lowtide_core::vm::PAGE_SIZE;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::ioctl::Opcode;

use super::Uffd;
use super::ioctl::ioctl;

/// UFFDIO_REGISTER, of start and length first.
pub const REGISTER: Opcode = UFFDIO_REGISTER;

/// Registration at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Mappings are changing: an event is pending, to come, or just read.
    Changing,
    /// With any userfaultfd.
    Registered,
    /// No, or unmapped.
    NotRegistered,
}

/// Reported faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watched {
    /// None, only events.
    Nothing,
    /// Missing pages.
    Missing,
    /// Missing and write-protected pages.
    Writes,
}

impl Uffd {
    /// Registers a range. Writes may be added.
    ///
    /// # Errors
    /// `BUSY`: registered otherwise. `INVAL`: unsuitable memory.
    ///
    /// # Safety
    /// Missing pages must be served, unless nothing is watched.
    pub unsafe fn register(&self, start: usize, len: usize, watched: Watched) -> Result<(), Errno> {
        let mode = match watched {
            Watched::Nothing => sys::UFFDIO_REGISTER_MODE_WP,
            Watched::Missing => sys::UFFDIO_REGISTER_MODE_MISSING,
            Watched::Writes => sys::UFFDIO_REGISTER_MODE_MISSING | sys::UFFDIO_REGISTER_MODE_WP,
        };
        let mut arg = sys::uffdio_register {
            range: sys::uffdio_range { start: start as u64, len: len as u64 },
            mode: u64::from(mode),
            ioctls: 0,
        };
        #[cfg(feature = "faults")]
        super::faults::refused(Op::Register).map_or(Ok(()), Err)?;
        // SAFETY: REGISTER takes a uffdio_register.
        unsafe { ioctl(self.fd.as_fd(), UFFDIO_REGISTER, &mut arg).map(drop) }
    }

    /// Unregisters a range: missing pages read as zero.
    ///
    /// # Safety
    /// None of its pages is out: all are present, or may read as zero.
    pub unsafe fn unregister(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mut arg = sys::uffdio_range { start: start as u64, len: len as u64 };
        #[cfg(feature = "faults")]
        super::faults::refused(Op::Register).map_or(Ok(()), Err)?;
        // SAFETY: UNREGISTER takes a uffdio_range.
        unsafe { ioctl(self.fd.as_fd(), UFFDIO_UNREGISTER, &mut arg).map(drop) }
    }

    /// Registration of private memory, in tenths of a microsecond.
    pub fn standing(&self, addr: usize) -> Standing {
        standing(self.as_fd(), addr)
    }

    /// Whether the memory it watches has no process any more; `addr`: any mappable address.
    pub fn is_gone(&self, addr: usize) -> bool {
        match continues(self.as_fd(), addr) {
            Err(Errno::SRCH) => true,
            // The count of changes, checked first, sticks after some failed calls.
            Err(Errno::AGAIN) => self.registers_nothing(addr) == Err(Errno::NOMEM),
            _ => false,
        }
    }

    /// A mode that private memory can't have.
    fn registers_nothing(&self, addr: usize) -> Result<(), Errno> {
        let range = sys::uffdio_range { start: (addr & !(PAGE_SIZE - 1)) as u64, len: PAGE_SIZE as u64 };
        let mut arg = sys::uffdio_register { range, mode: u64::from(sys::UFFDIO_REGISTER_MODE_MINOR), ioctls: 0 };
        // SAFETY: a uffdio_register, which fails on private memory. (On shared memory it would
        // succeed, and report faults that no thread serves while the count sticks.)
        unsafe { ioctl(self.fd.as_fd(), UFFDIO_REGISTER, &mut arg).map(drop) }
    }
}

pub(super) fn standing(uffd: BorrowedFd<'_>, addr: usize) -> Standing {
    match continues(uffd, addr) {
        Err(Errno::NOENT) => Standing::NotRegistered,
        Ok(()) | Err(Errno::INVAL | Errno::EXIST) => Standing::Registered,
        // Not an answer.
        Err(_) => Standing::Changing,
    }
}

fn continues(uffd: BorrowedFd<'_>, addr: usize) -> Result<(), Errno> {
    let range = sys::uffdio_range { start: (addr & !(PAGE_SIZE - 1)) as u64, len: PAGE_SIZE as u64 };
    let mut arg = sys::uffdio_continue { range, mode: 0, mapped: 0 };
    // SAFETY: a uffdio_continue, which only fails on private memory; the order of checks answers.
    // (In shared memory it maps a page of the file.)
    unsafe { ioctl(uffd, UFFDIO_CONTINUE, &mut arg).map(drop) }
}
