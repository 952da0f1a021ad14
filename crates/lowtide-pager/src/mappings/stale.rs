//! Stale words: faults that were served by copying while the program forked leave pages in memory whose words say otherwise.
//! They are found when a page is to be evicted, and forgotten here.

use lowtide_core::vm::PAGE_SIZE;

use crate::pagemap::PageState;
use crate::pagemap::ids::PageNo;
use crate::pager::{Operation, Pager};

/// Bytes in which there are no more ranges than a scan finds.
const STALE_BYTES: usize = crate::sys::present::MAX_RANGES * PAGE_SIZE;

impl Operation<'_> {
    /// Forgets the words of pages that are in memory all the same: faults served during a fork leave such words behind. Alone,
    /// so that what is seen is so.
    pub(crate) fn forget_stale(&self, start: usize, end: usize) {
        if !self.may_have_stale_words() {
            return;
        }
        let _lock = self.space.exclusive();
        let Ok(found) = self.present().scan(start, end, (end - start) / PAGE_SIZE) else { return };
        let mut freer = self.store().freer();
        for (start, end) in found.iter() {
            self.map.each(PageNo::of(start), PageNo::of(end), |page, slot| {
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
    /// Forgets the words of pages of a range that are in memory all the same: faults served during a fork leave such words
    /// behind. By a thread that holds no lock.
    pub(crate) fn forget_all_stale(&self, range: crate::mappings::regions::Range) {
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
