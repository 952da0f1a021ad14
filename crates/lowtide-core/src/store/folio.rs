//! Slots for pages stored together, in folios as large as possible.

use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;

use super::table_word::Word;
use super::tier::Slots;
use super::{Entry, RAM_AREA, Store, StoreError, Stored};
use crate::slot::{AreaRef, MAX_ORDER};

/// Most pages at once: the largest folio.
pub(super) const RUN: usize = 1 << MAX_ORDER;
pub(super) type Chunk<T> = ArrayVec<T, RUN>;

pub(super) type Results<'a> = &'a mut [Result<Stored, StoreError>];

pub(super) struct Folio<'a> {
    pub area: AreaRef<'a>,
    pub slot: u64,
    pub pages: usize,
}

impl Store {
    /// Up to `pages` consecutive slots: at `behind`, the end of the latest ones, if free; else the
    /// smallest power of two for them all, less the rest; or the largest free run.
    pub(super) fn alloc_folio(&self, pages: usize, slots: Slots, behind: &mut Option<Entry>) -> Option<Folio<'_>> {
        let pages = self.largest_folio.limit(pages.min(RUN));
        let whole = pages.checked_next_power_of_two().filter(|_| pages > 0)?.ilog2();
        let folio = self.alloc_behind(pages, slots, *behind).or_else(|| {
            let alloc = |order| match slots {
                Slots::Writable => self.areas.alloc(order, &self.word_cache()),
                Slots::OfDevices => self.areas.alloc_to_write_later(order, &self.word_cache()),
                Slots::OfRam => self.areas.get(RAM_AREA).and_then(|area| area.alloc(order).map(|slot| (area, slot))),
            };
            let (order, (area, slot)) = (0..=whole).rev().find_map(|order| Some((order, alloc(order)?)))?;
            let slots = 1 << order;
            let pages = pages.min(slots);
            if pages < slots {
                let given_back = area.free_run(slot + pages as u64, (slots - pages) as u64);
                debug_assert!(given_back.is_ok(), "{given_back:?}");
            }
            Some(Folio { area, slot, pages })
        })?;
        let order = folio.pages.next_power_of_two().ilog2();
        self.counters.folios[order as usize].add(1);
        if order < whole {
            self.counters.folios_split[whole as usize].add(1);
        }
        *behind = Entry::new(folio.area.id(), folio.slot + folio.pages as u64);
        Some(folio)
    }

    /// On a rotating device, behind the latest slots of all threads.
    fn alloc_behind(&self, pages: usize, slots: Slots, slot: Option<Entry>) -> Option<Folio<'_>> {
        let slot = slot.filter(|slot| (slot.area() == RAM_AREA) == (slots == Slots::OfRam))?;
        let area = self.areas.get(slot.area()).filter(|area| slots != Slots::Writable || !area.rests())?;
        let slot = area.alloc_behind(slot.offset(), pages)?;
        Some(Folio { area, slot, pages })
    }

    /// Fails only for a slot that no entry can name.
    pub(super) fn publish(&self, area: &AreaRef<'_>, slot: u64, word: Word) -> Result<Stored, StoreError> {
        let entry = Entry::new(area.id(), slot).ok_or(StoreError::Full)?;
        let place = area.word(slot).ok_or(StoreError::Full)?;
        debug_assert_eq!(place.load(Ordering::Relaxed), Word::Empty.encode(), "a slot was given out twice");
        // Counted first: a free, which subtracts, may follow at once.
        self.counters.stored_now.add(1);
        if matches!(word, Word::Device(_)) {
            area.io.pages.add(1);
        }
        // Release: a thread that sees the word finds the object.
        place.store(word.encode(), Ordering::Release);
        if matches!(word, Word::Pool(_)) {
            area.ages.stored(slot);
        }
        Ok(Stored::Entry(entry))
    }
}
