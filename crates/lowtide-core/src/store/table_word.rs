//! The table word of a slot: where the slot's page is for this process. The slot's one word of metadata.
//!
//! Bits 62..64 say what it is. The rest is, of a page in the pool: in bits 0..54 the handle (with the object's length), in bits
//! 54..56 who made the object, in bit 61 whether a worker has claimed it; of one on the device: in bits 0..61 the tag of the
//! sealed page, in bit 61 whether the page is in memory as well.
//!
//! Orderings, wherever a word is used: a thread that changes it does so with Release, and one that reads it with Acquire, so
//! that one that sees a word finds the object, or the bytes on the device, that were there before it. (A word that is only
//! looked at, to find out whether something is worth doing, is read relaxed.)

use crate::device::{TAG_BITS, Tag};
use crate::pool::Handle;

const KIND: u32 = 62;
const VALUE: u64 = (1 << KIND) - 1;
const CACHED: u64 = 1 << TAG_BITS;
const TAG: u64 = CACHED - 1;
const MADE: u32 = 54;
const CLAIMED: u64 = 1 << 61;
const DROPPED: u64 = 1;
const _: () = assert!(TAG_BITS < KIND && Handle::MASK < 1 << MADE && MADE + 2 <= 61 && CLAIMED <= VALUE);

/// Who made an object of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(super) enum Made {
    /// Who stored the page: with the store's codec, or raw.
    Stored = 0,
    /// As above; zstd makes it no smaller.
    Tried = 1,
    /// zstd (`recompress.rs`).
    Recompressed = 2,
}

/// A page in the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Object {
    pub handle: Handle,
    pub made: Made,
}

impl Object {
    fn decode(raw: u64) -> Object {
        let made = match raw >> MADE & 3 {
            0 => Made::Stored,
            1 => Made::Tried,
            _ => Made::Recompressed,
        };
        Object { handle: Handle::from_raw(raw), made }
    }

    fn encode(self) -> u64 {
        self.handle.raw() | (self.made as u64) << MADE
    }
}

/// What a slot's table word says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    /// This process has nothing there.
    Empty,
    /// The page is an object in the pool.
    Pool(Object),
    /// The page is an object in the pool, and a worker is at it (`claim.rs`). Until that is over, the object stays at its
    /// place, and the slot is the worker's.
    Claimed(Object),
    /// The page was freed while a worker was at it: the worker frees the slot.
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
            1 if raw & CLAIMED != 0 => Word::Claimed(Object::decode(raw)),
            1 => Word::Pool(Object::decode(raw)),
            2 if raw & CACHED != 0 => Word::Cached(raw & TAG),
            2 => Word::Device(raw & TAG),
            _ => Word::Bad,
        }
    }

    pub(super) fn encode(self) -> u64 {
        match self {
            Word::Empty => 0,
            Word::Dropped => DROPPED,
            Word::Pool(object) => 1 << KIND | object.encode(),
            Word::Claimed(object) => 1 << KIND | CLAIMED | object.encode(),
            Word::Device(tag) => 2 << KIND | tag & TAG,
            Word::Cached(tag) => 2 << KIND | CACHED | tag & TAG,
            Word::Bad => 3 << KIND,
        }
    }

    /// Whether this process refers to a page in the slot that is nowhere else.
    pub(super) fn is_page(self) -> bool {
        matches!(self, Word::Pool(_) | Word::Claimed(_) | Word::Device(_))
    }

    /// The page's object in the pool.
    pub(super) fn object(self) -> Option<Object> {
        if let Word::Pool(object) | Word::Claimed(object) = self { Some(object) } else { None }
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
        let objects = [Made::Stored, Made::Tried, Made::Recompressed].map(|made| Object { handle, made });
        let in_pool = objects.into_iter().flat_map(|object| [Word::Pool(object), Word::Claimed(object)]);
        for word in in_pool.chain([Word::Empty, Word::Dropped, Word::Device(TAG), Word::Cached(TAG), Word::Bad]) {
            assert_eq!(Word::decode(word.encode()), word);
        }
        assert_eq!(Word::Empty.encode(), 0, "a fresh table is empty");
    }
}
