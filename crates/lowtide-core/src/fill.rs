//! Detects pages that repeat one word.

use crate::vm::Page;

cpufeatures::new!(avx2, "avx2");

const WORD: usize = size_of::<u64>();

/// The word that the page repeats from end to end, if any. Most pages differ at the first words or
/// the last, and return early.
pub fn repeated_word(page: &Page) -> Option<u64> {
    let word = |i: usize| {
        let mut bytes = [0; WORD];
        bytes.copy_from_slice(&page[i * WORD..(i + 1) * WORD]);
        u64::from_ne_bytes(bytes)
    };
    let first = word(0);
    if first != word(page.len() / WORD - 1) || first != word(1) {
        return None;
    }
    let all = if avx2::get() {
        // SAFETY: this processor has AVX2.
        unsafe { all_are_avx2(page, first) }
    } else {
        all_are(page, first)
    };
    all.then_some(first)
}

/// [`all_are`] with wider registers: twice as fast in the cache.
#[target_feature(enable = "avx2")]
fn all_are_avx2(page: &Page, word: u64) -> bool {
    all_are(page, word)
}

/// In blocks, so that the compiler vectorises the comparisons inside.
#[inline(always)]
fn all_are(page: &Page, word: u64) -> bool {
    page.chunks_exact(16 * WORD).all(|block| {
        let differ = |differ, bytes: &[u8; WORD]| differ | (u64::from_ne_bytes(*bytes) ^ word);
        block.as_chunks::<WORD>().0.iter().fold(0, differ) == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_other_byte_anywhere_is_seen() {
        for fill in [0u64, 0x0102_0304_0506_0708, u64::MAX] {
            let mut page = [0; 4096];
            for w in page.chunks_exact_mut(8) {
                w.copy_from_slice(&fill.to_ne_bytes());
            }
            assert_eq!(repeated_word(&page), Some(fill));
            for i in 0..page.len() {
                page[i] ^= 0x10;
                assert_eq!(repeated_word(&page), None, "byte {i}");
                page[i] ^= 0x10;
            }
        }
    }
}
