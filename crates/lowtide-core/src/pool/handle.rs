//! The names of an object in the pool and of the one who keeps it there.

/// Where an object is, and how long it is: 54 bits, so that a slot's table word has room for it.
///
/// Bits 0..12 length - 1, 12..22 place in the span, 22..54 first frame of the span.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle(u64);

impl Handle {
    /// Bits that a handle's number may have set.
    pub const MASK: u64 = (1 << 54) - 1;

    pub(super) fn new(frame: u32, place: usize, len: usize) -> Handle {
        debug_assert!(place < 1 << 10 && (1..=1 << 12).contains(&len));
        Handle((frame as u64) << 22 | (place as u64) << 12 | (len as u64 - 1))
    }

    /// The handle as a number.
    pub fn raw(self) -> u64 {
        self.0
    }

    /// The handle with that number. Any number will do: the pool checks handles when they are used.
    pub fn from_raw(raw: u64) -> Handle {
        Handle(raw & Self::MASK)
    }

    /// Length of the object, in bytes, 1 to 4096.
    pub fn object_len(self) -> usize {
        (self.0 & 0xfff) as usize + 1
    }

    pub(super) fn place(self) -> usize {
        (self.0 >> 12 & 0x3ff) as usize
    }

    pub(super) fn frame(self) -> u32 {
        (self.0 >> 22) as u32
    }
}

/// Who keeps a handle, and must be asked before the object is moved: any number of 40 bits but 0. The pool does not know what it
/// means.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Owner(u64);

impl Owner {
    /// Bits of an owner's number.
    pub const BITS: u32 = 40;

    /// The owner with that number; `None` for 0 and for more than 40 bits.
    pub const fn new(raw: u64) -> Option<Owner> {
        if raw == 0 || raw >> Self::BITS != 0 { None } else { Some(Owner(raw)) }
    }

    /// The owner as a number.
    pub const fn raw(self) -> u64 {
        self.0
    }
}
