//! How a range of the program's memory is adopted: registered, and then evictable.

use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use lowtide_core::vm;
use rustix::io::Errno;
use rustix::mm::MsyncFlags;

use super::Pager;
use crate::mappings::going::Gone;
use crate::mappings::regions::Range;
use crate::mappings::space::Exclusive;
use crate::pagemap::END;
use crate::pagemap::ids::PageNo;
use crate::sys::uffd::{Standing, Watched};

/// Of a range with more parts that are not adopted yet all of it is looked through for sentinels.
const MOST_GAPS: usize = 8;

impl Pager {
    /// Whether the byte at `addr` is adopted.
    pub fn has_adopted(&self, addr: usize) -> bool {
        self.regions.find(&self.space.shared(), addr).is_some()
    }

    /// Whether two addresses of the program, in this order, are in one mapping. False too where the kernel does not say.
    pub fn are_in_one_mapping(&self, low: usize, high: usize) -> bool {
        matches!(self.present().mappings.find(low), Ok(Some(mapping)) if high < mapping.end)
    }

    /// Adopts memory that is new: registers it, so that its missing pages are served from now on, and makes it evictable.
    ///
    /// # Errors
    /// Those of UFFDIO_REGISTER; `NOMEM`: too many ranges; `EXIST`: lowtide's own memory is there by now; `AGAIN`: the mappings
    /// of the range are changing just now; `RANGE`: pages of it can have no words.
    pub fn adopt(&self, range: Range) -> Result<(), Errno> {
        self.adopt_with(&self.space.exclusive(), range)
    }

    /// Adopts memory that the program has used before. By the thread that sets sentinels ([`Pager::set_sentinels`]).
    ///
    /// # Errors
    /// As [`Pager::adopt`].
    pub fn adopt_used(&self, range: Range) -> Result<(), Errno> {
        let lock = self.space.exclusive();
        let new: ArrayVec<Range, MOST_GAPS> = self.regions.gaps(&lock, range).take(MOST_GAPS).collect();
        self.adopt_with(&lock, range)?;
        match new.is_full() {
            false => new.into_iter().for_each(|gap| self.needs_sentinels(&lock, gap)),
            true => self.needs_sentinels(&lock, range),
        }
        Ok(())
    }

    fn adopt_with(&self, lock: &Exclusive<'_>, range: Range) -> Result<(), Errno> {
        self.forget_unregistered(lock, range)?;
        if self.regions.covers(lock, range) {
            return Ok(());
        }
        if PageNo::behind(range.end) > END {
            return Err(Errno::RANGE);
        }
        self.will_register(lock, range);
        vm::unless_own(range.start, range.end, || self.register(lock, range)).ok_or(Errno::EXIST)??;
        // There should be none; but where a program changes its mappings past the C library from several threads, words may
        // have been left behind, and would give old bytes to pages that were never touched.
        for gap in self.regions.gaps(lock, range) {
            self.gone(lock, gap, Gone::Already);
        }
        if self.insert_registered(lock, range)? {
            return Ok(());
        }
        // SAFETY: nothing of the range has been evicted yet.
        unsafe { self.uffd().unregister(range.start, range.end - range.start)? };
        Err(Errno::NOMEM)
    }

    /// Registers a range, of which parts may be adopted. The monitors serve every fault, once this thread has let go of the lock.
    fn register(&self, lock: &Exclusive<'_>, range: Range) -> Result<(), Errno> {
        // SAFETY: as said.
        match unsafe { self.uffd().register(range.start, range.end - range.start, self.watched()) } {
            Err(Errno::INVAL) if self.watched() == Watched::Accesses => {}
            result => return result,
        }
        // A part is inaccessible.
        for gap in self.regions.gaps(lock, range) {
            let mut at = gap.start;
            while let Some(mapping) = self.present().mappings.next(at)?.filter(|mapping| mapping.start < gap.end) {
                let part = Range { start: mapping.start.max(at), end: mapping.end.min(gap.end) };
                // SAFETY: as above.
                unsafe { self.register_mapping(part)? };
                at = part.end;
            }
        }
        Ok(())
    }

    /// Registers one mapping, or a part of it. One that is inaccessible can't tell of accesses before [`Pager::made_accessible`]:
    /// to the hand its pages are some that were not accessed.
    ///
    /// # Errors
    /// Those of UFFDIO_REGISTER.
    ///
    /// # Safety
    /// From now on every missing page in the range must be served.
    pub(crate) unsafe fn register_mapping(&self, range: Range) -> Result<(), Errno> {
        // SAFETY: the caller answers.
        let register = |watched| unsafe { self.uffd().register(range.start, range.end - range.start, watched) };
        match (register(self.watched()), self.watched()) {
            (Err(Errno::INVAL), Watched::Accesses) => {
                register(Watched::Missing)?;
                self.has_inaccessible.store(true, Ordering::Relaxed);
                Ok(())
            }
            (result, _) => result,
        }
    }

    /// Whether [`Pager::made_accessible`] may have something to do: not without accessed bits. For each call of mprotect, also
    /// of signal handlers on small stacks.
    #[inline]
    pub fn has_inaccessible(&self) -> bool {
        self.has_inaccessible.load(Ordering::Relaxed)
    }

    /// The program has made memory accessible: what is adopted of it can tell of accesses from now on, and is one mapping with
    /// its neighbours that do, as the program may rely on (`mremap`). By any thread of the program, inside the gate.
    // By itself: it takes 4 KiB of stack, which callers must have only where there is something to do.
    #[cold]
    #[inline(never)]
    pub fn made_accessible(&self, range: Range) {
        let mut at = range.start;
        while let Ok(Some(mapping)) = self.present().mappings.next(at)
            && mapping.start < range.end
        {
            if self.uffd().standing(mapping.start) == Standing::Registered {
                // SAFETY: it is registered, so its missing pages are served. An error: it is inaccessible still.
                let _ = unsafe { self.uffd().register(mapping.start, mapping.end - mapping.start, self.watched()) };
            }
            at = mapping.end;
        }
    }

    /// Some of the program's memory may be written and executed: from now on who evicts asks the kernel which. By any thread, of
    /// signal handlers on small stacks too.
    #[inline]
    pub fn sees_code(&self) {
        if !self.has_code.load(Ordering::Relaxed) {
            self.has_code.store(true, Ordering::Relaxed);
        }
    }

    /// The same by a thread that may map memory. False: such memory can't be evicted, as nothing can be made executable any more.
    pub fn takes_code(&self) -> bool {
        self.sees_code();
        self.staging.takes_code()
    }

    /// Whether [`Pager::sees_code`] was called, here or in a process that this one was forked from.
    pub(crate) fn has_code(&self) -> bool {
        self.has_code.load(Ordering::Relaxed)
    }

    /// Some of the program's memory can't be moved, because it may not be written now, and the kernel answers single questions: as
    /// for [`Pager::sees_code`].
    pub(crate) fn sees_unwritable(&self) {
        self.has_unwritable.store(true, Ordering::Relaxed);
    }

    /// Whether who evicts asks the kernel for the protection of what was found.
    pub(crate) fn asks_protection(&self) -> bool {
        self.has_code() || self.has_unwritable.load(Ordering::Relaxed)
    }

    /// Takes a range that was registered just now among the adopted ones. The kernel passes over what is not mapped in it: the
    /// program may have unmapped a part since it was found, of which no event told; were that taken for adopted, what is mapped
    /// there next would be evicted and not served. False: the set is full.
    fn insert_registered(&self, lock: &Exclusive<'_>, range: Range) -> Result<bool, Errno> {
        match self.present().mappings.is_one(range) {
            // What was unmapped since of a single mapping, an event will tell.
            Some(true) => Ok(self.regions.insert(lock, range)),
            Some(false) => {
                let mut inserted = true;
                self.each_registered(range, |part| inserted &= self.regions.insert(lock, part))?;
                Ok(inserted)
            }
            None => {
                // SAFETY: an asynchronous msync does nothing but to look for holes.
                unsafe { rustix::mm::msync(range.start as *mut _, range.end - range.start, MsyncFlags::ASYNC) }
                    .map_err(|_| Errno::AGAIN)?;
                Ok(self.regions.insert(lock, range))
            }
        }
    }

    /// Calls `f` with the parts of `range` that are registered with a userfaultfd.
    ///
    /// # Errors
    /// `AGAIN`: the mappings are changing, and events wait or will come. Those of reading the list of mappings.
    fn each_registered(&self, range: Range, mut f: impl FnMut(Range)) -> Result<(), Errno> {
        let mut at = range.start;
        while at < range.end {
            let Some(mapping) = self.present().mappings.next(at)?.filter(|mapping| mapping.start < range.end) else { break };
            let part = Range { start: mapping.start.max(at), end: mapping.end.min(range.end) };
            // Its first page speaks for a mapping, also for one that has been cut meanwhile.
            match self.uffd().standing(part.start) {
                Standing::Changing => return Err(Errno::AGAIN),
                Standing::Registered => f(part),
                Standing::NotRegistered => {}
            }
            at = part.end;
        }
        Ok(())
    }
}
