//! A set of small numbers as a bitmap with summaries, to find the lowest in a few steps.

const WORD: usize = 64;
/// 64^5 numbers: more frames than lowtide can address.
const LEVELS: usize = 5;

/// Layout in an array of words. Level 0 has a bit per number, each level above a bit per non-zero
/// word below.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BitSet {
    starts: [usize; LEVELS],
    levels: usize,
    bits: usize,
}

impl BitSet {
    /// Begins at `*next`, which moves behind it.
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

    /// False out of range.
    pub(super) fn has(&self, words: &[u64], i: usize) -> bool {
        i < self.bits && words[self.starts[0] + i / WORD] >> (i % WORD) & 1 == 1
    }

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

    /// For checks.
    pub(super) fn iter(&self, words: &[u64]) -> impl Iterator<Item = usize> {
        (0..self.bits).filter(|i| self.has(words, *i))
    }

    /// Whether the summaries are right. For checks.
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
