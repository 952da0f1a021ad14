//! A word's atomic accesses; `state.rs` has the rules.

use core::sync::atomic::{AtomicU64, Ordering};

use super::PageState;

/// The word of one page. Zero is [`PageState::None`].
#[derive(Debug)]
#[repr(transparent)]
pub struct PageWord(AtomicU64);

impl PageWord {
    pub fn get(&self) -> PageState {
        // Acquire: pairs with the Release in `set`, `swap` and `take`: page, frame and entry
        // precede the word.
        PageState::from_bits(self.0.load(Ordering::Acquire))
    }

    /// To skip a word, or to try a [`PageWord::swap`].
    pub fn peek(&self) -> PageState {
        PageState::from_bits(self.0.load(Ordering::Relaxed))
    }

    /// Only for the word's owner by [`PageState`].
    pub fn set(&self, to: PageState) {
        // Release: pairs with the Acquire in `get`, `swap` and `take`.
        self.0.store(to.bits(), Ordering::Release);
    }

    pub fn swap(&self, from: PageState, to: PageState) -> bool {
        // AcqRel: pairs with itself, `get`, `set` and `take`: claims follow each other. Acquire on
        // failure: as in `get`.
        self.0.compare_exchange(from.bits(), to.bits(), Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Sets None.
    pub fn take(&self) -> PageState {
        // AcqRel: as in `swap`.
        PageState::from_bits(self.0.swap(PageState::None.bits(), Ordering::AcqRel))
    }
}
