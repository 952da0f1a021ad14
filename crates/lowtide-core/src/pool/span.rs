//! A span: a few frames that hold objects of one size class. In front of the places lie a header and a bitmap of those in use,
//! so that spans need no table beside them.

use super::class::{Class, HEADER};

/// What stands at the start of a span. Frame numbers are kept plus one; 0 is none.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Header {
    /// Neighbours in the list of spans of this class with room.
    pub next: u32,
    pub prev: u32,
    /// Places in use.
    pub used: u16,
    /// Bitmap words below this one are all ones.
    pub hint: u16,
    pad: u32,
}

const _: () = assert!(size_of::<Header>() == HEADER);

/// Access to a span's memory.
#[derive(Debug)]
pub(super) struct Span {
    base: *mut u8,
    class: &'static Class,
}

impl Span {
    /// # Safety
    /// `base` is the first byte of a span of `class` (not the raw one), and the lock of the class is held as long as the value
    /// lives, so that nobody else reads or writes the span.
    pub(super) unsafe fn new(base: *mut u8, class: &'static Class) -> Span {
        Span { base, class }
    }

    /// Makes a span with no object of frames with any bytes in them.
    pub(super) fn clear(&mut self) {
        // SAFETY: header and bitmap (`first` bytes) are inside the span, which is this thread's.
        unsafe { self.base.write_bytes(0, self.class.first) }
    }

    pub(super) fn header(&mut self) -> &mut Header {
        // SAFETY: a span begins with its header, at a page boundary, and is this thread's; any bytes are a Header.
        unsafe { &mut *self.base.cast() }
    }

    fn bitmap(&mut self) -> &mut [u64] {
        // SAFETY: the bitmap lies behind the header, aligned to 8, one bit per place, and is this thread's.
        unsafe { core::slice::from_raw_parts_mut(self.base.add(HEADER).cast(), self.class.places.div_ceil(64)) }
    }

    /// Whether the place exists and holds an object.
    pub(super) fn holds(&mut self, place: usize) -> bool {
        place < self.class.places && self.bitmap()[place / 64] >> (place % 64) & 1 == 1
    }

    /// Takes the lowest free place.
    pub(super) fn take(&mut self) -> Option<usize> {
        let places = self.class.places;
        let hint = self.header().hint as usize;
        let (word, bits) = self.bitmap().iter_mut().enumerate().skip(hint).find(|(_, bits)| **bits != u64::MAX)?;
        let bit = bits.trailing_ones() as usize;
        let place = word * 64 + bit;
        if place >= places {
            return None;
        }
        *bits |= 1 << bit;
        let header = self.header();
        header.hint = word as u16;
        header.used += 1;
        Some(place)
    }

    /// Frees a place that holds an object.
    pub(super) fn give(&mut self, place: usize) {
        debug_assert!(self.holds(place));
        self.bitmap()[place / 64] &= !(1 << (place % 64));
        let header = self.header();
        header.hint = header.hint.min((place / 64) as u16);
        header.used -= 1;
    }

    /// Whether every place holds an object.
    pub(super) fn is_full(&mut self) -> bool {
        self.header().used as usize == self.class.places
    }

    /// The bytes of a place.
    pub(super) fn bytes(&mut self, place: usize) -> &mut [u8] {
        assert!(place < self.class.places);
        // SAFETY: the place is inside the span, which is this thread's.
        unsafe { core::slice::from_raw_parts_mut(self.base.add(self.class.first + place * self.class.size), self.class.size) }
    }
}
