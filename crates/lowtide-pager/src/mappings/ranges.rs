//! Calls of the library's regions for a registered range, without events. Only the owner changes
//! such a mapping. The callers hold no lock, and run no signal handler that touches the memory.

use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;
use rustix::mm::Advice;

use crate::fault::Served;
use crate::fault::worker::Worker;
use crate::mappings::regions::Range;
use crate::mappings::space::Exclusive;
use crate::pagemap::PageState;
use crate::pagemap::ids::PageNo;
use crate::pager::{Operation, Pager, add};
use crate::reclaim::detach::Detached;
use crate::reclaim::evicted::Evicted;
use crate::reclaim::victims::Found;
use crate::sys::clock::now_ns;
use crate::sys::present::Kind;
use crate::sys::uffd::Access;

const LOOK: usize = 512;

/// Which pages of a range are brought in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BringIn {
    /// Those that were evicted.
    Evicted,
    /// Also those that were never touched.
    All,
}

fn parts(range: Range) -> impl Iterator<Item = Range> {
    let starts = (range.start..range.end).step_by(LOOK * PAGE_SIZE);
    starts.map(move |start| Range { start, end: range.end.min(start + LOOK * PAGE_SIZE) })
}

impl Pager {
    /// Drops the pages of a range, wherever they are.
    ///
    /// # Errors
    /// Those of madvise: some are dropped.
    ///
    /// # Safety
    /// Nobody may rely on the bytes.
    pub unsafe fn drop_pages(&self, range: Range) -> Result<(), Errno> {
        for part in parts(range) {
            let alone = self.pages.space.exclusive();
            self.dropped(&alone, part.start, part.end);
            self.count_out(&alone, part);
            // Under the lock: a page that came in meanwhile would be dropped, and its word remain.
            // SAFETY: handed on to the caller; the range is registered, so it is private anonymous
            // memory.
            unsafe { rustix::mm::madvise(part.start as *mut _, part.end - part.start, Advice::LinuxDontNeed)? };
        }
        Ok(())
    }

    /// Releases a registered range for good; the caller unmaps it next.
    ///
    /// # Errors
    /// Those of UFFDIO_UNREGISTER.
    ///
    /// # Safety
    /// Nobody may touch the range any more.
    pub unsafe fn let_go(&self, range: Range) -> Result<(), Errno> {
        {
            let alone = self.pages.space.exclusive();
            self.mappings.pinned.remove(&alone, range);
            // First: no other thread sees the rest half done.
            self.mappings.regions.remove(&alone, range);
        }
        for part in parts(range) {
            let alone = self.pages.space.exclusive();
            self.count_out(&alone, part);
            self.dropped(&alone, part.start, part.end);
        }
        // SAFETY: nobody touches it.
        unsafe { self.uffd().unregister(range.start, range.end - range.start) }
    }

    fn count_out(&self, _: &Exclusive<'_>, range: Range) {
        // The next measurement corrects what this can't look up.
        let bytes = self.present().bytes(range.start, range.end).unwrap_or(0);
        self.accounts.budget.add_pages(-((bytes / PAGE_SIZE) as isize));
    }

    /// From now on no page of the range is evicted. False: too many such ranges.
    pub fn pin(&self, range: Range) -> bool {
        self.mappings.pinned.insert(&self.pages.space.exclusive(), range)
    }

    /// Ends [`Pager::pin`] for a range.
    pub fn unpin(&self, range: Range) {
        self.mappings.pinned.remove(&self.pages.space.exclusive(), range);
    }

    /// Brings in the missing pages of a range, within the limit: the last may evict the first,
    /// unless pinned. False: a page could not be had.
    ///
    /// # Errors
    /// Those of looking at what is in memory.
    pub fn bring_in(&self, range: Range, which: BringIn, worker: &mut Worker) -> Result<bool, Errno> {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at + LOOK * PAGE_SIZE);
            let found = self.present().scan(at, end, 0)?;
            let mut missing = at;
            for (from, to) in found.iter().chain([(found.walk_end, found.walk_end)]) {
                while missing < from {
                    let wanted = which == BringIn::All || self.is_evicted(missing);
                    if wanted && !self.is_there(missing) && !self.bring_in_page(missing, worker) {
                        return Ok(false);
                    }
                    missing += PAGE_SIZE;
                }
                missing = to;
            }
            at = found.walk_end.max(at + PAGE_SIZE);
        }
        Ok(true)
    }

    /// As a neighbour of another page.
    fn is_there(&self, addr: usize) -> bool {
        !self.is_evicted(addr) && self.present().holds_page(addr)
    }

    fn is_evicted(&self, addr: usize) -> bool {
        !matches!(self.pages.map.get(PageNo::of(addr)), PageState::None | PageState::Removing(_) | PageState::Clean(_))
    }

    fn bring_in_page(&self, addr: usize, worker: &mut Worker) -> bool {
        loop {
            match self.serve_within_limit(addr, Access::Write, now_ns(), worker) {
                Served::Done => {
                    self.stage_ahead(worker);
                    return true;
                }
                Served::Lost | Served::Elsewhere => return false,
                Served::EventsFirst => rustix::thread::sched_yield(),
            }
        }
    }

    /// Evicts the pages of a range that can be moved and stored, and stores all of staging.
    pub fn evict_range(&self, range: Range, worker: &mut Worker) -> Evicted {
        let mut at = range.start;
        while at < range.end {
            let Some(operation) = self.enter() else { return Evicted::Later };
            if !operation.store().would_take() {
                return Evicted::Full;
            }
            match operation.evict_some(at, range.end, worker) {
                Ok(next) => at = next,
                Err(Evicted::Progress) => {}
                Err(why) => return why,
            }
        }
        while self.empty_staging(worker) {}
        Evicted::Progress
    }
}

impl Operation<'_> {
    /// Returns where to go on. `Progress`: room was made, try again.
    fn evict_some(&self, at: usize, end: usize, worker: &mut Worker) -> Result<usize, Evicted> {
        let Some(batch) = self.pages.staging.take_empty() else {
            return Err(match self.drained(worker) {
                Evicted::Nothing if self.pages.staging.is_lost() => Evicted::Full,
                // Other threads hold all batches.
                Evicted::Nothing => {
                    rustix::thread::sched_yield();
                    Evicted::Progress
                }
                other => other,
            });
        };
        let room = self.pages.staging.batch_frames();
        let ranges = match self.present().scan(at, end, room) {
            Ok(ranges) => ranges,
            Err(_) => {
                self.pages.staging.put_empty(batch);
                return Err(Evicted::Nothing);
            }
        };
        let next = ranges.walk_end.max(at + PAGE_SIZE);
        // Runs without their holes: more pages than frames would be skipped.
        let found = Found::all_of(ranges, Kind::Page);
        let detached = self.detach(&found, self.pages.staging.first(batch), room, worker);
        let pages = if let Detached::Pages { pages, .. } = detached { pages } else { 0 };
        if pages > 0 {
            self.pages.staging.put_full(batch);
            add(&self.counters().evictions_pages, pages);
        } else {
            self.pages.staging.put_empty(batch);
        }
        self.publish_own();
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mappings::events::tests::{mapping, pager_with};
    use crate::sys::uffd::NEEDED_WITHOUT_EVENTS;

    #[test]
    fn a_large_range_is_dropped_and_let_go_in_many_holds() {
        const PARTS: usize = 5;
        const PAGES: usize = PARTS * LOOK;
        let Some(pager) = pager_with(NEEDED_WITHOUT_EVENTS) else { return };
        let at = mapping(PAGES);
        let range = Range { start: at, end: at + PAGES * PAGE_SIZE };
        pager.adopt(range).unwrap();
        let holds_of = |calls: &dyn Fn()| {
            for page in PageNo::of(range.start).up_to(PageNo::of(range.end)) {
                pager.pages.map.populate(page).unwrap();
                pager.pages.map.set(page, PageState::Zero);
                pager.pages.zero_now.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
            }
            let before = pager.pages.space.holds();
            calls();
            let left = PageNo::of(range.start)
                .up_to(PageNo::of(range.end))
                .filter(|page| pager.pages.map.get(*page) != PageState::None);
            assert_eq!(left.count(), 0);
            (pager.pages.space.holds() - before) as usize
        };
        // SAFETY: nobody uses the range.
        assert_eq!(holds_of(&|| unsafe { pager.drop_pages(range) }.unwrap()), PARTS);
        // And one that unregisters it.
        // SAFETY: as above.
        assert_eq!(holds_of(&|| unsafe { pager.let_go(range) }.unwrap()), PARTS + 1);
    }
}
