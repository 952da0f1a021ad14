//! Draining: the oldest batch of staging goes into the store, and its memory back to the kernel.

use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use lowtide_core::slot::Entry;
use lowtide_core::store::{Page, StoreError, Stored};
use lowtide_core::vm::{self, PAGE_SIZE};
use rustix::io::Errno;

use crate::fault::install::may_be_copied;
use crate::fault::patience::{IN_HAND_SECONDS, Patience};
use crate::fault::worker::{Reach, Worker};
use crate::pagemap::PageState;
use crate::pagemap::ids::{PageNo, StagingFrame};
use crate::pager::{Operation, add};
use crate::reclaim::staging::{Batch, MAX_BATCH_FRAMES, Memory};
use crate::sys::uffd::{Holes, Wake};

/// What a drain came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// A batch is empty again.
    Freed,
    /// No batch was filled.
    Nothing,
    /// At least one page could not be stored, or is not to be, and is in its place again.
    Full,
    /// Pages could not be put back yet: an event waits to be read.
    Later,
}

/// Pages whose words are set under one hold of the space lock.
const COMMITTED_AT_ONCE: usize = 32;

/// Something for each frame of a batch.
type Frames<T> = ArrayVec<T, MAX_BATCH_FRAMES>;

impl Operation<'_> {
    /// Stores what is left in the oldest batch, then empties it.
    pub(crate) fn drain(&self, worker: &mut Worker) -> Drained {
        let Some(batch) = self.staging.take_full() else { return Drained::Nothing };
        self.staging.unregister(batch, self.uffd());
        let mut full = self.all_stays();
        if full && !self.put_back(batch) {
            self.staging.put_full(batch);
            return Drained::Later;
        }
        let mut patience = Patience::new();
        loop {
            let mut frames: Frames<StagingFrame> = Frames::new();
            let mut waiting = false;
            {
                // Under the lock, so that no REMAP comes between looking up the owner and claiming its word.
                let _lock = self.space.shared();
                let mut freer = self.store().freer();
                for frame in self.staging.frames(batch) {
                    let Some(page) = self.staging.owner(frame) else { continue };
                    match self.map.get(page) {
                        PageState::Staged(f)
                            if f == frame && self.map.swap(page, PageState::Staged(f), PageState::Storing(f)) =>
                        {
                            frames.push(frame);
                        }
                        // A monitor takes it back this moment.
                        PageState::Moving(f) if f == frame => waiting = true,
                        PageState::Staged(f) if f == frame => waiting = true,
                        // Dropped by the program.
                        _ => self.leave(&mut freer, frame, Memory::Stays),
                    }
                }
            }
            if frames.is_empty() {
                if waiting {
                    self.wait_for_copy(&mut patience, self.staging.first(batch));
                    continue;
                }
                break;
            }
            if !self.store_frames(&frames, worker) {
                full = true;
                if !self.put_back(batch) {
                    self.staging.put_full(batch);
                    return Drained::Later;
                }
            }
        }
        for frame in self.staging.frames(batch) {
            if let Some(page) = self.staging.owner(frame) {
                self.broken(b"a drained frame still has an owner", page, frame);
            }
        }
        let discarded = self.staging.discard(batch, self.uffd());
        self.publish_own();
        match discarded {
            Ok(()) => self.staging.put_empty(batch),
            // The batch is never used again; with all of them gone nothing can be evicted, which is said elsewhere.
            Err(_) => {
                self.staging.lose(batch);
                (self.host.warn)(b"part of lowtide's staging area could not be registered again; it is not used any more")
            }
        }
        if full { Drained::Full } else { Drained::Freed }
    }

    /// Stores claimed frames. False: some are Staged again because no tier takes them.
    fn store_frames(&self, frames: &[StagingFrame], worker: &mut Worker) -> bool {
        let page = |frame: &StagingFrame| {
            let addr = self.staging.addr(*frame);
            // SAFETY: the words say Storing, so this is lowtide's own memory until this thread says otherwise. From here on the
            // kernel may not drop the page, should the program have freed it by MADV_FREE; if it has, zeros are there.
            unsafe { vm::write_nothing(addr) };
            // SAFETY: populated, and nobody changes the bytes until the words are set.
            unsafe { &*(addr as *const Page) }
        };
        let bytes: Frames<&Page> = frames.iter().map(page).collect();
        // The store uses the clean copies up.
        let clean = |frame: &StagingFrame| Entry::from_raw(self.staging.take_clean(*frame));
        let clean: Frames<Option<Entry>> = frames.iter().map(clean).collect();
        let mut results = [const { Err(StoreError::Full) }; MAX_BATCH_FRAMES];
        let results = &mut results[..frames.len()];
        let owners: Frames<Option<PageNo>> = frames.iter().map(|frame| self.staging.owner(*frame)).collect();
        // Together, so that what goes to a device goes there with one write.
        self.store().store_tried(&bytes, &clean, &self.stretches.trials(&owners), results, worker.scratch());
        let mut stored = true;
        // A page is found in its frame until its word is set.
        for ((frames, clean), results) in
            frames.chunks(COMMITTED_AT_ONCE).zip(clean.chunks(COMMITTED_AT_ONCE)).zip(results.chunks(COMMITTED_AT_ONCE))
        {
            stored &= self.commit(frames, clean, results);
        }
        self.publish_own();
        stored
    }

    /// Sets the words of pages that have been stored, or could not be. False: some could not.
    fn commit(&self, frames: &[StagingFrame], clean: &[Option<Entry>], results: &[Result<Stored, StoreError>]) -> bool {
        let mut stored = true;
        let c = self.counters();
        // Under the lock no REMAP comes between, so the owner is where the word is, wherever mremap has moved it meanwhile.
        let _lock = self.space.shared();
        let mut freer = self.store().freer();
        for ((&frame, clean), result) in frames.iter().zip(clean).zip(results) {
            let word = match result {
                Ok(Stored::Zero) => PageState::Zero,
                Ok(Stored::Entry(e)) => PageState::Swapped(e.raw()),
                Err(_) => PageState::Staged(frame),
            };
            // Counted before it can be seen, so that the count never goes below zero.
            match word {
                PageState::Zero => {
                    self.zero_now.fetch_add(1, Ordering::Relaxed);
                }
                PageState::Swapped(_) if clean.is_some_and(|e| word == PageState::Swapped(e.raw())) => {
                    add(&c.evictions_clean, 1)
                }
                PageState::Swapped(_) => add(&c.stored_pages, 1),
                _ => stored = false,
            }
            let owner = self.staging.owner(frame);
            if owner.is_some_and(|page| self.set_stored(page, frame, word)) {
                match word {
                    PageState::Zero => add(&c.zero_pages, 1),
                    PageState::Swapped(_) => {}
                    _ => continue,
                }
            } else {
                // Dropped by the program or back in its place meanwhile. In the latter case the frame is nobody's any more, and
                // the word may be about to become another thread's.
                if let Some(page) = owner.filter(|page| self.staging.owner(frame) == Some(*page)) {
                    self.map.swap(page, PageState::ORPHAN_OF_STORE, PageState::None);
                }
                // Last: of a page that no tier took it is the frame that is forgotten, and with it whose it is.
                self.forget(&mut freer, word);
            }
            self.staging.left(frame, Memory::Stays);
        }
        stored
    }

    /// Sets the word of a page that is being stored. False: it is not any more.
    fn set_stored(&self, page: PageNo, frame: StagingFrame, word: PageState) -> bool {
        let mut patience = Patience::new();
        loop {
            if self.map.swap(page, PageState::Storing(frame), word) {
                return true;
            }
            match self.map.get(page) {
                // A monitor copies it back this moment ...
                PageState::Moving(f) if f == frame => self.wait_for_copy(&mut patience, frame),
                // ... or could not.
                PageState::Storing(f) if f == frame => {}
                _ => return false,
            }
        }
    }

    /// A monitor takes a page back from its frame, which is a matter of microseconds.
    fn wait_for_copy(&self, patience: &mut Patience, frame: StagingFrame) {
        if !patience.wait(IN_HAND_SECONDS) {
            self.broken(b"a page has been on its way back from staging for ten minutes", PageNo::new(0), frame);
        }
    }

    /// Takes the pages that are left in a batch back to their places. False: an event waits to be read first.
    fn put_back(&self, batch: Batch) -> bool {
        let _lock = self.space.shared();
        for frame in self.staging.frames(batch) {
            let Some(page) = self.staging.owner(frame) else { continue };
            if !self.map.swap(page, PageState::Staged(frame), PageState::Moving(frame)) {
                continue;
            }
            if self.going.has(page) {
                // Dropped, and not to come back.
                self.leave(&mut self.store().freer(), frame, Memory::Stays);
                self.map.set(page, PageState::None);
                continue;
            }
            let (at, from) = (page.addr(), self.staging.addr(frame));
            // SAFETY: the word says Moving, so nobody else touches the page or the frame.
            let moved = unsafe { self.uffd().move_pages(at, from, PAGE_SIZE, Holes::Stop, Wake::Now) };
            let result = match self.borne_out(page, Reach::Everything, moved).error {
                None => Ok(Memory::Went),
                Some(why) if may_be_copied(why) => self.copy_from_frame(page, frame, Wake::Now),
                Some(why) => Err(why),
            };
            match result {
                Ok(_) | Err(Errno::EXIST) => {
                    self.leave(&mut self.store().freer(), frame, result.unwrap_or(Memory::Stays));
                    self.map.set(page, PageState::None);
                    self.mark_loaded(page, None);
                    self.budget.add_pages(isize::from(result.is_ok()));
                    self.uffd().wake(at, PAGE_SIZE);
                }
                Err(_) => {
                    self.map.set(page, PageState::Staged(frame));
                    return false;
                }
            }
        }
        true
    }
}
