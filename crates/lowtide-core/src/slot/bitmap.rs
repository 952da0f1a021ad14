//! A bit for each slot of a cluster, and the search for aligned clear runs.

/// Slots in a cluster (2 MiB of pages).
pub const CLUSTER_SLOTS: usize = 512;
/// Largest order: a whole cluster.
pub const MAX_ORDER: u32 = CLUSTER_SLOTS.ilog2();
/// Number of orders.
pub const ORDERS: usize = MAX_ORDER as usize + 1;

pub(super) const WORDS: usize = CLUSTER_SLOTS / 64;

/// Where aligned runs of 2^order can begin in a word, order 0 to 5.
const STARTS: [u64; 6] = [
    u64::MAX,
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bitmap([u64; WORDS]);

fn mask(w: usize, first: usize, n: usize) -> u64 {
    let (from, to) = (first.max(w * 64), (first + n).min(w * 64 + 64));
    if from >= to { 0 } else { (u64::MAX >> (64 - (to - from))) << (from % 64) }
}

impl Bitmap {
    pub(super) const EMPTY: Bitmap = Bitmap([0; WORDS]);

    pub(super) fn from_words(word: impl FnMut(usize) -> u64) -> Bitmap {
        Bitmap(core::array::from_fn(word))
    }

    pub(super) fn word(&self, w: usize) -> u64 {
        self.0[w]
    }

    pub(super) fn is_set(&self, i: usize) -> bool {
        self.0[i / 64] >> (i % 64) & 1 == 1
    }

    #[inline]
    pub(super) fn set(&mut self, first: usize, n: usize) {
        if n == 1 {
            self.0[first / 64] |= 1 << (first % 64);
            return;
        }
        for w in first / 64..(first + n).div_ceil(64) {
            self.0[w] |= mask(w, first, n);
        }
    }

    #[inline]
    pub(super) fn clear(&mut self, first: usize, n: usize) {
        if n == 1 {
            self.0[first / 64] &= !(1 << (first % 64));
            return;
        }
        for w in first / 64..(first + n).div_ceil(64) {
            self.0[w] &= !mask(w, first, n);
        }
    }

    pub(super) fn count(&self, first: usize, n: usize) -> usize {
        (first / 64..(first + n).div_ceil(64)).map(|w| (self.0[w] & mask(w, first, n)).count_ones() as usize).sum()
    }

    pub(super) fn without(&self, other: &Bitmap) -> Bitmap {
        Bitmap(core::array::from_fn(|w| self.0[w] & !other.0[w]))
    }

    /// The first aligned clear run of 2^`order` from `from` on.
    #[inline]
    pub(super) fn find_clear(&self, order: u32, from: usize) -> Option<usize> {
        let n = 1usize << order;
        // Rounded up without a division, which would cost more than the rest.
        let from = (from + n - 1) & !(n - 1);
        if from >= CLUSTER_SLOTS {
            return None;
        }
        let word = !self.0[from / 64] >> (from % 64);
        if order == 0 && word != 0 {
            return Some(from + word.trailing_zeros() as usize);
        }
        self.find_clear_further(order, from)
    }

    /// `from` is a multiple of 2^`order`.
    fn find_clear_further(&self, order: u32, from: usize) -> Option<usize> {
        let n = 1usize << order;
        let Some(starts) = STARTS.get(order as usize) else {
            let words = n / 64;
            return (from / 64..WORDS).step_by(words).find(|w| self.0[*w..w + words].iter().all(|x| *x == 0)).map(|w| w * 64);
        };
        let mut at_least = u64::MAX << (from % 64);
        for (w, word) in self.0.iter().enumerate().skip(from / 64) {
            let free = starts_in(*word, order) & starts & at_least;
            if free != 0 {
                return Some(w * 64 + free.trailing_zeros() as usize);
            }
            at_least = u64::MAX;
        }
        None
    }

    /// Cheap for aligned powers of two.
    #[inline]
    pub(super) fn is_clear(&self, first: usize, n: usize) -> bool {
        if first % 64 + n <= 64 {
            return self.0[first / 64] & (u64::MAX >> (64 - n)) << (first % 64) == 0;
        }
        (first / 64..(first + n).div_ceil(64)).all(|w| self.0[w] & mask(w, first, n) == 0)
    }

    pub(super) fn largest_clear(&self, most: u32) -> Option<u32> {
        (0..=most.min(MAX_ORDER)).rev().find(|order| self.find_clear(*order, 0).is_some())
    }

    /// Clears set bits of one word, if no aligned clear run then exceeds 2^`known`. False: nothing
    /// has changed, or more than one word would decide.
    #[inline]
    pub(super) fn clear_if_small(&mut self, first: usize, n: usize, known: u32) -> bool {
        let (at, run) = (first % 64, 2usize << known);
        let start = at & !(run - 1);
        if run > 64 || n == 0 || at + n > start + run {
            return false;
        }
        let bits = |first: usize, n: usize| (u64::MAX >> (64 - n)) << first;
        let (freed, around, word) = (bits(at, n), bits(start, run), &mut self.0[first / 64 % WORDS]);
        let small = *word & freed == freed && *word & around != freed;
        if small {
            *word &= !freed;
        }
        small
    }

    /// The order of the largest aligned clear run that overlaps the bits; at least `known`.
    #[inline]
    pub(super) fn largest_clear_around(&self, first: usize, n: usize, known: Option<u32>) -> Option<u32> {
        let mut largest = known;
        for order in known.map_or(0, |known| known + 1)..=MAX_ORDER {
            let run = 1usize << order;
            // Not `step_by`, which divides.
            let mut start = first & !(run - 1);
            while start < first + n && !self.is_clear(start, run) {
                start += run;
            }
            if start >= first + n {
                break;
            }
            largest = Some(order);
        }
        largest
    }

    /// Calls `f` with first bit and length of each set run.
    pub(super) fn each_run(&self, mut f: impl FnMut(usize, usize)) {
        let mut from = 0;
        while let Some(first) = self.next_set(from) {
            let mut end = first + 1;
            while end < CLUSTER_SLOTS && self.is_set(end) {
                end += 1;
            }
            f(first, end - first);
            from = end;
        }
    }

    fn next_set(&self, from: usize) -> Option<usize> {
        let words = self.0.iter().enumerate().skip(from / 64);
        let from_here = |w: usize| if w == from / 64 { u64::MAX << (from % 64) } else { u64::MAX };
        words
            .map(|(w, word)| (w, word & from_here(w)))
            .find(|(_, word)| *word != 0)
            .map(|(w, word)| w * 64 + word.trailing_zeros() as usize)
    }

    /// The set bits in a run.
    pub(super) fn part(&self, first: usize, n: usize) -> Bitmap {
        Bitmap(core::array::from_fn(|w| self.0[w] & mask(w, first, n)))
    }

    #[inline]
    pub(super) fn is_set_all(&self, first: usize, n: usize) -> bool {
        if first % 64 + n <= 64 {
            let mask = (u64::MAX >> (64 - n)) << (first % 64);
            return self.0[first / 64] & mask == mask;
        }
        self.count(first, n) == n
    }
}

/// Where 2^order clear bits begin, aligned or not, order 0 to 5.
fn starts_in(word: u64, order: u32) -> u64 {
    let mut free = !word;
    for k in 0..order {
        free &= free >> (1 << k);
    }
    free
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn agrees_with_an_array_of_bools(
            set in prop::collection::vec(0usize..CLUSTER_SLOTS, 0..80), order in 0u32..=MAX_ORDER, from in 0usize..CLUSTER_SLOTS, n in 1usize..300,
        ) {
            let (mut map, mut plain) = (Bitmap::EMPTY, [false; CLUSTER_SLOTS]);
            for i in set {
                map.set(i, 1);
                plain[i] = true;
            }
            let free = |first: usize, n: usize| plain[first..first + n].iter().all(|b| !b);
            let run = 1usize << order;
            let want = (0..CLUSTER_SLOTS).step_by(run).find(|s| *s >= from && free(*s, run));
            prop_assert_eq!(map.find_clear(order, from), want);
            let largest = (0..=MAX_ORDER).rev().find(|o| (0..CLUSTER_SLOTS).step_by(1 << o).any(|s| free(s, 1 << o)));
            prop_assert_eq!(map.largest_clear(MAX_ORDER), largest);
            let is_around = |s: usize, len: usize| s < from + 1 && from < s + len;
            let around = (0..=MAX_ORDER).rev().find(|o| {
                (0..CLUSTER_SLOTS).step_by(1 << o).any(|s| is_around(s, 1 << o) && free(s, 1 << o))
            });
            prop_assert_eq!(map.largest_clear_around(from, 1, None), around);
            // For more bits, and from `known` on: as far as each order has a clear run.
            let some = n.min(CLUSTER_SLOTS - from);
            let known = order.checked_sub(1);
            let has = |o: u32| (0..CLUSTER_SLOTS).step_by(1 << o).any(|s| s < from + some && from < s + (1 << o) && free(s, 1 << o));
            let largest = (order..=MAX_ORDER).take_while(|o| has(*o)).last().or(known);
            prop_assert_eq!(map.largest_clear_around(from, some, known), largest);
            let (mut small, known) = (map, order.min(MAX_ORDER - 1));
            let was_cleared = small.clear_if_small(from, some, known);
            let mut cleared = map;
            cleared.clear(from, some);
            prop_assert_eq!(small, if was_cleared { cleared } else { map });
            prop_assert!(!was_cleared || map.is_set_all(from, some) && cleared.largest_clear_around(from, some, Some(known)) == Some(known));
            let mut runs = Bitmap::EMPTY;
            map.each_run(|first, n| {
                assert!(runs.is_clear(first, n) && (first == 0 || !map.is_set(first - 1)));
                runs.set(first, n);
            });
            prop_assert_eq!(runs, map);
            let n = n.min(CLUSTER_SLOTS - from);
            prop_assert_eq!(map.is_clear(from, n), free(from, n));
            prop_assert_eq!(map.is_set_all(from, n), plain[from..from + n].iter().all(|b| *b));
            prop_assert_eq!(map.count(from, n), plain[from..from + n].iter().filter(|b| **b).count());
            prop_assert_eq!(map.part(from, n).count(0, CLUSTER_SLOTS), map.count(from, n));
            let before = map;
            map.set(from, n);
            prop_assert_eq!(map.count(from, n), n);
            map.clear(from, n);
            prop_assert_eq!(map.count(0, CLUSTER_SLOTS), before.count(0, from) + before.count(from + n, CLUSTER_SLOTS - from - n));
            prop_assert!(map.is_clear(from, n));
            prop_assert_eq!(before.without(&map).count(0, CLUSTER_SLOTS), before.count(from, n));
        }
    }
}
