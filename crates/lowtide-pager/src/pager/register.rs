//! Registers memory and makes it evictable.

use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use lowtide_core::vm;
use lowtide_sys::Range;
use lowtide_sys::uffd::Standing;
use rustix::io::Errno;
use rustix::mm::MsyncFlags;

use super::Pager;
use crate::mappings::going::Gone;
use crate::pagemap::END;
use crate::pagemap::ids::PageNo;
use crate::pages::space::Exclusive;

/// With more gaps, sentinels are sought in the whole range.
const MOST_GAPS: usize = 8;

impl Pager {
    /// Whether the byte at `addr` is registered.
    pub fn has_registered(&self, addr: usize) -> bool {
        self.mappings.regions.find(&self.pages.space.shared(), addr).is_some()
    }

    /// Whether one mapping contains `low` and the higher `high`; false on errors.
    pub fn are_in_one_mapping(&self, low: usize, high: usize) -> bool {
        matches!(self.present().mappings.find(low), Ok(Some(mapping)) if high < mapping.end)
    }

    /// Registers new memory.
    ///
    /// # Errors
    /// Those of UFFDIO_REGISTER; `NOMEM`: too many ranges; `EXIST`: lowtide's memory; `AGAIN`:
    /// mappings are changing; `RANGE`: beyond the page map.
    pub fn register(&self, range: Range) -> Result<(), Errno> {
        self.register_with(&self.pages.space.exclusive(), range)
    }

    /// Registers used memory, for the thread that sets sentinels ([`Pager::set_sentinels`]).
    ///
    /// # Errors
    /// As [`Pager::register`].
    pub fn register_used(&self, range: Range) -> Result<(), Errno> {
        let lock = self.pages.space.exclusive();
        let new: ArrayVec<Range, MOST_GAPS> = self.mappings.regions.gaps(&lock, range).take(MOST_GAPS).collect();
        self.register_with(&lock, range)?;
        match new.is_full() {
            false => new.into_iter().for_each(|gap| self.needs_sentinels(&lock, gap)),
            true => self.needs_sentinels(&lock, range),
        }
        Ok(())
    }

    fn register_with(&self, lock: &Exclusive<'_>, range: Range) -> Result<(), Errno> {
        self.forget_unregistered(lock, range)?;
        if self.mappings.regions.covers(lock, range) {
            return Ok(());
        }
        if PageNo::behind(range.end) > END {
            return Err(Errno::RANGE);
        }
        // SAFETY: handlers serve missing pages once the lock is free.
        let register = || unsafe { self.register_with_kernel(range) };
        vm::unless_own(range.start, range.end, register).ok_or(Errno::EXIST)??;
        // Normally none. But threads that change mappings past the C library can leave words, which
        // would give untouched pages old bytes.
        for gap in self.mappings.regions.gaps(lock, range) {
            self.gone(lock, gap, Gone::Already);
        }
        if self.insert_registered(lock, range)? {
            return Ok(());
        }
        // SAFETY: nothing of the range has been evicted yet.
        unsafe { self.uffd().unregister(range.start, range.end - range.start)? };
        Err(Errno::NOMEM)
    }

    /// Registers memory as [`Pager::watched`] says.
    ///
    /// # Safety
    /// Missing pages in the range must be served.
    pub(crate) unsafe fn register_with_kernel(&self, range: Range) -> Result<(), Errno> {
        // SAFETY: the caller's obligation.
        unsafe { self.uffd().register(range.start, range.end - range.start, self.watched()) }
    }

    /// Notes writable executable memory: evictions check protections from now on. Even on small
    /// signal stacks.
    #[inline]
    pub fn sees_code(&self) {
        if !self.mappings.has_code.load(Ordering::Relaxed) {
            self.mappings.has_code.store(true, Ordering::Relaxed);
        }
    }

    /// The same if the caller may map memory. False: such memory stays, because nothing may become
    /// executable.
    pub fn takes_code(&self) -> bool {
        self.sees_code();
        self.pages.staging.takes_code()
    }

    /// Whether that was noted, here or in a parent.
    pub(crate) fn has_code(&self) -> bool {
        self.mappings.has_code.load(Ordering::Relaxed)
    }

    /// Notes memory immovable while read-only, if the ioctl works.
    pub(crate) fn sees_unwritable(&self) {
        self.mappings.has_unwritable.store(true, Ordering::Relaxed);
    }

    /// Whether evictions check protections.
    pub(crate) fn asks_protection(&self) -> bool {
        self.has_code() || self.mappings.has_unwritable.load(Ordering::Relaxed)
    }

    /// Records a registered range. The kernel skips unmapped parts: if some was unmapped without an
    /// event, later mappings there would be evicted but not served. False: full.
    fn insert_registered(&self, lock: &Exclusive<'_>, range: Range) -> Result<bool, Errno> {
        match self.present().mappings.is_one(range) {
            // An event reports any unmapping since.
            Some(true) => Ok(self.mappings.regions.insert(lock, range)),
            Some(false) => {
                let mut inserted = true;
                self.each_registered(range, |part| inserted &= self.mappings.regions.insert(lock, part))?;
                Ok(inserted)
            }
            None => {
                // SAFETY: an asynchronous msync only looks for holes.
                unsafe { rustix::mm::msync(range.start as *mut _, range.end - range.start, MsyncFlags::ASYNC) }
                    .map_err(|_| Errno::AGAIN)?;
                Ok(self.mappings.regions.insert(lock, range))
            }
        }
    }

    /// Calls `f` with registered parts. `AGAIN`: mappings are changing, with events to come.
    fn each_registered(&self, range: Range, mut f: impl FnMut(Range)) -> Result<(), Errno> {
        self.present().mappings.each_part(range, |part| {
            // The first page represents a mapping, even if cut since.
            match self.uffd().standing(part.start) {
                Standing::Changing => return Err(Errno::AGAIN),
                Standing::Registered => f(part),
                Standing::NotRegistered => {}
            }
            Ok(())
        })
    }
}
