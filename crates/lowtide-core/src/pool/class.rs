//! Size classes: how big the places for objects are, and how many frames a span of each class has.

use crate::vm::PAGE_SIZE;

/// Objects are rounded up to a multiple of this.
pub(super) const GRANULE: usize = 32;
/// Largest compressed object; what is longer is kept raw.
pub const MAX_COMPRESSED: usize = PAGE_SIZE / 8 * 7;
/// Number of classes: multiples of [`GRANULE`] up to [`MAX_COMPRESSED`], and whole pages.
pub(super) const CLASSES: usize = MAX_COMPRESSED / GRANULE + 1;
/// The class of whole pages.
pub(super) const RAW: usize = CLASSES - 1;
/// Most frames in a span.
const MAX_SPAN: usize = 8;
/// A span whose places leave less than one part in this unused is good enough; a bigger one is not looked for.
const GOOD: usize = 50;
/// Bytes of a span's header before its bitmap.
pub(super) const HEADER: usize = 16;

/// A size class.
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    /// Bytes of a place.
    pub size: usize,
    /// Frames of a span.
    pub frames: usize,
    /// Places in a span.
    pub places: usize,
    /// Where the first place begins, in bytes from the start of the span: behind the header and the bitmap.
    pub first: usize,
}

/// All classes, by number.
pub(super) static TABLE: [Class; CLASSES] = table();

/// The class for an object of `len` bytes, 1 to 4096.
pub(super) fn of(len: usize) -> usize {
    if len <= MAX_COMPRESSED { len.div_ceil(GRANULE).max(1) - 1 } else { RAW }
}

const fn front(places: usize) -> usize {
    HEADER + places.div_ceil(64) * 8
}

const fn best(size: usize) -> Class {
    let mut best = Class { size, frames: 0, places: 0, first: 0 };
    let mut frames = 1;
    while frames <= MAX_SPAN {
        let bytes = frames * PAGE_SIZE;
        let mut places = bytes / size;
        while places > 0 && front(places) + places * size > bytes {
            places -= 1;
        }
        // More used bytes per byte of span than the best so far: a/b > c/d as a*d > c*b.
        if best.frames == 0 || places * best.frames > best.places * frames {
            best = Class { size, frames, places, first: front(places) };
        }
        if (bytes - places * size) * GOOD < bytes {
            break;
        }
        frames += 1;
    }
    best
}

const fn table() -> [Class; CLASSES] {
    let mut classes = [Class { size: PAGE_SIZE, frames: 1, places: 1, first: 0 }; CLASSES];
    let mut i = 0;
    while i < RAW {
        classes[i] = best((i + 1) * GRANULE);
        i += 1;
    }
    classes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_has_a_class_that_holds_it_and_wastes_little() {
        for len in 1..=PAGE_SIZE {
            let class = &TABLE[of(len)];
            assert!(class.size >= len && (class.size - len < GRANULE || class.size == PAGE_SIZE), "{len}");
        }
        let mut used = 0;
        let mut all = 0;
        for c in TABLE {
            assert!(c.first + c.places * c.size <= c.frames * PAGE_SIZE && c.places >= 1 && c.places <= 1024, "{c:?}");
            let (u, a) = (c.places * c.size, c.frames * PAGE_SIZE);
            assert!(u * 100 >= a * 93, "{c:?} wastes too much");
            used += u * 1000 / a;
            all += 1000;
        }
        assert!(used * 100 >= all * 97, "classes use {used} of {all}");
    }
}
