//! The table word of a slot: where the slot's page is for this process. The slot's one word of metadata beside its reference
//! count.
//!
//! Bits 62..64 say what it is; bits 0..62 are the pool's handle (with the object's length), or the checksum of the page in bits
//! 0..61 and in bit 61 whether the page is in memory as well.

use crate::pool::Handle;
use crate::store::Page;

const TAG: u32 = 62;
const VALUE: u64 = (1 << TAG) - 1;
const CACHED: u64 = 1 << (TAG - 1);
const SUM: u64 = CACHED - 1;

/// What a slot's table word says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    /// This process has nothing there.
    Empty,
    /// The page is an object in the pool.
    Pool(Handle),
    /// The page is on the area's device and has this checksum.
    Device(u64),
    /// The page came back from the area's device, where it still has this checksum, and has not changed since, or has not been
    /// found to have changed: the slot holds only a cache mark, and can be taken back.
    Cached(u64),
    /// The device failed to write the slot; nothing is there, and the slot is not given out again.
    Bad,
}

impl Word {
    pub(super) fn decode(raw: u64) -> Word {
        match raw >> TAG {
            0 => Word::Empty,
            1 => Word::Pool(Handle::from_raw(raw & VALUE)),
            2 if raw & CACHED != 0 => Word::Cached(raw & SUM),
            2 => Word::Device(raw & SUM),
            _ => Word::Bad,
        }
    }

    pub(super) fn encode(self) -> u64 {
        match self {
            Word::Empty => 0,
            Word::Pool(handle) => 1 << TAG | handle.raw(),
            Word::Device(sum) => 2 << TAG | sum & SUM,
            Word::Cached(sum) => 2 << TAG | CACHED | sum & SUM,
            Word::Bad => 3 << TAG,
        }
    }

    /// Whether this process refers to a page in the slot that is nowhere else.
    pub(super) fn is_page(self) -> bool {
        matches!(self, Word::Pool(_) | Word::Device(_))
    }

    /// Whether this process refers to the slot.
    pub(super) fn is_reference(self) -> bool {
        self.is_page() || matches!(self, Word::Cached(_))
    }
}

/// The checksum of a page as the table word has it: 61 bits of XXH3. The slot is mixed in, so that a page that comes back from
/// the wrong place is seen too.
pub(super) fn checksum(page: &Page, slot: u64) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(page, slot) & SUM
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_their_numbers_map_both_ways() {
        let sum = checksum(&[7; 4096], 9);
        assert_ne!(sum, checksum(&[7; 4096], 10));
        for word in [Word::Empty, Word::Pool(Handle::from_raw(Handle::MASK)), Word::Device(sum), Word::Cached(sum), Word::Bad] {
            assert_eq!(Word::decode(word.encode()), word);
        }
        assert_eq!(Word::Empty.encode(), 0, "a fresh table is empty");
    }
}
