//! swapoff: empties a swap area while everything else goes on.
//!
//! The holder of the entries (a pager's page map) closes the area, calls [`Store::move_out`] with
//! entries in slot order, and replaces each by the new, equivalent one. Loads find the page under
//! its old entry until then, because a closed area reuses no slots. One I/O reads neighbouring
//! slots, whatever their pages (FreeBSD's swapoff in runs, 2017-19, also needs neighbouring pages,
//! because it pages in).
//!
//! Pages in the pool get another slot and a copy of their objects, without I/O or compression.
//! Forked children and parents move out their own pages.

use core::sync::atomic::Ordering;

use super::folio::{Chunk, RUN};
use super::objects::Insert;
use super::store_pages::Destination;
use super::table_word::{Object, Word};
use super::{Entry, MAX_AREAS, Page, Scratch, Store, StoreError, Stored};
use crate::slot::{Area, AreaRef, Row, SwapCache};

/// An area to empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Emptying {
    /// The area's number in entries.
    pub id: u8,
    /// No slot from this one on was ever used.
    pub slots: u64,
}

fn has_page(area: &Area, slot: u64) -> bool {
    area.word(slot).is_some_and(|word| Word::decode(word.load(Ordering::Acquire)).is_page())
}

impl Store {
    fn areas_of(&self, number: u8) -> impl Iterator<Item = AreaRef<'_>> {
        self.areas.iter().filter(move |area| area.device.as_ref().is_some_and(|device| device.name().number == number))
    }

    /// The first step: stops storing into swap area `number`, and waits for stores in flight. No
    /// effect on a closed area.
    pub fn close_area(&self, number: u8) {
        for area in self.areas_of(number).filter(|area| !area.is_inherited()) {
            let id = area.id();
            // Otherwise this thread would wait for itself.
            drop(area);
            if self.areas.close(id).is_ok() {
                self.own.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Reopens a closed area. False: this process has none of its own.
    pub fn reopen_area(&self, number: u8) -> bool {
        let mut any = false;
        for area in self.areas_of(number).filter(|area| !area.is_inherited()) {
            any = true;
            let was_closed = area.is_closed();
            self.areas.reopen(area.id());
            if was_closed && !area.is_closed() {
                // Release: pairs with the Acquire in `has_device`.
                self.own.fetch_add(1, Ordering::AcqRel);
            }
        }
        any
    }

    /// The next area of number `number` to empty, from entry number `from` on.
    pub fn next_emptying(&self, number: u8, from: u16) -> Option<Emptying> {
        let area = self.areas_of(number).find(|area| u16::from(area.id()) >= from)?;
        Some(Emptying { id: area.id(), slots: area.opened_slots() })
    }

    /// Whether the page of an entry is only on a device.
    pub fn is_on_device(&self, e: Entry) -> bool {
        let word = |area: &AreaRef<'_>| area.word(e.offset()).map(|word| Word::decode(word.load(Ordering::Acquire)));
        matches!(self.areas.get(e.area()).as_ref().and_then(word), Some(Word::Device(_)))
    }

    /// The first slot in `from .. end` with a page of this process.
    pub fn first_page_in(&self, id: u8, from: u64, end: u64) -> Option<u64> {
        let area = self.areas.get(id)?;
        (from..end).find(|slot| has_page(&area, *slot))
    }

    /// Pages of this process in areas of this number.
    pub fn pages_left(&self, number: u8) -> u64 {
        let pages = |area: AreaRef<'_>| (0..area.opened_slots()).filter(|slot| has_page(&area, *slot)).count() as u64;
        self.areas_of(number).map(pages).sum()
    }

    /// Stores pages elsewhere: `out[i]` is as from [`Store::store_run`] for the page of
    /// `entries[i]`, in a closed or a parent's area. The caller frees the old entries once it has
    /// replaced them, or else the new ones. `pages` is memory for as many pages. `BadEntry`: the
    /// page was freed. (If unnoticed, garbage is stored, and the caller's replacement fails.)
    /// `Full`: the page is in `pages[i]`. `NoMemory`: no slot for a page in the pool.
    pub fn move_out(
        &self,
        entries: &[Entry],
        pages: &mut [Page],
        out: &mut [Result<Stored, StoreError>],
        scratch: &mut Scratch,
    ) {
        debug_assert!(entries.len() <= RUN && pages.len() >= entries.len() && out.len() >= entries.len());
        let (mut in_pool, mut others): (Chunk<usize>, Chunk<usize>) = (Chunk::new(), Chunk::new());
        let (mut plans, mut to_load): (Chunk<Destination>, Chunk<Entry>) = (Chunk::new(), Chunk::new());
        for (i, e) in entries.iter().enumerate() {
            match self.copy_object(*e, scratch) {
                Copied::Object(object) => {
                    in_pool.push(i);
                    plans.push(Destination::Pool(object));
                }
                Copied::No => {
                    others.push(i);
                    to_load.push(*e);
                }
                Copied::Gone => out[i] = Err(StoreError::BadEntry),
            }
        }
        let mut results: Chunk<Result<Stored, StoreError>> = plans.iter().map(|_| Err(StoreError::Full)).collect();
        self.place(&plans, &mut results, scratch);
        for (i, result) in in_pool.iter().zip(results) {
            // `Full` means a read page.
            out[*i] = result.map_err(|error| if error == StoreError::Full { StoreError::NoMemory } else { error });
        }
        let mut loaded: Chunk<_> = to_load.iter().map(|_| Err(StoreError::BadEntry)).collect();
        self.load_run(&to_load, pages, &mut loaded, scratch);
        // Puts each page at its entry's index, last ones first.
        for (at, i) in others.iter().enumerate().rev() {
            pages.swap(at, *i);
        }
        let ready: Chunk<usize> = others.iter().zip(&loaded).filter(|(_, loaded)| loaded.is_ok()).map(|(i, _)| *i).collect();
        for (i, loaded) in others.iter().zip(&loaded) {
            if let Err(error) = loaded {
                out[*i] = Err(*error);
            }
        }
        let bytes: Chunk<&Page> = ready.iter().map(|i| &pages[*i]).collect();
        let mut results: Chunk<Result<Stored, StoreError>> = bytes.iter().map(|_| Err(StoreError::Full)).collect();
        self.store_run(&bytes, &[], &mut results, scratch);
        ready.iter().zip(results).for_each(|(i, result)| out[*i] = result);
    }

    fn copy_object(&self, e: Entry, scratch: &mut Scratch) -> Copied {
        loop {
            let Some(area) = self.areas.get(e.area()) else { return Copied::Gone };
            let Some(place) = area.word(e.offset()) else { return Copied::Gone };
            let passes = self.compaction.passes();
            let raw = place.load(Ordering::Acquire);
            let object = match Word::decode(raw) {
                Word::Pool(object) | Word::Claimed(object) => object,
                Word::Device(_) => return Copied::No,
                _ => return Copied::Gone,
            };
            let len = object.handle.object_len();
            let read = self.pool.read(object.handle, &mut scratch.workspace.bytes).is_ok();
            if place.load(Ordering::Acquire) != raw || self.compaction.passes() != passes {
                // Moved, freed, or written to the device meanwhile: see `Store::load`.
                continue;
            }
            if !read {
                return Copied::Gone;
            }
            // Beyond the limit: the old object goes in a moment.
            return match self.keep(&scratch.workspace.bytes[..len], object.made, object.filter, Insert::Anywhere) {
                Some(object) => Copied::Object(object),
                None => Copied::No,
            };
        }
    }

    /// Removes this number's areas without data of this process, and returns whether all are gone.
    /// Call it after [`Store::close_area`], from the thread that may close files.
    pub fn remove_area(&self, number: u8) -> bool {
        let mut all = true;
        for area in self.areas_of(number) {
            let id = area.id();
            let is_empty = self.sweep(&area);
            if !is_empty || !(area.is_inherited() || area.is_closed()) {
                all = false;
                continue;
            }
            let name = usize::from(number).min(MAX_AREAS - 1);
            self.retired[name].fold(&area.io);
            drop(area);
            all &= self.areas.dismiss(id).is_ok();
        }
        all
    }

    /// Gives up clean copies and bad slots. Returns whether nothing is left.
    fn sweep(&self, area: &Area) -> bool {
        let cache = self.word_cache();
        let mut is_empty = true;
        let mut row = Row::new(area);
        area.each_word(|slot, place| {
            if slot == 0 {
                return;
            }
            match Word::decode(place.load(Ordering::Acquire)) {
                Word::Empty => {}
                Word::Cached(_) => {
                    if cache.give_up(area, slot) {
                        row.push(slot);
                    } else {
                        is_empty = false;
                    }
                }
                Word::Bad => {
                    let bad = Word::Bad.encode();
                    let was_bad =
                        place.compare_exchange(bad, Word::Empty.encode(), Ordering::AcqRel, Ordering::Relaxed).is_ok();
                    // In a forked child the word is a copy, and no reference.
                    if was_bad && !area.is_inherited() {
                        row.push(slot);
                    }
                }
                _ => is_empty = false,
            }
        });
        is_empty
    }
}

enum Copied {
    Object(Object),
    /// On the device, or no room for a copy in the pool.
    No,
    Gone,
}

#[cfg(test)]
#[path = "swapoff_tests.rs"]
mod tests;
