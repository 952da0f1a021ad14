//! A swap file: a regular file or a block device.
//!
//! It is read and written past the page cache (O_DIRECT) where its file system can do that: a page that was just swapped out
//! would otherwise stay in RAM for a while, outside of the limit. Where it can't, the cache is told to forget what was moved.
//! Several transfers at once go through io_uring where that is allowed, which takes a quarter of the time on a disk with
//! queues; a single one is a plain system call.

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

/// Without O_DIRECT: after this many bytes written, what has reached the disk by then is dropped from the page cache.
const FORGET_EVERY: u64 = 4 << 20;

/// An open swap file; it is closed with the value.
#[derive(Debug)]
pub struct FileDevice {
    /// Negative: none.
    fd: AtomicI32,
    name: DeviceName,
    seal: Seal,
    buffers: Buffers,
    /// `Err`: why there are none.
    rings: Result<Rings, Errno>,
    direct: bool,
    /// Without O_DIRECT: bytes written.
    written: AtomicU64,
    /// What goes wrong.
    #[cfg(test)]
    pub(crate) faults: std::sync::OnceLock<crate::faults::Faults>,
}

impl FileDevice {
    /// The device on an open file, with fresh keys. Finds out whether O_DIRECT works: the kernel tells, or else by reading and
    /// writing slot 0, which no area gives out.
    ///
    /// # Errors
    /// `NOMEM` without memory for its buffers; the errors of getrandom.
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

    /// What the user calls it.
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
    /// Why not: `PERM` or `NOSYS` where it is not allowed or not there.
    pub fn has_rings(&self) -> Result<(), Errno> {
        self.rings.as_ref().map(drop).map_err(|errno| *errno)
    }

    /// Makes a regular file without a name that is shorter this many bytes long, without giving it space: writes inside its
    /// length go on at the same time, those that make it longer do not. Where that can't be done nothing is lost. Files with
    /// names stay as they are: they may lie on a file system without holes (FAT), which would write all of it now. Those
    /// without are only where there are holes.
    pub fn lengthen(&self, bytes: u64) {
        let Ok(file) = self.file() else { return };
        if rustix::fs::fstat(file.fd)
            .is_ok_and(|s| FileType::from_raw_mode(s.st_mode).is_file() && s.st_nlink == 0 && (s.st_size as u64) < bytes)
        {
            let _ = rustix::fs::ftruncate(file.fd, bytes);
        }
    }

    /// Number of the descriptor; negative if there is none.
    pub fn raw_fd(&self) -> i32 {
        self.fd.load(Ordering::Relaxed)
    }

    /// Puts another descriptor of the same file, or none, in the place of this one, which is NOT closed: for a forked child,
    /// where it is not valid. This process may have no call in flight; calls that threads of the parent had in flight do not
    /// matter.
    pub fn replace(&self, fd: Option<OwnedFd>) {
        self.buffers.reset_after_fork();
        if let Ok(rings) = &self.rings {
            rings.forget();
        }
        if let Some(fd) = &fd
            && self.direct
        {
            // It worked for this file before; if not now, then it costs page cache and nothing else.
            let _ = set_direct(fd, true);
        }
        self.fd.store(fd.map_or(-1, OwnedFd::into_raw_fd), Ordering::Relaxed);
    }

    /// Leaves O_DIRECT on if it works.
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
        // What a named file has there stays.
        let works =
            rustix::io::pread(fd, &mut *page, 0) != Err(Errno::INVAL) && rustix::io::pwrite(fd, page, 0) != Err(Errno::INVAL);
        works || set_direct(fd, false).is_err()
    }

    fn file(&self) -> Result<File<'_>, Errno> {
        let fd = self.raw_fd();
        if fd < 0 {
            return Err(Errno::BADF);
        }
        // SAFETY: the device owns the descriptor and closes it when it is dropped, which the borrow forbids.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        Ok(File {
            fd,
            #[cfg(test)]
            faults: self.faults.get(),
            #[cfg(all(feature = "faults", not(test)))]
            faults: crate::faults::installed(),
        })
    }

    /// Seals and writes runs of pages; each run gets its own result. Returns with how many I/Os (as far as the kernel does not
    /// split them): one for each run, and for each buffer that a long one fills.
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

    /// Writes what the buffers that can be had now have room for, from page `at.1` of run `at.0` on; returns where to go on.
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

    /// Seals runs of pages where they are and writes each with one I/O; each run gets its own result.
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

    /// Reads runs of sealed pages; each run gets its own result, and each page is then to be opened.
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

    /// Performs a transfer for each run, but for those that need none, as many at once as possible. `start`: the transfer, and
    /// what receives its result.
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

    /// Performs up to [`DEPTH`] transfers, all at once if that is possible, and hands the result of each to `done`.
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

    /// Makes a page that was read from `slot` what was written there, in place. False: it is not the page that got this tag
    /// when it was written to this slot of this device; `page` then holds garbage.
    #[must_use]
    pub fn open(&self, slot: u64, tag: Tag, page: &mut Page) -> bool {
        self.seal.open(slot, tag, page)
    }

    /// The tag that `page` would get in `slot`: a page has one tag in a slot, and no other page has it.
    pub fn tag(&self, slot: u64, page: &Page) -> Tag {
        self.seal.tag(slot, page)
    }

    /// Gives the space of `n` slots from `slot` on, except slot 0, back to the file system; what they held is gone.
    ///
    /// # Errors
    /// What the kernel says.
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

    /// Without O_DIRECT: begins to write a transfer's bytes to the disk and drops from the page cache what is there already.
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

/// Whether pages can be read and written past the page cache, if the file system tells (ext4, xfs and block devices do). To try
/// may wait for a busy disk, in a process that is about to come to its limit and that nobody watches meanwhile.
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
