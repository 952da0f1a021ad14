//! A file whose operations fail on purpose.

use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};

/// How an operation fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// With this error.
    Error(Errno),
    /// With this error, like all operations after it: the device has gone.
    Gone(Errno),
    /// It moves so many bytes only.
    Short(usize),
    /// A read gives, or a write puts, one wrong bit.
    Flip,
    /// A write says that it was done, and nothing was.
    Lost,
    /// A write puts the page where its neighbour belongs, and the neighbour's in its place.
    Swapped,
}

/// What happens to the operations of a file, counted from 0.
#[derive(Debug)]
pub(crate) struct Faults {
    at: u64,
    fault: Fault,
    count: AtomicU64,
}

impl Faults {
    /// Operation `at` fails.
    pub(crate) fn new(at: u64, fault: Fault) -> Faults {
        Faults { at, fault, count: AtomicU64::new(0) }
    }

    /// Operations so far.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn next(&self) -> Option<Fault> {
        let n = self.count.fetch_add(1, Ordering::Relaxed);
        (n == self.at || n > self.at && matches!(self.fault, Fault::Gone(_))).then_some(self.fault)
    }

    pub(crate) fn read(&self, fd: BorrowedFd<'_>, bytes: &mut [u8], offset: u64) -> Result<usize, Errno> {
        match self.next() {
            Some(Fault::Error(errno) | Fault::Gone(errno)) => return Err(errno),
            Some(Fault::Short(n)) => {
                let n = n.min(bytes.len());
                return rustix::io::pread(fd, &mut bytes[..n], offset);
            }
            Some(Fault::Flip) => {
                let n = rustix::io::pread(fd, &mut *bytes, offset)?;
                bytes[n / 2] ^= 4;
                return Ok(n);
            }
            Some(Fault::Lost | Fault::Swapped) | None => {}
        }
        rustix::io::pread(fd, bytes, offset)
    }

    pub(crate) fn write(&self, fd: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> Result<usize, Errno> {
        match self.next() {
            Some(Fault::Error(errno) | Fault::Gone(errno)) => return Err(errno),
            Some(Fault::Short(n)) => return rustix::io::pwrite(fd, &bytes[..n.min(bytes.len())], offset),
            Some(Fault::Flip) => {
                let mut copy = Copy::of(bytes);
                let wrong = copy.bytes();
                wrong[bytes.len() / 2] ^= 4;
                return rustix::io::pwrite(fd, wrong, offset);
            }
            Some(Fault::Lost) => return Ok(bytes.len()),
            Some(Fault::Swapped) if bytes.len() >= 8192 => {
                let mut copy = Copy::of(bytes);
                let wrong = copy.bytes();
                let (a, b) = wrong.split_at_mut(4096);
                a.swap_with_slice(&mut b[..4096]);
                return rustix::io::pwrite(fd, wrong, offset);
            }
            Some(Fault::Swapped) | None => {}
        }
        rustix::io::pwrite(fd, bytes, offset)
    }
}

#[derive(Clone)]
#[repr(align(4096))]
#[allow(dead_code)] // read by address
struct Aligned([u8; 4096]);

/// A page-aligned copy of whole pages, as O_DIRECT wants it.
struct Copy(std::vec::Vec<Aligned>);

impl Copy {
    fn of(bytes: &[u8]) -> Copy {
        Copy(bytes.as_chunks::<4096>().0.iter().map(|page| Aligned(*page)).collect())
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: an Aligned is 4096 bytes and nothing else.
        unsafe { core::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len() * 4096) }
    }
}
