//! Which partly used clusters have which room: a bitmap of clusters for each level, changed by atomic operations with the
//! cluster's lock held, searched without any lock. A thread that finds a cluster here locks it and looks again. Full clusters
//! are in no bitmap: nobody searches them. So a search opens only clusters that surely have what it looks for, whatever orders
//! they served so far, and finds nothing exactly when there is nothing.
//!
//! The clusters that CPUs are filling at the moment are let be: the index says of them what was true when a CPU took them, and
//! is put right when that CPU leaves or a search opens them in vain. So a search opens in vain at most as many clusters as
//! there are CPUs times orders, and never misses a run. Clusters with clean copies, full ones too, are in one more, by what
//! room they have if those are given up.
//!
//! Above each 64 words of a bitmap there is one word that says which of them may not be empty, so that a search of an area of a
//! terabyte reads a few hundred words at most. A thread that takes the last cluster out of a word leaves it at that: the next
//! one often comes soon, and the search that finds the word empty says so above ([`Index::tidy`]). For a moment that can hide a
//! cluster that has just been entered; so a thread that finds nothing while another tidies up looks at all words.
//!
//! The clusters of each CPU's zone have words of their own: a search of a zone reads no others, and CPUs that keep to their
//! zones change no word of each other's but those above, which seldom change.

use core::ops::Range;

use rustix::io::Errno;

use super::cluster::{CLUSTER_SLOTS, Inner, MAX_ORDER, ORDERS};
use crate::percpu::Zone;
use crate::sync::Array;
use crate::sync::atomic::{AtomicU64, Ordering};
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
    pub(super) const fn of_copies(order: u32) -> Level {
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
    bits: Array<AtomicU64>,
    /// How many zones, as a power of two.
    zones: u32,
    /// How many bits a zone has, as a power of two: whole words.
    zone_bits: u32,
    words: usize,
    above: usize,
    /// How often somebody began to tidy up.
    began: AtomicU64,
    /// How often somebody was done with it.
    done: AtomicU64,
}

impl Index {
    /// `zones`: how many, as a power of two, whose clusters are together; 0 where neighbours are to be found one after the
    /// other.
    pub(super) fn new(clusters: usize, zones: u32) -> Result<Index, Errno> {
        let zone_bits = clusters.div_ceil(1 << zones).max(64).next_power_of_two().trailing_zeros();
        let words = (1usize << (zone_bits + zones)) / 64;
        let above = words.div_ceil(64);
        let bits = Array::new(Level::ALL * (words + above), OnFork::Copy)?;
        Ok(Index { bits, zones, zone_bits, words, above, began: AtomicU64::new(0), done: AtomicU64::new(0) })
    }

    #[inline]
    pub(super) fn level(&self, level: Level) -> (&[AtomicU64], &[AtomicU64]) {
        let (words, above) = self.bits.split_at(Level::ALL * self.words);
        let level = level.0 as usize;
        (&words[level * self.words..][..self.words], &above[level * self.above..][..self.above])
    }

    /// The bit of a cluster.
    #[inline]
    fn bit_of(&self, i: usize) -> usize {
        (i & ((1 << self.zones) - 1)) << self.zone_bits | i >> self.zones
    }

    /// The cluster of a bit.
    #[inline]
    fn cluster_of(&self, bit: usize) -> usize {
        (bit & ((1 << self.zone_bits) - 1)) << self.zones | bit >> self.zone_bits
    }

    /// The bits of a zone.
    #[inline]
    fn bits_of(&self, zone: Zone) -> Range<usize> {
        match zone.number() {
            Some(zone) if self.zones > 0 => zone << self.zone_bits..(zone + 1) << self.zone_bits,
            _ => 0..self.words * 64,
        }
    }

    /// Enters a cluster. Its lock is held.
    #[inline]
    pub(super) fn add(&self, level: Level, i: usize) {
        if level == Level::FULL {
            return;
        }
        let (words, above) = self.level(level);
        let bit = self.bit_of(i);
        let w = bit / 64;
        words[w].fetch_or(1 << (bit % 64), Ordering::SeqCst);
        // Mostly it is set still; looked at also where the word was not empty: who made it so may not have come this far.
        // SeqCst, here and in `tidy`: of one that fills the word and looks above, and one that clears above and looks at the
        // word, at least one sees what the other did.
        let bit = 1 << (w % 64);
        if above[w / 64].load(Ordering::SeqCst) & bit == 0 {
            above[w / 64].fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// Takes a cluster out. Its lock is held.
    #[inline]
    pub(super) fn remove(&self, level: Level, i: usize) {
        if level != Level::FULL {
            let bit = self.bit_of(i);
            self.level(level).0[bit / 64].fetch_and(!(1 << (bit % 64)), Ordering::SeqCst);
        }
    }

    /// A search found nothing in a word: the word above says so from here on.
    #[cold]
    fn tidy(&self, level: Level, w: usize) {
        let (words, above) = self.level(level);
        let bit = 1 << (w % 64);
        self.began.fetch_add(1, Ordering::SeqCst);
        above[w / 64].fetch_and(!bit, Ordering::SeqCst);
        // Somebody may have entered a cluster before that, and found the bit set.
        if words[w].load(Ordering::SeqCst) != 0 {
            above[w / 64].fetch_or(bit, Ordering::SeqCst);
        }
        self.done.fetch_add(1, Ordering::SeqCst);
    }

    /// To be asked before words above are looked at, and given to [`Index::is_sure`] afterwards.
    #[inline]
    fn tidied(&self) -> u64 {
        // Acquire: all that those did is seen who had been done by then.
        self.done.load(Ordering::Acquire)
    }

    /// Whether nobody tidied up meanwhile, so that the words above told of all clusters that had been entered before.
    #[inline]
    fn is_sure(&self, tidied: u64) -> bool {
        // The words above were loaded with Acquire: who saw one that somebody has cleared sees here that he began.
        self.began.load(Ordering::Relaxed) == tidied
    }

    /// Whether a cluster is at a level. For checks.
    pub(super) fn has(&self, level: Level, i: usize) -> bool {
        let bit = self.bit_of(i);
        self.level(level).0[bit / 64].load(Ordering::Relaxed) >> (bit % 64) & 1 == 1
    }

    /// Whether a level surely has no cluster, as most at most times.
    #[inline]
    pub(super) fn is_empty(&self, level: Level) -> bool {
        let tidied = self.tidied();
        let (_, above) = self.level(level);
        above.iter().all(|word| word.load(Ordering::Acquire) == 0) && self.is_sure(tidied)
    }

    /// The first bit of a level that is set, within a range that ends with a word.
    #[inline]
    fn find(&self, level: Level, within: Range<usize>) -> Option<usize> {
        if within.start >= within.end {
            return None;
        }
        let tidied = self.tidied();
        let (words, above) = self.level(level);
        let (mut w, end) = (within.start / 64, within.end / 64);
        let word = words[w].load(Ordering::Relaxed);
        let first = word & (u64::MAX << (within.start % 64));
        if first != 0 {
            return Some(w * 64 + first.trailing_zeros() as usize);
        }
        if word == 0 && above[w / 64].load(Ordering::Relaxed) >> (w % 64) & 1 == 1 {
            self.tidy(level, w);
        }
        w += 1;
        while w < end {
            let a = above[w / 64].load(Ordering::Acquire) & (u64::MAX << (w % 64));
            if a == 0 {
                w = (w | 63) + 1;
                continue;
            }
            w = w / 64 * 64 + a.trailing_zeros() as usize;
            if w >= end {
                break;
            }
            let word = words[w].load(Ordering::Relaxed);
            if word != 0 {
                return Some(w * 64 + word.trailing_zeros() as usize);
            }
            self.tidy(level, w);
            w += 1;
        }
        if self.is_sure(tidied) { None } else { self.find_in_words(level, within) }
    }

    /// As [`Index::find`], without the words above.
    #[cold]
    fn find_in_words(&self, level: Level, within: Range<usize>) -> Option<usize> {
        let (words, _) = self.level(level);
        let mut mask = u64::MAX << (within.start % 64);
        (within.start / 64..within.end / 64).find_map(|w| {
            let word = words[w].load(Ordering::Relaxed) & core::mem::replace(&mut mask, u64::MAX);
            (word != 0).then(|| w * 64 + word.trailing_zeros() as usize)
        })
    }

    /// Whether the words above tell of all that is in the words. For checks, while nobody changes anything.
    pub(super) fn is_consistent(&self) -> bool {
        (0..Level::ALL as u8).map(Level).all(|level| {
            let (words, above) = self.level(level);
            let told = |w: usize| above[w / 64].load(Ordering::Relaxed) >> (w % 64) & 1 == 1;
            words.iter().enumerate().all(|(w, word)| word.load(Ordering::Relaxed) == 0 || told(w))
        })
    }

    /// The first cluster behind bit `from` at one of some levels, and where to go on behind it.
    pub(super) fn next_of(&self, mut levels: impl Iterator<Item = Level>, from: usize) -> Option<(usize, usize)> {
        let end = self.words * 64;
        let bit = Iterator::filter_map(&mut levels, |level| self.find(level, from..end)).min()?;
        Some((self.cluster_of(bit), bit + 1))
    }

    /// The clusters of a level and a zone, each once: from cluster `start` on, if that is of the zone, and then those before
    /// it.
    #[inline]
    pub(super) fn around(&self, level: Level, zone: Zone, start: usize) -> impl Iterator<Item = usize> {
        let all = self.bits_of(zone);
        let start = self.bit_of(start);
        let start = if all.contains(&start) { start } else { all.start };
        let mut behind = start..all.end;
        let mut before = all.start..start;
        core::iter::from_fn(move || {
            if let Some(bit) = self.find(level, behind.clone()) {
                behind.start = bit + 1;
                return Some(self.cluster_of(bit));
            }
            behind.start = behind.end;
            // The word with the start may have been seen already, in part.
            let end = before.end.next_multiple_of(64).max(before.start);
            let bit = self.find(level, before.start..end).filter(|bit| *bit < start);
            before.start = bit.map_or(before.end, |bit| bit + 1);
            bit.map(|bit| self.cluster_of(bit))
        })
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
    use std::vec::Vec;

    #[test]
    fn every_sufficient_level_is_searched_once() {
        for order in 0..=MAX_ORDER {
            let mut seen: Vec<u8> = Level::sufficient(order).map(|l| l.0).collect();
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
            zones in 0u32..=6,
            zone: prop::sample::Index,
            ops in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), any::<prop::sample::Index>()), 1..200),
        ) {
            let (index, mut set) = (Index::new(clusters, zones).unwrap(), BTreeSet::new());
            let zone = zone.index(1 << zones);
            for (i, add, start) in ops {
                let i = i.index(clusters);
                if add {
                    index.add(Level(3), i);
                    set.insert(i);
                } else {
                    index.remove(Level(3), i);
                    set.remove(&i);
                }
                prop_assert_eq!(index.has(Level(3), i), add);
                prop_assert!(set.is_empty() || !index.is_empty(Level(3)));
                let start = start.index(clusters);
                // In the order of bits, round from the start.
                for number in [None, Some(zone)] {
                    let is_one = |i: &usize| number.is_none_or(|number| i % (1 << zones) == number);
                    let mut want: Vec<usize> = set.iter().copied().filter(is_one).collect();
                    want.sort_unstable_by_key(|i| index.bit_of(*i));
                    let at = want.partition_point(|i| index.bit_of(*i) < index.bit_of(start));
                    want.rotate_left(if is_one(&start) { at } else { 0 });
                    let zone = number.map_or(Zone::ALL, |number| Zone::of(number, zones));
                    prop_assert_eq!(index.around(Level(3), zone, start).collect::<Vec<_>>(), want);
                }
                prop_assert_eq!(index.around(Level(2), Zone::ALL, start).next(), None);
                let levels = || [Level(2), Level(3)].into_iter();
                let all = core::iter::successors(index.next_of(levels(), 0), |(_, from)| index.next_of(levels(), *from));
                prop_assert_eq!(all.map(|(i, _)| i).collect::<BTreeSet<_>>(), set.clone());
                prop_assert!(index.is_consistent());
            }
            set.iter().for_each(|i| index.remove(Level(3), *i));
            prop_assert_eq!(index.around(Level(3), Zone::ALL, 0).next(), None);
            prop_assert!(index.is_empty(Level(3)), "the search has told what it found");
        }
    }
}
