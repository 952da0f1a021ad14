//! Swap cache: a page loaded from a device keeps its slot. If it is unchanged at its next eviction,
//! nothing is written.
//!
//! The page's tag tells whether it has changed: 0.2 us a page, without write-protection faults.
//! Pages loaded from the pool keep no copy there, which would cost memory.
//!
//! Allocation or a worker may give the slot to another page at any time, which the copy's holder
//! finds out here. The thread whose compare-and-swap changes the word away from `Cached` owns the
//! slot. If the word is `Cached` with the right tag for another page by then, that copy serves as
//! well.

use core::sync::atomic::Ordering;

use super::table_word::Word;
use super::{Entry, Page, Store};
use crate::count::Counter;
use crate::slot::{Area, Areas, SwapCache};

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

    /// True if this area is over half full, and so is every other that takes writes. (Otherwise
    /// giving copies up would only move pages to a large area of low priority.)
    fn is_scarce(&self, area: &Area) -> bool {
        let has_room = |area: &Area| !area.is_over_half_full() && area.takes_writes();
        area.is_over_half_full() && !self.areas.iter().any(|other| has_room(&other))
    }
}

fn change(area: &Area, slot: u64, to: impl Fn(Word) -> Option<Word>) -> bool {
    let change = |raw| to(Word::decode(raw)).map(Word::encode);
    area.word(slot).is_some_and(|place| place.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok())
}

impl Store {
    /// Call instead of [`Store::free`] after a load from a device: keeps the slot as a clean copy.
    /// False: the page is not on a device, or slots are scarce; nothing changes.
    pub fn keep_cached(&self, e: Entry) -> bool {
        let Some(area) = self.areas.get(e.area()) else { return false };
        let device = |word| if let Word::Device(tag) = word { Some(Word::Cached(tag)) } else { None };
        // A parent's slots go back as early as possible.
        if !area.is_open() || self.word_cache().is_scarce(&area) || !change(&area, e.offset(), device) {
            return false;
        }
        area.mark_cached(e.offset(), true);
        self.counters.stored_now.sub(1);
        area.io.pages.sub(1);
        self.counters.cached_now.add(1);
        true
    }

    /// Drops a clean copy, unless it was taken back.
    pub fn drop_cached(&self, e: Entry) {
        self.freer().drop_cached(e);
    }

    /// Stores a page if the clean copy under `e` still matches it. False: the clean copy is gone.
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

    /// Background work: takes back clean copies' slots if all areas are over half full, punches out
    /// free clusters if configured, and gives back memory of past writes.
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
