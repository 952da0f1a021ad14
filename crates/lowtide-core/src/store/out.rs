//! Storing pages.

use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use rustix::io::Errno;

use super::word::Word;
use super::{Entry, MAX_AREAS, Page, RAM_AREA, Scratch, Store, StoreError, Stored};
use crate::device::WriteRun;
use crate::fill;
use crate::pool::Handle;
use crate::slot::{AreaRef, MAX_ORDER};
use crate::vm::PAGE_SIZE;

/// Most pages that are handled at once: the largest folio.
const RUN: usize = 1 << MAX_ORDER;

/// What becomes of a page before it has a slot.
#[derive(Clone, Copy)]
enum Plan {
    /// The result is known.
    Done,
    /// Its object is in the pool.
    Pool(Handle),
    /// It shall be written to the device.
    Device,
}

type Results<'a> = &'a mut [Result<Stored, StoreError>];

impl Store {
    /// Stores pages that are neighbours; `out[i]` is set for every page. A page that cannot be stored leaves nothing behind. Pages
    /// that do not compress to 7/8 go to the device if there is one, consecutive ones with one write, else raw into the pool.
    /// While the pool is full, a cluster of old pages is written to the device first; if it still is, all go to the device.
    ///
    /// `clean[i]`, if there is one, is the entry that [`Store::keep_cached`] kept for page `i`; it is used up.
    pub fn store_run(
        &self,
        pages: &[&Page],
        clean: &[Option<Entry>],
        out: &mut [Result<Stored, StoreError>],
        scratch: &mut Scratch,
    ) {
        for (i, (pages, out)) in pages.chunks(RUN).zip(out.chunks_mut(RUN)).enumerate() {
            let n = pages.len().min(out.len());
            self.store_chunk(&pages[..n], clean.get(i * RUN..).unwrap_or(&[]), &mut out[..n], scratch);
        }
    }

    fn store_chunk(&self, pages: &[&Page], clean: &[Option<Entry>], out: Results<'_>, scratch: &mut Scratch) {
        // Where background work lags, the thread that needs room makes some. It is the newest pages that would go to the device else.
        if !self.pool.accepts() {
            self.shrink(self.wants_shrinking().min(1), scratch);
        }
        let mut plans: ArrayVec<Plan, RUN> = ArrayVec::new();
        for (i, page) in pages.iter().enumerate() {
            if let Some(Some(e)) = clean.get(i)
                && self.store_clean(*e, page)
            {
                out[i] = Ok(Stored::Entry(*e));
                plans.push(Plan::Done);
                continue;
            }
            plans.push(self.plan(page, scratch).unwrap_or_else(|known| {
                out[i] = known;
                Plan::Done
            }));
        }
        // Neighbours get neighbouring slots, whether they are in the pool now or on the device.
        let mut i = 0;
        while i < pages.len() {
            let run = plans[i..].iter().take_while(|p| !matches!(p, Plan::Done)).count();
            self.place_run(&pages[i..i + run], &plans[i..i + run], &mut out[i..i + run], scratch);
            i += run.max(1);
        }
        let refused = out.iter().filter(|r| r.is_err()).count();
        if refused > 0 {
            self.counters.refused.add(refused as u64);
        }
    }

    /// Decides where a page goes; `Err` when the result is known already.
    fn plan(&self, page: &Page, scratch: &mut Scratch) -> Result<Plan, Result<Stored, StoreError>> {
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
        if !self.pool.accepts() {
            self.counters.pool_refused.add(1);
            return otherwise;
        }
        let kept = match self.codec.compress(page, scratch) {
            Some(len) => {
                let kept = self.pool.insert(&scratch.bytes[..len]);
                self.counters.pool_refused.add(u64::from(kept.is_none()));
                kept
            }
            None => {
                self.counters.incompressible.add(1);
                if device { None } else { self.pool.insert(page) }
            }
        };
        kept.map(Plan::Pool).map_or(otherwise, Ok)
    }

    /// Gives slots to pages none of whose plans is done, and finishes them: folio by folio, each as large as the pages that are
    /// left allow.
    fn place_run(&self, pages: &[&Page], plans: &[Plan], out: Results<'_>, scratch: &mut Scratch) {
        let mut done = 0;
        // Why pages without a slot have none.
        let mut why = StoreError::Full;
        while done < pages.len() {
            let in_pool = plans[done..].iter().take_while(|p| matches!(p, Plan::Pool(_))).count();
            let listed = if self.has_device() { self.alloc_folio(pages.len() - done, None) } else { None };
            let n = match listed.or_else(|| self.alloc_folio(in_pool, Some(RAM_AREA))) {
                Some((area, slot, n)) => {
                    let part = done..done + n;
                    let filled =
                        self.fill_slots(&area, slot, &pages[part.clone()], &plans[part.clone()], &mut out[part], scratch);
                    why = filled.err().unwrap_or(why);
                    n
                }
                None => {
                    out[done] = self.keep_in_ram(pages[done], plans[done], why, scratch);
                    1
                }
            };
            done += n;
        }
    }

    /// Slots for a folio of at most `pages` pages, in the area of that number or any that is available: the largest power of two,
    /// or less where no run of that size is free. Returns the area, the first slot and how many.
    fn alloc_folio(&self, pages: usize, area: Option<u8>) -> Option<(AreaRef<'_>, u64, usize)> {
        let whole = pages.checked_ilog2()?.min(MAX_ORDER);
        let alloc = |order| match area {
            None => self.areas.alloc(order, &self.word_cache()),
            Some(id) => self.areas.get(id).and_then(|area| area.alloc(order).map(|slot| (area, slot))),
        };
        let (order, (area, slot)) = (0..=whole).rev().find_map(|order| Some((order, alloc(order)?)))?;
        self.counters.folios[order as usize].add(1);
        if order < whole {
            self.counters.folios_split[whole as usize].add(1);
        }
        Some((area, slot, 1 << order))
    }

    /// Fills consecutive fresh slots.
    ///
    /// # Errors
    /// The device failed; each page's result is set all the same, and may be that it is elsewhere.
    fn fill_slots(
        &self,
        area: &AreaRef<'_>,
        slot: u64,
        pages: &[&Page],
        plans: &[Plan],
        out: Results<'_>,
        scratch: &mut Scratch,
    ) -> Result<(), StoreError> {
        let (mut i, mut filled) = (0, Ok(()));
        while i < pages.len() {
            let at = slot + i as u64;
            let Plan::Pool(handle) = plans[i] else {
                let n = plans[i..].iter().take_while(|p| matches!(p, Plan::Device)).count().max(1);
                let part = i..i + n;
                let (pages, out) = (&pages[part.clone()], &mut out[part]);
                if let Err(error) = self.write(area, at, pages, out) {
                    filled = Err(error);
                    self.place_elsewhere(pages, error, out, scratch);
                }
                i += n;
                continue;
            };
            out[i] = self.publish(area, at, Word::Pool(handle));
            i += 1;
        }
        filled
    }

    /// Finds another place for pages that a device failed to write with `error`: the next area, or the pool if that takes them.
    fn place_elsewhere(&self, pages: &[&Page], mut error: StoreError, out: Results<'_>, scratch: &mut Scratch) {
        // An area that failed rests, so each attempt is with another one, unless devices take very long to fail.
        let (mut done, mut failures) = (0, 0);
        while done < pages.len() && failures < MAX_AREAS {
            let Some((area, slot, n)) = self.alloc_folio(pages.len() - done, None) else { break };
            let part = done..done + n;
            match self.write(&area, slot, &pages[part.clone()], &mut out[part]) {
                Ok(()) => done += n,
                Err(failed) => (error, failures) = (failed, failures + 1),
            }
        }
        for (page, out) in pages[done..].iter().zip(&mut out[done..]) {
            *out = self.keep_in_ram(page, Plan::Device, error, scratch);
        }
    }

    /// Writes pages to fresh slots and makes them known. When that fails, the slots are given up, and the area rests.
    fn write(&self, area: &AreaRef<'_>, slot: u64, pages: &[&Page], out: Results<'_>) -> Result<(), StoreError> {
        let mut tags = [0; RUN];
        area.io.writes.add(1);
        let mut run = [WriteRun { slot, pages, tags: &mut tags[..pages.len()], result: Ok(()) }];
        area.device.write_runs(&mut run);
        let Err(errno) = run[0].result else {
            area.io.write_bytes.add((pages.len() * PAGE_SIZE) as u64);
            area.wrote();
            for ((out, tag), slot) in out.iter_mut().zip(tags).zip(slot..) {
                *out = self.publish(area, slot, Word::Device(tag));
            }
            return Ok(());
        };
        area.io.errors.add(1);
        area.failed(errno);
        let no_space = matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::FBIG);
        for slot in slot..slot + pages.len() as u64 {
            if no_space {
                area.release(slot);
            } else if let Some(word) = area.word(slot) {
                // Where the device is broken it is not tried again: the slot stays in use.
                word.store(Word::Bad.encode(), Ordering::Release);
                self.counters.bad_slots.add(1);
            }
        }
        Err(StoreError::Io { errno, offset: slot * PAGE_SIZE as u64 })
    }

    /// Keeps a page that has no slot of a file in the pool after all, if that takes it; else the error is `error`, and what the
    /// page had in the pool is gone.
    fn keep_in_ram(&self, page: &Page, plan: Plan, error: StoreError, scratch: &mut Scratch) -> Result<Stored, StoreError> {
        let handle = match plan {
            Plan::Pool(handle) => Some(handle),
            _ if !self.pool.accepts() => None,
            _ => match self.codec.compress(page, scratch) {
                Some(len) => self.pool.insert(&scratch.bytes[..len]),
                None => self.pool.insert(page),
            },
        };
        let handle = handle.ok_or(error)?;
        let area = self.areas.get(RAM_AREA).ok_or(StoreError::Full);
        let stored = area.and_then(|area| {
            let slot = area.alloc(0).ok_or(StoreError::Full)?;
            self.publish(&area, slot, Word::Pool(handle))
        });
        if stored.is_err() {
            let _ = self.pool.remove(handle);
        }
        stored
    }

    /// Makes a slot's page known. Fails only for a slot that no entry can name, which areas do not have.
    fn publish(&self, area: &AreaRef<'_>, slot: u64, word: Word) -> Result<Stored, StoreError> {
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
        if matches!(word, Word::Pool(_)) && area.device.takes_pages() {
            area.ages.stored(slot);
        }
        Ok(Stored::Entry(entry))
    }
}
