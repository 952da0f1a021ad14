//! A page in staging: it goes back by a MOVE, or by a copy of its frame where it can't be moved.

use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::uffd::{Holes, Wake};
use lowtide_wire::segment::{FaultKind, add};
use rustix::io::Errno;

use super::{Again, Served, Try};
use crate::pagemap::PageState;
use crate::pagemap::ids::{PageNo, StagingFrame};
use crate::pages::Operation;
use crate::pages::install::{Installed, Stopped, install_run, may_be_copied};
use crate::pages::staging::Memory;
use crate::pages::worker::Worker;

const MAX_UNSTAGED: usize = 64;

impl Operation<'_> {
    /// Takes the page back, with the next of its batch, by the stream of faults.
    pub(super) fn unstage(&self, page: PageNo, frame: StagingFrame, worker: &mut Worker) -> Try {
        let _lock = self.pages.space.shared();
        let window = self.faults.loads.window(page);
        let most = window.pages.min(MAX_UNSTAGED);
        let mut n = 0;
        while n < most
            && !self.mappings.going.has(page + n)
            && self.pages.staging.same_batch(frame, frame + n)
            && self.pages.map.swap(page + n, PageState::Staged(frame + n), PageState::Moving(frame + n))
        {
            n += 1;
        }
        if n == 0 {
            return Err(Again::Changed);
        }
        for i in 0..n {
            if self.pages.staging.owner(frame + i) != Some(page + i) {
                self.broken(b"a staged page does not own its frame", page + i, frame + i);
            }
        }
        let (done, error) = self.move_back(page, frame, n, worker);
        for i in done..n {
            self.pages.map.set(page + i, PageState::Staged(frame + i));
        }
        match error {
            Some(e) if done == 0 => self.failed(page, e),
            _ => {
                self.faults.loads.advance(window, page, page + done);
                let c = self.counters();
                self.count(FaultKind::Staged, worker);
                add(&c.pages_in, done);
                add(&c.read_ahead_pages, done - 1);
                add(&c.read_ahead_used, window.used);
                Ok(Served::Done)
            }
        }
    }

    /// Moves claimed pages back from their frames, or copies them. Returns how many came, and why
    /// no more.
    fn move_back(&self, page: PageNo, frame: StagingFrame, n: usize, worker: &mut Worker) -> (usize, Option<Errno>) {
        let mut done = 0;
        while done < n {
            let rights = worker.rights();
            let call = |at: PageNo, n: usize| {
                let from = self.pages.staging.addr(frame + (at - page));
                // SAFETY: the words say Moving, so nobody else touches the pages or the frames.
                let progress = unsafe { self.uffd().move_pages(at.addr(), from, n * PAGE_SIZE, Holes::Stop, Wake::Later) };
                self.borne_out(at, rights, progress)
            };
            let stopped = install_run(page + done, n - done, None, call, |came| match came {
                Installed::Pages(at, pages) => {
                    worker.installed(at, at + pages);
                    for at in at.up_to(at + pages) {
                        self.back_in_place(at, frame + (at - page), Memory::Went, at == page);
                    }
                }
                Installed::WasThere(at) => self.stale_in_staging(at, frame + (at - page)),
            });
            let Err(Stopped { at, why }) = stopped else { return (n, None) };
            done = at - page;
            let from = frame + done;
            // A page reported missing in its frame has no place to go to. With `Rights::Memory` the
            // page map is uncertain.
            if !may_be_copied(why) || !rights.has_devices() || why == Errno::NOENT && self.is_in_frame(from) {
                return (done, Some(why));
            }
            match self.copy_from_frame(at, from, Wake::Later) {
                Ok(memory) => {
                    worker.installed(at, at + 1);
                    self.back_in_place(at, from, memory, done == 0);
                }
                Err(Errno::EXIST) => self.stale_in_staging(at, from),
                Err(why) => return (done, Some(why)),
            }
            done += 1;
        }
        (done, None)
    }

    /// The page is being stored, perhaps on a disk: copies it from its frame, which keeps its bytes
    /// until the drainer has seen that this is done.
    pub(super) fn copy_back(&self, page: PageNo, frame: StagingFrame, worker: &mut Worker) -> Try {
        if self.heeds_references_now() {
            // The copy would miss writes into the frame that are still to come.
            return Err(Again::Changed);
        }
        let _lock = self.pages.space.shared();
        if self.mappings.going.has(page) || !self.pages.map.swap(page, PageState::Storing(frame), PageState::Moving(frame)) {
            return Err(Again::Changed);
        }
        // SAFETY: a frame that is being stored is populated, or will be: it is not registered
        // meanwhile, and zeros replace a page that the kernel has dropped.
        let p = unsafe { self.uffd().copy(page.addr(), self.pages.staging.addr(frame) as *const u8, PAGE_SIZE, Wake::Later) };
        match self.borne_out(page, worker.rights(), p).error {
            None => {
                worker.installed(page, page + 1);
                self.arrived(1);
            }
            // The page in memory is newer.
            Some(Errno::EXIST) => self.uffd().wake(page.addr(), PAGE_SIZE),
            Some(e) => {
                self.pages.map.set(page, PageState::Storing(frame));
                return self.failed(page, e);
            }
        }
        self.pages.staging.left(frame, Memory::Stays);
        self.pages.map.set(page, PageState::None);
        self.mark_taken_back(page);
        self.count(FaultKind::Staged, worker);
        add(&self.counters().pages_in, 1);
        Ok(Served::Done)
    }

    fn back_in_place(&self, page: PageNo, frame: StagingFrame, memory: Memory, missed: bool) {
        let word = self.staging_to_place(frame);
        self.pages.staging.left(frame, memory);
        self.pages.map.set(page, word);
        if missed {
            self.mark_taken_back(page)
        } else {
            self.mark_loaded(page, None)
        }
        self.arrived(1);
    }

    /// The page is in memory although its word is Staged: memory is newer.
    fn stale_in_staging(&self, page: PageNo, frame: StagingFrame) {
        self.leave(&mut self.store().freer(), frame, Memory::Stays);
        self.pages.map.set(page, PageState::None);
        self.uffd().wake(page.addr(), PAGE_SIZE);
    }
}
