//! Draining: stores the oldest staging batch and discards its memory.

use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use lowtide_core::slot::Entry;
use lowtide_core::store::{Page, StoreError, Stored};
use lowtide_core::vm::{self, PAGE_SIZE};
use lowtide_sys::uffd::{Holes, Wake};
use lowtide_wire::segment::add;
use rustix::io::Errno;

use crate::pagemap::PageState;
use crate::pagemap::ids::{PageNo, StagingFrame};
use crate::pages::Operation;
use crate::pages::install::may_be_copied;
use crate::pages::patience::{IN_HAND_SECONDS, Patience};
use crate::pages::staging::{Batch, MAX_BATCH_FRAMES, Memory};
use crate::pages::worker::{Rights, Worker};
use crate::reclaim::evicted::Evicted;
use crate::reclaim::references::sum;

/// Words set in one hold of the space lock.
const COMMITTED_AT_ONCE: usize = 32;

/// The same with checks of references, which interrupt all CPUs.
const ASKED_AT_ONCE: usize = 128;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Left {
    Nothing,
    /// The kernel may still write.
    Referenced,
    /// No tier takes some.
    Full,
}

type Frames<T> = ArrayVec<T, MAX_BATCH_FRAMES>;

impl Operation<'_> {
    /// Stores the oldest batch. [`Evicted::Nothing`]: none was filled. [`Evicted::Full`]: it is
    /// empty again, but a page is back in its place, without room or not allowed out.
    /// [`Evicted::Later`]: pages wait for an event to be put back.
    pub(crate) fn drain(&self, worker: &mut Worker) -> Evicted {
        let Some(batch) = self.pages.staging.take_full() else { return Evicted::Nothing };
        let heeds = self.heeds_references();
        // Freeing registered memory raises an event, perhaps for this thread.
        let mut full = !self.pages.staging.unregister(batch, self.uffd()) && heeds || self.soft_dirty_was_read();
        if full && !self.put_back(batch, false) {
            self.pages.staging.put_full(batch);
            return Evicted::Later;
        }
        let mut patience = Patience::new();
        loop {
            let mut frames: Frames<StagingFrame> = Frames::new();
            let mut waiting = false;
            {
                // No REMAP between look-up and claim.
                let _lock = self.pages.space.shared();
                let mut freer = self.store().freer();
                for frame in self.pages.staging.frames(batch) {
                    let Some(page) = self.pages.staging.owner(frame) else { continue };
                    match self.pages.map.get(page) {
                        PageState::Staged(f)
                            if f == frame && self.pages.map.swap(page, PageState::Staged(f), PageState::Storing(f)) =>
                        {
                            frames.push(frame);
                        }
                        // A handler is taking it back.
                        PageState::Moving(f) if f == frame => waiting = true,
                        PageState::Staged(f) if f == frame => waiting = true,
                        // Dropped by the program.
                        _ => self.leave(&mut freer, frame, Memory::Stays),
                    }
                }
            }
            if frames.is_empty() {
                if waiting {
                    self.wait_for_copy(&mut patience, self.pages.staging.first(batch));
                    continue;
                }
                break;
            }
            let left = self.store_frames(&frames, heeds, worker);
            if left != Left::Nothing {
                full |= left == Left::Full;
                if !self.put_back(batch, left == Left::Referenced) {
                    self.pages.staging.put_full(batch);
                    return Evicted::Later;
                }
            }
        }
        for frame in self.pages.staging.frames(batch) {
            if let Some(page) = self.pages.staging.owner(frame) {
                self.broken(b"a drained frame still has an owner", page, frame);
            }
        }
        let discarded = self.pages.staging.discard(batch, self.uffd());
        self.publish_own();
        match discarded {
            Ok(()) => self.pages.staging.put_empty(batch),
            // Lost for good.
            Err(_) => {
                self.pages.staging.lose(batch);
                (self.host.warn)(b"part of lowtide's staging area could not be registered again; it is not used any more")
            }
        }
        if full { Evicted::Full } else { Evicted::Progress }
    }

    /// Stores claimed frames; `heeds` checks references.
    fn store_frames(&self, frames: &[StagingFrame], heeds: bool, worker: &mut Worker) -> Left {
        let page = |frame: &StagingFrame| {
            let addr = self.pages.staging.addr(*frame);
            // SAFETY: the word is Storing, so the frame is lowtide's. The write stops the kernel
            // from dropping a page under MADV_FREE; one dropped before is zeros.
            unsafe { vm::write_nothing(addr) };
            // SAFETY: populated, and unchanged until the words are set.
            unsafe { &*(addr as *const Page) }
        };
        let bytes: Frames<&Page> = frames.iter().map(page).collect();
        let sums: Frames<u64> = if heeds {
            // SAFETY: as above; before storing, so that later writes show.
            frames.iter().map(|frame| unsafe { sum(self.pages.staging.addr(*frame)) }).collect()
        } else {
            Frames::new()
        };
        // The store uses the clean copies up.
        let clean = |frame: &StagingFrame| Entry::from_raw(self.pages.staging.take_clean(*frame));
        let clean: Frames<Option<Entry>> = frames.iter().map(clean).collect();
        let mut results = [const { Err(StoreError::Full) }; MAX_BATCH_FRAMES];
        let results = &mut results[..frames.len()];
        let owners: Frames<Option<PageNo>> = frames.iter().map(|frame| self.pages.staging.owner(*frame)).collect();
        // Together, for one write to a device.
        self.store().store_tried(&bytes, &clean, &self.reclaim.stretches.trials(&owners), results, worker.scratch());
        let mut left = Left::Nothing;
        // Until then frames serve the pages.
        let at_once = if heeds { ASKED_AT_ONCE } else { COMMITTED_AT_ONCE };
        for first in (0..frames.len()).step_by(at_once) {
            let part = first..frames.len().min(first + at_once);
            left = left.max(self.commit(&frames[part.clone()], &clean[part.clone()], &results[part.clone()], sums.get(part)));
        }
        self.publish_own();
        left
    }

    /// Sets words after storing; with `sums` after checking references. (Over 70 lines: an arm for
    /// each state of a word.)
    fn commit(
        &self,
        frames: &[StagingFrame],
        clean: &[Option<Entry>],
        results: &[Result<Stored, StoreError>],
        sums: Option<&[u64]>,
    ) -> Left {
        let mut left = Left::Nothing;
        let c = self.counters();
        // No REMAP between: the owner is where the word is.
        let _lock = self.pages.space.shared();
        let (asked, stays) = sums.map_or((0, 0), |sums| self.drop_checked(frames, results, sums));
        let mut freer = self.store().freer();
        for (i, ((&frame, clean), result)) in frames.iter().zip(clean).zip(results).enumerate() {
            let word = match result {
                Ok(Stored::Zero) => PageState::Zero,
                Ok(Stored::Entry(e)) => PageState::Swapped(e.raw()),
                Err(_) => PageState::Staged(frame),
            };
            // Before it is visible, so that the count never underflows.
            match word {
                PageState::Zero => {
                    self.pages.zero_now.fetch_add(1, Ordering::Relaxed);
                }
                PageState::Swapped(_) if clean.is_some_and(|e| word == PageState::Swapped(e.raw())) => {
                    add(&c.evictions_clean, 1)
                }
                PageState::Swapped(_) => add(&c.stored_pages, 1),
                _ => left = Left::Full,
            }
            let owner = self.pages.staging.owner(frame);
            let is_asked = asked >> i & 1 != 0;
            if is_asked && stays >> i & 1 != 0 {
                left = left.max(Left::Referenced);
                // SAFETY: populated; revokes MADV_FREE.
                unsafe { vm::write_nothing(self.pages.staging.addr(frame)) };
                owner.into_iter().for_each(|page| self.pages.map.set(page, PageState::Staged(frame)));
                self.forget(&mut freer, word);
                continue;
            }
            // A handler had the page during the check.
            if sums.is_some() && !is_asked && result.is_ok() {
                left = left.max(Left::Referenced);
                if owner.is_some_and(|page| self.set_stored(page, frame, PageState::Staged(frame))) {
                    self.forget(&mut freer, word);
                    continue;
                }
            }
            // A checked page is this thread's until its word is set: the frame is empty.
            let sets = |page| match is_asked {
                true => self.pages.map.swap(page, PageState::Moving(frame), word),
                false => self.set_stored(page, frame, word),
            };
            if owner.is_some_and(sets) {
                match word {
                    PageState::Zero => add(&c.zero_pages, 1),
                    PageState::Swapped(_) => {}
                    _ => continue,
                }
            } else {
                // Dropped, or back: then the frame has no owner, and another thread may claim the
                // word.
                if let Some(page) = owner.filter(|page| self.pages.staging.owner(frame) == Some(*page)) {
                    self.pages.map.swap(page, PageState::ORPHAN_OF_STORE, PageState::None);
                }
                // Last: this clears a refused page's owner.
                self.forget(&mut freer, word);
            }
            self.pages.staging.left(frame, Memory::Stays);
        }
        left
    }

    /// Drops stored pages without references, under the shared space lock. Returns bitmaps of
    /// checked and kept frames.
    fn drop_checked(&self, frames: &[StagingFrame], results: &[Result<Stored, StoreError>], sums: &[u64]) -> (u128, u128) {
        let claims = |frame| {
            let claims = |page| self.pages.map.swap(page, PageState::Storing(frame), PageState::Moving(frame));
            self.pages.staging.owner(frame).is_some_and(claims)
        };
        let asked = (0..frames.len()).map(|i| u128::from(results[i].is_ok() && claims(frames[i])) << i).sum();
        (asked, self.drop_unreferenced(frames, sums, asked))
    }

    /// False: it is no longer being stored.
    fn set_stored(&self, page: PageNo, frame: StagingFrame, word: PageState) -> bool {
        let mut patience = Patience::new();
        loop {
            if self.pages.map.swap(page, PageState::Storing(frame), word) {
                return true;
            }
            match self.pages.map.get(page) {
                // A handler is copying it back ...
                PageState::Moving(f) if f == frame => self.wait_for_copy(&mut patience, frame),
                // ... or has failed to.
                PageState::Storing(f) if f == frame => {}
                _ => return false,
            }
        }
    }

    /// Microseconds.
    fn wait_for_copy(&self, patience: &mut Patience, frame: StagingFrame) {
        if !patience.wait(IN_HAND_SECONDS) {
            self.broken(b"a page has been on its way back from staging for ten minutes", PageNo::new(0), frame);
        }
    }

    /// Moves remaining pages back; `in_use` spares them. False: an event is pending.
    fn put_back(&self, batch: Batch, in_use: bool) -> bool {
        let _lock = self.pages.space.shared();
        for frame in self.pages.staging.frames(batch) {
            let Some(page) = self.pages.staging.owner(frame) else { continue };
            if !self.pages.map.swap(page, PageState::Staged(frame), PageState::Moving(frame)) {
                continue;
            }
            if self.mappings.going.has(page) {
                // Dropped for good.
                self.leave(&mut self.store().freer(), frame, Memory::Stays);
                self.pages.map.set(page, PageState::None);
                continue;
            }
            let (at, from) = (page.addr(), self.pages.staging.addr(frame));
            // SAFETY: the word is Moving, so page and frame are this thread's.
            let moved = unsafe { self.uffd().move_pages(at, from, PAGE_SIZE, Holes::Stop, Wake::Now) };
            let result = match self.borne_out(page, Rights::Serve, moved).error {
                None => Ok(Memory::Went),
                Some(why) if may_be_copied(why) => self.copy_from_frame(page, frame, Wake::Now),
                Some(why) => Err(why),
            };
            match result {
                Ok(_) | Err(Errno::EXIST) => {
                    self.leave(&mut self.store().freer(), frame, result.unwrap_or(Memory::Stays));
                    self.pages.map.set(page, PageState::None);
                    if in_use {
                        self.mark_taken_back(page)
                    } else {
                        self.mark_loaded(page, None)
                    }
                    self.accounts.budget.add_pages(isize::from(result.is_ok()));
                    self.uffd().wake(at, PAGE_SIZE);
                }
                Err(_) => {
                    self.pages.map.set(page, PageState::Staged(frame));
                    return false;
                }
            }
        }
        true
    }
}
