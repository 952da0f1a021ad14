//! Storing pages.

use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use rustix::io::Errno;

use super::group::Insert;
use super::table_word::{Made, Object, Word};
use super::{Entry, Group, MAX_AREAS, Page, RAM_AREA, Scratch, Store, StoreError, Stored};
use crate::device::WriteRun;
use crate::fill;
use crate::slot::{AreaRef, MAX_ORDER};
use crate::vm::PAGE_SIZE;

/// Most pages that are handled at once: the largest folio.
pub(super) const RUN: usize = 1 << MAX_ORDER;
/// While the pool is sparse, who stores pages moves one object at most for so many.
const COMPACT_PART: usize = 8;
/// Something for each page that is handled.
pub(super) type Chunk<T> = ArrayVec<T, RUN>;
/// Most folios that are written at the same time.
const FOLIOS: usize = 32;

/// What becomes of a page before it has a slot.
#[derive(Clone, Copy)]
pub(super) enum Plan {
    /// The result is known.
    Done,
    /// Its object is in the pool.
    Pool(Object),
    /// It shall be written to a device.
    Device,
}

/// Which slots will do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Slots {
    /// Of devices that can be written to now.
    Writable,
    /// Of devices, rather of such as can be written to now.
    OfDevices,
    /// Without a device.
    OfRam,
}

/// Consecutive slots that were given out.
pub(super) struct Folio<'a> {
    pub area: AreaRef<'a>,
    pub slot: u64,
    pub pages: usize,
}

pub(super) type Results<'a> = &'a mut [Result<Stored, StoreError>];

impl Store {
    /// Stores pages that go together, neighbours in order; `out[i]` is set for every page. A page that cannot be stored leaves
    /// nothing behind. Pages that do not compress to 7/8 go to the device if there is one, with as few writes as free slots
    /// allow, else raw into the pool. So do pages that compress to more than half once the pool is mostly taken
    /// ([`Pool::pays`](crate::pool::Pool::pays)). While the pool is full, a cluster of old pages is written to the device
    /// first; if it still is, all go to the device.
    ///
    /// `clean[i]`, if there is one, is the entry that [`Store::keep_cached`] kept for page `i`; it is used up. The pages are of
    /// one group.
    pub fn store_run(
        &self,
        pages: &[&Page],
        clean: &[Option<Entry>],
        group: Group,
        out: &mut [Result<Stored, StoreError>],
        scratch: &mut Scratch,
    ) {
        self.store_run_in_steps(pages, clean, group, out, scratch, &mut || ());
    }

    /// As [`Store::store_run`], and calls `step` whenever memory has gone back: for who counts it ([`Store::held_bytes`]).
    pub fn store_run_in_steps(
        &self,
        pages: &[&Page],
        clean: &[Option<Entry>],
        group: Group,
        out: &mut [Result<Stored, StoreError>],
        scratch: &mut Scratch,
        step: &mut dyn FnMut(),
    ) {
        for (i, (pages, out)) in pages.chunks(RUN).zip(out.chunks_mut(RUN)).enumerate() {
            let n = pages.len().min(out.len());
            self.store_chunk(&pages[..n], clean.get(i * RUN..).unwrap_or(&[]), group, &mut out[..n], scratch);
        }
        // Who stores pays for a sparse pool: while pages come and go the keeper is never idle.
        if self.wants_compaction() {
            self.compact_in_steps(pages.len().div_ceil(COMPACT_PART), step);
        }
    }

    fn store_chunk(&self, pages: &[&Page], clean: &[Option<Entry>], group: Group, out: Results<'_>, scratch: &mut Scratch) {
        // Where background work lags, the thread that needs room makes some. It is the newest pages that would go to the device
        // else.
        if !self.pool_takes(group) {
            self.shrink(self.wants_shrinking().min(1), scratch);
        }
        let mut plans: Chunk<Plan> = ArrayVec::new();
        for (i, page) in pages.iter().enumerate() {
            if let Some(Some(e)) = clean.get(i)
                && self.store_clean(*e, page)
            {
                out[i] = Ok(Stored::Entry(*e));
                plans.push(Plan::Done);
                continue;
            }
            plans.push(self.plan(page, group, scratch).unwrap_or_else(|known| {
                out[i] = known;
                Plan::Done
            }));
        }
        self.write_out(pages, &plans, group, out, scratch);
        self.place(pages, &plans, group, out, scratch);
        let refused = out.iter().filter(|r| r.is_err()).count();
        if refused > 0 {
            self.counters.refused.add(refused as u64);
        }
    }

    /// Decides where a page goes; `Err` when the result is known already.
    fn plan(&self, page: &Page, group: Group, scratch: &mut Scratch) -> Result<Plan, Result<Stored, StoreError>> {
        match fill::repeated_word(page) {
            Some(0) => {
                self.counters.zero_seen.add(1);
                return Err(Ok(Stored::Zero));
            }
            Some(word) => {
                self.counters.same_filled.add(1);
                self.counters.same_filled_words.add(word, 1);
            }
            None => {}
        }
        let device = self.has_device();
        let otherwise = if device { Ok(Plan::Device) } else { Err(Err(StoreError::Full)) };
        if !self.pool_takes(group) {
            self.counters.pool_refused.add(1);
            return otherwise;
        }
        let kept = match self.codec.compress(page, &mut scratch.workspace) {
            Some(len) if device && !self.pool.pays(len) => None,
            Some(len) => {
                let kept = self.keep(&scratch.workspace.bytes[..len], Made::Stored, group, Insert::Anywhere);
                self.counters.pool_refused.add(u64::from(kept.is_none()));
                kept
            }
            None => {
                self.counters.incompressible.add(1);
                if device { None } else { self.keep(page, Made::Stored, group, Insert::Anywhere) }
            }
        };
        kept.map(Plan::Pool).map_or(otherwise, Ok)
    }

    /// Writes the pages that are for the device. Those that an area fails to write are for the next one, and what none takes is
    /// offered to the pool.
    fn write_out(&self, pages: &[&Page], plans: &[Plan], group: Group, out: Results<'_>, scratch: &mut Scratch) {
        let mut which: Chunk<usize> = (0..pages.len()).filter(|&i| matches!(plans[i], Plan::Device)).collect();
        if which.is_empty() {
            return;
        }
        let gathered = self.gather(pages, &which, group, out, scratch);
        which.drain(..gathered);
        if !which.is_empty() {
            self.write_gathered(scratch.ends.on_device, scratch);
        }
        let mut why = StoreError::Full;
        // An area that failed rests, so each round is with others, unless devices take very long to fail.
        for _ in 0..=MAX_AREAS {
            let Some(error) = self.write_round(pages, &mut which, out, scratch) else { break };
            why = error;
        }
        for i in which {
            out[i] = self.keep_in_ram(pages[i], None, group, why, scratch);
        }
    }

    /// Writes pages `which`, which get slots together, whatever is between them, so that there are few and long writes; those
    /// to one area are in flight at the same time. Left in `which` are those that could not be written: because of the error
    /// that is returned, or because there are no slots for them.
    fn write_round(
        &self,
        pages: &[&Page],
        which: &mut Chunk<usize>,
        out: Results<'_>,
        scratch: &mut Scratch,
    ) -> Option<StoreError> {
        let all = core::mem::take(which);
        let of: Chunk<&Page> = all.iter().map(|&i| pages[i]).collect();
        let mut tags = [0; RUN];
        let (mut all, mut of, mut tags) = (&all[..], &of[..], &mut tags[..]);
        let mut why = None;
        while !all.is_empty() {
            let mut folios: ArrayVec<Folio<'_>, FOLIOS> = ArrayVec::new();
            let mut covered = 0;
            while covered < all.len()
                && !folios.is_full()
                && let Some(folio) = self.alloc_folio(all.len() - covered, Slots::Writable, &mut scratch.ends.on_device)
            {
                covered += folio.pages;
                folios.push(folio);
            }
            if covered == 0 {
                which.extend(all.iter().copied());
                break;
            }
            for folios in folios.chunk_by(|a, b| a.area.id() == b.area.id()) {
                let area = &folios[0].area;
                let mut runs: ArrayVec<WriteRun<'_>, FOLIOS> = ArrayVec::new();
                for run in folios.chunk_by(|a, b| a.slot + a.pages as u64 == b.slot) {
                    let (pages, tags_of_run);
                    (pages, of) = of.split_at(run.iter().map(|folio| folio.pages).sum());
                    (tags_of_run, tags) = core::mem::take(&mut tags).split_at_mut(pages.len());
                    runs.push(WriteRun { slot: run[0].slot, pages, tags: tags_of_run, result: Ok(()) });
                }
                self.write(area, &mut runs);
                for run in runs {
                    let these;
                    (these, all) = all.split_at(run.pages.len());
                    if let Err(errno) = run.result {
                        why = Some(StoreError::Io { errno, offset: run.slot * PAGE_SIZE as u64 });
                        which.extend(these.iter().copied());
                        continue;
                    }
                    for ((&i, slot), tag) in these.iter().zip(run.slot..).zip(&*run.tags) {
                        out[i] = self.publish(area, slot, Word::Device(*tag));
                    }
                }
            }
        }
        why
    }

    /// Gives slots to the pages in the pool, neighbours neighbouring ones: folio by folio, each as large as the pages that are
    /// left allow.
    pub(super) fn place(&self, pages: &[&Page], plans: &[Plan], group: Group, out: Results<'_>, scratch: &mut Scratch) {
        let in_pool = |(i, plan): (usize, &Plan)| if let Plan::Pool(object) = plan { Some((i, *object)) } else { None };
        let which: Chunk<(usize, Object)> = plans.iter().enumerate().filter_map(in_pool).collect();
        let mut which = &which[..];
        while let Some(&(i, object)) = which.first() {
            let end = &mut scratch.ends.in_pool;
            let listed = if self.has_device() { self.alloc_folio(which.len(), Slots::OfDevices, end) } else { None };
            let Some(folio) = listed.or_else(|| self.alloc_folio(which.len(), Slots::OfRam, end)) else {
                out[i] = self.keep_in_ram(pages[i], Some(object), group, StoreError::Full, scratch);
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

    /// Consecutive slots for up to `pages` pages: those behind `behind`, where the latest ones ended, if they are free; else of
    /// the smallest power of two that holds them all, of which the rest is given back; or of the largest that there is.
    pub(super) fn alloc_folio(&self, pages: usize, slots: Slots, behind: &mut Option<Entry>) -> Option<Folio<'_>> {
        let whole = pages.checked_next_power_of_two().filter(|_| pages > 0)?.ilog2().min(MAX_ORDER);
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

    /// The `pages` slots from `slot` on, if they are free.
    fn alloc_behind(&self, pages: usize, slots: Slots, slot: Option<Entry>) -> Option<Folio<'_>> {
        let slot = slot.filter(|slot| (slot.area() == RAM_AREA) == (slots == Slots::OfRam))?;
        let area = self.areas.get(slot.area()).filter(|area| slots != Slots::Writable || !area.rests())?;
        let slot = slot.offset();
        area.alloc_behind(slot, pages).then_some(Folio { area, slot, pages })
    }

    /// Writes pages to fresh slots. Where that fails, the slots are given up, and the area rests.
    fn write(&self, area: &AreaRef<'_>, runs: &mut [WriteRun<'_>]) {
        let ios = area.device.write_runs(runs);
        area.io.writes.add(ios as u64);
        for run in runs {
            let Err(errno) = ended(area, run.pages.len(), run.result) else { continue };
            for slot in run.slot..run.slot + run.pages.len() as u64 {
                if is_no_space(errno) {
                    area.release(slot);
                } else if let Some(word) = area.word(slot) {
                    // Where the device is broken it is not tried again: the slot stays in use.
                    word.store(Word::Bad.encode(), Ordering::Release);
                    self.counters.bad_slots.add(1);
                }
            }
        }
    }

    /// Keeps a page that has no slot of a file in the pool after all, if that takes it; else the error is `error`. `object` is
    /// what the page has in the pool already, which is gone then.
    fn keep_in_ram(
        &self,
        page: &Page,
        object: Option<Object>,
        group: Group,
        error: StoreError,
        scratch: &mut Scratch,
    ) -> Result<Stored, StoreError> {
        let object = match object {
            None if self.pool_takes(group) => match self.codec.compress(page, &mut scratch.workspace) {
                Some(len) => self.keep(&scratch.workspace.bytes[..len], Made::Stored, group, Insert::Anywhere),
                None => self.keep(page, Made::Stored, group, Insert::Anywhere),
            },
            known => known,
        };
        let object = object.ok_or(error)?;
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

    /// Makes a slot's page known. Fails only for a slot that no entry can name, which areas do not have.
    pub(super) fn publish(&self, area: &AreaRef<'_>, slot: u64, word: Word) -> Result<Stored, StoreError> {
        let entry = Entry::new(area.id(), slot).ok_or(StoreError::Full)?;
        let place = area.word(slot).ok_or(StoreError::Full)?;
        debug_assert_eq!(place.load(Ordering::Relaxed), Word::Empty.encode(), "a slot was given out twice");
        // Counted first: a free, which subtracts, may follow at once.
        self.counters.stored_now.add(1);
        if matches!(word, Word::Device(_)) {
            area.io.pages.add(1);
        }
        // Release: whoever sees the word finds the object.
        place.store(word.encode(), Ordering::Release);
        if matches!(word, Word::Pool(_)) {
            area.ages.stored(slot);
        }
        Ok(Stored::Entry(entry))
    }
}

/// Counts how the write of a run of `pages` pages ended, and lets the area rest if it failed. Returns `result`.
pub(super) fn ended(area: &AreaRef<'_>, pages: usize, result: Result<(), Errno>) -> Result<(), Errno> {
    match result {
        Ok(()) => {
            area.io.write_bytes.add((pages * PAGE_SIZE) as u64);
            area.wrote();
        }
        Err(errno) => {
            area.io.errors.add(1);
            area.failed(errno);
        }
    }
    result
}

/// Whether an error means that there is no room now, and not that the device is broken.
pub(super) fn is_no_space(errno: Errno) -> bool {
    matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::FBIG)
}
