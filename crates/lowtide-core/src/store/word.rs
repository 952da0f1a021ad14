//! The table word of a slot: where the slot's page is for this process. The slot's one word of metadata beside its reference
//! count.
//!
//! Bits 62..64 say what it is; bits 0..62 are the pool's handle (with the object's length), in bit 61 whether it is being written
//! to the device; or the tag of the sealed page in bits 0..61 and in bit 61 whether the page is in memory as well.

use crate::device::{TAG_BITS, Tag};
use crate::pool::Handle;

const KIND: u32 = 62;
const VALUE: u64 = (1 << KIND) - 1;
const CACHED: u64 = 1 << TAG_BITS;
const TAG: u64 = CACHED - 1;
const WRITING: u64 = 1 << 61;
const DROPPED: u64 = 1;
const _: () = assert!(TAG_BITS < KIND && Handle::MASK < WRITING && WRITING <= VALUE);

/// What a slot's table word says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    /// This process has nothing there.
    Empty,
    /// The page is an object in the pool.
    Pool(Handle),
    /// The page is an object in the pool, and is being written to the area's device (`shrink.rs`). Until that is over, the object
    /// stays at its place, and the slot is the writer's.
    Writing(Handle),
    /// The page was freed while it was being written: the writer frees the slot.
    Dropped,
    /// The page is on the area's device, sealed under this tag.
    Device(Tag),
    /// The page came back from the area's device, where it still is under this tag, and has not changed since, or has not been
    /// found to have changed: the slot holds only a cache mark, and can be taken back.
    Cached(Tag),
    /// The device failed to write the slot; nothing is there, and the slot is not given out again.
    Bad,
}

impl Word {
    pub(super) fn decode(raw: u64) -> Word {
        match raw >> KIND {
            0 if raw == DROPPED => Word::Dropped,
            0 => Word::Empty,
            1 if raw & WRITING != 0 => Word::Writing(Handle::from_raw(raw & VALUE)),
            1 => Word::Pool(Handle::from_raw(raw & VALUE)),
            2 if raw & CACHED != 0 => Word::Cached(raw & TAG),
            2 => Word::Device(raw & TAG),
            _ => Word::Bad,
        }
    }

    pub(super) fn encode(self) -> u64 {
        match self {
            Word::Empty => 0,
            Word::Dropped => DROPPED,
            Word::Pool(handle) => 1 << KIND | handle.raw(),
            Word::Writing(handle) => 1 << KIND | WRITING | handle.raw(),
            Word::Device(tag) => 2 << KIND | tag & TAG,
            Word::Cached(tag) => 2 << KIND | CACHED | tag & TAG,
            Word::Bad => 3 << KIND,
        }
    }

    /// Whether this process refers to a page in the slot that is nowhere else.
    pub(super) fn is_page(self) -> bool {
        matches!(self, Word::Pool(_) | Word::Writing(_) | Word::Device(_))
    }

    /// The page's object in the pool.
    pub(super) fn object(self) -> Option<Handle> {
        if let Word::Pool(handle) | Word::Writing(handle) = self { Some(handle) } else { None }
    }

    /// Whether this process refers to the slot.
    pub(super) fn is_reference(self) -> bool {
        self.is_page() || matches!(self, Word::Cached(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_their_numbers_map_both_ways() {
        let handle = Handle::from_raw(Handle::MASK);
        let in_pool = [Word::Pool(handle), Word::Writing(handle)];
        for word in in_pool.into_iter().chain([Word::Empty, Word::Dropped, Word::Device(TAG), Word::Cached(TAG), Word::Bad]) {
            assert_eq!(Word::decode(word.encode()), word);
        }
        assert_eq!(Word::Empty.encode(), 0, "a fresh table is empty");
    }
}
