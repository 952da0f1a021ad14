//! What the page map says of a page, and who may change it to what: THE table.

use core::sync::atomic::{AtomicU16, Ordering};

use crate::pagemap::ids::StagingFrame;

/// What a word says. A word counts only while its page is missing, but for Clean, Removing and None, which speak of a page in
/// its place.
///
/// Every change is one store or one compare-and-swap. Who makes it, and with which side of the space lock:
///
/// | from | to | who | lock |
/// |---|---|---|---|
/// | None, Zero, Clean | Moving | detach, before the MOVE | exclusive |
/// | Moving | Staged; None, Clean (not moved) | detach, after the MOVE | exclusive, the same hold |
/// | Staged | Moving, then None, Clean (or Staged again) | fault, and drain where no tier takes the page: moved back | shared,
/// one hold |
/// | Staged, Swapped | None | evict, when proven stale | exclusive |
/// | Staged | Storing | drain | shared |
/// | Storing | Swapped, Zero; Staged (no room) | drain, which stores without the lock | shared |
/// | Storing | Moving, then None (or Storing again) | fault: copied back; the drainer waits for it | shared, one hold |
/// | Swapped, Zero | Loading | fault, read-ahead: the claim | none, in an operation |
/// | Swapped | Swapped (elsewhere), Zero; Loading, as above | swapoff, which moves without a claim | shared, in an operation |
/// | Loading | None, Clean; Swapped, Zero (not this time) | fault, read-ahead: the claimant | shared |
/// | Loading | Swapped, Zero, at another place | moved by mremap: the claim is undone | exclusive |
/// | None, Removing, Zero | Loading(0), then None (or as before) | first touch | shared, one hold |
/// | Clean | None | fault on a page that is missing all the same | none, in an operation |
/// | any but the next line's | None | unmapped; removed while it was out; adopted anew | exclusive |
/// | None, Clean, Swapped, Staged (stale) | Removing | removed while it was in memory | exclusive |
/// | Storing, Loading, Orphan | Orphan | unmapped or removed: whoever is at work cleans up | exclusive |
/// | Orphan | None | the thread that stored or loaded it | any |
/// | Orphan | what has moved there | moved by mremap, which cleans up: a load does not find its Orphan any more | exclusive |
/// | Removing | None | the end of the last hooked call there, by the program's own thread | none |
///
/// (While something is left of a large removal, its words say what was so before: see `mappings/going.rs`.)
///
/// Only Storing and Loading outlive a hold of the space lock, so only these can meet an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageState {
    /// Not in lowtide's hands: in its place, or never touched (reads as zero).
    None,
    /// In its place and about to be dropped by the program: must not be evicted until that is proven done. With how many calls
    /// had begun to do so when this was said (`mappings/removal_calls.rs`).
    Removing(u64),
    /// Was evicted while it was all zero.
    Zero,
    /// In its place, and when it came in it was what the store's swap cache still holds under this raw entry.
    Clean(u64),
    /// In this staging frame.
    Staged(StagingFrame),
    /// On its way into this staging frame, or out of it.
    Moving(StagingFrame),
    /// In this staging frame, being stored.
    Storing(StagingFrame),
    /// In the store (raw swap entry).
    Swapped(u64),
    /// In the store, being brought in (raw swap entry; 0: a zero page), by this claimant ([`Claimant`]): a thread that still has
    /// bytes of a claim that an mremap there and back has undone does not take the next claim, of other bytes, for its own.
    Loading(u64, Claimant),
    /// Dropped by the program while being stored or loaded: the thread at work makes it None. What was loaded, as in Loading, and
    /// is to be let go of; of what was stored [`PageState::ORPHAN_OF_STORE`].
    Orphan(u64, Claimant),
}

impl PageState {
    /// That whoever stores it has to clean up. (No load outlives a hold of the space lock without a claimant.)
    pub const ORPHAN_OF_STORE: PageState = PageState::Orphan(0, Claimant::ONE_HOLD);

    /// What the thread that loaded a page lets go of, if the program has dropped the page meanwhile: Zero or Swapped.
    pub(crate) fn orphaned(self) -> Option<PageState> {
        match self {
            PageState::ORPHAN_OF_STORE => None,
            PageState::Orphan(0, _) => Some(PageState::Zero),
            PageState::Orphan(raw, _) => Some(PageState::Swapped(raw)),
            _ => None,
        }
    }

    /// The word as bits. None is 0: what was never written.
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

    /// The word that `bits` encode.
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

/// Bits of a raw swap entry in a word, behind the four that say which state it is; the claimant is above them.
const ENTRY_BITS: u32 = 48;
const ENTRY: u64 = (1 << ENTRY_BITS) - 1;
const CLAIMANT_SHIFT: u32 = 4 + ENTRY_BITS;
const CLAIMANT_BITS: u32 = u64::BITS - CLAIMANT_SHIFT;

/// Who brings a page in: one of the threads that may hold a claim without the space lock. (4095 of them; after that numbers
/// come again, of threads that are gone by then.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claimant(u16);

static NEXT: AtomicU16 = AtomicU16::new(0);

impl Claimant {
    /// Of a claim that does not outlive a hold of the space lock.
    pub const ONE_HOLD: Claimant = Claimant(0);

    /// One that no other living thread of this process has.
    pub fn new() -> Claimant {
        Claimant(1 + NEXT.fetch_add(1, Ordering::Relaxed) % ((1 << CLAIMANT_BITS) - 1))
    }

    /// As a number; 0 is nobody's.
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
