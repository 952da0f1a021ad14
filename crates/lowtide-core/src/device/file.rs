//! A swap file: a regular file or a block device.
//!
//! I/O bypasses the page cache (O_DIRECT) if possible: a page just swapped out would otherwise stay
//! in RAM, outside of the limit. Elsewhere, the cache is told to drop the data. Several transfers
//! use io_uring if allowed, in a quarter of the time on a disk with queues; a single one is a plain
//! system call.

use core::num::NonZeroU64;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use arrayvec::ArrayVec;
use rustix::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use rustix::fs::{Advice, AtFlags, FallocateFlags, FileType, OFlags, StatxFlags};
use rustix::io::Errno;

use super::bounce::{BUFFER_PAGES, Buffer, Buffers, MOST_BUFFERS};
use super::seal::{Seal, Tag};
use super::transfer::{File, Pages, Transfer};
use super::uring::{DEPTH, Rings};
use super::{DeviceName, ReadRun, SealRun, WriteRun};
use crate::vm::PAGE_SIZE;
use crate::vm::Page;

/// Without O_DIRECT: bytes written between drops of the whole file.
const FORGET_EVERY: u64 = 4 << 20;

/// An open swap file; closed on drop.
#[derive(Debug)]
pub struct FileDevice {
    /// Negative: none.
    fd: AtomicI32,
    name: DeviceName,
    seal: Seal,
    buffers: Buffers,
    rings: Result<Rings, Errno>,
    direct: bool,
    written: AtomicU64,
    #[cfg(test)]
    pub(crate) faults: std::sync::OnceLock<crate::faults::Faults>,
}

impl FileDevice {
    /// The device on an open file, with fresh keys. Detects O_DIRECT by statx, or by I/O on slot 0,
    /// which areas never allocate.
    ///
    /// # Errors
    /// `NOMEM` for its buffers; the errors of getrandom.
    pub fn new(fd: OwnedFd, name: DeviceName) -> Result<FileDevice, Errno> {
        let mut device = FileDevice {
            fd: AtomicI32::new(-1),
            name,
            seal: Seal::new()?,
            buffers: Buffers::new()?,
            rings: Rings::new(),
            direct: false,
            written: AtomicU64::new(0),
            #[cfg(test)]
            faults: std::sync::OnceLock::new(),
        };
        device.direct = device.probe_direct(&fd);
        device.fd = AtomicI32::new(fd.into_raw_fd());
        Ok(device)
    }

    /// The user's name for it.
    pub fn name(&self) -> DeviceName {
        self.name
    }

    /// Whether I/O goes past the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Whether several transfers are in flight at once (io_uring).
    ///
    /// # Errors
    /// `PERM` or `NOSYS` without io_uring.
    pub fn has_rings(&self) -> Result<(), Errno> {
        self.rings.as_ref().map(drop).map_err(|errno| *errno)
    }

    /// Extends a shorter unnamed regular file to `bytes` without space, because extending writes
    /// are not concurrent. Failure is harmless. Named files may lie on a file system without holes
    /// (FAT).
    pub fn lengthen(&self, bytes: u64) {
        let Ok(file) = self.file() else { return };
        if rustix::fs::fstat(file.fd)
            .is_ok_and(|s| FileType::from_raw_mode(s.st_mode).is_file() && s.st_nlink == 0 && (s.st_size as u64) < bytes)
        {
            let _ = rustix::fs::ftruncate(file.fd, bytes);
        }
    }

    /// The descriptor; negative if there is none.
    pub fn raw_fd(&self) -> i32 {
        self.fd.load(Ordering::Relaxed)
    }

    /// In a forked child: replaces the invalid descriptor, which is NOT closed, by another of the
    /// same file, or none. No call of this process may be in flight.
    pub fn replace(&self, fd: Option<OwnedFd>) {
        self.buffers.reset_after_fork();
        if let Ok(rings) = &self.rings {
            rings.forget();
        }
        if let Some(fd) = &fd
            && self.direct
        {
            // Failure costs only page cache.
            let _ = set_direct(fd, true);
        }
        self.fd.store(fd.map_or(-1, OwnedFd::into_raw_fd), Ordering::Relaxed);
    }

    fn probe_direct(&self, fd: &OwnedFd) -> bool {
        let told = takes_direct(fd);
        if told == Some(false) || set_direct(fd, true).is_err() {
            return false;
        }
        if told == Some(true) {
            return true;
        }
        let mut buffer = self.buffers.take();
        let page = buffer.pages()[0].as_mut_slice();
        page.fill(0);
        // Keeps the content of a named file.
        let works =
            rustix::io::pread(fd, &mut *page, 0) != Err(Errno::INVAL) && rustix::io::pwrite(fd, page, 0) != Err(Errno::INVAL);
        works || set_direct(fd, false).is_err()
    }

    fn file(&self) -> Result<File<'_>, Errno> {
        let fd = self.raw_fd();
        if fd < 0 {
            return Err(Errno::BADF);
        }
        // SAFETY: the device owns the descriptor, and the borrow keeps it open.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        Ok(File {
            fd,
            #[cfg(test)]
            faults: self.faults.get(),
            #[cfg(all(feature = "faults", not(test)))]
            faults: crate::faults::installed(),
        })
    }

    /// Seals and writes runs of pages, each with its own result. Returns the number of I/Os.
    pub fn write_runs(&self, runs: &mut [WriteRun<'_>]) -> usize {
        let file = match self.file() {
            Ok(file) => file,
            Err(errno) => {
                runs.iter_mut().for_each(|run| run.result = Err(errno));
                return 0;
            }
        };
        runs.iter_mut().for_each(|run| run.result = Ok(()));
        let (mut at, mut ios) = ((0, 0), 0);
        while at.0 < runs.len() {
            at = self.write_round(file, runs, at, &mut ios);
        }
        ios
    }

    /// Fills available buffers from page `at.1` of run `at.0` on, and writes them; returns the next
    /// position.
    fn write_round(
        &self,
        file: File<'_>,
        runs: &mut [WriteRun<'_>],
        mut at: (usize, usize),
        ios: &mut usize,
    ) -> (usize, usize) {
        let left = runs[at.0..].iter().map(|run| run.pages.len()).sum::<usize>() - at.1;
        let mut held: ArrayVec<Buffer<'_>, MOST_BUFFERS> = ArrayVec::new();
        held.push(self.buffers.take());
        while held.len() * BUFFER_PAGES < left
            && !held.is_full()
            && let Some(buffer) = self.buffers.try_take()
        {
            held.push(buffer);
        }
        let mut batch: ArrayVec<Transfer<'_>, DEPTH> = ArrayVec::new();
        let mut owners: ArrayVec<usize, DEPTH> = ArrayVec::new();
        for buffer in &mut held {
            let mut room = buffer.pages().as_mut_slice();
            while !room.is_empty() && at.0 < runs.len() && !batch.is_full() {
                let (run, first) = (&mut runs[at.0], at.1);
                let n = (run.pages.len() - first).min(room.len());
                let (sealed, rest) = room.split_at_mut(n);
                room = rest;
                let slot = run.slot + first as u64;
                for (i, out) in sealed.iter_mut().enumerate() {
                    run.tags[first + i] = self.seal.seal(slot + i as u64, run.pages[first + i], out);
                }
                if n > 0 {
                    batch.push(Transfer { offset: slot * PAGE_SIZE as u64, pages: Pages::From(sealed) });
                    owners.push(at.0);
                }
                at = if first + n == run.pages.len() { (at.0 + 1, 0) } else { (at.0, first + n) };
            }
        }
        *ios += batch.len();
        self.perform(file, &mut batch, |i, result| {
            let run = &mut runs[owners[i]];
            run.result = run.result.and(result);
        });
        at
    }

    /// Seals runs of pages in place and writes each with one I/O and its own result.
    pub fn write_in_place(&self, runs: &mut [SealRun<'_>]) {
        let file = match self.file() {
            Ok(file) => file,
            Err(errno) => return runs.iter_mut().for_each(|run| run.result = Err(errno)),
        };
        self.perform_all(file, runs, |run| {
            for ((page, tag), slot) in run.pages.iter_mut().zip(run.tags.iter_mut()).zip(run.slot..) {
                *tag = self.seal.seal_in_place(slot, page);
            }
            Some((Transfer { offset: run.slot * PAGE_SIZE as u64, pages: Pages::From(run.pages) }, &mut run.result))
        });
    }

    /// Reads runs of sealed pages, each with its own result. The caller opens them.
    pub fn read_runs(&self, runs: &mut [ReadRun<'_>]) {
        let file = match self.file() {
            Ok(file) => file,
            Err(errno) => return runs.iter_mut().for_each(|run| run.result = Err(errno)),
        };
        self.perform_all(file, runs, |run| {
            let offset = run.slot * PAGE_SIZE as u64;
            if self.direct && !run.into.as_ptr().addr().is_multiple_of(PAGE_SIZE) {
                run.result = self.read_by_buffer(file, offset, run.into);
                return None;
            }
            Some((Transfer { offset, pages: Pages::Into(run.into) }, &mut run.result))
        });
    }

    fn perform_all<'r, R>(
        &self,
        file: File<'_>,
        runs: &'r mut [R],
        start: impl Fn(&'r mut R) -> Option<(Transfer<'r>, &'r mut Result<(), Errno>)>,
    ) {
        for runs in runs.chunks_mut(DEPTH) {
            let (mut batch, mut results): (ArrayVec<_, DEPTH>, ArrayVec<_, DEPTH>) = runs.iter_mut().filter_map(&start).unzip();
            self.perform(file, &mut batch, |i, result| *results[i] = result);
        }
    }

    /// Up to [`DEPTH`] transfers, at once if possible.
    fn perform(&self, file: File<'_>, batch: &mut [Transfer<'_>], mut done: impl FnMut(usize, Result<(), Errno>)) {
        let at_once = batch.len() > 1 && self.rings.as_ref().is_ok_and(|rings| rings.perform(file, batch, &mut done));
        if !at_once {
            batch.iter_mut().enumerate().for_each(|(i, transfer)| done(i, transfer.perform(file)));
        }
        batch.iter().for_each(|transfer| self.forget(file, transfer));
    }

    fn read_by_buffer(&self, file: File<'_>, offset: u64, into: &mut [Page]) -> Result<(), Errno> {
        let mut buffer = self.buffers.take();
        for (i, into) in into.chunks_mut(BUFFER_PAGES).enumerate() {
            let pages = &mut buffer.pages()[..into.len()];
            let offset = offset + (i * BUFFER_PAGES * PAGE_SIZE) as u64;
            Transfer { offset, pages: Pages::Into(pages) }.perform(file)?;
            into.copy_from_slice(pages);
        }
        Ok(())
    }

    /// See [`super::Device::open`].
    #[must_use]
    pub fn open(&self, slot: u64, tag: Tag, page: &mut Page) -> bool {
        self.seal.open(slot, tag, page)
    }

    /// See [`super::Device::tag`].
    pub fn tag(&self, slot: u64, page: &Page) -> Tag {
        self.seal.tag(slot, page)
    }

    /// Gives the space of `n` slots from `slot` on, except slot 0, back to the file system.
    ///
    /// # Errors
    /// The kernel's.
    pub fn discard(&self, slot: u64, n: u64) -> Result<(), Errno> {
        crate::lock::assert_holds_none();
        let file = self.file()?;
        // Slot 0 may hold the mark of a named file.
        let (first, end) = (slot.max(1), slot + n);
        if first >= end {
            return Ok(());
        }
        #[cfg(any(test, feature = "faults"))]
        if let Some(faults) = file.faults {
            super::faulty::touch(faults)?;
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(file.fd, flags, first * PAGE_SIZE as u64, (end - first) * PAGE_SIZE as u64)
    }

    /// Starts writeback, and drops clean data from the cache.
    fn forget(&self, file: File<'_>, transfer: &Transfer<'_>) {
        if self.direct {
            return;
        }
        let len = transfer.len() as u64;
        let _ = rustix::fs::fadvise(file.fd, transfer.offset, NonZeroU64::new(len), Advice::DontNeed);
        if let Pages::From(_) = transfer.pages {
            let before = self.written.fetch_add(len, Ordering::Relaxed);
            if before / FORGET_EVERY != (before + len) / FORGET_EVERY {
                let _ = rustix::fs::fadvise(file.fd, 0, None, Advice::DontNeed);
            }
        }
    }
}

/// Whether O_DIRECT works with pages, if the file system tells (ext4, xfs and block devices do). A
/// trial could wait for a busy disk, in an unwatched process near its limit.
fn takes_direct(fd: &OwnedFd) -> Option<bool> {
    let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let fits = |alignment: u32| (1..=PAGE_SIZE as u32).contains(&alignment);
    let tells = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    tells.then(|| fits(stat.stx_dio_mem_align) && fits(stat.stx_dio_offset_align))
}

fn set_direct(fd: &OwnedFd, on: bool) -> Result<(), Errno> {
    let mut flags = rustix::fs::fcntl_getfl(fd)?;
    flags.set(OFlags::DIRECT, on);
    rustix::fs::fcntl_setfl(fd, flags)
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
#[path = "file_tests.rs"]
mod tests;
