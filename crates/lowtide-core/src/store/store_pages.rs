//! Storing pages.

use arrayvec::ArrayVec;

use super::folio::{Chunk, RUN, Results};
use super::objects::Insert;
use super::table_word::{Made, Object, Word};
use super::tier::{Tier, Tiers, slots_in_pool};
use super::{Entry, Page, RAM_AREA, Scratch, Store, StoreError, Stored, Trials};
use crate::codec::Filter;
use crate::fill;

/// Pages stored for each object moved while the pool is sparse.
const COMPACT_PART: usize = 8;

#[derive(Clone, Copy)]
pub(super) enum Destination {
    Done,
    Pool(Object),
    Device,
}

struct Offer {
    object: Option<Object>,
    /// It does not compress to 7/8.
    incompressible: bool,
    /// Compressed, but goes to a device or is kept raw.
    in_vain: bool,
    /// The pool was full, or had no room for the compressed page.
    refused: bool,
}

impl Store {
    /// Stores neighbours in order, and sets every `out[i]`. A failed page leaves nothing behind.
    /// `tier.rs` chooses the pool or a device. Device pages take few writes. A full pool first
    /// writes a cluster of old pages to the device.
    ///
    /// `clean[i]`, if any, is page `i`'s entry from [`Store::keep_cached`]; it is used up.
    pub fn store_run(
        &self,
        pages: &[&Page],
        clean: &[Option<Entry>],
        out: &mut [Result<Stored, StoreError>],
        scratch: &mut Scratch,
    ) {
        self.store_tried(pages, clean, &(), out, scratch);
    }

    /// The same; `trials` chooses pages to compress, and receives the outcome.
    pub fn store_tried(
        &self,
        pages: &[&Page],
        clean: &[Option<Entry>],
        trials: &dyn Trials,
        out: &mut [Result<Stored, StoreError>],
        scratch: &mut Scratch,
    ) {
        for (i, (pages, out)) in pages.chunks(RUN).zip(out.chunks_mut(RUN)).enumerate() {
            let n = pages.len().min(out.len());
            let clean = clean.get(i * RUN..).unwrap_or(&[]);
            self.store_chunk(&pages[..n], clean, (trials, i * RUN), &mut out[..n], scratch);
        }
        // Storing threads pay for a sparse pool: while pages come and go the reclaimer is never
        // idle.
        if self.wants_compaction() {
            self.compact(pages.len().div_ceil(COMPACT_PART));
        }
    }

    fn store_chunk(
        &self,
        pages: &[&Page],
        clean: &[Option<Entry>],
        (trials, first): (&dyn Trials, usize),
        out: Results<'_>,
        scratch: &mut Scratch,
    ) {
        let mut plans: Chunk<Destination> = ArrayVec::new();
        let mut room_was_made = false;
        for (i, page) in pages.iter().enumerate() {
            let copy = clean.get(i).copied().flatten();
            let trial = (trials, first + i);
            if let Some(plan) = copy.and_then(|copy| self.move_up(copy, page, trial, scratch)) {
                plans.push(plan);
                continue;
            }
            if let Some(stored) = self.store_without_a_tier(page, copy) {
                out[i] = Ok(stored);
                plans.push(Destination::Done);
                continue;
            }
            if !room_was_made {
                room_was_made = true;
                self.write_back_for_room(scratch);
            }
            plans.push(self.plan(page, trial, scratch).unwrap_or_else(|refused| {
                out[i] = Err(refused);
                Destination::Done
            }));
        }
        self.store_on_devices(pages, &plans, out, scratch);
        self.place(&plans, out, scratch);
        let refused = out.iter().filter(|r| r.is_err()).count();
        if refused > 0 {
            self.counters.refused.add(refused as u64);
        }
    }

    /// Puts a page with a clean copy on a device into a roomy pool, from where it loads faster.
    /// `None`: it keeps its copy.
    fn move_up(
        &self,
        copy: Entry,
        page: &Page,
        (trials, i): (&dyn Trials, usize),
        scratch: &mut Scratch,
    ) -> Option<Destination> {
        let has_room = self.pool.accepts() && self.pool.has_room();
        if !has_room || !trials.is_promising(i) || fill::repeated_word(page) == Some(0) {
            return None;
        }
        let plan = self.plan(page, (trials, i), scratch).ok().filter(|plan| matches!(plan, Destination::Pool(_)));
        if plan.is_some() {
            self.drop_cached(copy);
        }
        plan
    }

    /// For clean and zero pages. Before any room is made, so that they cost no eviction.
    fn store_without_a_tier(&self, page: &Page, clean: Option<Entry>) -> Option<Stored> {
        if let Some(e) = clean
            && self.store_clean(e, page)
        {
            return Some(Stored::Entry(e));
        }
        match fill::repeated_word(page) {
            Some(0) => {
                self.counters.zero_seen.add(1);
                return Some(Stored::Zero);
            }
            Some(word) => {
                self.counters.same_filled.add(1);
                self.counters.same_filled_words.add(word, 1);
            }
            None => {}
        }
        None
    }

    /// When background work lags; otherwise the newest pages would go to the device.
    fn write_back_for_room(&self, scratch: &mut Scratch) {
        if !self.pool.accepts() {
            self.shrink(self.wants_shrinking().min(1), scratch);
        }
    }

    /// # Errors
    /// `Full` when no tier takes it.
    fn plan(&self, page: &Page, (trials, i): (&dyn Trials, usize), scratch: &mut Scratch) -> Result<Destination, StoreError> {
        let tiers = Tiers { pool: self.pool.accepts(), device: self.has_device() };
        // Without a device, any saving is worth it.
        let try_it = tiers.pool && (!tiers.device || trials.is_worth_trying(i));
        let offer = self.offer(page, try_it, tiers, scratch);
        if tiers.pool {
            self.counters.in_vain.add(offer.in_vain.into());
            self.counters.incompressible.add((offer.incompressible || !try_it).into());
            if try_it {
                trials.was_tried(i, !offer.in_vain);
            }
        }
        if offer.refused {
            self.counters.pool_refused.add(1);
        }
        match (offer.object, tiers.without_pool()) {
            (Some(object), _) => Ok(Destination::Pool(object)),
            (None, Tier::Device) => Ok(Destination::Device),
            (None, _) => Err(StoreError::Full),
        }
    }

    fn offer(&self, page: &Page, try_it: bool, tiers: Tiers, scratch: &mut Scratch) -> Offer {
        let mut offer = Offer { object: None, incompressible: false, in_vain: false, refused: false };
        if tiers.offer() != Tier::Pool {
            offer.refused = true;
            return offer;
        }
        let Scratch { workspace, choice, .. } = scratch;
        let packed = if try_it { self.codec.compress_best(page, choice, workspace) } else { None };
        let len = packed.map(|packed| packed.len);
        offer.incompressible = try_it && len.is_none();
        let is_for_pool = tiers.choose(len, || self.pool.is_mostly_taken()) == Tier::Pool;
        if is_for_pool {
            let data = len.map_or(&page[..], |len| &scratch.workspace.bytes[..len]);
            let filter = packed.map_or(Filter::None, |packed| packed.filter);
            offer.object = self.keep(data, Made::Stored, Some(filter), Insert::Anywhere);
            offer.refused = len.is_some() && offer.object.is_none();
            self.counters.shuffled.add((filter != Filter::None && offer.object.is_some()).into());
        }
        offer.in_vain = offer.incompressible || try_it && !is_for_pool;
        offer
    }

    fn store_on_devices(&self, pages: &[&Page], plans: &[Destination], out: Results<'_>, scratch: &mut Scratch) {
        let mut which: Chunk<usize> = (0..pages.len()).filter(|&i| matches!(plans[i], Destination::Device)).collect();
        if which.is_empty() {
            return;
        }
        let gathered = self.gather(pages, &which, out, scratch);
        which.drain(..gathered);
        if which.is_empty() {
            return;
        }
        self.write_gathered(scratch.ends.on_device, scratch);
        let why = self.write_out(pages, &mut which, out, scratch);
        for i in which {
            let tiers = Tiers { pool: self.pool.accepts(), device: false };
            let object = self.offer(pages[i], true, tiers, scratch).object;
            out[i] = object.ok_or(why).and_then(|object| self.place_in_ram(object));
        }
    }

    pub(super) fn place(&self, plans: &[Destination], out: Results<'_>, scratch: &mut Scratch) {
        let in_pool =
            |(i, plan): (usize, &Destination)| if let Destination::Pool(object) = plan { Some((i, *object)) } else { None };
        let which: Chunk<(usize, Object)> = plans.iter().enumerate().filter_map(in_pool).collect();
        let mut which = &which[..];
        while let Some(&(i, object)) = which.first() {
            let end = &mut scratch.ends.in_pool;
            let slots = slots_in_pool(self.has_device());
            let Some(folio) = slots.iter().find_map(|slots| self.alloc_folio(which.len(), *slots, end)) else {
                self.let_go(object);
                out[i] = Err(StoreError::Full);
                which = &which[1..];
                continue;
            };
            let these;
            (these, which) = which.split_at(folio.pages);
            for (&(i, object), slot) in these.iter().zip(folio.slot..) {
                out[i] = self.publish(&folio.area, slot, Word::Pool(object));
            }
        }
    }

    /// Without a free slot the object is freed.
    fn place_in_ram(&self, object: Object) -> Result<Stored, StoreError> {
        let area = self.areas.get(RAM_AREA).ok_or(StoreError::Full);
        let stored = area.and_then(|area| {
            let slot = area.alloc(0).ok_or(StoreError::Full)?;
            self.publish(&area, slot, Word::Pool(object))
        });
        if stored.is_err() {
            self.let_go(object);
        }
        stored
    }
}
