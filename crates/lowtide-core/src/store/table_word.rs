//! The table word of a slot, its only metadata.
//!
//! Bits 62..64 are the kind. In the pool: bits 0..54 the handle, 54..56 the object's maker, 56..58
//! its filter, 61 whether a worker has claimed it. On the device: bits 0..61 the page's tag, 61
//! whether the page is in memory as well.
//!
//! Writes are Release and reads Acquire, so that a thread that sees a word finds the object, or the
//! bytes on the device. (Hints read relaxed.)

use crate::codec::Filter;
use crate::device::{TAG_BITS, Tag};
use crate::pool::Handle;

const KIND: u32 = 62;
const VALUE: u64 = (1 << KIND) - 1;
const CACHED: u64 = 1 << TAG_BITS;
const TAG: u64 = CACHED - 1;
const MADE: u32 = 54;
const FILTER: u32 = 56;
const CLAIMED: u64 = 1 << 61;
const DROPPED: u64 = 1;
const _: () =
    assert!(TAG_BITS < KIND && Handle::MASK < 1 << MADE && FILTER == MADE + 2 && FILTER + 2 <= 61 && CLAIMED <= VALUE);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(super) enum Made {
    /// The store's codec, or raw.
    Stored = 0,
    /// The same; zstd saves nothing.
    Tried = 1,
    Recompressed = 2,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Object {
    pub handle: Handle,
    pub made: Made,
    /// `None`: no filter has the number in the word.
    pub filter: Option<Filter>,
}

impl Object {
    fn decode(raw: u64) -> Object {
        let made = match raw >> MADE & 3 {
            0 => Made::Stored,
            1 => Made::Tried,
            _ => Made::Recompressed,
        };
        Object { handle: Handle::from_raw(raw), made, filter: Filter::from_number((raw >> FILTER & 3) as u8) }
    }

    fn encode(self) -> u64 {
        let filter = self.filter.map_or(3, |filter| filter as u64);
        self.handle.raw() | (self.made as u64) << MADE | filter << FILTER
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    Empty,
    Pool(Object),
    /// Claimed by a worker (`claim.rs`), for which object and slot stay.
    Claimed(Object),
    /// Freed during a claim: the worker frees the slot.
    Dropped,
    /// On the area's device, sealed under this tag.
    Device(Tag),
    /// Loaded from the area's device, where it still is, and not known to have changed: the slot
    /// can be taken back.
    Cached(Tag),
    /// The device failed to write the slot; not allocated again.
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

    /// Whether the slot is the only place of a page.
    pub(super) fn is_page(self) -> bool {
        matches!(self, Word::Pool(_) | Word::Claimed(_) | Word::Device(_))
    }

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
        let filters = Filter::ALL.into_iter().map(Some).chain([None]);
        let made = [Made::Stored, Made::Tried, Made::Recompressed];
        let objects = filters.flat_map(|filter| made.map(|made| Object { handle, made, filter }));
        let in_pool = objects.flat_map(|object| [Word::Pool(object), Word::Claimed(object)]);
        for word in in_pool.chain([Word::Empty, Word::Dropped, Word::Device(TAG), Word::Cached(TAG), Word::Bad]) {
            assert_eq!(Word::decode(word.encode()), word);
        }
        assert_eq!(Word::Empty.encode(), 0, "a fresh table is empty");
    }
}
