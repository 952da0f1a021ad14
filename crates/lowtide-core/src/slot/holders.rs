//! The forked descendants of an area's owner that refer to its slots.
//!
//! A *holder* is a descendant's record, which names its process image, and a map with a bit for
//! each slot, in memory that the family shares. Any process may be killed between two instructions,
//! so there are no counts: an unrecorded decrement would stay wrong, while any successor can clear
//! a bit again. A slot that its owner has freed is free once no map has its bit.
//!
//! **Only one process may change a record and its map**: the live one that the record names, or,
//! once that is dead, the one that replaces the name by compare-and-swap. From 0 (free):
//!
//! - `Filling(parent)`: the parent claims it before it forks, and fills the map with its own
//!   references.
//! - `Held(child)`: set by the child's compare-and-swap, since the record of a dead parent may be
//!   taken over. The child clears bits as it drops slots.
//! - `Clearing(process)`: the child died, the parent died first, or the fork failed; `process`
//!   clears the map, then the record. If it dies, another one takes over.
//!
//! A dead image never comes back, so a compare-and-swap cannot mistake a later record for the one
//! that was read.
//!
//! **Reading all maps takes a while**, in which a child can hand a slot on to a grandchild and drop
//! it: a reader that reads the grandchild's map before and the child's map after that sees no
//! reference. So a parent increments `filled` after it fills a map and before it drops anything; a
//! reader that sees `filled` change treats all slots as held ([`Holders::held`]).

use rustix::io::Errno;

use crate::sync::Array;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::vm::OnFork;

/// Most holders per area. A record takes 8 bytes; a map takes memory only where there are
/// references. In models each word costs.
pub(crate) const HOLDERS: usize = if cfg!(any(feature = "loom", feature = "shuttle")) { 2 } else { 256 };
const IN_USE: usize = HOLDERS.div_ceil(64);

/// A process from its start or exec to its end or next exec. Numbers are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image(u64);

/// A record's state is above these bits.
const IMAGE_BITS: u32 = 62;
const FILLING: u64 = 1 << IMAGE_BITS;
const HELD: u64 = 2 << IMAGE_BITS;
const CLEARING: u64 = 3 << IMAGE_BITS;
const STATE: u64 = 3 << IMAGE_BITS;

impl Image {
    /// Uses the lower 62 bits.
    pub const fn new(number: u64) -> Image {
        Image(number & !STATE)
    }

    /// The image's number.
    pub const fn number(self) -> u64 {
        self.0
    }

    fn of(record: u64) -> Image {
        Image::new(record)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    pub holder: usize,
    pub record: u64,
}

#[derive(Debug)]
pub(super) struct Holders {
    filled: Array<AtomicU64>,
    /// A bit per used record, set before its map gets bits, cleared after.
    in_use: Array<AtomicU64>,
    records: Array<AtomicU64>,
    maps: Array<AtomicU64>,
    words: usize,
}

impl Holders {
    pub(super) fn new(words: usize) -> Result<Holders, Errno> {
        let maps = words.checked_mul(HOLDERS).ok_or(Errno::NOMEM)?;
        Ok(Holders {
            filled: Array::new(1, OnFork::Share)?,
            in_use: Array::new(IN_USE, OnFork::Share)?,
            records: Array::new(HOLDERS, OnFork::Share)?,
            maps: Array::new(maps, OnFork::Share)?,
            words,
        })
    }

    /// Claims a record for a child that `parent` is about to fork.
    pub(super) fn claim(&self, parent: Image) -> Option<Claim> {
        let record = FILLING | parent.0;
        // Acquire: pairs with the Release in `clear`; the map is empty.
        let free = |e: &AtomicU64| e.compare_exchange(0, record, Ordering::Acquire, Ordering::Relaxed).is_ok();
        let holder = self.records.iter().position(|e| e.load(Ordering::Relaxed) == 0 && free(e))?;
        self.in_use[holder / 64].fetch_or(1 << (holder % 64), Ordering::Relaxed);
        Some(Claim { holder, record })
    }

    /// Sets `bits` of word `w` in the map. For the claiming thread.
    pub(super) fn add(&self, claim: Claim, w: usize, bits: u64) {
        let word = &self.maps[claim.holder * self.words + w];
        // Only this process changes the map.
        word.store(word.load(Ordering::Relaxed) | bits, Ordering::Relaxed);
    }

    /// Word `w` of a holder's map. For the holder itself.
    pub(super) fn of(&self, holder: usize, w: usize) -> u64 {
        self.maps[holder * self.words + w].load(Ordering::Relaxed)
    }

    /// The child's map is complete: the parent may drop references.
    pub(super) fn filled(&self) {
        // Release: pairs with the first load in `held`, which then sees the new bits.
        self.filled[0].fetch_add(1, Ordering::Release);
    }

    /// Takes this child's record. False: the parent was found dead, and the references are gone.
    pub(super) fn take(&self, claim: Claim, child: Image) -> bool {
        // Acquire: pairs with the Release in `take_over`.
        let record = &self.records[claim.holder];
        record.compare_exchange(claim.record, HELD | child.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// For the holder itself.
    pub(super) fn drop_one(&self, holder: usize, slot: usize) {
        // Release: pairs with the Acquire in `held`: the slot is reused only after this process has
        // read it.
        self.maps[holder * self.words + slot / 64].fetch_and(!(1 << (slot % 64)), Ordering::Release);
    }

    /// Slots of word `w` in any map or in `also`; all if a map was filled meanwhile.
    pub(super) fn held(&self, w: usize, also: impl FnOnce() -> u64) -> u64 {
        // Acquire, here and in the last line: pairs with the Release in `filled`.
        let filled = self.filled[0].load(Ordering::Acquire);
        let mut held = also();
        for (first, in_use) in (0..).step_by(64).zip(self.in_use.iter()) {
            // Acquire, here and below: pairs with the Release in `drop_one` and `clear`. If this
            // sees a parent's bit gone, the last line sees any increment of `filled` before that.
            let mut in_use = in_use.load(Ordering::Acquire);
            while in_use != 0 {
                let holder = first + in_use.trailing_zeros() as usize;
                held |= self.maps[holder * self.words + w].load(Ordering::Acquire);
                in_use &= in_use - 1;
            }
        }
        if self.filled[0].load(Ordering::Acquire) == filled { held } else { u64::MAX }
    }

    /// Gives up a claimed record, unless a child has taken it. `words`: the part of the map that
    /// may have bits.
    pub(super) fn abandon(&self, claim: Claim, words: usize) -> bool {
        let taken = self.take_over(claim.holder, claim.record, Image::of(claim.record));
        if taken {
            self.clear(claim.holder, words);
        }
        taken
    }

    pub(super) fn record(&self, holder: usize) -> Option<Record> {
        // Acquire: pairs with the Release in `take`, `take_over` and `clear`.
        let raw = self.records[holder].load(Ordering::Acquire);
        (raw != 0).then_some(Record { raw })
    }

    /// Clears the record and map of a dead process. False: another process does or did, or the
    /// child has taken the record. `words` as in [`Holders::abandon`].
    pub(super) fn release(&self, holder: usize, record: Record, me: Image, words: usize) -> bool {
        let taken = self.take_over(holder, record.raw, me);
        if taken {
            self.clear(holder, words);
        }
        taken
    }

    pub(super) fn take_over(&self, holder: usize, record: u64, me: Image) -> bool {
        // Acquire: pairs with the Release in `take` and here. Release: later take-overs come after
        // this.
        self.records[holder].compare_exchange(record, CLEARING | me.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Clears the map, then the record.
    pub(super) fn clear(&self, holder: usize, words: usize) {
        let first = holder * self.words;
        for word in &self.maps[first..first + words.min(self.words)] {
            if word.load(Ordering::Relaxed) != 0 {
                // Release: as in `drop_one`.
                word.store(0, Ordering::Release);
            }
        }
        self.in_use[holder / 64].fetch_and(!(1 << (holder % 64)), Ordering::Release);
        // Release: pairs with the Acquire in `claim`.
        self.records[holder].store(0, Ordering::Release);
    }

    pub(super) fn table_bytes(&self) -> usize {
        [&self.filled, &self.in_use, &self.records, &self.maps].map(Array::populated_bytes).iter().sum()
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    raw: u64,
}

impl Record {
    /// May change the record while alive.
    pub(super) fn image(self) -> Image {
        Image::of(self.raw)
    }

    /// Whether no child has taken it yet.
    pub(super) fn is_filling(self) -> bool {
        self.raw & STATE == FILLING
    }
}

#[cfg(all(test, not(any(feature = "loom", feature = "shuttle"))))]
mod tests {
    use super::*;

    const PARENT: Image = Image::new(1);
    const CHILD: Image = Image::new(2);

    /// A holder of slots 3 and 70 whose map `PARENT` has filled.
    fn filled() -> (Holders, Claim) {
        let holders = Holders::new(8).unwrap();
        let claim = holders.claim(PARENT).unwrap();
        holders.add(claim, 0, 1 << 3);
        holders.add(claim, 1, 1 << 6);
        holders.filled();
        (holders, claim)
    }

    fn held(holders: &Holders) -> [u64; 2] {
        [0, 1].map(|w| holders.held(w, || 0))
    }

    #[test]
    fn a_holder_that_dies_half_way_is_released_by_another_wherever_it_was() {
        // A releaser is killed after `n` steps.
        for n in 0..=4 {
            let (holders, claim) = filled();
            assert!(holders.take(claim, CHILD));
            let (first, second) = (Image::new(3), Image::new(4));
            let steps: [&dyn Fn(); 4] = [
                &|| assert!(holders.take_over(claim.holder, holders.record(claim.holder).unwrap().raw, first)),
                &|| holders.maps[claim.holder * holders.words].store(0, Ordering::Release),
                &|| holders.maps[claim.holder * holders.words + 1].store(0, Ordering::Release),
                &|| _ = holders.in_use[0].fetch_and(!1, Ordering::Release),
            ];
            steps.iter().take(n).for_each(|step| step());
            let record = holders.record(claim.holder).unwrap();
            assert_eq!(record.image(), if n == 0 { CHILD } else { first });
            assert!(holders.release(claim.holder, record, second, 8));
            assert!(!holders.release(claim.holder, record, second, 8), "once");
            assert_eq!((held(&holders), holders.record(claim.holder).is_none()), ([0, 0], true));
            let again = holders.claim(PARENT).unwrap();
            holders.add(again, 0, 1 << 5);
            assert_eq!(held(&holders), [1 << 5, 0], "after {n} steps");
        }
    }

    #[test]
    fn a_record_is_the_child_s_or_who_releases_it_for_a_dead_parent() {
        let (holders, claim) = filled();
        assert!(holders.release(claim.holder, holders.record(claim.holder).unwrap(), Image::new(3), 8));
        assert!(!holders.take(claim, CHILD), "too late");
        let (holders, claim) = filled();
        let before = holders.record(claim.holder).unwrap();
        assert!(before.is_filling() && holders.take(claim, CHILD));
        assert!(!holders.release(claim.holder, before, Image::new(3), 8) && !holders.abandon(claim, 8));
        assert_eq!(held(&holders), [1 << 3, 1 << 6]);
        holders.drop_one(claim.holder, 3);
        assert_eq!(held(&holders), [0, 1 << 6]);
    }

    #[test]
    fn a_record_of_another_claim_is_not_mistaken_for_one_s_own() {
        let (holders, claim) = filled();
        assert!(holders.abandon(claim, 8));
        let other = holders.claim(Image::new(9)).unwrap();
        assert_eq!(other.holder, claim.holder);
        assert!(!holders.take(claim, CHILD) && !holders.abandon(claim, 8));
        assert!((1..HOLDERS).all(|_| holders.claim(PARENT).is_some()) && holders.claim(PARENT).is_none(), "all are taken");
    }
}
