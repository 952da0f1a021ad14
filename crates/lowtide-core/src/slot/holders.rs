//! Who else refers to the slots of an area: the forked descendants of the process that made it, its owner.
//!
//! A descendant that refers to slots is a *holder*: a record that says which process image it is, and a map with a bit for each
//! slot. Records and maps are in memory that the whole family shares, and any of its processes may be killed between any two
//! instructions. So there are no counts: a count that was lowered, but not yet noted as lowered, is wrong for ever. A bit can
//! be cleared twice, and by whoever comes after one that died half way. A slot that its owner has freed is free when no map has
//! its bit.
//!
//! **A record has one process that may change it and its map**: the live one that it names, or, once that is dead, whoever
//! makes the record name itself by compare-and-swap. From 0 (free):
//!
//! - `Filling(parent)`: the parent claims it before it forks, and fills the map with what it refers to itself.
//! - `Held(child)`: the child makes it its own, by compare-and-swap, because its parent may be dead and the record taken from
//!   it by then. It clears bits as it lets go of slots.
//! - `Clearing(process)`: the child was never made, or has been found dead, or a parent was that died in between; `process`
//!   clears the map, and then the record. If it dies as well, another one goes on in the same way.
//!
//! A process image is dead when it can't execute another instruction, and never comes back; so nothing that was read of a
//! record before it was taken over can be mistaken for what it says afterwards.
//!
//! **A look at all maps takes a while**, and meanwhile a child can hand a slot on to a grandchild and let go of it: who looked
//! at the grandchild's map before and at the child's map after that saw nobody. So each parent counts in `filled` when it has
//! filled a map, before it can let go of anything, and a process that finds that the count has changed while it looked knows
//! nothing ([`Holders::held`]).

use rustix::io::Errno;

use crate::sync::Array;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::vm::OnFork;

/// Most holders at a time, for each area. (A record takes 8 bytes; a map takes memory only where there are references.) In
/// models each word costs.
pub(crate) const HOLDERS: usize = if cfg!(any(feature = "loom", feature = "shuttle")) { 2 } else { 256 };
/// Words with a bit for each record that is not free.
const IN_USE: usize = HOLDERS.div_ceil(64);

/// A process image: a process from its start, or from an exec, to its end, or to the next exec. No other image ever has the
/// same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image(u64);

/// Bits of an image's number; above them a record has its state.
const IMAGE_BITS: u32 = 62;
const FILLING: u64 = 1 << IMAGE_BITS;
const HELD: u64 = 2 << IMAGE_BITS;
const CLEARING: u64 = 3 << IMAGE_BITS;
const STATE: u64 = 3 << IMAGE_BITS;

impl Image {
    /// The image of that number, of which the lower 62 bits count.
    pub const fn new(number: u64) -> Image {
        Image(number & !STATE)
    }

    /// The image's number.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// Whose record it is.
    fn of(record: u64) -> Image {
        Image::new(record)
    }
}

/// A record that this process has claimed for a child, and what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    pub holder: usize,
    pub record: u64,
}

/// The holders of an area, in memory that the family of its owner shares.
#[derive(Debug)]
pub(super) struct Holders {
    /// How often a map was filled.
    filled: Array<AtomicU64>,
    /// Which records are not free: a bit for each, set before there are bits in its map and cleared after them.
    in_use: Array<AtomicU64>,
    /// A record for each holder.
    records: Array<AtomicU64>,
    /// The maps, one behind the other.
    maps: Array<AtomicU64>,
    /// Words of a map.
    words: usize,
}

impl Holders {
    /// No holders, with maps of `words` words.
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

    /// Claims a free record, for a child of `parent` that is about to be forked.
    pub(super) fn claim(&self, parent: Image) -> Option<Claim> {
        let record = FILLING | parent.0;
        // Acquire: pairs with the Release in `clear`, after which the map is empty.
        let free = |e: &AtomicU64| e.compare_exchange(0, record, Ordering::Acquire, Ordering::Relaxed).is_ok();
        let holder = self.records.iter().position(|e| e.load(Ordering::Relaxed) == 0 && free(e))?;
        self.in_use[holder / 64].fetch_or(1 << (holder % 64), Ordering::Relaxed);
        Some(Claim { holder, record })
    }

    /// Enters slots in the map of a record that this process has claimed, by the thread that claimed it: `bits` of word `w`.
    pub(super) fn add(&self, claim: Claim, w: usize, bits: u64) {
        let word = &self.maps[claim.holder * self.words + w];
        // Nobody else changes the map of a `Filling` record whose process lives.
        word.store(word.load(Ordering::Relaxed) | bits, Ordering::Relaxed);
    }

    /// What a holder holds of the slots of word `w`: to be asked by the holder itself.
    pub(super) fn of(&self, holder: usize, w: usize) -> u64 {
        self.maps[holder * self.words + w].load(Ordering::Relaxed)
    }

    /// All references of a child have been added: from here on the parent may drop its own.
    pub(super) fn filled(&self) {
        // Release: pairs with the first load in `held`, after which the new bits are seen.
        self.filled[0].fetch_add(1, Ordering::Release);
    }

    /// In the child: what its parent claimed for it is its own. False: the parent was found dead before, and the references are
    /// gone.
    pub(super) fn take(&self, claim: Claim, child: Image) -> bool {
        // Acquire: pairs with the Release in `take_over`, whoever took it.
        let record = &self.records[claim.holder];
        record.compare_exchange(claim.record, HELD | child.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Drops a holder's reference to a slot: by the holder itself.
    pub(super) fn drop_one(&self, holder: usize, slot: usize) {
        // Release: pairs with the Acquire in `held`. A process that gives the slot out again does so after this process has
        // read it.
        self.maps[holder * self.words + slot / 64].fetch_and(!(1 << (slot % 64)), Ordering::Release);
    }

    /// The slots of word `w` of the maps that anybody holds, and those that `also` finds. All of them if that can't be told
    /// now.
    pub(super) fn held(&self, w: usize, also: impl FnOnce() -> u64) -> u64 {
        // Acquire, here and in the last line: pairs with the Release in `filled`.
        let filled = self.filled[0].load(Ordering::Acquire);
        let mut held = also();
        for (first, in_use) in (0..).step_by(64).zip(self.in_use.iter()) {
            // Acquire, here and below: pairs with the Release in `drop_one` and `clear`. A process that sees a bit gone that a
            // parent had, sees in the last line that this parent had filled a map before, if it has.
            let mut in_use = in_use.load(Ordering::Acquire);
            while in_use != 0 {
                let holder = first + in_use.trailing_zeros() as usize;
                held |= self.maps[holder * self.words + w].load(Ordering::Acquire);
                in_use &= in_use - 1;
            }
        }
        if self.filled[0].load(Ordering::Acquire) == filled { held } else { u64::MAX }
    }

    /// Gives up a record that this process has claimed, if no child has made it its own. `words`: words of the map that may
    /// have bits.
    pub(super) fn abandon(&self, claim: Claim, words: usize) -> bool {
        let taken = self.take_over(claim.holder, claim.record, Image::of(claim.record));
        if taken {
            self.clear(claim.holder, words);
        }
        taken
    }

    /// What the record of a holder says.
    pub(super) fn record(&self, holder: usize) -> Option<Record> {
        // Acquire: pairs with the Release in `take`, `take_over` and `clear`.
        let raw = self.records[holder].load(Ordering::Acquire);
        (raw != 0).then_some(Record { raw })
    }

    /// Clears the record and the map of a holder, on behalf of the process that the record names, which is dead. False: another
    /// process has done so, or does, or (if the record is a dead parent's) the child has made it its own. `words` as in
    /// [`Holders::abandon`].
    pub(super) fn release(&self, holder: usize, record: Record, me: Image, words: usize) -> bool {
        let taken = self.take_over(holder, record.raw, me);
        if taken {
            self.clear(holder, words);
        }
        taken
    }

    /// Makes a record this process's to clear.
    pub(super) fn take_over(&self, holder: usize, record: u64, me: Image) -> bool {
        // Acquire: pairs with the Release in `take` and here. Release: a process that takes it over from this one, or fails to,
        // comes after.
        self.records[holder].compare_exchange(record, CLEARING | me.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Clears the map of a holder whose record says that this process does, and then the record.
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

    /// Bytes of memory behind the tables.
    pub(super) fn table_bytes(&self) -> usize {
        [&self.filled, &self.in_use, &self.records, &self.maps].map(Array::populated_bytes).iter().sum()
    }
}

/// What a record said when it was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    raw: u64,
}

impl Record {
    /// Who may change it as long as it lives.
    pub(super) fn image(self) -> Image {
        Image::of(self.raw)
    }

    /// Whether it is a parent's, for a child that has not made it its own so far.
    pub(super) fn is_filling(self) -> bool {
        self.raw & STATE == FILLING
    }
}

#[cfg(all(test, not(any(feature = "loom", feature = "shuttle"))))]
mod tests {
    use super::*;

    const PARENT: Image = Image::new(1);
    const CHILD: Image = Image::new(2);

    /// A holder of slots 3 and 70 for which `PARENT` has filled the map.
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
        // The steps of a releaser that is killed after the first `n` of them: its record, a part of the map, all of it, the
        // record's bit.
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
