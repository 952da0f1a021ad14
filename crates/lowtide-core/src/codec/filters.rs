//! Chooses the filter of each page by what was best for the pages before it: neighbours come one
//! after the other, and are mostly alike.

use super::{Codec, Filter, Workspace};
use crate::vm::{PAGE_SIZE, Page};

/// Of so many pages one is tried with all filters, ...
const EVERY: u8 = 16;
/// ... and of so many that do not compress to half.
const EVERY_POOR: u8 = 4;

/// One thread's latest pages.
#[derive(Debug, Default)]
pub struct Filters {
    best: Filter,
    /// Pages since all filters were tried.
    since: u8,
}

/// A page compressed to the front of [`Workspace::bytes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packed {
    /// The filter before the codec.
    pub filter: Filter,
    /// Bytes.
    pub len: usize,
}

impl Filters {
    fn tries_all(&mut self, len: Option<usize>) -> bool {
        let is_poor = len.is_none_or(|len| len > PAGE_SIZE / 2);
        self.since = self.since.saturating_add(1);
        self.since >= if is_poor { EVERY_POOR } else { EVERY }
    }
}

impl Codec {
    /// Compresses a page with the filter that suits it, as far as known. `None`: above
    /// [`super::MAX_COMPRESSED`].
    pub fn compress_best(self, page: &Page, filters: &mut Filters, workspace: &mut Workspace) -> Option<Packed> {
        let len = self.compress_filtered(filters.best, page, workspace);
        let packed = |filter| move |len| Packed { filter, len };
        if !filters.tries_all(len) {
            return len.map(packed(filters.best));
        }
        filters.since = 0;
        let (first, mut best) = (filters.best, len.map(packed(filters.best)));
        for filter in Filter::ALL.into_iter().filter(|filter| *filter != first) {
            core::mem::swap(&mut workspace.bytes, &mut workspace.best);
            let next = self.compress_filtered(filter, page, workspace).map(packed(filter));
            if next.is_some_and(|next| best.is_none_or(|best| next.len < best.len)) {
                best = next;
            } else {
                core::mem::swap(&mut workspace.bytes, &mut workspace.best);
            }
        }
        filters.best = best.map_or(first, |best| best.filter);
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Numbers whose low bytes are noise.
    fn numbers(seed: u64) -> Page {
        let mut x = seed | 1;
        let mut page = [0; PAGE_SIZE];
        for word in page.as_chunks_mut::<8>().0 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            *word = (0x4059_1234_0000_0000 | x >> 32).to_le_bytes();
        }
        page
    }

    fn text(seed: u8) -> Page {
        core::array::from_fn(|i| if i % 32 == 0 { (i / 32) as u8 ^ seed } else { b"A page of text, with some noise."[i % 32] })
    }

    fn is_back(codec: Codec, packed: Packed, page: &Page, workspace: &mut Workspace) -> bool {
        let mut back = [0; PAGE_SIZE];
        codec.decompress_filtered(packed.filter, workspace, packed.len, &mut back) && back == *page
    }

    #[test]
    fn what_was_best_for_a_page_is_taken_for_its_neighbours() {
        let (mut workspace, mut filters) = (Workspace::new().unwrap(), Filters::default());
        assert_eq!(Codec::Lz4.compress(&numbers(1), &mut workspace), None, "no help without a filter");
        let mut shuffled = 0;
        for seed in 0..64 {
            let page = numbers(seed);
            if let Some(packed) = Codec::Lz4.compress_best(&page, &mut filters, &mut workspace) {
                assert!(is_back(Codec::Lz4, packed, &page, &mut workspace));
                shuffled += usize::from(packed.filter == Filter::Shuffle8);
            }
        }
        assert!(shuffled >= 64 - usize::from(EVERY_POOR), "{shuffled} of 64");
        let plain = (0..64u8).filter(|seed| {
            let packed = Codec::Lz4.compress_best(&text(*seed), &mut filters, &mut workspace).unwrap();
            assert!(is_back(Codec::Lz4, packed, &text(*seed), &mut workspace));
            packed.filter == Filter::None
        });
        assert!(plain.count() >= 64 - usize::from(EVERY));
    }

    proptest! {
        #[test]
        fn each_page_comes_back(
            pages in prop::collection::vec((any::<u64>(), any::<bool>(), 0..PAGE_SIZE), 1..40),
            is_zstd in any::<bool>(),
        ) {
            let codec = if is_zstd { Codec::Zstd(-1) } else { Codec::Lz4 };
            let (mut workspace, mut filters) = (Workspace::new().unwrap(), Filters::default());
            for (seed, is_text, noise_from) in pages {
                let mut page = if is_text { text(seed as u8) } else { numbers(seed) };
                let mut x = seed | 1;
                for byte in &mut page[noise_from..] {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    *byte = x as u8;
                }
                if let Some(packed) = codec.compress_best(&page, &mut filters, &mut workspace) {
                    prop_assert!(is_back(codec, packed, &page, &mut workspace), "{:?}", packed);
                }
            }
        }
    }
}
