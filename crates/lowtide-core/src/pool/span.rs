//! A span: a few frames with a header, a directory with a word for each object, and the objects,
//! with gaps in between. A handle names a directory word, so objects can slide unnoticed. (Slotted
//! pages: Gray and Reuter, "Transaction Processing", 1993, section 14.3.)
//!
//! A new object goes into the best-fitting gap, or neighbouring gaps are joined
//! ([`gaps.rs`](super::gaps)).

use super::gaps::{Gaps, Window};
use crate::vm::PAGE_SIZE;

/// Most frames of a span: offsets of objects have 12 bits.
pub(super) const MAX_FRAMES: usize = 8;
/// Objects begin at multiples of this.
pub(super) const GRANULE: usize = 8;
const WORD: usize = size_of::<Object>();
pub(super) const HEADER: usize = size_of::<Header>();
/// Words by which the directory changes: it ends where an object may begin.
const CHUNK: usize = GRANULE;
/// Longest directory that is searched for a freed object's neighbours.
const LOOK_AROUND: usize = 64;
const CHUNK_GRANULES: usize = CHUNK * WORD / GRANULE;
pub(super) const MAX_GRANULES: usize = MAX_FRAMES * PAGE_SIZE / GRANULE;
const MAX_PLACES: usize = (MAX_FRAMES * PAGE_SIZE - HEADER) / (GRANULE + WORD);

const _: () = assert!(MAX_GRANULES <= 1 << 12 && MAX_PLACES <= 1 << 12 && HEADER.is_multiple_of(GRANULE));

pub(super) const fn granules(len: usize) -> usize {
    len.div_ceil(GRANULE)
}

/// Most bytes that an object of `len` bytes takes, with its word.
pub(super) const fn need(len: usize) -> usize {
    len.next_multiple_of(GRANULE) + WORD
}

/// Neighbours on a shelf: frame numbers plus one; 0 is none.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Link {
    pub next: u32,
    pub prev: u32,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct Header {
    pub links: [Link; 2],
    pub shelves: [u8; 2],
    frames: u8,
    /// Words of the directory.
    places: u16,
    /// Words in use.
    taken: u16,
    /// Granule of the lowest object; the end of an empty span.
    bottom: u16,
    /// Granules in gaps.
    free: u16,
    /// Granules of the longest gap, or fewer; recomputed when an object goes between others.
    longest: u16,
}

/// A directory word: 24 bits, because every stored page has one. 0 is free (no object begins at 0).
/// Bits 0..12 length - 1, 12..24 the first granule.
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

#[derive(Debug)]
pub(super) struct Span {
    base: *mut u8,
}

impl Span {
    /// # Safety
    /// `base` is the start of a span (or of frames for [`Span::clear`]), and its shard's lock is
    /// held while the value lives.
    pub(super) unsafe fn new(base: *mut u8) -> Span {
        Span { base }
    }

    /// Makes an empty span of `frames` frames.
    pub(super) fn clear(&mut self, frames: usize) {
        let bottom = (frames * PAGE_SIZE / GRANULE) as u16;
        let (free, frames) = (bottom - (HEADER / GRANULE) as u16, frames as u8);
        let (links, shelves) = ([Link::default(); 2], [0; 2]);
        *self.header() = Header { links, shelves, frames, places: 0, taken: 0, bottom, free, longest: free };
    }

    pub(super) fn header(&mut self) -> &mut Header {
        // SAFETY: this thread's page-aligned span begins with its header; any bytes are a Header.
        unsafe { &mut *self.base.cast() }
    }

    fn directory(&mut self) -> &mut [Object] {
        let places = self.header().places as usize;
        // SAFETY: the directory follows the header, needs no alignment, and is this thread's; `put`
        // wrote its words and keeps it below `bottom`.
        unsafe { core::slice::from_raw_parts_mut(self.base.add(HEADER).cast(), places) }
    }

    pub(super) fn frames(&mut self) -> usize {
        self.header().frames as usize
    }

    pub(super) fn size(&mut self) -> usize {
        self.frames() * PAGE_SIZE
    }

    pub(super) fn is_empty(&mut self) -> bool {
        self.header().taken == 0
    }

    pub(super) fn places(&mut self) -> usize {
        self.header().places as usize
    }

    pub(super) fn front(&mut self) -> usize {
        HEADER + self.places() * WORD
    }

    pub(super) fn free(&mut self) -> usize {
        self.header().free as usize * GRANULE
    }

    /// Granules of the longest object for [`Span::put`].
    pub(super) fn room(&mut self) -> usize {
        (self.header().free as usize).saturating_sub(self.lacks())
    }

    /// The same without moving objects; maybe a few more.
    pub(super) fn fit(&mut self) -> usize {
        let (lacks, front) = (self.lacks(), self.front());
        let h = self.header();
        let longest = h.longest as usize;
        if h.bottom as usize - front / GRANULE >= lacks { longest.saturating_sub(lacks) } else { 0 }
    }

    /// Granules that the directory lacks for another object.
    fn lacks(&mut self) -> usize {
        let h = self.header();
        if h.taken < h.places { 0 } else { CHUNK_GRANULES }
    }

    pub(super) fn object(&mut self, place: usize) -> Option<Object> {
        self.directory().get(place).copied().filter(|o| *o != Object::FREE)
    }

    /// Copies `data` into the span, where [`Span::room`] suffices; returns its place.
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

    /// Free granules must suffice.
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

    pub(super) fn give(&mut self, place: usize) {
        let object = core::mem::replace(&mut self.directory()[place], Object::FREE);
        debug_assert!(object != Object::FREE);
        let (begins, end) = (object.begins(), object.begins() + object.granules());
        let lowest = begins == self.header().bottom as usize;
        let short = self.places() <= LOOK_AROUND;
        // In a long directory the real gap may be longer; `put` recomputes it.
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

    fn gaps(&mut self) -> Gaps {
        let (front, end) = (self.front() / GRANULE, self.size() / GRANULE);
        let taken = self.directory().iter().filter(|o| **o != Object::FREE);
        Gaps::between(front..end, taken.map(|o| o.begins()..o.begins() + o.granules()))
    }

    /// Joins the gaps of a window by moving the objects in between up. Returns the joined gap's
    /// end.
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
            // SAFETY: inside the span. Objects move up, last ones first, into gaps and vacated
            // space.
            unsafe { core::ptr::copy(self.base.add(from * GRANULE), self.base.add(end * GRANULE), len * GRANULE) };
        }
        end
    }

    /// For checks: whether the header agrees with the gaps.
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
