//! Counts the words of same-filled pages.

use core::sync::atomic::{AtomicU64, Ordering};

/// Most words counted at the same time.
pub const FILL_WORDS: usize = 16;

/// The number of pages that a word fills.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FillWord {
    /// The repeated word, never zero; 0 in an unused entry.
    pub word: u64,
    /// At least this many pages; exact for up to [`FILL_WORDS`] words.
    pub pages: u64,
}

#[derive(Debug, Default)]
#[repr(C)]
struct Count {
    word: AtomicU64,
    /// Pages counted here, also for earlier words.
    pages: AtomicU64,
    /// `pages` when `word` took the count over.
    before: AtomicU64,
}

/// Counts words with the Space-Saving algorithm (Metwally, Agrawal and El Abbadi 2005): a new word
/// takes over the count of the rarest, so that a frequent one gets a count however late it comes.
/// All zeros is a valid, empty value, also in shared memory. Without locks, concurrent calls may
/// miscount by a few.
#[derive(Debug, Default)]
#[repr(C)]
pub struct FillWords([Count; FILL_WORDS]);

impl FillWords {
    /// Counts `pages` pages filled with `word`; zeros are not counted.
    pub fn add(&self, word: u64, pages: u64) {
        if word == 0 || pages == 0 {
            return;
        }
        for count in &self.0 {
            let found = match count.word.load(Ordering::Relaxed) {
                0 => {
                    count.word.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed).map_or_else(|now| now, |_| word)
                }
                now => now,
            };
            if found == word {
                count.pages.fetch_add(pages, Ordering::Relaxed);
                return;
            }
        }
        if let Some(rarest) = self.0.iter().min_by_key(|count| count.pages.load(Ordering::Relaxed)) {
            let before = rarest.pages.fetch_add(pages, Ordering::Relaxed);
            rarest.before.store(before, Ordering::Relaxed);
            rarest.word.store(word, Ordering::Relaxed);
        }
    }

    /// The words, the most frequent first.
    pub fn most(&self) -> [FillWord; FILL_WORDS] {
        let mut words = core::array::from_fn(|i| {
            let count = &self.0[i];
            let pages = count.pages.load(Ordering::Relaxed).saturating_sub(count.before.load(Ordering::Relaxed));
            FillWord { word: count.word.load(Ordering::Relaxed), pages }
        });
        words.sort_unstable_by(|a: &FillWord, b| b.pages.cmp(&a.pages).then(a.word.cmp(&b.word)));
        words
    }

    /// Adds another table's counts.
    pub fn fold(&self, other: &FillWords) {
        for FillWord { word, pages } in other.most() {
            self.add(word, pages);
        }
    }

    /// Copies counts; readers may see a mixture.
    pub fn set(&self, words: &[FillWord; FILL_WORDS]) {
        for (count, from) in self.0.iter().zip(words) {
            count.word.store(from.word, Ordering::Relaxed);
            count.pages.store(from.pages, Ordering::Relaxed);
            count.before.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_words_are_counted_exactly_and_many_never_too_high() {
        let words = FillWords::default();
        for i in 0..100u64 {
            words.add(i % 4 + 1, i % 4);
            words.add(0, 7);
        }
        let most = words.most();
        let expected = [(4, 75), (3, 50), (2, 25), (0, 0)].map(|(word, pages)| FillWord { word, pages });
        assert_eq!(most[..4], expected, "no pages of 1, and zeros are not counted");
        let words = FillWords::default();
        for i in 0..3000u64 {
            words.add(if i > 2000 && i % 2 == 0 { 7 } else { 1000 + i }, 1);
        }
        let most = words.most();
        assert_eq!(most[0].word, 7);
        assert!(most[0].pages > 300 && most[0].pages <= 500, "{most:?}");
        assert!(most[1..].iter().all(|w| w.pages <= 1), "{most:?}");
    }

    #[test]
    fn folding_adds_word_by_word() {
        let (a, b, copy) = (FillWords::default(), FillWords::default(), FillWords::default());
        a.add(1, 10);
        a.add(2, 5);
        b.add(2, 8);
        a.fold(&b);
        copy.set(&a.most());
        assert_eq!(copy.most()[..2], [(2, 13), (1, 10)].map(|(word, pages)| FillWord { word, pages }));
    }
}
