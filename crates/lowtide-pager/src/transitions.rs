//! What goes with a change of a page's word: the store's entry, the frame's owner, the mark of youth. The table of changes is at
//! [`Word`].

use core::sync::atomic::Ordering;

use lowtide_core::slot::Entry;

use crate::pagemap::Word;
use crate::pager::{MayChange, Pager};
use crate::staging::Memory;

impl Pager {
    /// Lets go of what a word stood for that stands for it no more.
    pub(crate) fn forget(&self, right: &impl MayChange, word: Word) {
        match word {
            Word::Zero => {
                self.zero_now.fetch_sub(1, Ordering::Relaxed);
            }
            Word::Staged(frame) => self.leave(right, frame, Memory::Stays),
            Word::Swapped(raw) => {
                if let Some(entry) = Entry::from_raw(raw) {
                    self.store(right).free(entry);
                }
            }
            Word::Clean(raw) => {
                if let Some(entry) = Entry::from_raw(raw) {
                    self.store(right).drop_cached(entry);
                }
            }
            _ => {}
        }
    }

    /// Whether the page that was detached into `frame` is still there. The kernel may drop what the program has freed by MADV_FREE and
    /// not written since, and from Linux 6.15 on it does so in staging too (before, a MOVE made pages dirty). Such a page
    /// is zeros. Once gone, it stays gone.
    pub(crate) fn is_in_frame(&self, frame: u32) -> bool {
        self.present().holds_page(self.staging.addr(frame))
    }

    /// The page in `frame` is not needed there any more, nor its clean copy.
    pub(crate) fn leave(&self, right: &impl MayChange, frame: u32, memory: Memory) {
        self.forget(right, self.staging_to_place(frame));
        self.staging.left(frame, memory);
    }

    /// What the word of a page says once the page is back in its place from `frame`: Clean, if it was when it left.
    pub(crate) fn staging_to_place(&self, frame: u32) -> Word {
        match self.staging.clean(frame).swap(0, Ordering::AcqRel) {
            0 => Word::None,
            raw => Word::Clean(raw),
        }
    }

    /// Marks the block of a page as young: the clock hand passes it by in this round.
    pub(crate) fn stamp(&self, page: usize) {
        if let Some(age) = self.map.age(page) {
            age.store(self.round.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Pages of the program came into memory.
    pub(crate) fn arrived(&self, pages: usize) {
        self.arrived.fetch_add(pages, Ordering::Relaxed);
        self.budget.add_pages(pages as isize);
    }

    /// The tables contradict each other: going on could give the program wrong bytes.
    #[cold]
    pub(crate) fn broken(&self, what: &[u8], page: usize, frame: u32) -> ! {
        let mut text = crate::line::Line::new();
        text.push(b"internal error: ").push(what).push(b", page ").number(page as u64).push(b", frame ").number(frame.into());
        (self.host.fatal)(text.bytes())
    }
}
