//! Stale words: faults served by copying while the program forked leave pages in memory whose words
//! say otherwise. They are found when a page is to be evicted.

use lowtide_core::vm::PAGE_SIZE;

use crate::pagemap::PageState;
use crate::pagemap::ids::PageNo;
use crate::pager::Pager;
use crate::pages::Operation;

/// A scan finds all ranges in this many bytes.
const STALE_BYTES: usize = lowtide_sys::present::MAX_RANGES * PAGE_SIZE;

impl Operation<'_> {
    /// Clears stale words. With the lock alone, so that the scan stays true.
    pub(crate) fn forget_stale(&self, start: usize, end: usize) {
        if !self.may_have_stale_words() {
            return;
        }
        let _lock = self.pages.space.exclusive();
        let Ok(found) = self.present().scan(start, end, (end - start) / PAGE_SIZE) else { return };
        let mut freer = self.store().freer();
        for (start, end) in found.iter() {
            self.pages.map.each(PageNo::of(start), PageNo::of(end), |page, slot| {
                let word = slot.get();
                if matches!(word, PageState::Swapped(_) | PageState::Staged(_)) && slot.swap(word, PageState::None) {
                    self.forget(&mut freer, word);
                    self.mark_loaded(page, None);
                }
            });
        }
    }
}

impl Pager {
    /// The same for a range of any size. The caller holds no lock.
    pub(crate) fn forget_all_stale(&self, range: lowtide_sys::Range) {
        if !self.may_have_stale_words() {
            return;
        }
        let Some(operation) = self.enter() else { return };
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at + STALE_BYTES);
            operation.forget_stale(at, end);
            at = end;
        }
    }
}
