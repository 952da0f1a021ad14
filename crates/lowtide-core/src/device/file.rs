//! A swap file: plain positioned reads and writes.

use core::sync::atomic::{AtomicI32, Ordering};

use rustix::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, IoSlice};

use crate::store::Page;
use crate::vm::PAGE_SIZE;

/// Most pages that one write gathers.
const MAX_GATHER: usize = 128;

/// An open swap file; it is closed with the value.
#[derive(Debug)]
pub struct FileDevice {
    /// Negative: none.
    fd: AtomicI32,
}

impl FileDevice {
    /// The device on an open file.
    pub fn new(fd: OwnedFd) -> FileDevice {
        FileDevice { fd: AtomicI32::new(fd.into_raw_fd()) }
    }

    /// Number of the descriptor; negative if there is none.
    pub fn raw_fd(&self) -> i32 {
        self.fd.load(Ordering::Relaxed)
    }

    /// Puts another descriptor, or none, in the place of this one, which is NOT closed: for a forked child, where it is not valid.
    /// No call may be in flight.
    pub fn replace(&self, fd: Option<OwnedFd>) {
        self.fd.store(fd.map_or(-1, OwnedFd::into_raw_fd), Ordering::Relaxed);
    }

    fn borrow(&self) -> Result<BorrowedFd<'_>, Errno> {
        let fd = self.raw_fd();
        if fd < 0 {
            return Err(Errno::BADF);
        }
        // SAFETY: the device owns the descriptor and closes it when it is dropped, which the borrow forbids.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    pub(super) fn write_run(&self, slot: u64, pages: &[&Page]) -> Result<(), Errno> {
        let fd = self.borrow()?;
        let total = pages.len() * PAGE_SIZE;
        let mut done = 0;
        while done < total {
            let (first, skip) = (done / PAGE_SIZE, done % PAGE_SIZE);
            let left = &pages[first..];
            let slices: [IoSlice<'_>; MAX_GATHER] = core::array::from_fn(|i| match left.get(i) {
                Some(page) => IoSlice::new(&page[if i == 0 { skip } else { 0 }..]),
                None => IoSlice::new(&[]),
            });
            let slices = &slices[..left.len().min(MAX_GATHER)];
            match rustix::io::pwritev(fd, slices, slot * PAGE_SIZE as u64 + done as u64) {
                Ok(0) => return Err(Errno::IO),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    pub(super) fn discard(&self, slot: u64, n: u64) -> Result<(), Errno> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(self.borrow()?, flags, slot * PAGE_SIZE as u64, n * PAGE_SIZE as u64)
    }

    pub(super) fn read_run(&self, slot: u64, into: &mut [Page]) -> Result<(), Errno> {
        let fd = self.borrow()?;
        let into = into.as_flattened_mut();
        let mut done = 0;
        while done < into.len() {
            match rustix::io::pread(fd, &mut into[done..], slot * PAGE_SIZE as u64 + done as u64) {
                Ok(0) => return Err(Errno::IO),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        let fd = *self.fd.get_mut();
        if fd >= 0 {
            // SAFETY: the device owns the descriptor.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags};

    #[test]
    fn runs_longer_than_one_operation_and_the_end_of_the_file() {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let fd = rustix::fs::open(std::env::temp_dir(), flags, Mode::RUSR | Mode::WUSR).unwrap();
        let device = FileDevice::new(fd);
        let pages: std::vec::Vec<Page> = (0..300u32).map(|i| [i as u8 ^ 0x5a; PAGE_SIZE]).collect();
        let refs: std::vec::Vec<&Page> = pages.iter().collect();
        device.write_run(7, &refs).unwrap();
        let mut back = std::vec![[0; PAGE_SIZE]; 300];
        device.read_run(7, &mut back).unwrap();
        assert!(back == pages);
        assert_eq!(device.read_run(8, &mut back), Err(Errno::IO), "the last slot was never written");
        device.replace(None);
        assert_eq!(device.read_run(7, &mut back), Err(Errno::BADF));
    }
}
