//! A word of the page map, as many threads see it: here is how it is looked at and changed. `state.rs` says who may do so.

use core::sync::atomic::{AtomicU64, Ordering};

use super::PageState;

/// The word of one page. All-zero bytes are [`PageState::None`].
#[derive(Debug)]
#[repr(transparent)]
pub struct PageWord(AtomicU64);

impl PageWord {
    /// What it says.
    pub fn get(&self) -> PageState {
        // Acquire: pairs with the Release in `set`, `swap` and `take`. What was done to the page, its frame and its entry
        // before the word said so is seen by who goes by the word.
        PageState::from_bits(self.0.load(Ordering::Acquire))
    }

    /// What it says, for who goes by that no further: to pass it over, or to try a [`PageWord::swap`].
    pub fn peek(&self) -> PageState {
        PageState::from_bits(self.0.load(Ordering::Relaxed))
    }

    /// Says this from now on; the caller owns the word in the sense of the table at [`PageState`].
    pub fn set(&self, to: PageState) {
        // Release: pairs with the Acquire in `get`, `swap` and `take`.
        self.0.store(to.bits(), Ordering::Release);
    }

    /// Replaces `from` by `to` if that still stands there.
    pub fn swap(&self, from: PageState, to: PageState) -> bool {
        // AcqRel: pairs with itself, `get`, `set` and `take`: whoever claims a page comes after who let go of it, and before
        // who takes it from there. Acquire of a failure: as in `get`, for who acts on what else the word must say.
        self.0.compare_exchange(from.bits(), to.bits(), Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Says None from now on; what it said.
    pub fn take(&self) -> PageState {
        // AcqRel: as in `swap`.
        PageState::from_bits(self.0.swap(PageState::None.bits(), Ordering::AcqRel))
    }
}
