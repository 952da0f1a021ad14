//! Which clusters have which room: a bitmap of clusters for each level, changed by atomic operations with the cluster's lock
//! held, searched without any lock. Who finds a cluster here locks it and looks again. Clusters with clean copies are in it
//! once more, by what room they have if those are given up.
//!
//! Above each 64 words of a bitmap there is one word that says which of them are not empty, so that a search of an area of a
//! terabyte reads a few hundred words at most.

use core::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

use super::cluster::{CLUSTER_SLOTS, Inner, MAX_ORDER, ORDERS};
use crate::percpu::Zone;
use crate::table::Table;
use crate::vm::OnFork;

/// Levels for each of two kinds of clusters: those with much room, and those with little.
const LARGEST: usize = MAX_ORDER as usize;
/// More free slots than this are much room: a CPU that takes the cluster as its own has something of it.
const LITTLE: usize = 64;

/// What an index knows of a cluster that is neither free nor waiting for discard: how large its largest run is, and whether it
/// has much room; or that it is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Level(u8);

impl Level {
    pub(super) const FULL: Level = Level(2 * LARGEST as u8);
    /// How many a cluster can be at.
    pub(super) const COUNT: usize = 2 * LARGEST + 1;
    /// With those of clean copies.
    const ALL: usize = Level::COUNT + ORDERS;

    /// Whether a cluster that is here can be one that belongs to `other`: its runs may have shrunk.
    pub(super) fn may_stand_for(self, other: Level) -> bool {
        let best = |level: Level| level.0 as usize % LARGEST;
        self == other || (self != Level::FULL && other != Level::FULL && best(self) >= best(other))
    }

    /// Where a cluster with at least one used slot belongs.
    #[inline]
    pub(super) fn of(inner: &Inner) -> Level {
        let Some(best) = inner.best() else { return Level::FULL };
        let little = CLUSTER_SLOTS - inner.count as usize <= LITTLE;
        Level(best as u8 + if little { LARGEST as u8 } else { 0 })
    }

    /// Where clusters are whose largest run of slots that are free or clean copies is of an order, beside where they are else.
    pub(super) fn of_copies(order: u32) -> Level {
        Level((Level::COUNT + order as usize) as u8)
    }

    pub(super) fn from_number(n: u8) -> Level {
        Level(n)
    }

    pub(super) fn number(self) -> u8 {
        self.0
    }

    /// Whether its clusters have much room.
    pub(super) fn has_much_room(self) -> bool {
        (self.0 as usize) < LARGEST
    }

    /// The levels whose clusters surely have a run of 2^`order`, in the order in which they are to be searched: the smallest
    /// sufficient runs first, so that large ones last; clusters with little room before one with runs far larger is broken up.
    pub(super) fn sufficient(order: u32) -> impl Iterator<Item = Level> {
        let order = order as usize;
        let near = LARGEST.min(order.max(4) + 1);
        let much = (order..near).map(|best| Level(best as u8));
        let little = (order..LARGEST).map(|best| Level((LARGEST + best) as u8));
        much.chain(little).chain((near..LARGEST).map(|best| Level(best as u8)))
    }
}

#[derive(Debug)]
pub(super) struct Index {
    /// For each level its words, then for each level the words above them.
    bits: Table<AtomicU64>,
    words: usize,
    above: usize,
}

impl Index {
    pub(super) fn new(clusters: usize) -> Result<Index, Errno> {
        let words = clusters.div_ceil(64);
        let above = words.div_ceil(64);
        Ok(Index { bits: Table::new(Level::ALL * (words + above), OnFork::Copy)?, words, above })
    }

    fn level(&self, level: Level) -> (&[AtomicU64], &[AtomicU64]) {
        let (words, above) = self.bits.split_at(Level::ALL * self.words);
        let level = level.0 as usize;
        (&words[level * self.words..][..self.words], &above[level * self.above..][..self.above])
    }

    /// Enters a cluster. Its lock is held.
    pub(super) fn add(&self, level: Level, i: usize) {
        let (words, above) = self.level(level);
        let w = i / 64;
        if words[w].fetch_or(1 << (i % 64), Ordering::Relaxed) == 0 {
            // Release: pairs with the Acquire of `remove`'s second step. Who takes this bit away sees the cluster in the word.
            above[w / 64].fetch_or(1 << (w % 64), Ordering::SeqCst);
        }
    }

    /// Takes a cluster out. Its lock is held.
    pub(super) fn remove(&self, level: Level, i: usize) {
        let (words, above) = self.level(level);
        let (w, bit) = (i / 64, 1 << (i % 64));
        if words[w].fetch_and(!bit, Ordering::SeqCst) == bit {
            let above_bit = 1 << (w % 64);
            // Acquire: pairs with the Release in `add`.
            above[w / 64].fetch_and(!above_bit, Ordering::SeqCst);
            // Somebody may have entered another one between the two, and set the bit too early.
            if words[w].load(Ordering::SeqCst) != 0 {
                above[w / 64].fetch_or(above_bit, Ordering::SeqCst);
            }
        }
    }

    /// Whether a cluster is at a level. For checks.
    pub(super) fn has(&self, level: Level, i: usize) -> bool {
        self.find(level, Zone::ALL, i) == Some(i)
    }

    /// Whether a level has no cluster, which most have not at most times.
    #[inline]
    pub(super) fn is_empty(&self, level: Level) -> bool {
        let (_, above) = self.level(level);
        above.iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// The first cluster of a level and a zone from `from` on; no further than the last.
    pub(super) fn find(&self, level: Level, zone: Zone, from: usize) -> Option<usize> {
        let (words, above) = self.level(level);
        let mut w = from / 64;
        let first = words.get(w)?.load(Ordering::Relaxed) & zone.mask() & (u64::MAX << (from % 64));
        if first != 0 {
            return Some(w * 64 + first.trailing_zeros() as usize);
        }
        loop {
            w += 1;
            let a = above.get(w / 64)?.load(Ordering::Relaxed) & (u64::MAX << (w % 64));
            if a == 0 {
                w |= 63;
                continue;
            }
            w = w / 64 * 64 + a.trailing_zeros() as usize;
            let word = words[w].load(Ordering::Relaxed) & zone.mask();
            if word != 0 {
                return Some(w * 64 + word.trailing_zeros() as usize);
            }
        }
    }

    /// The clusters of a level and a zone, each once: from `start` on, and then those before it.
    pub(super) fn around(&self, level: Level, zone: Zone, start: usize) -> impl Iterator<Item = usize> {
        let from = move |start| core::iter::successors(self.find(level, zone, start), move |i| self.find(level, zone, i + 1));
        from(start).chain(from(0).take_while(move |i| *i < start))
    }

    pub(super) fn table_bytes(&self) -> usize {
        self.bits.populated_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_sufficient_level_is_searched_once() {
        for order in 0..=MAX_ORDER {
            let mut seen: std::vec::Vec<u8> = Level::sufficient(order).map(|l| l.0).collect();
            seen.sort_unstable();
            let want = (0..2 * LARGEST as u8).filter(|l| u32::from(*l) % MAX_ORDER >= order);
            assert!(seen.into_iter().eq(want), "order {order}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 50, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn finds_what_a_set_finds(
            clusters in 1usize..20_000,
            ops in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), any::<prop::sample::Index>()), 1..200),
        ) {
            let (index, mut set) = (Index::new(clusters).unwrap(), BTreeSet::new());
            for (i, add, from) in ops {
                let i = i.index(clusters);
                if add {
                    index.add(Level(3), i);
                    set.insert(i);
                } else {
                    index.remove(Level(3), i);
                    set.remove(&i);
                }
                let from = from.index(clusters);
                prop_assert_eq!(index.find(Level(3), Zone::ALL, from), set.range(from..).next().copied());
                prop_assert_eq!(index.find(Level(3), Zone::ALL, 0), set.first().copied());
                let own = Zone::own();
                prop_assert_eq!(index.find(Level(3), own, from), set.range(from..).find(|i| own.has(**i)).copied());
                prop_assert_eq!(index.find(Level(2), Zone::ALL, 0), None);
            }
        }
    }
}
