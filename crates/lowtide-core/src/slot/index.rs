//! The room of partly used clusters: a bitmap of clusters per level, changed atomically under the
//! cluster's lock, searched without locks; the searching thread locks a cluster and checks it
//! again. Full clusters are in no bitmap. So a search opens only clusters with a sufficient run,
//! whatever orders they served, and finds none exactly if there is none.
//!
//! A cluster that a CPU fills keeps its level until the CPU leaves it or a search opens it in vain.
//! So a search opens in vain at most CPUs times orders clusters, and never misses a run. Clusters
//! with clean copies, full ones too, have a second level: the room with these copies given up.
//!
//! Above each 64 words of a bitmap one summary word says which may be non-zero: a search of a
//! terabyte reads a few hundred words at most. A thread that empties a word leaves its summary bit,
//! since the next cluster often comes soon; a search that finds the word empty clears it
//! ([`Index::tidy`]). That can briefly hide a cluster just entered, so a thread that finds nothing
//! while another tidies reads all words.
//!
//! Each CPU zone has its own words, so CPUs share only the summary words, which rarely change.

use core::ops::Range;

use rustix::io::Errno;

use super::cluster::{CLUSTER_SLOTS, Inner, MAX_ORDER, ORDERS};
use crate::percpu::Zone;
use crate::sync::Array;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::vm::OnFork;

/// Levels with much room; as many with little.
const LARGEST: usize = MAX_ORDER as usize;
/// Up to this many free slots are little room; more are worth taking as a CPU's own.
const LITTLE: usize = 64;

/// The order of a cluster's largest run, and whether it has much room; or full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Level(u8);

impl Level {
    pub(super) const FULL: Level = Level(2 * LARGEST as u8);
    pub(super) const COUNT: usize = 2 * LARGEST + 1;
    const ALL: usize = Level::COUNT + ORDERS;

    /// Whether a cluster of level `other` may be here: its runs may have shrunk.
    pub(super) fn may_stand_for(self, other: Level) -> bool {
        let best = |level: Level| level.0 as usize % LARGEST;
        self == other || (self != Level::FULL && other != Level::FULL && best(self) >= best(other))
    }

    /// Of a cluster with a used slot.
    #[inline]
    pub(super) fn of(inner: &Inner) -> Level {
        let Some(best) = inner.best() else { return Level::FULL };
        let little = CLUSTER_SLOTS - inner.count as usize <= LITTLE;
        Level(best as u8 + if little { LARGEST as u8 } else { 0 })
    }

    /// By the largest run of free slots and clean copies.
    pub(super) const fn of_copies(order: u32) -> Level {
        Level((Level::COUNT + order as usize) as u8)
    }

    pub(super) fn from_number(n: u8) -> Level {
        Level(n)
    }

    pub(super) fn number(self) -> u8 {
        self.0
    }

    pub(super) fn has_much_room(self) -> bool {
        (self.0 as usize) < LARGEST
    }

    /// The levels with runs of 2^`order`, in search order: the smallest sufficient runs first;
    /// little room before far larger runs.
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
    /// The words of all levels, then their summary words.
    bits: Array<AtomicU64>,
    /// Log2 of their count.
    zones: u32,
    /// Log2 of a zone's bits: whole words.
    zone_bits: u32,
    words: usize,
    above: usize,
    began: AtomicU64,
    done: AtomicU64,
}

impl Index {
    /// `zones`: log2; 0 where clusters are searched by number.
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

    #[inline]
    fn bit_of(&self, i: usize) -> usize {
        (i & ((1 << self.zones) - 1)) << self.zone_bits | i >> self.zones
    }

    #[inline]
    fn cluster_of(&self, bit: usize) -> usize {
        (bit & ((1 << self.zone_bits) - 1)) << self.zones | bit >> self.zone_bits
    }

    #[inline]
    fn bits_of(&self, zone: Zone) -> Range<usize> {
        match zone.number() {
            Some(zone) if self.zones > 0 => zone << self.zone_bits..(zone + 1) << self.zone_bits,
            _ => 0..self.words * 64,
        }
    }

    /// The cluster's lock is held.
    #[inline]
    pub(super) fn add(&self, level: Level, i: usize) {
        if level == Level::FULL {
            return;
        }
        let (words, above) = self.level(level);
        let bit = self.bit_of(i);
        let w = bit / 64;
        words[w].fetch_or(1 << (bit % 64), Ordering::SeqCst);
        // Checked even if the word was not empty: the thread that filled it may not have come this
        // far. SeqCst, here and in `tidy`: if one thread fills the word and reads the summary, and
        // one clears the summary and reads the word, at least one sees the other's change.
        let bit = 1 << (w % 64);
        if above[w / 64].load(Ordering::SeqCst) & bit == 0 {
            above[w / 64].fetch_or(bit, Ordering::SeqCst);
        }
    }

    #[inline]
    pub(super) fn remove(&self, level: Level, i: usize) {
        if level != Level::FULL {
            let bit = self.bit_of(i);
            self.level(level).0[bit / 64].fetch_and(!(1 << (bit % 64)), Ordering::SeqCst);
        }
    }

    /// Clears the summary bit of an empty word.
    #[cold]
    fn tidy(&self, level: Level, w: usize) {
        let (words, above) = self.level(level);
        let bit = 1 << (w % 64);
        self.began.fetch_add(1, Ordering::SeqCst);
        above[w / 64].fetch_and(!bit, Ordering::SeqCst);
        // A thread may have entered a cluster before that, and found the bit set.
        if words[w].load(Ordering::SeqCst) != 0 {
            above[w / 64].fetch_or(bit, Ordering::SeqCst);
        }
        self.done.fetch_add(1, Ordering::SeqCst);
    }

    /// To be read before summary words, for [`Index::is_sure`].
    #[inline]
    fn tidied(&self) -> u64 {
        // Acquire: the effects of finished tidyings are visible.
        self.done.load(Ordering::Acquire)
    }

    /// Whether the summaries read since `tidied` had all clusters entered before.
    #[inline]
    fn is_sure(&self, tidied: u64) -> bool {
        // The summaries were loaded with Acquire: a thread that saw a bit cleared sees here that
        // the tidying began.
        self.began.load(Ordering::Relaxed) == tidied
    }

    /// For checks.
    pub(super) fn has(&self, level: Level, i: usize) -> bool {
        let bit = self.bit_of(i);
        self.level(level).0[bit / 64].load(Ordering::Relaxed) >> (bit % 64) & 1 == 1
    }

    #[inline]
    pub(super) fn is_empty(&self, level: Level) -> bool {
        let tidied = self.tidied();
        let (_, above) = self.level(level);
        above.iter().all(|word| word.load(Ordering::Acquire) == 0) && self.is_sure(tidied)
    }

    /// The range ends with a word.
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

    /// As [`Index::find`], without the summaries.
    #[cold]
    fn find_in_words(&self, level: Level, within: Range<usize>) -> Option<usize> {
        let (words, _) = self.level(level);
        let mut mask = u64::MAX << (within.start % 64);
        (within.start / 64..within.end / 64).find_map(|w| {
            let word = words[w].load(Ordering::Relaxed) & core::mem::replace(&mut mask, u64::MAX);
            (word != 0).then(|| w * 64 + word.trailing_zeros() as usize)
        })
    }

    /// Whether the summaries cover all words. For checks.
    pub(super) fn is_consistent(&self) -> bool {
        (0..Level::ALL as u8).map(Level).all(|level| {
            let (words, above) = self.level(level);
            let told = |w: usize| above[w / 64].load(Ordering::Relaxed) >> (w % 64) & 1 == 1;
            words.iter().enumerate().all(|(w, word)| word.load(Ordering::Relaxed) == 0 || told(w))
        })
    }

    /// The first cluster from bit `from` on at any of some levels, and the next bit.
    pub(super) fn next_of(&self, mut levels: impl Iterator<Item = Level>, from: usize) -> Option<(usize, usize)> {
        let end = self.words * 64;
        let bit = Iterator::filter_map(&mut levels, |level| self.find(level, from..end)).min()?;
        Some((self.cluster_of(bit), bit + 1))
    }

    /// The clusters of a level and a zone, each once, from `start` on and around.
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
            // The word with the start may have been read in part.
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
                // In bit order, around from the start.
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
