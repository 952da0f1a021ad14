//! Swap cache: a page that was loaded from a device keeps its slot while it is in memory. If it is still the same when it is
//! evicted again, nothing has to be written.
//!
//! Whether it is the same is found by its tag, the one that also tells whether the device returned what was written: 0.2 us a
//! page, without write-protection faults in the program. Pages in the compressed pool are not kept there when they are loaded:
//! the copy would cost memory.
//!
//! The slot can be taken back at any time, by allocation or by a worker, and be given to another page; who remembers it as its
//! clean copy finds that out here. Whoever changes the table word away from `Cached` by compare-and-swap is the slot's one
//! owner. Should the word say `Cached` with the right tag on behalf of another page by then, that page's clean copy is as good:
//! its bytes are the same.

use core::sync::atomic::Ordering;

use super::table_word::Word;
use super::{Entry, Page, Store};
use crate::count::Counter;
use crate::slot::{Area, Areas, SwapCache};

/// Finds out from a slot's table word whether it holds only a clean copy.
#[derive(Debug)]
pub(super) struct WordCache<'a> {
    pub cached_now: &'a Counter,
    pub areas: &'a Areas,
}

impl SwapCache for WordCache<'_> {
    fn give_up(&self, area: &Area, slot: u64) -> bool {
        let gone = change(area, slot, |word| matches!(word, Word::Cached(_)).then_some(Word::Empty));
        if gone {
            self.cached_now.sub(1);
        }
        gone
    }

    /// It is over half full, and so are all others that take pages now. (As long as another has room, giving copies up would
    /// only move pages from a small area of high priority to a large one of low priority.)
    fn is_scarce(&self, area: &Area) -> bool {
        let has_room = |area: &Area| !area.is_over_half_full() && area.takes_writes();
        area.is_over_half_full() && !self.areas.iter().any(|other| has_room(&other))
    }
}

/// Changes a slot's table word to what `to` makes of it; `None` leaves it. Whether it did.
fn change(area: &Area, slot: u64, to: impl Fn(Word) -> Option<Word>) -> bool {
    let change = |raw| to(Word::decode(raw)).map(Word::encode);
    area.word(slot).is_some_and(|place| place.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok())
}

impl Store {
    /// Instead of [`Store::free`], after a page was loaded from a device: keeps the slot as its clean copy. False: the page is
    /// not on a device, or slots are scarce; the entry is then as it was.
    pub fn keep_cached(&self, e: Entry) -> bool {
        let Some(area) = self.areas.get(e.area()) else { return false };
        let device = |word| if let Word::Device(tag) = word { Some(Word::Cached(tag)) } else { None };
        // Slots that a parent made are given back as soon as can be.
        if !area.is_open() || self.word_cache().is_scarce(&area) || !change(&area, e.offset(), device) {
            return false;
        }
        area.mark_cached(e.offset(), true);
        self.counters.stored_now.sub(1);
        area.io.pages.sub(1);
        self.counters.cached_now.add(1);
        true
    }

    /// The clean copy that [`Store::keep_cached`] kept is not wanted any more. No effect if it was taken back before.
    pub fn drop_cached(&self, e: Entry) {
        self.freer().drop_cached(e);
    }

    /// Stores a page that may be as it was when it was loaded: true if the clean copy kept under `e` still is the page, which
    /// is then stored there. False: the clean copy is gone.
    pub(super) fn store_clean(&self, e: Entry, page: &Page) -> bool {
        let Some(area) = self.areas.get(e.area()) else { return false };
        if area.is_closed() {
            self.drop_cached(e);
            return false;
        }
        let Some(tag) = area.device.as_ref().map(|device| device.tag(e.offset(), page)) else { return false };
        let same = |word| (word == Word::Cached(tag)).then_some(Word::Device(tag));
        // Counted first: a free, which subtracts, may follow at once.
        self.counters.stored_now.add(1);
        area.io.pages.add(1);
        if change(&area, e.offset(), same) {
            area.mark_cached(e.offset(), false);
            self.counters.cached_now.sub(1);
            return true;
        }
        self.counters.stored_now.sub(1);
        area.io.pages.sub(1);
        self.drop_cached(e);
        false
    }

    /// Takes back slots that hold only a cache mark, if all areas are over half full; clusters that are free are punched out
    /// where the area is set up so; and memory that was used to write. A little each time: for a background worker.
    pub fn maintain(&self) {
        self.give_back_batch();
        for area in self.areas.iter().filter(|area| !area.is_inherited()) {
            if self.word_cache().is_scarce(&area) {
                area.reclaim_full(4, &self.word_cache());
            }
            area.discard_some(1);
        }
    }

    pub(super) fn word_cache(&self) -> WordCache<'_> {
        WordCache { cached_now: &self.counters.cached_now, areas: &self.areas }
    }
}
