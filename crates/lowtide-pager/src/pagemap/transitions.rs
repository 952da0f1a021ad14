//! What goes with a change of a page's word: the store's entry, the frame's owner, its mark (refault class). The table of
//! changes is at
//! [`PageState`].

use core::sync::atomic::Ordering;

use lowtide_core::slot::Entry;
use lowtide_core::store::Freer;
use lowtide_core::vm::PAGE_SIZE;

use crate::pagemap::ids::{PageNo, StagingFrame};
use crate::pagemap::{Mark, PageState};
use crate::pager::{Pager, add};
use crate::reclaim::staging::Memory;
use crate::segment::{EPOCHS_A_LIMIT, FaultKind};

impl Pager {
    /// Lets go of what a word stood for that stands for it no more. `freer` is of this pager's store; who forgets several words
    /// does so by the same.
    pub(crate) fn forget(&self, freer: &mut Freer<'_>, word: PageState) {
        match word {
            PageState::Zero => {
                self.zero_now.fetch_sub(1, Ordering::Relaxed);
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

    /// Whether the page that was detached into `frame` is still there. The kernel may drop what the program has freed by
    /// MADV_FREE and not written since, and from Linux 6.15 on it does so in staging too (before, a MOVE made pages dirty).
    /// Such a page is zeros. Once gone, it stays gone.
    pub(crate) fn is_in_frame(&self, frame: StagingFrame) -> bool {
        self.present().holds_page(self.staging.addr(frame))
    }

    /// The page in `frame` is not needed there any more, nor its clean copy.
    pub(crate) fn leave(&self, freer: &mut Freer<'_>, frame: StagingFrame, memory: Memory) {
        self.forget(freer, self.staging_to_place(frame));
        self.staging.left(frame, memory);
    }

    /// What the word of a page says once the page is back in its place from `frame`: Clean, if it was when it left.
    pub(crate) fn staging_to_place(&self, frame: StagingFrame) -> PageState {
        match self.staging.take_clean(frame) {
            0 => PageState::None,
            raw => PageState::Clean(raw),
        }
    }

    /// Marks a page that has left.
    pub(crate) fn mark_leaving(&self, page: PageNo) {
        if let Some(mark) = self.map.mark(page) {
            let leaves = Mark::from_bits(mark.load(Ordering::Relaxed)).leaves(self.epoch());
            mark.store(leaves.bits(), Ordering::Relaxed);
        }
    }

    /// Marks a page that is in memory again, taken back from staging.
    pub(crate) fn mark_taken_back(&self, page: PageNo) {
        if let Some(mark) = self.map.mark(page) {
            mark.store(Mark::from_bits(mark.load(Ordering::Relaxed)).came_back_soon().bits(), Ordering::Relaxed);
        }
    }

    /// Marks a page that is in memory again, from the store; `missed`: a thread waited for it, and where it was.
    pub(crate) fn mark_loaded(&self, page: PageNo, missed: Option<FaultKind>) {
        let Some(mark) = self.map.mark(page) else { return };
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

    /// The epoch: pages evicted so far, divided by a 16th of the limit's pages. Its low eight bits.
    pub(crate) fn epoch(&self) -> u8 {
        let part = (self.budget.asked() as usize / PAGE_SIZE / EPOCHS_A_LIMIT).max(1) as u64;
        (self.counters().evictions_pages.load(Ordering::Relaxed) / part) as u8
    }

    /// Pages of the program came into memory.
    pub(crate) fn arrived(&self, pages: usize) {
        self.arrived.fetch_add(pages, Ordering::Relaxed);
        self.budget.add_pages(pages as isize);
    }

    /// The tables contradict each other: going on could give the program wrong bytes.
    #[cold]
    pub(crate) fn broken(&self, what: &[u8], page: PageNo, frame: StagingFrame) -> ! {
        let mut text = crate::sys::Line::new();
        text.push(b"internal error: ")
            .push(what)
            .push(b", page ")
            .number(page.raw())
            .push(b", frame ")
            .number(frame.number().into());
        (self.host.fatal)(text.bytes())
    }
}
