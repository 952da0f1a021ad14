//! The content of the synthetic loads' pages: every word is predictable, so each read can be
//! verified.

use lowtide_core::vm::PAGE_SIZE;

pub const WORDS: usize = PAGE_SIZE / 8;
/// Words of a record. A page is records, each noise first and then one repeated word: LZ4 meets
/// literals and matches all over the page, as in real data.
pub const RECORD: usize = 64;
pub const RECORDS: usize = WORDS / RECORD;

#[derive(Debug, Clone, Copy)]
pub struct Content {
    /// Noise words of each record; the others repeat one word.
    pub noise: usize,
    /// Zero pages in 100.
    pub zeros: usize,
}

impl Content {
    /// LZ4 compresses such a page by 2.6.
    pub const COMPRESSIBLE: Content = Content { noise: 24, zeros: 0 };
    pub const NOISE: Content = Content { noise: 64, zeros: 0 };

    /// Word `j` of page `i` after this many changes, which touch the first word only.
    pub fn word(self, i: usize, j: usize, changes: u32) -> u64 {
        // 61 and 100 have no common factor: the zero pages lie among the others.
        if i * 61 % 100 < self.zeros && changes == 0 {
            return 0;
        }
        if j % RECORD >= self.noise {
            return i as u64;
        }
        let changed = if j == 0 { u64::from(changes) << 40 } else { 0 };
        mix((i * WORDS + j) as u64 ^ changed)
    }

    pub fn fill(self, i: usize, page: &mut [u64]) {
        page.iter_mut().enumerate().for_each(|(j, word)| *word = self.word(i, j, 0));
    }

    /// A sum over record `record` of page `i`, which changed this many times.
    ///
    /// # Errors
    /// The page's number: a word is wrong.
    pub fn verify(self, i: usize, record: usize, page: &[u64], changes: u32) -> Result<u64, usize> {
        let first = record * RECORD;
        let words = &page[first..first + RECORD];
        let look = |(differ, sum): (u64, u64), (j, word): (usize, &u64)| {
            (differ | (word ^ self.word(i, first + j, changes)), sum.wrapping_mul(31).wrapping_add(*word))
        };
        match words.iter().enumerate().fold((0, 0), look) {
            (0, sum) => Ok(sum),
            _ => Err(i),
        }
    }

    /// The same for all records of a page.
    ///
    /// # Errors
    /// As [`Content::verify`].
    pub fn verify_all(self, i: usize, page: &[u64], changes: u32) -> Result<u64, usize> {
        (0..RECORDS).try_fold(0u64, |sum, record| Ok(sum.rotate_left(1) ^ self.verify(i, record, page, changes)?))
    }
}

/// The mixing of SplitMix64.
fn mix(z: u64) -> u64 {
    let z = z.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_bit_in_any_word_is_found() {
        let content = Content { noise: 24, zeros: 0 };
        let mut page: Vec<u64> = (0..WORDS).map(|j| content.word(1, j, 3)).collect();
        assert!(content.verify_all(1, &page, 3).is_ok());
        assert_eq!(content.verify_all(1, &page, 2), Err(1), "the page of an earlier change");
        assert_eq!(content.verify_all(2, &page, 3), Err(2), "another page");
        for j in 0..WORDS {
            page[j] ^= 1 << (j % 64);
            assert_eq!(content.verify_all(1, &page, 3), Err(1), "word {j}");
            assert_eq!(content.verify(1, j / RECORD, &page, 3), Err(1), "word {j}");
            page[j] ^= 1 << (j % 64);
        }
    }

    #[test]
    fn so_many_pages_are_zeros() {
        let content = Content { noise: 24, zeros: 80 };
        let mut page = vec![1; WORDS];
        let zero = (0..1000).filter(|i| {
            content.fill(*i, &mut page);
            page.iter().all(|word| *word == 0)
        });
        assert_eq!(zero.count(), 800);
    }
}
