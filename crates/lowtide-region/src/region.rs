//! A region.

use std::ops::{Bound, RangeBounds};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use lowtide_core::vm::PAGE_SIZE;
use lowtide_pager::fault::BringIn;
use lowtide_pager::reclaim::Evicted;
use lowtide_sys::Range;

use crate::error::Error;
use crate::fork::Process;
use crate::group::Group;
use crate::instance::Instance;
use crate::pins::Pins;
use crate::stats::Stats;
use crate::{registry, signals};

/// A region of memory that may be larger than RAM; zeros at first. [The crate's
/// documentation](crate) covers system calls, signals and forks.
///
/// Dropping it unmaps it. Threads may share it.
#[derive(Debug)]
pub struct Region {
    start: NonNull<u8>,
    len: usize,
    whole: usize,
    process: Process,
    pins: Mutex<Pins>,
    group: Group,
}

// SAFETY: owns its memory, like a Vec.
unsafe impl Send for Region {}
// SAFETY: like a Vec; locks protect what changes under `&self`.
unsafe impl Sync for Region {}

impl Region {
    /// `len` bytes in `whole` fresh bytes at `start`, between two inaccessible pages.
    ///
    /// # Errors
    /// [`Error::System`]: registration failed; the memory is unmapped.
    pub(crate) fn over(start: NonNull<u8>, len: usize, whole: usize, group: Group) -> Result<Region, Error> {
        let instance = group.instance()?;
        let range = Range { start: start.as_ptr() as usize, end: start.as_ptr() as usize + whole };
        let region = Region { start, len, whole, process: Process::this(), pins: Mutex::default(), group };
        registry::enter(range.start, range.end, instance);
        instance.register(range).map_err(|errno| Error::System { what: "registering the region with userfaultfd", errno })?;
        Ok(region)
    }

    /// Bytes of the region.
    #[allow(clippy::len_without_is_empty)] // there is no empty one
    pub fn len(&self) -> usize {
        self.len
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// The first byte, to write as well. As long as a slice of [`Region::as_slice`] lives, its
    /// bytes must not be written.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// All bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped and initialised for `len` bytes while this lives; `&self` excludes safe
        // writers.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// All bytes, to write as well.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` excludes all others.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Its group, for more regions with the same limit.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The figures of its group.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn stats(&self) -> Result<Stats, Error> {
        self.group.stats()
    }

    /// Changes the RAM limit of its group: see [`Group::set_ram`].
    ///
    /// # Errors
    /// As there.
    pub fn set_ram(&self, bytes: u64) -> Result<(), Error> {
        self.group.set_ram(bytes)
    }

    /// Brings in the evicted pages of a range. A hint: beyond the RAM limit, the first are evicted
    /// again.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Empty`], [`Error::Forked`]; [`Error::Lost`]: a page can't be
    /// read back.
    pub fn prefetch(&self, range: impl RangeBounds<usize>) -> Result<(), Error> {
        let range = self.pages(range)?;
        self.bring_in(range, BringIn::Evicted)
    }

    pub(crate) fn bring_in(&self, range: Range, which: BringIn) -> Result<(), Error> {
        let instance = self.instance()?;
        for part in parts(range) {
            match instance.with_worker(|pager, worker| pager.bring_in(part, which, worker)) {
                Ok(true) => {}
                Ok(false) => return Err(Error::Lost),
                Err(errno) => return Err(Error::System { what: "asking which pages are in memory", errno }),
            }
        }
        Ok(())
    }

    /// Evicts the pages of a range and returns when they are stored. Guarded pages, and those
    /// without room in swap, stay.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Empty`], [`Error::Forked`].
    pub fn evict(&self, range: impl RangeBounds<usize>) -> Result<(), Error> {
        let range = self.pages(range)?;
        let instance = self.instance()?;
        for part in parts(range) {
            // The page map is briefly being tidied up.
            while instance.with_worker(|pager, worker| pager.evict_range(part, worker)) == Evicted::Later {
                rustix::thread::sched_yield();
            }
        }
        Ok(())
    }

    /// Sets a range to zeros and frees its memory and swap: whole pages at once, the rest by
    /// writing.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Empty`], [`Error::Forked`]; [`Error::Guarded`]: a guard
    /// keeps some of it in memory.
    pub fn drop_range(&mut self, range: impl RangeBounds<usize>) -> Result<(), Error> {
        let (start, end) = self.bounds(range)?;
        // SAFETY: `&mut self` excludes all others.
        unsafe { self.drop_shared(start, end) }
    }

    /// [`Region::drop_range`] for memory shared with other languages.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// No code relies on the bytes of `start .. end` or has a reference into them.
    pub unsafe fn drop_shared(&self, start: usize, end: usize) -> Result<(), Error> {
        let (start, end) = self.bounds(start..end)?;
        let instance = self.instance()?;
        // Held until the pages are gone, so that no guard begins.
        let pins = self.pins();
        if pins.overlap(self.pages_of(start, end)) {
            return Err(Error::Guarded);
        }
        let first = start.next_multiple_of(PAGE_SIZE);
        // The last page's tail is unused.
        let last = if end == self.len { self.whole } else { end - end % PAGE_SIZE };
        // SAFETY: inside the region; the caller answers for references.
        let fill = |from: usize, to: usize| unsafe { self.start.as_ptr().add(from).write_bytes(0, to.saturating_sub(from)) };
        fill(start, first.min(end));
        if first < last {
            let base = self.start.as_ptr() as usize;
            let range = Range { start: base + first, end: base + last };
            let _blocked = signals::block();
            // SAFETY: the caller relies on none of the bytes.
            unsafe { instance.pager.drop_pages(range) }.map_err(|errno| Error::System { what: "giving memory back", errno })?;
        }
        fill(last.max(first.min(end)), end);
        Ok(())
    }

    /// Whether a guard keeps a part in memory.
    pub fn is_guarded(&self) -> bool {
        !self.pins().is_empty()
    }

    pub(crate) fn pins(&self) -> std::sync::MutexGuard<'_, Pins> {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn instance(&self) -> Result<&'static Instance, Error> {
        self.process.must_be_this()?;
        self.group.instance()
    }

    pub(crate) fn bounds(&self, range: impl RangeBounds<usize>) -> Result<(usize, usize), Error> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(end) => end.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.len,
        };
        if start > end || end > self.len {
            return Err(Error::OutOfRange { start, end, len: self.len });
        }
        if start == end {
            return Err(Error::Empty);
        }
        Ok((start, end))
    }

    fn pages(&self, range: impl RangeBounds<usize>) -> Result<Range, Error> {
        let (start, end) = self.bounds(range)?;
        Ok(self.pages_of(start, end))
    }

    pub(crate) fn pages_of(&self, start: usize, end: usize) -> Range {
        let base = self.start.as_ptr() as usize;
        Range { start: base + start - start % PAGE_SIZE, end: base + end.next_multiple_of(PAGE_SIZE) }
    }
}

/// Each takes a worker and blocks signals, so they are short.
fn parts(range: Range) -> impl Iterator<Item = Range> {
    const PART: usize = 2 << 20;
    (range.start..range.end).step_by(PART).map(move |start| Range { start, end: range.end.min(start + PART) })
}

impl AsRef<[u8]> for Region {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsMut<[u8]> for Region {
    fn as_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // In a forked child other memory may be there.
        let Ok(instance) = self.instance() else { return };
        let range = self.pages_of(0, self.len);
        registry::leave(range.start);
        let kept: u64 = self.pins().drain_all();
        instance.resident.fetch_sub(kept, Ordering::Relaxed);
        let _blocked = signals::block();
        // SAFETY: no reference into the region is left.
        unsafe {
            let _ = instance.pager.let_go(range);
            let _ = rustix::mm::munmap((range.start - PAGE_SIZE) as *mut _, self.whole + 2 * PAGE_SIZE);
        }
    }
}
