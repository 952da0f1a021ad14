//! Chooses the filter of each page by what was best for the pages before it: neighbours come one
//! after the other, and are mostly alike.

use super::{Codec, Filter, Workspace};
use crate::vm::Page;

/// Of so many pages one is compressed with all filters: of few after another filter was best, ...
const LEAST: u8 = 4;
/// ... of twice as many each time that the filter stays.
const MOST: u8 = 64;

/// One thread's latest pages.
#[derive(Debug)]
pub struct Choice {
    best: Filter,
    /// Pages until all filters are tried.
    left: u8,
    every: u8,
}

impl Default for Choice {
    fn default() -> Choice {
        Choice { best: Filter::None, left: 0, every: LEAST }
    }
}

/// A page compressed to the front of [`Workspace::bytes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packed {
    /// The filter before the codec.
    pub filter: Filter,
    /// Bytes.
    pub len: usize,
}

impl Choice {
    /// All filters were tried.
    fn is(&mut self, best: Filter) {
        self.every = if best == self.best { (2 * self.every).min(MOST) } else { LEAST };
        (self.best, self.left) = (best, self.every - 1);
    }
}

impl Codec {
    /// Compresses a page with the filter that suits it, as far as known. `None`: above
    /// [`super::MAX_COMPRESSED`].
    pub fn compress_best(self, page: &Page, choice: &mut Choice, workspace: &mut Workspace) -> Option<Packed> {
        let pack = |filter, workspace: &mut Workspace| {
            self.compress_filtered(filter, page, workspace).map(|len| Packed { filter, len })
        };
        let (first, mut best) = (choice.best, pack(choice.best, workspace));
        if choice.left > 0 {
            choice.left -= 1;
            return best;
        }
        for filter in Filter::ALL.into_iter().filter(|filter| *filter != first) {
            core::mem::swap(&mut workspace.bytes, &mut workspace.best);
            let next = pack(filter, workspace);
            if next.is_some_and(|next| best.is_none_or(|best| next.len < best.len)) {
                best = next;
            } else {
                core::mem::swap(&mut workspace.bytes, &mut workspace.best);
            }
        }
        choice.is(best.map_or(first, |best| best.filter));
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::PAGE_SIZE;
    use proptest::prelude::*;

    /// Numbers of which five bytes of eight are noise: LZ4 finds four equal bytes or none.
    fn numbers(seed: u64) -> Page {
        let mut x = seed | 1;
        let mut page = [0; PAGE_SIZE];
        for word in page.as_chunks_mut::<8>().0 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            *word = (0x4059_1200_0000_0000 | x >> 24).to_le_bytes();
        }
        page
    }

    /// A line of 37 bytes again and again: no words of 8.
    fn text(seed: u8) -> Page {
        let line = b"Nothing in this line has eight bytes.";
        core::array::from_fn(|i| if i % 37 == 0 { (i / 37) as u8 ^ seed } else { line[i % 37] })
    }

    fn is_back(codec: Codec, packed: Packed, page: &Page, workspace: &mut Workspace) -> bool {
        let mut back = [0; PAGE_SIZE];
        codec.decompress_filtered(packed.filter, workspace, packed.len, &mut back) && back == *page
    }

    #[test]
    fn what_was_best_for_a_page_is_taken_for_its_neighbours() {
        let (mut workspace, mut choice) = (Workspace::new().unwrap(), Choice::default());
        assert_eq!(Codec::Lz4.compress(&numbers(1), &mut workspace), None, "no help without a filter");
        let mut filters = |page: &dyn Fn(u8) -> Page| -> std::vec::Vec<Filter> {
            let packed = |seed| {
                let packed = Codec::Lz4.compress_best(&page(seed), &mut choice, &mut workspace)?;
                assert!(is_back(Codec::Lz4, packed, &page(seed), &mut workspace));
                Some(packed.filter)
            };
            (0..128).filter_map(packed).collect()
        };
        let shuffled = filters(&|seed| numbers(seed.into()));
        assert_eq!(shuffled, [Filter::Shuffle; 128]);
        let plain = filters(&text);
        let others = plain.iter().filter(|filter| **filter != Filter::None).count();
        assert!(others < usize::from(MOST), "{others} of {}", plain.len());
    }

    proptest! {
        #[test]
        fn each_page_comes_back(
            pages in prop::collection::vec((any::<u64>(), any::<bool>(), 0..PAGE_SIZE), 1..40),
            codec in prop::sample::select(&[Codec::Lz4, Codec::Zstd(-1)][..]),
        ) {
            let (mut workspace, mut choice) = (Workspace::new().unwrap(), Choice::default());
            for (seed, is_text, noise_from) in pages {
                let mut page = if is_text { text(seed as u8) } else { numbers(seed) };
                let mut x = seed | 1;
                for byte in &mut page[noise_from..] {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    *byte = x as u8;
                }
                if let Some(packed) = codec.compress_best(&page, &mut choice, &mut workspace) {
                    prop_assert!(is_back(codec, packed, &page, &mut workspace), "{:?}", packed);
                }
            }
        }
    }
}
