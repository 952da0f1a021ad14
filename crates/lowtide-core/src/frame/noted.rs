//! Which of an arena's lists may hold runs, as bits read without a lock: drains, and CPUs in search
//! of a warm run, visit no others.
//!
//! A bit changes only under the lock of its lists (`CpuLists::is_noted` mirrors it): set before
//! empty lists that got a run are unlocked, cleared only by a drain that has emptied them. Lists
//! that become empty otherwise stay noted, or CPUs that allocate and free single frames would write
//! to the same words all the time.
//!
//! Relaxed: the lists' lock orders their contents. A thread that a free happened before also sees
//! its bit.

use alloc::boxed::Box;
use core::sync::atomic::Ordering::Relaxed;

use crate::percpu::CacheAligned;
use crate::sync::atomic::AtomicU64;

const GROUP: usize = u64::BITS as usize;

#[derive(Debug)]
pub(super) struct Noted(Box<[CacheAligned<AtomicU64>]>);

impl Noted {
    pub(super) fn new(lists: usize) -> Noted {
        Noted((0..lists.div_ceil(GROUP)).map(|_| CacheAligned(AtomicU64::new(0))).collect())
    }

    /// With their lock held.
    pub(super) fn add(&self, lists: usize) {
        self.0[lists / GROUP].fetch_or(1 << (lists % GROUP), Relaxed);
    }

    /// With their lock held.
    pub(super) fn remove(&self, lists: usize) {
        self.0[lists / GROUP].fetch_and(!(1 << (lists % GROUP)), Relaxed);
    }

    /// For checks.
    pub(super) fn has(&self, lists: usize) -> bool {
        self.0[lists / GROUP].load(Relaxed) >> (lists % GROUP) & 1 == 1
    }

    pub(super) fn any(&self) -> bool {
        self.0.iter().any(|word| word.load(Relaxed) != 0)
    }

    /// Reads each group of 64 when the iteration reaches it.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.0.len()).flat_map(|group| self.group(group))
    }

    /// The rest of the group of 64, from the next on, then other groups, each read when the
    /// iteration reaches it.
    #[inline]
    pub(super) fn others(&self, lists: usize) -> impl Iterator<Item = usize> + '_ {
        let (group, own) = (lists / GROUP, lists % GROUP);
        let others = self.0[group].load(Relaxed) & !(1 << own);
        // Bit 0 is then the next.
        let near = Bits(others.rotate_right(own as u32 + 1)).map(move |bit| group * GROUP + (own + 1 + bit) % GROUP);
        near.chain((group + 1..self.0.len()).chain(0..group).flat_map(|group| self.group(group)))
    }

    #[inline]
    fn group(&self, group: usize) -> impl Iterator<Item = usize> + use<> {
        Bits(self.0[group].load(Relaxed)).map(move |bit| group * GROUP + bit)
    }

    pub(super) fn table_bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

/// Set bits, lowest first.
struct Bits(u64);

impl Iterator for Bits {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let bit = self.0.trailing_zeros() as usize;
        // With no bits set, this returns.
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
