//! The name of a swap slot.

use core::num::NonZeroU64;

const OFFSET_BITS: u32 = 40;

/// A swap entry: the area (bits 40..48) and the slot's offset in pages (bits 0..40). Never zero,
/// since slot 0 is never allocated; a page-map word keeps its state in bits 48..64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Entry(NonZeroU64);

impl Entry {
    /// Bits that a raw entry may have set.
    pub const MASK: u64 = (1 << (OFFSET_BITS + 8)) - 1;

    /// `offset` in pages; `None` for slot 0 and above 40 bits.
    pub const fn new(area: u8, offset: u64) -> Option<Entry> {
        if offset == 0 || offset >> OFFSET_BITS != 0 {
            return None;
        }
        Self::from_raw((area as u64) << OFFSET_BITS | offset)
    }

    /// The inverse of [`Entry::raw`].
    pub const fn from_raw(raw: u64) -> Option<Entry> {
        if raw & !Self::MASK != 0 || raw & ((1 << OFFSET_BITS) - 1) == 0 {
            return None;
        }
        match NonZeroU64::new(raw) {
            Some(raw) => Some(Entry(raw)),
            None => None,
        }
    }

    /// Never zero, below 2^48.
    pub const fn raw(self) -> u64 {
        self.0.get()
    }

    /// The swap area.
    pub const fn area(self) -> u8 {
        (self.0.get() >> OFFSET_BITS) as u8
    }

    /// In pages, in the area; never zero.
    pub const fn offset(self) -> u64 {
        self.0.get() & ((1 << OFFSET_BITS) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_their_numbers_map_both_ways() {
        let e = Entry::new(255, (1 << 40) - 1).unwrap();
        assert_eq!((e.area(), e.offset(), e.raw()), (255, (1 << 40) - 1, (1 << 48) - 1));
        assert_eq!(Entry::from_raw(e.raw()), Some(e));
        assert_eq!(Entry::new(3, 0), None);
        assert_eq!(Entry::new(0, 1 << 40), None);
        assert_eq!(Entry::from_raw(0), None);
        assert_eq!(Entry::from_raw(7 << 40), None, "slot 0 of area 7");
        assert_eq!(Entry::from_raw(1 << 48 | 5), None);
    }
}
