//! A span: a few frames full of objects of any lengths. In front lie a header and a directory with a short word for each
//! object; the objects lie behind it, and between them gaps that others have left. A handle names a place in the directory, so
//! that objects can slide inside their span without anybody noticing. (The layout is that of the slotted pages of databases:
//! Gray and Reuter, "Transaction Processing", 1993, section 14.3.)
//!
//! A new object goes into the gap that it fits best. Where none is long enough, neighbouring gaps are made one
//! ([`gaps.rs`](super::gaps)): of all that together are long enough, those with the fewest bytes of objects between them.

use super::gaps::{Gaps, Window};
use crate::vm::PAGE_SIZE;

/// Most frames of a span: offsets of objects have 12 bits.
pub(super) const MAX_FRAMES: usize = 8;
/// Objects begin at multiples of this.
pub(super) const GRANULE: usize = 8;
/// Bytes of a word of the directory.
const WORD: usize = size_of::<Object>();
/// Bytes in front of the directory.
pub(super) const HEADER: usize = size_of::<Header>();
/// The directory grows and shrinks by this many words: then it ends where an object may begin.
const CHUNK: usize = GRANULE;
/// In a longer directory nobody looks for the neighbours of an object that goes.
const LOOK_AROUND: usize = 64;
/// Granules of these words.
const CHUNK_GRANULES: usize = CHUNK * WORD / GRANULE;
/// Granules of the longest span.
pub(super) const MAX_GRANULES: usize = MAX_FRAMES * PAGE_SIZE / GRANULE;
/// Most objects in a span.
const MAX_PLACES: usize = (MAX_FRAMES * PAGE_SIZE - HEADER) / (GRANULE + WORD);

const _: () = assert!(MAX_GRANULES <= 1 << 12 && MAX_PLACES <= 1 << 12 && HEADER.is_multiple_of(GRANULE));

/// Granules that an object of `len` bytes takes.
pub(super) const fn granules(len: usize) -> usize {
    len.div_ceil(GRANULE)
}

/// Bytes that an object of `len` bytes takes at most in a span: itself and its word.
pub(super) const fn need(len: usize) -> usize {
    len.next_multiple_of(GRANULE) + WORD
}

/// Neighbours on a shelf. Frame numbers are kept plus one; 0 is none.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Link {
    pub next: u32,
    pub prev: u32,
}

/// What stands at the start of a span.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Header {
    /// A span is on two shelves (`shelf.rs`).
    pub links: [Link; 2],
    pub shelves: [u8; 2],
    frames: u8,
    /// Words of the directory.
    places: u16,
    /// Places that are an object's.
    taken: u16,
    /// Where the lowest object begins, in granules; the end of the span if there is none.
    bottom: u16,
    /// Granules in gaps.
    free: u16,
    /// Granules of the longest gap, or fewer: the span looks for it afresh when an object is put in a gap between others.
    longest: u16,
}

/// A word of the directory: 24 bits, because it counts for every page that is out. 0 is free (no object begins at offset 0).
/// Bits 0..12 length - 1, 12..24 where the object begins, in granules.
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
    /// `base` is the first byte of a span (or of frames that [`Span::clear`] is about to make one of), and the lock of its
    /// shard is held as long as the value lives, so that nobody else reads or writes it.
    pub(super) unsafe fn new(base: *mut u8) -> Span {
        Span { base }
    }

    /// Makes a span with no object of `frames` frames with any bytes in them.
    pub(super) fn clear(&mut self, frames: usize) {
        let bottom = (frames * PAGE_SIZE / GRANULE) as u16;
        let (free, frames) = (bottom - (HEADER / GRANULE) as u16, frames as u8);
        let (links, shelves) = ([Link::default(); 2], [0; 2]);
        *self.header() = Header { links, shelves, frames, places: 0, taken: 0, bottom, free, longest: free };
    }

    pub(super) fn header(&mut self) -> &mut Header {
        // SAFETY: a span begins with its header, at a page boundary, and is this thread's; any bytes are a Header.
        unsafe { &mut *self.base.cast() }
    }

    fn directory(&mut self) -> &mut [Object] {
        let places = self.header().places as usize;
        // SAFETY: the directory lies behind the header, needs no alignment, and is this thread's; `put` keeps it below
        // `bottom`, so it is inside the span, and wrote all of its words.
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
        self.header().taken == 0
    }

    /// Words of the directory: places that may hold an object.
    pub(super) fn places(&mut self) -> usize {
        self.header().places as usize
    }

    /// Bytes of the header and the directory.
    pub(super) fn front(&mut self) -> usize {
        HEADER + self.places() * WORD
    }

    /// Bytes of gaps.
    pub(super) fn free(&mut self) -> usize {
        self.header().free as usize * GRANULE
    }

    /// Most granules of an object that [`Span::put`] has room for.
    pub(super) fn room(&mut self) -> usize {
        (self.header().free as usize).saturating_sub(self.lacks())
    }

    /// Most granules of an object that [`Span::put`] has room for without moving others; it may be a few more.
    pub(super) fn fit(&mut self) -> usize {
        let (lacks, front) = (self.lacks(), self.front());
        let h = self.header();
        let longest = h.longest as usize;
        if h.bottom as usize - front / GRANULE >= lacks { longest.saturating_sub(lacks) } else { 0 }
    }

    /// Granules that the directory must grow by for another object.
    fn lacks(&mut self) -> usize {
        let h = self.header();
        if h.taken < h.places { 0 } else { CHUNK_GRANULES }
    }

    /// The object at a place.
    pub(super) fn object(&mut self, place: usize) -> Option<Object> {
        self.directory().get(place).copied().filter(|o| *o != Object::FREE)
    }

    /// Puts a copy of `data` into the span, whose [`Span::room`] is enough, and returns its place.
    pub(super) fn put(&mut self, data: &[u8]) -> usize {
        let len = granules(data.len());
        assert!(len <= self.room());
        if self.lacks() > 0 {
            self.lengthen();
        }
        let place = self.directory().iter().position(|o| *o == Object::FREE);
        debug_assert!(place.is_some(), "places are counted wrongly");
        let place = place.unwrap_or(0);
        let front = self.front() / GRANULE;
        let h = self.header();
        let begins = if h.bottom as usize - front == h.free as usize {
            h.longest = h.free - len as u16;
            h.bottom as usize - len
        } else {
            let gaps = self.gaps();
            let window = gaps.window(len);
            let end = self.join(&gaps, window);
            let rest = end - gaps.begin(window.first) - len;
            self.header().longest = gaps.longest_outside(window).max(rest) as u16;
            end - len
        };
        let h = self.header();
        h.bottom = h.bottom.min(begins as u16);
        h.free -= len as u16;
        h.taken += 1;
        let object = Object::new(begins, data.len());
        self.directory()[place] = object;
        self.bytes(object).copy_from_slice(data);
        place
    }

    /// Adds words to the directory. There are as many free granules.
    fn lengthen(&mut self) {
        let front = self.front() / GRANULE;
        let short = (self.header().bottom as usize - front) < CHUNK_GRANULES;
        if short {
            let gaps = self.gaps();
            let window = gaps.first(CHUNK_GRANULES);
            let end = self.join(&gaps, window);
            let h = self.header();
            h.bottom = end as u16;
            h.longest = gaps.longest_outside(window).max(end - front) as u16;
        }
        let h = self.header();
        // The longest gap may be the one that becomes shorter.
        if h.longest as usize == h.bottom as usize - front {
            h.longest -= CHUNK_GRANULES as u16;
        }
        h.free -= CHUNK_GRANULES as u16;
        h.places += CHUNK as u16;
        let old = h.places as usize - CHUNK;
        self.directory()[old..].fill(Object::FREE);
    }

    /// Frees the place of an object that there is.
    pub(super) fn give(&mut self, place: usize) {
        let object = core::mem::replace(&mut self.directory()[place], Object::FREE);
        debug_assert!(object != Object::FREE);
        let (begins, end) = (object.begins(), object.begins() + object.granules());
        let lowest = begins == self.header().bottom as usize;
        let short = self.places() <= LOOK_AROUND;
        // The gap that there is now may be longer than what was the object's; the span looks for it afresh when another is put
        // in a gap.
        let (from, to) = if short || lowest { self.around(begins) } else { (begins, end) };
        let h = self.header();
        if lowest {
            h.bottom = to as u16;
        }
        h.longest = h.longest.max((to - from) as u16);
        h.free += (end - begins) as u16;
        h.taken -= 1;
        self.shorten();
    }

    /// The gap around a place: where the object before it ends, or the directory, and where the one behind begins, or the end
    /// is.
    fn around(&mut self, place: usize) -> (usize, usize) {
        let (mut from, mut to) = (self.front() / GRANULE, self.size() / GRANULE);
        for other in self.directory().iter().filter(|o| **o != Object::FREE) {
            if other.begins() < place {
                from = from.max(other.begins() + other.granules());
            } else {
                to = to.min(other.begins());
            }
        }
        (from, to)
    }

    /// Takes words that are nobody's off the end of the directory.
    fn shorten(&mut self) {
        while let Some(chunk) = self.directory().last_chunk::<CHUNK>()
            && chunk.iter().all(|o| *o == Object::FREE)
        {
            let h = self.header();
            h.places -= CHUNK as u16;
            h.free += CHUNK_GRANULES as u16;
            let front = self.front() / GRANULE;
            let h = self.header();
            h.longest = h.longest.max(h.bottom - front as u16);
        }
    }

    /// The gaps, in order.
    fn gaps(&mut self) -> Gaps {
        let (front, end) = (self.front() / GRANULE, self.size() / GRANULE);
        let taken = self.directory().iter().filter(|o| **o != Object::FREE);
        Gaps::between(front..end, taken.map(|o| o.begins()..o.begins() + o.granules()))
    }

    /// Makes the gaps of a window one, which begins where the first of them did: moves what is between them behind it. Returns
    /// where it ends.
    fn join(&mut self, gaps: &Gaps, window: Window) -> usize {
        let mut end = gaps.end(window.last);
        if window.first == window.last {
            return end;
        }
        for object in self.directory().iter_mut().filter(|o| **o != Object::FREE) {
            let by = gaps.behind(window, object.begins());
            if by > 0 {
                *object = Object::new(object.begins() + by, object.len());
            }
        }
        for gap in (window.first..window.last).rev() {
            let (from, len) = (gaps.end(gap), gaps.begin(gap + 1) - gaps.end(gap));
            end -= len;
            // SAFETY: both inside the span, by the gaps' places: objects move up, the last ones first, into gaps and what
            // others have left.
            unsafe { core::ptr::copy(self.base.add(from * GRANULE), self.base.add(end * GRANULE), len * GRANULE) };
        }
        end
    }

    /// For checks: whether the header says of the gaps what is true.
    pub(super) fn is_sound(&mut self) -> bool {
        let gaps = self.gaps();
        let taken = self.directory().iter().filter(|o| **o != Object::FREE);
        let bottom = taken.clone().map(|o| o.begins()).min();
        let taken = taken.count();
        let end = self.size() / GRANULE;
        let h = self.header();
        taken == h.taken as usize
            && gaps.total() == h.free as usize
            && bottom.unwrap_or(end) == h.bottom as usize
            && gaps.longest() >= h.longest as usize
    }

    /// The bytes of an object that is there.
    pub(super) fn bytes(&mut self, object: Object) -> &mut [u8] {
        let at = object.begins() * GRANULE;
        assert!(at + object.len() <= self.size());
        // SAFETY: inside the span, which is this thread's.
        unsafe { core::slice::from_raw_parts_mut(self.base.add(at), object.len()) }
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
                if granules(data.len()) <= span.room() {
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
                assert!(span.is_sound(), "step {i}");
            }
        }
    }
}
