//! A set of small numbers as a bitmap with summaries, so that the lowest member is found in a few steps however big the set.

/// Bits per word.
const WORD: usize = 64;
/// Levels: 64^5 numbers are more frames than lowtide can address.
const LEVELS: usize = 5;

/// Where the words of a set lie in an array of words. Level 0 has a bit per number; each level above has a bit per word of the
/// level below, set when that word is not zero.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BitSet {
    starts: [usize; LEVELS],
    levels: usize,
    bits: usize,
}

impl BitSet {
    /// A set of numbers below `bits`, whose words begin at `*next`, which moves behind them.
    pub(super) fn lay_out(bits: usize, next: &mut usize) -> BitSet {
        let mut set = BitSet { bits, ..BitSet::default() };
        let mut count = bits;
        while set.levels < LEVELS {
            count = count.div_ceil(WORD).max(1);
            set.starts[set.levels] = *next;
            set.levels += 1;
            *next += count;
            if count == 1 {
                break;
            }
        }
        set
    }

    /// Whether `i` is in the set; no number out of range is.
    pub(super) fn has(&self, words: &[u64], i: usize) -> bool {
        i < self.bits && words[self.starts[0] + i / WORD] >> (i % WORD) & 1 == 1
    }

    /// Puts `i` into the set.
    pub(super) fn insert(&self, words: &mut [u64], mut i: usize) {
        debug_assert!(i < self.bits);
        for start in &self.starts[..self.levels] {
            let word = &mut words[start + i / WORD];
            let was_empty = *word == 0;
            *word |= 1 << (i % WORD);
            if !was_empty {
                return;
            }
            i /= WORD;
        }
    }

    /// Takes `i` out of the set.
    pub(super) fn remove(&self, words: &mut [u64], mut i: usize) {
        debug_assert!(i < self.bits);
        for start in &self.starts[..self.levels] {
            let word = &mut words[start + i / WORD];
            *word &= !(1 << (i % WORD));
            if *word != 0 {
                return;
            }
            i /= WORD;
        }
    }

    /// The lowest number in the set.
    pub(super) fn first(&self, words: &[u64]) -> Option<usize> {
        let mut i = 0;
        for start in self.starts[..self.levels].iter().rev() {
            let word = words[start + i];
            if word == 0 {
                return None;
            }
            i = i * WORD + word.trailing_zeros() as usize;
        }
        Some(i)
    }

    /// For checks: all numbers in the set.
    pub(super) fn iter(&self, words: &[u64]) -> impl Iterator<Item = usize> {
        (0..self.bits).filter(|i| self.has(words, *i))
    }

    /// For checks: whether each summary says which words of the level below are not zero.
    pub(super) fn agrees(&self, words: &[u64]) -> bool {
        let mut below = self.bits.div_ceil(WORD).max(1);
        self.starts[..self.levels].windows(2).all(|pair| {
            let summary = |i: usize| words[pair[1] + i / WORD] >> (i % WORD) & 1 == 1;
            let right = (0..below).all(|i| summary(i) == (words[pair[0] + i] != 0));
            below = below.div_ceil(WORD);
            right
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn the_lowest_member_is_found_across_levels() {
        let mut next = 3;
        let set = BitSet::lay_out(300_000, &mut next);
        let mut words = vec![0; next];
        assert_eq!(set.first(&words), None);
        for i in [299_999, 5_000, 64 * 64, 77] {
            set.insert(&mut words, i);
            assert_eq!(set.first(&words), Some(i));
        }
        for i in [77, 64 * 64, 5_000, 299_999] {
            assert!(set.has(&words, i));
            assert_eq!(set.first(&words), Some(i));
            set.remove(&mut words, i);
            assert!(!set.has(&words, i));
        }
        assert_eq!(set.first(&words), None);
        assert!(words.iter().all(|&w| w == 0), "summaries are empty with the set");
        assert!(!set.has(&words, 300_000));
    }
}
