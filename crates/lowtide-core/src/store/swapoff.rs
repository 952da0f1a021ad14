//! swapoff: a swap area is emptied while everything else goes on.
//!
//! The store knows which slots of an area hold something for this process, and not whose pages they are. The one that keeps the
//! entries (a pager's page map) closes the area, so that none of its slots is given out again, calls [`Store::move_out`] with
//! entries in the order of their slots, gets for each page another entry that is as good, and replaces the old one by it
//! wherever that still is. Nothing is claimed meanwhile: a load finds the page under its old entry until the new one is there.
//! Neighbouring slots are read with one I/O, whosever they are (FreeBSD's swapoff in runs, 2017-19, needs neighbouring owners
//! for that too: it pages in).
//!
//! That an old entry still names the same page is certain as long as the area is closed: its slots, once free, are given to
//! nobody.
//!
//! Pages in the pool that only have their slots in the area are given others, with a copy of their objects: no I/O, and nothing
//! compressed again.
//!
//! An area is removed when this process has nothing there. What others have there, forked children and parents, is theirs to
//! move out.

use core::sync::atomic::Ordering;

use super::folio::{Chunk, RUN};
use super::objects::Insert;
use super::store_pages::Plan;
use super::table_word::{Object, Word};
use super::{Entry, MAX_AREAS, Page, Scratch, Store, StoreError, Stored};
use crate::slot::{Area, AreaRef, Row, SwapCache};

/// An area that is to be emptied, as far as this process is concerned.
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
    /// The areas of the run's swap area `number` that this process has: its own, and those that it has from its parents.
    fn areas_of(&self, number: u8) -> impl Iterator<Item = AreaRef<'_>> {
        self.areas.iter().filter(move |area| area.device.as_ref().is_some_and(|device| device.name().number == number))
    }

    /// The first step of a swapoff: nothing more is put into the run's swap area `number`. Waits for stores in flight. No
    /// effect if that is so already.
    pub fn close_area(&self, number: u8) {
        for area in self.areas_of(number).filter(|area| !area.is_inherited()) {
            let id = area.id();
            // Nobody waits for itself.
            drop(area);
            if self.areas.close(id).is_ok() {
                self.own.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Pages are put again into an area that was closed. False: this process has none of its own.
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

    /// What is to be emptied: the areas of number `number`, from entry number `from` on.
    pub fn next_emptying(&self, number: u8, from: u16) -> Option<Emptying> {
        let area = self.areas_of(number).find(|area| u16::from(area.id()) >= from)?;
        Some(Emptying { id: area.id(), slots: area.opened_slots() })
    }

    /// Whether the page of an entry is on a device, and nowhere else.
    pub fn is_on_device(&self, e: Entry) -> bool {
        let word = |area: &AreaRef<'_>| area.word(e.offset()).map(|word| Word::decode(word.load(Ordering::Acquire)));
        matches!(self.areas.get(e.area()).as_ref().and_then(word), Some(Word::Device(_)))
    }

    /// The first slot from `from` on, up to `end`, that holds a page of this process.
    pub fn first_page_in(&self, id: u8, from: u64, end: u64) -> Option<u64> {
        let area = self.areas.get(id)?;
        (from..end).find(|slot| has_page(&area, *slot))
    }

    /// How many pages of this process are in areas of this number.
    pub fn pages_left(&self, number: u8) -> u64 {
        let pages = |area: AreaRef<'_>| (0..area.opened_slots()).filter(|slot| has_page(&area, *slot)).count() as u64;
        self.areas_of(number).map(pages).sum()
    }

    /// Stores pages elsewhere: `out[i]` is as from [`Store::store_run`] for the page of `entries[i]`, whose area is closed (or
    /// a parent's). The old entries stay; they are to be freed when the new ones have replaced them, or the new ones when they
    /// could not. `pages` is memory for as many pages. A result is `BadEntry` if the page was freed meanwhile. (If that goes
    /// unnoticed, what is stored is garbage, and the caller finds out as well.) Where it is `Full` the page has been read, and
    /// is `pages[i]`; `NoMemory`: there is no slot for what is in the pool.
    pub fn move_out(
        &self,
        entries: &[Entry],
        pages: &mut [Page],
        out: &mut [Result<Stored, StoreError>],
        scratch: &mut Scratch,
    ) {
        debug_assert!(entries.len() <= RUN && pages.len() >= entries.len() && out.len() >= entries.len());
        let (mut in_pool, mut others): (Chunk<usize>, Chunk<usize>) = (Chunk::new(), Chunk::new());
        let (mut plans, mut to_load): (Chunk<Plan>, Chunk<Entry>) = (Chunk::new(), Chunk::new());
        for (i, e) in entries.iter().enumerate() {
            match self.copy_object(*e, scratch) {
                Copied::Object(object) => {
                    in_pool.push(i);
                    plans.push(Plan::Pool(object));
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
            // `Full` would say that the page has been read.
            out[*i] = result.map_err(|error| if error == StoreError::Full { StoreError::NoMemory } else { error });
        }
        let mut loaded: Chunk<_> = to_load.iter().map(|_| Err(StoreError::BadEntry)).collect();
        self.load_run(&to_load, pages, &mut loaded, scratch);
        // From the last one on, so that no page is in another's way: each is put where its entry is.
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

    /// A second object of the page of an entry, if it has one in the pool.
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
            // Beyond the limit too: the old object goes in a moment.
            return match self.keep(&scratch.workspace.bytes[..len], object.made, Insert::Anywhere) {
                Some(object) => Copied::Object(object),
                None => Copied::No,
            };
        }
    }

    /// Removes the areas of this number that hold nothing for this process any more, and says whether all are gone. To be
    /// called after [`Store::close_area`], by the thread that may close files.
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

    /// Gives up what is no page of an area: clean copies, and slots that can't be written. Whether nothing is left.
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
                    // In a forked child it is the parent's copy of a word, and no reference.
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

/// What [`Store::copy_object`] found.
enum Copied {
    /// The copy.
    Object(Object),
    /// The page is on the device, or the pool has no room for another object: it is to be loaded, and stored anew.
    No,
    /// The entry names no page any more.
    Gone,
}

#[cfg(test)]
#[path = "swapoff_tests.rs"]
mod tests;
