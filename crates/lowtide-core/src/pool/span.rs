//! A span: a few frames full of objects of any lengths. In front lie a header and a directory with a short word for each object; the
//! objects themselves grow downwards from the end. A handle names a place in the directory, so that objects can slide inside
//! their span without anybody noticing. (The layout is that of the slotted pages of databases: Gray and Reuter, "Transaction
//! Processing", 1993, section 14.3.)

use crate::vm::PAGE_SIZE;

/// Most frames of a span: offsets of objects have 12 bits.
pub(super) const MAX_FRAMES: usize = 8;
/// Objects begin at multiples of this.
pub(super) const GRANULE: usize = 8;
/// Bytes of a word of the directory.
const WORD: usize = size_of::<Object>();
/// Bytes in front of the directory.
pub(super) const HEADER: usize = size_of::<Header>();
/// Most objects in a span.
const MAX_PLACES: usize = (MAX_FRAMES * PAGE_SIZE - HEADER) / (GRANULE + WORD);

const _: () = assert!(MAX_FRAMES * PAGE_SIZE / GRANULE <= 1 << 12 && MAX_PLACES <= 1 << 12);

/// Bytes that an object of `len` bytes takes at most in a span: itself and its word.
pub(super) const fn need(len: usize) -> usize {
    len.next_multiple_of(GRANULE) + WORD
}

/// What stands at the start of a span. Frame numbers are kept plus one; 0 is none.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Header {
    /// Neighbours on the shelf.
    pub next: u32,
    pub prev: u32,
    /// Which shelf the span is on.
    pub shelf: u8,
    frames: u8,
    /// Words of the directory.
    places: u16,
    /// Where the lowest object begins, in granules.
    bottom: u16,
    /// Granules above `bottom` that belong to no object.
    holes: u16,
}

/// A word of the directory: 24 bits, because it counts for every page that is out. 0 is free (no object begins at offset 0). Bits
/// 0..12 length - 1, 12..24 where the object begins, in granules.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Object([u8; 3]);

impl Object {
    const FREE: Object = Object([0; 3]);

    fn new(begins: usize, len: usize) -> Object {
        let [a, b, c, _] = ((begins as u32) << 12 | (len as u32 - 1)).to_le_bytes();
        Object([a, b, c])
    }

    fn bits(self) -> usize {
        let [a, b, c] = self.0;
        u32::from_le_bytes([a, b, c, 0]) as usize
    }

    pub(super) fn len(self) -> usize {
        (self.bits() & 0xfff) + 1
    }

    pub(super) fn begins(self) -> usize {
        self.bits() >> 12
    }

    fn granules(self) -> usize {
        self.len().div_ceil(GRANULE)
    }
}

/// Access to a span's memory.
#[derive(Debug)]
pub(super) struct Span {
    base: *mut u8,
}

impl Span {
    /// # Safety
    /// `base` is the first byte of a span (or of frames that [`Span::clear`] is about to make one of), and the lock of its shard is
    /// held as long as the value lives, so that nobody else reads or writes it.
    pub(super) unsafe fn new(base: *mut u8) -> Span {
        Span { base }
    }

    /// Makes a span with no object of `frames` frames with any bytes in them.
    pub(super) fn clear(&mut self, frames: usize) {
        let bottom = (frames * PAGE_SIZE / GRANULE) as u16;
        let frames = frames as u8;
        *self.header() = Header { next: 0, prev: 0, shelf: 0, frames, places: 0, bottom, holes: 0 };
    }

    pub(super) fn header(&mut self) -> &mut Header {
        // SAFETY: a span begins with its header, at a page boundary, and is this thread's; any bytes are a Header.
        unsafe { &mut *self.base.cast() }
    }

    fn directory(&mut self) -> &mut [Object] {
        let places = self.header().places as usize;
        // SAFETY: the directory lies behind the header, needs no alignment, and is this thread's; `put` keeps it below `bottom`, so it is
        // inside the span, and wrote all of its words.
        unsafe { core::slice::from_raw_parts_mut(self.base.add(HEADER).cast(), places) }
    }

    /// Frames of the span.
    pub(super) fn frames(&mut self) -> usize {
        self.header().frames as usize
    }

    /// Bytes of the span.
    pub(super) fn size(&mut self) -> usize {
        self.frames() * PAGE_SIZE
    }

    /// Whether there is no object in the span.
    pub(super) fn is_empty(&mut self) -> bool {
        let end = self.size() / GRANULE;
        let h = self.header();
        (h.bottom + h.holes) as usize == end
    }

    /// Words of the directory: places that may hold an object.
    pub(super) fn places(&mut self) -> usize {
        self.header().places as usize
    }

    /// Bytes between the directory and the lowest object: an object whose [`need`] is no more than this fits at once.
    pub(super) fn room(&mut self) -> usize {
        self.header().bottom as usize * GRANULE - self.front()
    }

    /// Bytes of the header and the directory.
    pub(super) fn front(&mut self) -> usize {
        HEADER + self.places() * WORD
    }

    /// Bytes that [`Span::slide`] would make room.
    pub(super) fn holes(&mut self) -> usize {
        self.header().holes as usize * GRANULE
    }

    /// Bytes that objects could take: what [`Span::room`] is after [`Span::slide`], at least.
    pub(super) fn free(&mut self) -> usize {
        self.room() + self.holes()
    }

    /// The object at a place.
    pub(super) fn object(&mut self, place: usize) -> Option<Object> {
        self.directory().get(place).copied().filter(|o| *o != Object::FREE)
    }

    /// Puts a copy of `data` into the span, whose room is enough, and returns its place.
    pub(super) fn put(&mut self, data: &[u8]) -> usize {
        assert!(need(data.len()) <= self.room());
        let place = match self.directory().iter().position(|o| *o == Object::FREE) {
            Some(place) => place,
            None => {
                self.header().places += 1;
                self.header().places as usize - 1
            }
        };
        let h = self.header();
        h.bottom -= data.len().div_ceil(GRANULE) as u16;
        let object = Object::new(h.bottom as usize, data.len());
        self.directory()[place] = object;
        self.bytes(object).copy_from_slice(data);
        place
    }

    /// Frees the place of an object that there is.
    pub(super) fn give(&mut self, place: usize) {
        let object = core::mem::replace(&mut self.directory()[place], Object::FREE);
        debug_assert!(object != Object::FREE);
        let h = self.header();
        if object.begins() == h.bottom as usize {
            h.bottom += object.granules() as u16;
        } else {
            h.holes += object.granules() as u16;
        }
    }

    /// The bytes of an object that is there.
    pub(super) fn bytes(&mut self, object: Object) -> &mut [u8] {
        let at = object.begins() * GRANULE;
        assert!(at + object.len() <= self.size());
        // SAFETY: inside the span, which is this thread's.
        unsafe { core::slice::from_raw_parts_mut(self.base.add(at), object.len()) }
    }

    /// Moves all objects together, towards the end, so that holes become room. They keep their places.
    pub(super) fn slide(&mut self) {
        let mut order = [0u16; MAX_PLACES];
        let mut n = 0;
        for (place, object) in self.directory().iter().enumerate() {
            if *object != Object::FREE {
                order[n] = place as u16;
                n += 1;
            }
        }
        let directory = self.directory();
        order[..n].sort_unstable_by_key(|place| core::cmp::Reverse(directory[*place as usize].begins()));
        let mut top = self.size() / GRANULE;
        for place in &order[..n] {
            let object = self.directory()[*place as usize];
            top -= object.granules();
            if top != object.begins() {
                let (from, to) = (object.begins() * GRANULE, top * GRANULE);
                // SAFETY: both inside the span: objects don't overlap and come in descending order, so that what lies from the new
                // place upwards belongs to this object or was moved away already.
                unsafe { core::ptr::copy(self.base.add(from), self.base.add(to), object.len()) };
                self.directory()[*place as usize] = Object::new(top, object.len());
            }
        }
        let used = self.directory().iter().rposition(|o| *o != Object::FREE).map_or(0, |last| last + 1);
        let h = self.header();
        h.places = used as u16;
        h.bottom = top as u16;
        h.holes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    #[test]
    fn objects_keep_place_and_bytes_while_others_come_and_go() {
        let mut memory = vec![u64::MAX; MAX_FRAMES * PAGE_SIZE / 8];
        // SAFETY: memory of this test.
        let mut span = unsafe { Span::new(memory.as_mut_ptr().cast()) };
        for frames in [1, 3, MAX_FRAMES] {
            span.clear(frames);
            let mut model: Vec<Option<Vec<u8>>> = vec![];
            let mut x = 1usize;
            for i in 0..4000usize {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let data = vec![i as u8; (x >> 33) % 700 + 1];
                if need(data.len()) > span.room() {
                    let free = span.free();
                    span.slide();
                    assert!(span.room() >= free && span.holes() == 0);
                }
                if need(data.len()) <= span.room() {
                    let place = span.put(&data);
                    model.resize(model.len().max(place + 1), None);
                    assert!(model[place].replace(data).is_none(), "place {place} was taken");
                } else {
                    for place in (x >> 20 & 3..model.len()).step_by(3) {
                        if model[place].take().is_some() {
                            span.give(place);
                        }
                    }
                }
                for (place, data) in model.iter().enumerate() {
                    let object = span.object(place);
                    assert_eq!(object.map(|o| span.bytes(o).to_vec()), *data, "step {i}, place {place}");
                }
                assert_eq!(span.is_empty(), model.iter().flatten().count() == 0);
            }
        }
    }
}
