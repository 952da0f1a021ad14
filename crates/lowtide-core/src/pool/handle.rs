//! The name of an object in the pool.

/// Place and length of an object, in 54 bits for a slot's table word.
///
/// Bits 0..12 length - 1, 12..24 place in the span, 24..54 first frame of the span.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle(u64);

pub(super) const MAX_ARENA: usize = 1 << 30;

impl Handle {
    /// Bits that a handle's number may have set.
    pub const MASK: u64 = (1 << 54) - 1;

    pub(super) fn new(frame: u32, place: usize, len: usize) -> Handle {
        debug_assert!((frame as usize) < MAX_ARENA && place < 1 << 12 && (1..=1 << 12).contains(&len));
        Handle((frame as u64) << 24 | (place as u64) << 12 | (len as u64 - 1))
    }

    /// The handle as a number.
    pub fn raw(self) -> u64 {
        self.0
    }

    /// The handle with that number. The pool checks any handle on use, except the length of a raw
    /// page.
    pub fn from_raw(raw: u64) -> Handle {
        Handle(raw & Self::MASK)
    }

    /// Length of the object, in bytes, 1 to 4096.
    pub fn object_len(self) -> usize {
        (self.0 & 0xfff) as usize + 1
    }

    pub(super) fn place(self) -> usize {
        (self.0 >> 12 & 0xfff) as usize
    }

    pub(super) fn frame(self) -> u32 {
        (self.0 >> 24) as u32
    }
}
