//! Calls of the library's regions for a registered range, without events. Only the owner changes
//! such a mapping. The callers hold no lock, and run no signal handler that touches the memory.

use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::Range;
use rustix::io::Errno;
use rustix::mm::Advice;

use crate::pager::Pager;
use crate::pages::space::Exclusive;

const LOOK: usize = 512;

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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mappings::events::tests::{mapping, pager_with};
    use crate::pagemap::PageState;
    use crate::pagemap::ids::PageNo;
    use lowtide_sys::uffd::NEEDED_WITHOUT_EVENTS;

    #[test]
    fn a_large_range_is_dropped_and_let_go_in_many_holds() {
        const PARTS: usize = 5;
        const PAGES: usize = PARTS * LOOK;
        let Some(pager) = pager_with(NEEDED_WITHOUT_EVENTS) else { return };
        let at = mapping(PAGES);
        let range = Range { start: at, end: at + PAGES * PAGE_SIZE };
        pager.register(range).unwrap();
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
