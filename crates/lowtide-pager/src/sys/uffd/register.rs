//! Which memory has its missing pages served.

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

/// UFFDIO_REGISTER, whose argument begins with the start and the length of a range.
pub const REGISTER: Opcode = UFFDIO_REGISTER;

/// What the kernel says of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Nothing now: mappings, whichever, are changing. An event waits, will come, or was read by now and its thread has not run
    /// yet.
    Changing,
    /// It is registered with a userfaultfd.
    Registered,
    /// It is not, or nothing is mapped there.
    NotRegistered,
}

/// What a registered range tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watched {
    /// No touches, only events.
    Nothing,
    /// Touches of missing pages.
    Missing,
    /// Writes to write-protected pages as well.
    Writes,
    /// Touches of armed pages as well, which are no messages: see [`Uffd::arm`].
    Accesses,
}

/// UFFDIO_REGISTER_MODE_RWP (Linux 7.3).
const MODE_RWP: u32 = 1 << 3;

impl Uffd {
    /// Registers `start .. start + len` for missing pages, and for writes or accesses if it is so wanted (which may be later,
    /// too; never one of the two in place of the other).
    ///
    /// # Errors
    /// `BUSY`: registered with another userfaultfd, or for what it is not registered for now. `INVAL`: not a kind of memory that
    /// can be registered; for accesses also: a part of it is inaccessible.
    ///
    /// # Safety
    /// From now on every missing page in the range must be served, unless nothing is watched.
    pub unsafe fn register(&self, start: usize, len: usize, watched: Watched) -> Result<(), Errno> {
        let mode = match watched {
            // Nothing is ever write-protected there.
            Watched::Nothing => sys::UFFDIO_REGISTER_MODE_WP,
            Watched::Missing => sys::UFFDIO_REGISTER_MODE_MISSING,
            Watched::Writes => sys::UFFDIO_REGISTER_MODE_MISSING | sys::UFFDIO_REGISTER_MODE_WP,
            Watched::Accesses => sys::UFFDIO_REGISTER_MODE_MISSING | MODE_RWP,
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

    /// Ends the registration of a range: missing pages there read as zero from now on.
    ///
    /// # Safety
    /// No page of the range may be in lowtide's hands.
    pub unsafe fn unregister(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mut arg = sys::uffdio_range { start: start as u64, len: len as u64 };
        #[cfg(feature = "faults")]
        super::faults::refused(Op::Register).map_or(Ok(()), Err)?;
        // SAFETY: UNREGISTER takes a uffdio_range.
        unsafe { ioctl(self.fd.as_fd(), UFFDIO_UNREGISTER, &mut arg).map(drop) }
    }

    /// Whether private memory at `addr` is registered, with any userfaultfd, and whether mappings are changing. Some tenths of a
    /// microsecond.
    pub fn standing(&self, addr: usize) -> Standing {
        standing(self.as_fd(), addr)
    }

    /// Whether the memory that it watches is no process's any more; `addr`: one that can be mapped.
    pub fn is_gone(&self, addr: usize) -> bool {
        match continues(self.as_fd(), addr) {
            Err(Errno::SRCH) => true,
            // The count of changes under way, which is looked at first, stays above zero for ever after some calls that fail.
            Err(Errno::AGAIN) => self.registers_nothing(addr) == Err(Errno::NOMEM),
            _ => false,
        }
    }

    /// Tries to register a page for what private memory can't be registered for.
    fn registers_nothing(&self, addr: usize) -> Result<(), Errno> {
        let range = sys::uffdio_range { start: (addr & !(PAGE_SIZE - 1)) as u64, len: PAGE_SIZE as u64 };
        let mut arg = sys::uffdio_register { range, mode: u64::from(sys::UFFDIO_REGISTER_MODE_MINOR), ioctls: 0 };
        // SAFETY: REGISTER takes a uffdio_register. (Of shared memory it would tell of faults, which nobody serves where the
        // count is stuck.)
        unsafe { ioctl(self.fd.as_fd(), UFFDIO_REGISTER, &mut arg).map(drop) }
    }
}

pub(super) fn standing(uffd: BorrowedFd<'_>, addr: usize) -> Standing {
    match continues(uffd, addr) {
        Err(Errno::NOENT) => Standing::NotRegistered,
        Ok(()) | Err(Errno::INVAL | Errno::EXIST) => Standing::Registered,
        // Whatever that is, it is no answer.
        Err(_) => Standing::Changing,
    }
}

fn continues(uffd: BorrowedFd<'_>, addr: usize) -> Result<(), Errno> {
    let range = sys::uffdio_range { start: (addr & !(PAGE_SIZE - 1)) as u64, len: PAGE_SIZE as u64 };
    let mut arg = sys::uffdio_continue { range, mode: 0, mapped: 0 };
    // SAFETY: CONTINUE takes a uffdio_continue. It is for shared memory: of private memory the kernel says only why it does
    // nothing, and what it looks at comes in this order. (In shared memory it would map a page that the file has.)
    unsafe { ioctl(uffd, UFFDIO_CONTINUE, &mut arg).map(drop) }
}
