//! States of a page and their transitions.

use core::sync::atomic::{AtomicU16, Ordering};

use crate::pagemap::ids::StagingFrame;

/// A page's state. It counts only while the page is missing, except Clean, Removing and None.
///
/// Each change is one store or compare-and-swap, under a side of the space lock (`1 hold`: one
/// hold; `op`: without it, in an operation):
///
/// | from | to | by | lock |
/// ---|---|---|---|
/// | None, Zero, Clean | Moving | detach, before the MOVE | exclusive |
/// | Moving | Staged; None, Clean (not moved) | detach, after the MOVE | same hold |
/// | Staged | Moving, then None, Clean (or Staged again) | fault; drain without room | shared, 1 hold |
/// | Staged, Swapped | None | evict, if proven stale | exclusive |
/// | Staged | Storing | drain | shared |
/// | Storing | Swapped, Zero; Staged (no room) | drain, stores unlocked | shared |
/// | Storing | Moving, then Swapped, Zero; Staged (in use) | drain, `references.rs` | shared, 1 hold |
/// | Storing | Moving, then None (or Storing) | fault: copied back, drain waits | shared, 1 hold |
/// | Swapped, Zero | Loading | fault, read-ahead: the claim | op |
/// | Swapped | Swapped (elsewhere), Zero; Loading, as above | swapoff, no claim | shared, op |
/// | Loading | None, Clean; Swapped, Zero (not this time) | the claimant | shared |
/// | Loading | Swapped, Zero, at another place | mremap: claim undone | exclusive |
/// | None, Removing, Zero | Loading(0), then None (or as before) | first touch | shared, 1 hold |
/// | Clean | None | fault on a missing page | op |
/// | all but Storing, Loading, Orphan | None | unmapped; removed while out; re-registered | exclusive |
/// | None, Clean, Swapped, Staged (stale) | Removing | removed while in memory | exclusive |
/// | Storing, Loading, Orphan | Orphan | unmapped, removed: worker cleans up | exclusive |
/// | Orphan | None | the thread that stored or loaded it | any |
/// | Orphan | what has moved there | mremap cleans up; a load misses its Orphan | exclusive |
/// | Removing | None | program thread, after the last hooked call | none |
///
/// (During a large removal words still hold the old state: `mappings/going.rs`.)
///
/// Only Storing and Loading outlive a hold of the space lock and can meet an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageState {
    /// In its place, or never touched (reads as zero).
    None,
    /// In its place, about to be dropped by the program: not evicted until then. Removal calls
    /// begun by then (`mappings/removal_calls.rs`).
    Removing(u64),
    /// Evicted as zeros.
    Zero,
    /// In its place, as in the swap cache under this raw entry.
    Clean(u64),
    Staged(StagingFrame),
    /// On its way into or out of a frame.
    Moving(StagingFrame),
    Storing(StagingFrame),
    /// In the store (raw swap entry).
    Swapped(u64),
    /// Being loaded (raw entry; 0: zero page) by a claimant. An mremap there and back undoes a
    /// claim; the id keeps its thread from mistaking the next claim.
    Loading(u64, Claimant),
    /// Dropped while being stored or loaded; the thread at work sets None. What a load frees, or
    /// [`PageState::ORPHAN_OF_STORE`].
    Orphan(u64, Claimant),
}

impl PageState {
    /// A store cleans it up. (Longer loads have a claimant.)
    pub const ORPHAN_OF_STORE: PageState = PageState::Orphan(0, Claimant::ONE_HOLD);

    /// What a load frees: Zero or Swapped.
    pub(crate) fn orphaned(self) -> Option<PageState> {
        match self {
            PageState::ORPHAN_OF_STORE => None,
            PageState::Orphan(0, _) => Some(PageState::Zero),
            PageState::Orphan(raw, _) => Some(PageState::Swapped(raw)),
            _ => None,
        }
    }

    pub const fn bits(self) -> u64 {
        match self {
            PageState::None => 0,
            PageState::Removing(calls) => 1 | calls << 4,
            PageState::Zero => 2,
            PageState::Staged(f) => 3 | (f.number() as u64) << 4,
            PageState::Moving(f) => 4 | (f.number() as u64) << 4,
            PageState::Storing(f) => 5 | (f.number() as u64) << 4,
            PageState::Swapped(e) => 6 | e << 4,
            PageState::Loading(e, by) => 7 | e << 4 | (by.0 as u64) << CLAIMANT_SHIFT,
            PageState::Orphan(e, by) => 8 | e << 4 | (by.0 as u64) << CLAIMANT_SHIFT,
            PageState::Clean(e) => 9 | e << 4,
        }
    }

    pub const fn from_bits(bits: u64) -> PageState {
        let arg = bits >> 4;
        match bits & 15 {
            1 => PageState::Removing(arg),
            2 => PageState::Zero,
            3 => PageState::Staged(StagingFrame::new(arg as u32)),
            4 => PageState::Moving(StagingFrame::new(arg as u32)),
            5 => PageState::Storing(StagingFrame::new(arg as u32)),
            6 => PageState::Swapped(arg),
            7 => PageState::Loading(arg & ENTRY, Claimant((bits >> CLAIMANT_SHIFT) as u16)),
            8 => PageState::Orphan(arg & ENTRY, Claimant((bits >> CLAIMANT_SHIFT) as u16)),
            9 => PageState::Clean(arg),
            _ => PageState::None,
        }
    }
}

/// Raw entries start above four bits of state; the claimant is above.
const ENTRY_BITS: u32 = 48;
const ENTRY: u64 = (1 << ENTRY_BITS) - 1;
const CLAIMANT_SHIFT: u32 = 4 + ENTRY_BITS;
const CLAIMANT_BITS: u32 = u64::BITS - CLAIMANT_SHIFT;

/// A thread that may claim without the space lock. (4095 ids, then reused after their threads.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claimant(u16);

static NEXT: AtomicU16 = AtomicU16::new(0);

impl Claimant {
    /// For claims within one hold.
    pub const ONE_HOLD: Claimant = Claimant(0);

    pub fn new() -> Claimant {
        Claimant(1 + NEXT.fetch_add(1, Ordering::Relaxed) % ((1 << CLAIMANT_BITS) - 1))
    }

    pub(crate) fn number(self) -> u32 {
        self.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_their_bits() {
        let entry = 0xff_ff_ff_ff_ff_ff;
        for word in [
            PageState::None,
            PageState::Removing(0),
            PageState::Removing(u64::MAX >> 4),
            PageState::Zero,
            PageState::Clean(entry),
            PageState::Staged(StagingFrame::new(0)),
            PageState::Staged(StagingFrame::new(u32::MAX)),
            PageState::Moving(StagingFrame::new(3)),
            PageState::Storing(StagingFrame::new(4)),
            PageState::Swapped(entry),
            PageState::Loading(entry, Claimant::new()),
            PageState::Loading(entry, Claimant((1 << CLAIMANT_BITS) - 1)),
            PageState::Loading(0, Claimant::ONE_HOLD),
            PageState::ORPHAN_OF_STORE,
            PageState::Orphan(entry, Claimant((1 << CLAIMANT_BITS) - 1)),
        ] {
            assert_eq!(PageState::from_bits(word.bits()), word);
        }
    }
}
