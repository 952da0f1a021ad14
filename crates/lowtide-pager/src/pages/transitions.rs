//! Effects of word changes on store, frames and marks. See [`PageState`].

use core::sync::atomic::Ordering;

use lowtide_core::slot::Entry;
use lowtide_core::store::Freer;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_wire::segment::{EPOCHS_A_LIMIT, FaultKind, add};

use crate::pagemap::ids::{PageNo, StagingFrame};
use crate::pagemap::{Mark, PageState};
use crate::pager::Pager;
use crate::pages::staging::Memory;

impl Pager {
    /// Frees what an overwritten word stood for; `freer` is of this store.
    pub(crate) fn forget(&self, freer: &mut Freer<'_>, word: PageState) {
        match word {
            PageState::Zero => {
                self.pages.zero_now.fetch_sub(1, Ordering::Relaxed);
            }
            PageState::Staged(frame) => self.leave(freer, frame, Memory::Stays),
            PageState::Swapped(raw) => {
                if let Some(entry) = Entry::from_raw(raw) {
                    freer.free(entry);
                }
            }
            PageState::Clean(raw) => {
                if let Some(entry) = Entry::from_raw(raw) {
                    freer.drop_cached(entry);
                }
            }
            _ => {}
        }
    }

    /// The kernel may drop pages under MADV_FREE, from Linux 6.15 on in staging too (before, a MOVE
    /// dirtied them): zeros, for good.
    pub(crate) fn is_in_frame(&self, frame: StagingFrame) -> bool {
        self.present().holds_page(self.pages.staging.addr(frame))
    }

    pub(crate) fn leave(&self, freer: &mut Freer<'_>, frame: StagingFrame, memory: Memory) {
        self.forget(freer, self.staging_to_place(frame));
        self.pages.staging.left(frame, memory);
    }

    /// The word after a move back: Clean, if it was.
    pub(crate) fn staging_to_place(&self, frame: StagingFrame) -> PageState {
        match self.pages.staging.take_clean(frame) {
            0 => PageState::None,
            raw => PageState::Clean(raw),
        }
    }

    pub(crate) fn mark_leaving(&self, page: PageNo) {
        if let Some(mark) = self.pages.map.mark(page) {
            let leaves = Mark::from_bits(mark.load(Ordering::Relaxed)).leaves(self.epoch());
            mark.store(leaves.bits(), Ordering::Relaxed);
        }
    }

    pub(crate) fn mark_taken_back(&self, page: PageNo) {
        if let Some(mark) = self.pages.map.mark(page) {
            mark.store(Mark::from_bits(mark.load(Ordering::Relaxed)).came_back_soon().bits(), Ordering::Relaxed);
        }
    }

    /// `missed`: the page's place, if a thread waited.
    pub(crate) fn mark_loaded(&self, page: PageNo, missed: Option<FaultKind>) {
        let Some(mark) = self.pages.map.mark(page) else { return };
        let was = Mark::from_bits(mark.load(Ordering::Relaxed));
        let age = was.age(self.epoch());
        let now = if missed.is_some() { was.came_back(age) } else { Mark::default() };
        mark.store(now.bits(), Ordering::Relaxed);
        match missed {
            Some(FaultKind::Pool) => add(&self.counters().refaults_pool[age as usize], 1),
            Some(FaultKind::Device) => add(&self.counters().refaults_device[age as usize], 1),
            _ => {}
        }
    }

    /// Evicted pages by 16ths of the limit, modulo 256.
    pub(crate) fn epoch(&self) -> u8 {
        let part = (self.accounts.budget.asked() as usize / PAGE_SIZE / EPOCHS_A_LIMIT).max(1) as u64;
        (self.counters().evictions_pages.load(Ordering::Relaxed) / part) as u8
    }

    pub(crate) fn arrived(&self, pages: usize) {
        self.pages.arrived.fetch_add(pages, Ordering::Relaxed);
        self.accounts.budget.add_pages(pages as isize);
    }

    /// Contradictory tables could give the program wrong bytes.
    #[cold]
    pub(crate) fn broken(&self, what: &[u8], page: PageNo, frame: StagingFrame) -> ! {
        let mut text = lowtide_sys::Line::new();
        text.push(b"internal error: ")
            .push(what)
            .push(b", page ")
            .number(page.raw())
            .push(b", frame ")
            .number(frame.number().into());
        (self.host.fatal)(text.bytes())
    }
}
