//! Which of an arena's lists may hold runs, as bits that anybody reads without a lock: a drain, and a CPU that looks for a run
//! with memory, go to no others. Where hundreds of CPUs could run and few do, that is few.
//!
//! A bit is changed by whoever holds the lock of the lists it is about (`CpuLists::is_noted` says the same under that lock): set
//! before lists that were empty are let go with a run, cleared only by a drain that has emptied them. Not when they become empty
//! by themselves, or CPUs that hand out and free single frames would write to the same words all the time. So whoever lets lists
//! go that hold a run leaves their bit set, and lists may be noted that are empty.
//!
//! Relaxed throughout: what is in lists is seen by their lock. To whom a free has happened before, its bit has, too.

use alloc::boxed::Box;
use core::sync::atomic::Ordering::Relaxed;

use crate::percpu::CacheAligned;
use crate::sync::atomic::AtomicU64;

/// Bits per word.
const GROUP: usize = u64::BITS as usize;

/// The lists that may hold runs, by number.
#[derive(Debug)]
pub(super) struct Noted(Box<[CacheAligned<AtomicU64>]>);

impl Noted {
    /// None of `lists`.
    pub(super) fn new(lists: usize) -> Noted {
        Noted((0..lists.div_ceil(GROUP)).map(|_| CacheAligned(AtomicU64::new(0))).collect())
    }

    /// These have a run now. Their lock is held.
    pub(super) fn add(&self, lists: usize) {
        self.0[lists / GROUP].fetch_or(1 << (lists % GROUP), Relaxed);
    }

    /// These are empty now. Their lock is held.
    pub(super) fn remove(&self, lists: usize) {
        self.0[lists / GROUP].fetch_and(!(1 << (lists % GROUP)), Relaxed);
    }

    /// For checks: whether these may hold a run.
    pub(super) fn has(&self, lists: usize) -> bool {
        self.0[lists / GROUP].load(Relaxed) >> (lists % GROUP) & 1 == 1
    }

    /// Whether any may hold a run.
    pub(super) fn any(&self) -> bool {
        self.0.iter().any(|word| word.load(Relaxed) != 0)
    }

    /// All that may hold a run, each group of 64 as it is when the first of it is asked for.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.0.len()).flat_map(|group| self.group(group))
    }

    /// The others that may hold a run: those of the same group of 64, beginning with the next, then those of the next groups,
    /// each as it is when the first of it is asked for.
    #[inline]
    pub(super) fn others(&self, lists: usize) -> impl Iterator<Item = usize> + '_ {
        let (group, own) = (lists / GROUP, lists % GROUP);
        let others = self.0[group].load(Relaxed) & !(1 << own);
        // Bit 0 is then the next.
        let near = Bits(others.rotate_right(own as u32 + 1)).map(move |bit| group * GROUP + (own + 1 + bit) % GROUP);
        near.chain((group + 1..self.0.len()).chain(0..group).flat_map(|group| self.group(group)))
    }

    /// Those of a group that may hold a run.
    #[inline]
    fn group(&self, group: usize) -> impl Iterator<Item = usize> + use<> {
        Bits(self.0[group].load(Relaxed)).map(move |bit| group * GROUP + bit)
    }

    pub(super) fn table_bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

/// The bits of a word that are set, by number, lowest first.
struct Bits(u64);

impl Iterator for Bits {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let bit = self.0.trailing_zeros() as usize;
        // Of no bits the number is 64.
        self.0 &= self.0.checked_sub(1)?;
        Some(bit)
    }
}

#[cfg(all(test, not(any(feature = "loom", feature = "shuttle"))))]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn lists_are_found_while_they_are_noted() {
        let noted = Noted::new(200);
        assert!(!noted.any() && noted.iter().next().is_none());
        for lists in [199, 64, 0, 63, 130] {
            assert!(!noted.has(lists));
            noted.add(lists);
            assert!(noted.has(lists) && noted.any());
        }
        assert_eq!(Vec::from_iter(noted.iter()), [0, 63, 64, 130, 199]);
        noted.remove(64);
        noted.remove(199);
        assert_eq!(Vec::from_iter(noted.iter()), [0, 63, 130]);
    }

    #[test]
    fn the_next_of_the_group_comes_first_and_none_comes_twice() {
        let noted = Noted::new(200);
        [2, 5, 6, 63, 64, 70, 130].into_iter().for_each(|lists| noted.add(lists));
        assert_eq!(Vec::from_iter(noted.others(5)), [6, 63, 2, 64, 70, 130]);
        assert_eq!(Vec::from_iter(noted.others(63)), [2, 5, 6, 64, 70, 130]);
        assert_eq!(Vec::from_iter(noted.others(0)), [2, 5, 6, 63, 64, 70, 130]);
        assert_eq!(Vec::from_iter(noted.others(64)), [70, 130, 2, 5, 6, 63]);
        assert_eq!(Vec::from_iter(noted.others(99)), [64, 70, 130, 2, 5, 6, 63]);
        assert_eq!(Vec::from_iter(noted.others(129)), [130, 2, 5, 6, 63, 64, 70]);
    }
}
