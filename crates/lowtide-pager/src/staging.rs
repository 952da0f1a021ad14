//! Staging: the inactive list. Pages detached from the program wait here, in order of detachment, before they are stored; a
//! fault in the meantime proves that the page is hot and takes it back by a MOVE.
//!
//! The area is registered with the same userfaultfd (only registered memory can receive a MOVE; and only then does the kernel
//! refuse to MOVE while an event waits). It is cut into segments of as many frames as the largest folio has, or fewer where
//! RAM is small. A segment is filled by one thread, queued, later drained by one thread, and emptied in one call.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use lowtide_core::lock::{Lock, rank};
use lowtide_core::table::Table;
use lowtide_core::vm::{self, Mapping, OnFork, PAGE_SIZE};
use rustix::io::Errno;

use crate::ids::{PageNo, StagingFrame};
use crate::uffd::Uffd;

/// Most frames in a segment: the largest folio.
pub const MAX_SEGMENT_FRAMES: usize = 512;
/// Frames in a segment of a small staging area: there the cost of a MOVE has nearly levelled out.
const SMALL_SEGMENT_FRAMES: usize = 128;
/// Frames whose memory is given back at a time: until the kernel has done it, they are counted. Each time the other CPUs are
/// interrupted.
const DISCARDED_FRAMES: usize = 128;
const _: () =
    assert!(SMALL_SEGMENT_FRAMES.is_multiple_of(DISCARDED_FRAMES) && MAX_SEGMENT_FRAMES.is_multiple_of(DISCARDED_FRAMES));
/// Bytes from which on an area has large segments.
const LARGE: usize = 16 << 20;
/// Most segments.
const MAX_SEGMENTS: usize = 160;

/// Segments for each one that the pages would fill without holes.
const HOLLOW: usize = 3;

/// A segment by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment(u8);

/// What became of the memory behind a frame whose page has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// It went with the page, by a MOVE.
    Went,
    /// It stays until the segment is discarded.
    Stays,
}

struct Queues {
    empty: [Segment; MAX_SEGMENTS],
    empty_len: usize,
    /// Ring of filled segments, oldest at `head`.
    full: [Segment; MAX_SEGMENTS],
    head: usize,
    full_len: usize,
}

/// The staging area.
pub struct Staging {
    memory: Mapping,
    /// By frame, the page whose bytes are in it, raw; 0: none.
    owners: Table<AtomicU64>,
    /// By frame, the raw entry under which the swap cache may hold a clean copy of the page; 0: none.
    cleans: Table<AtomicU64>,
    segments: usize,
    segment_frames: usize,
    queues: Lock<Queues, { rank::STAGING }>,
    staged: AtomicUsize,
    /// See [`Staging::set_target`].
    target: AtomicUsize,
    /// By segment, frames that nobody owns and that still have memory behind them.
    spent: [AtomicU32; MAX_SEGMENTS],
    /// Segments that are never used again.
    lost: AtomicUsize,
}

impl Staging {
    /// A staging area of `target` bytes (rounded up to segments) and two segments to work with.
    ///
    /// # Errors
    /// `NOMEM`.
    pub fn new(target: usize) -> Result<Staging, Errno> {
        let segment_frames = if target < LARGE { SMALL_SEGMENT_FRAMES } else { MAX_SEGMENT_FRAMES };
        let segment_bytes = segment_frames * PAGE_SIZE;
        let segments = (target.div_ceil(segment_bytes).max(1) * HOLLOW + 2).min(MAX_SEGMENTS);
        let mut empty = [Segment(0); MAX_SEGMENTS];
        for (i, s) in empty.iter_mut().take(segments).enumerate() {
            *s = Segment((segments - 1 - i) as u8);
        }
        Ok(Staging {
            memory: vm::map(segments * segment_bytes, OnFork::Copy)?,
            owners: Table::new(segments * segment_frames, OnFork::Copy)?,
            cleans: Table::new(segments * segment_frames, OnFork::Copy)?,
            segments,
            segment_frames,
            queues: Lock::new(Queues { empty, empty_len: segments, full: [Segment(0); MAX_SEGMENTS], head: 0, full_len: 0 }),
            staged: AtomicUsize::new(0),
            target: AtomicUsize::new(target),
            spent: [const { AtomicU32::new(0) }; MAX_SEGMENTS],
            lost: AtomicUsize::new(0),
        })
    }

    /// Registers the whole area with `uffd`.
    ///
    /// # Errors
    /// Those of UFFDIO_REGISTER.
    pub fn register(&self, uffd: &Uffd) -> Result<(), Errno> {
        // SAFETY: lowtide touches no frame that is empty, and nobody else knows the area.
        unsafe { uffd.register(self.memory.addr(), self.memory.len()) }
    }

    /// How many bytes of pages are to wait here at most, from now on: less than there is room for where other processes of the
    /// run have staging areas too.
    pub fn set_target(&self, bytes: usize) {
        self.target.store(bytes, Ordering::Relaxed);
    }

    /// Whether more pages wait than should, or they are spread over nearly all segments.
    pub fn is_above_target(&self) -> bool {
        self.staged() * PAGE_SIZE > self.target.load(Ordering::Relaxed) || self.empty_segments() < 2
    }

    /// Whether enough of them wait for the keeper to store some: less than the target, so that there is room for many before it
    /// is needed again.
    pub fn is_worth_draining(&self) -> bool {
        let target = self.target.load(Ordering::Relaxed);
        self.staged() * PAGE_SIZE > target - target / 4 || self.empty_segments() < self.segments / 3
    }

    /// Whether `addr` is in the area.
    pub fn contains(&self, addr: usize) -> bool {
        self.addresses().contains(&addr)
    }

    /// Address of a frame.
    pub fn addr(&self, frame: StagingFrame) -> usize {
        assert!(frame.index() < self.owners.len(), "no such frame of staging");
        self.memory.addr() + frame.index() * PAGE_SIZE
    }

    /// First frame of a segment.
    pub fn first(&self, segment: Segment) -> StagingFrame {
        StagingFrame::new(u32::from(segment.0) * self.segment_frames as u32)
    }

    /// Frames in a segment.
    pub fn segment_frames(&self) -> usize {
        self.segment_frames
    }

    /// The frames of a segment.
    pub fn frames(&self, segment: Segment) -> impl Iterator<Item = StagingFrame> {
        let first = self.first(segment);
        first.up_to(first + self.segment_frames)
    }

    /// Whether two frames are of one segment.
    pub fn same_segment(&self, a: StagingFrame, b: StagingFrame) -> bool {
        a.index() / self.segment_frames == b.index() / self.segment_frames
    }

    /// Notes the raw entry under which the swap cache may hold a clean copy of the page in `frame`; 0: none. By who may change
    /// the page's word.
    pub fn set_clean(&self, frame: StagingFrame, raw: u64) {
        self.cleans[frame.index()].store(raw, Ordering::Release);
    }

    /// Takes that entry out; 0: there is none. By who may change the page's word.
    pub fn take_clean(&self, frame: StagingFrame) -> u64 {
        self.cleans[frame.index()].swap(0, Ordering::AcqRel)
    }

    /// The page whose bytes are in `frame`. Changed with the shared space lock by the thread that moves the page, and by REMAP
    /// events with the exclusive one.
    pub fn owner(&self, frame: StagingFrame) -> Option<PageNo> {
        PageNo::from_raw(self.owners[frame.index()].load(Ordering::Acquire))
    }

    /// The page in `frame` belongs elsewhere from now on: a REMAP event, with the space lock held exclusively.
    pub fn set_owner(&self, frame: StagingFrame, page: PageNo) {
        self.owners[frame.index()].store(page.raw(), Ordering::Release);
    }

    /// A page arrived in `frame`. False: the frame had an owner, which must not be.
    #[must_use]
    pub fn arrived(&self, frame: StagingFrame, page: PageNo) -> bool {
        self.staged.fetch_add(1, Ordering::Relaxed);
        self.owners[frame.index()].swap(page.raw(), Ordering::AcqRel) == 0
    }

    /// The bytes in `frame` belong to nobody any more.
    pub fn left(&self, frame: StagingFrame, memory: Memory) {
        if self.owners[frame.index()].swap(0, Ordering::AcqRel) != 0 {
            if memory == Memory::Stays {
                self.spent[frame.index() / self.segment_frames].fetch_add(1, Ordering::Relaxed);
            }
            self.staged.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Pages that wait in staging.
    pub fn staged(&self) -> usize {
        self.staged.load(Ordering::Relaxed)
    }

    /// Bytes of memory behind the frames: pages that wait, and pages that have left but for their bytes. Exact when no other
    /// call is in flight.
    pub fn held_bytes(&self) -> usize {
        let spent = self.spent[..self.segments].iter().map(|n| n.load(Ordering::Relaxed) as usize).sum::<usize>();
        (self.staged() + spent) * PAGE_SIZE
    }

    /// Addresses of the frames.
    pub fn addresses(&self) -> core::ops::Range<usize> {
        self.memory.addr()..self.memory.addr() + self.memory.len()
    }

    /// An empty segment to fill.
    pub fn take_empty(&self) -> Option<Segment> {
        let mut q = self.queues.lock();
        q.empty_len = q.empty_len.checked_sub(1)?;
        Some(q.empty[q.empty_len])
    }

    /// How many segments are empty.
    pub fn empty_segments(&self) -> usize {
        self.queues.lock().empty_len
    }

    /// Gives back a segment none of whose frames is populated.
    pub fn put_empty(&self, segment: Segment) {
        let mut q = self.queues.lock();
        let n = q.empty_len;
        q.empty[n] = segment;
        q.empty_len = n + 1;
    }

    /// A segment that is in no queue can't be used any more.
    pub fn lose(&self, _: Segment) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether that has become of all of them: no page can wait here ever again.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed) >= self.segments
    }

    /// Queues a filled segment as the youngest.
    pub fn put_full(&self, segment: Segment) {
        let mut q = self.queues.lock();
        let at = (q.head + q.full_len) % MAX_SEGMENTS;
        q.full[at] = segment;
        q.full_len += 1;
    }

    /// The oldest filled segment.
    pub fn take_full(&self) -> Option<Segment> {
        let mut q = self.queues.lock();
        q.full_len = q.full_len.checked_sub(1)?;
        let segment = q.full[q.head];
        q.head = (q.head + 1) % MAX_SEGMENTS;
        Some(segment)
    }

    /// From here on a frame of the segment that has lost its page reads as zeros, instead of a fault that its reader itself
    /// might have to serve. Pages can still be moved out.
    pub fn unregister(&self, segment: Segment, uffd: &Uffd) {
        let bytes = self.segment_frames * PAGE_SIZE;
        // What can't be unregistered (the kernel allows only so many mappings) is read as it is.
        // SAFETY: nobody moves pages into a segment that was taken from the queue of filled ones.
        let _ = unsafe { uffd.unregister(self.memory.addr() + segment.0 as usize * bytes, bytes) };
    }

    /// Gives the memory of a drained segment back to the kernel, and calls `step` after each part. No event is raised: the
    /// range is unregistered meanwhile.
    ///
    /// # Errors
    /// Those of registering again: the segment must then never be used.
    pub fn discard(&self, segment: Segment, uffd: &Uffd, mut step: impl FnMut()) -> Result<(), Errno> {
        let bytes = self.segment_frames * PAGE_SIZE;
        let offset = segment.0 as usize * bytes;
        // SAFETY: every frame of the segment has left (the drainer checked each under the space lock), and the segment is in no
        // queue, so that no thread moves pages from or to it.
        unsafe {
            uffd.unregister(self.memory.addr() + offset, bytes)?;
            let spent = &self.spent[segment.0 as usize];
            let mut parts = (self.segment_frames / DISCARDED_FRAMES) as u32;
            let part = bytes / parts as usize;
            for at in (offset..offset + bytes).step_by(part) {
                self.memory.discard(at, part);
                // Which frames had memory behind them is not known: as if all parts were alike.
                spent.fetch_sub(spent.load(Ordering::Relaxed) / parts, Ordering::Relaxed);
                parts -= 1;
                step();
            }
            uffd.register(self.memory.addr() + offset, bytes)
        }
    }

    /// Frees the lock whoever holds it.
    ///
    /// # Safety
    /// As [`Lock::reset_after_fork`].
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: handed on to the caller.
        unsafe { self.queues.reset_after_fork() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_come_out_in_the_order_they_went_in() {
        let s = Staging::new(3 * SMALL_SEGMENT_FRAMES * PAGE_SIZE).unwrap();
        assert_eq!(s.empty_segments(), 3 * HOLLOW + 2);
        let (a, b) = (s.take_empty().unwrap(), s.take_empty().unwrap());
        assert_ne!(a, b);
        s.put_full(a);
        s.put_full(b);
        assert_eq!(s.take_full(), Some(a));
        s.put_empty(a);
        assert_eq!(s.take_full(), Some(b));
        assert_eq!(s.take_full(), None);
        s.put_empty(b);
        assert_eq!(s.empty_segments(), 3 * HOLLOW + 2);
        assert!(s.arrived(s.first(b), PageNo::new(77)));
        assert!(!s.arrived(s.first(b), PageNo::new(78)), "the frame is taken");
        s.staged.fetch_sub(1, Ordering::Relaxed);
        assert_eq!(s.held_bytes(), PAGE_SIZE);
        s.left(s.first(b), Memory::Went);
        s.left(s.first(b), Memory::Stays);
        assert_eq!((s.staged(), s.held_bytes()), (0, 0), "leaving twice counts once");
        assert!(s.arrived(s.first(b), PageNo::new(79)));
        s.left(s.first(b), Memory::Stays);
        assert_eq!((s.staged(), s.held_bytes()), (0, PAGE_SIZE), "the bytes are there until the segment is discarded");
    }
}
