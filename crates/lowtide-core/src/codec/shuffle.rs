//! The filters before a codec: the bytes of a page's words, sorted by place in their word.
//!
//! The high bytes of neighbouring numbers and pointers are alike, but LZ4 finds them only if they
//! lie together (the "shuffle" of Blosc and HDF5). A page of words of `1 << L` bytes becomes as many
//! planes: plane `k` has byte `k` of each word.
//!
//! With SSE2, eight registers hold 128 bytes, of which bit 6 to 4 of a byte's place is the register.
//! To interleave registers `i` and `i + 4` turns that place of seven bits left by one
//! ([`turn_left`]). A word's place goes before the byte's by turning left `7 - L` times, and back by
//! turning `L` times.

use crate::vm::{PAGE_SIZE, Page};

/// Bytes that are sorted together in registers.
#[cfg(target_arch = "x86_64")]
const BLOCK: usize = 128;

/// Sorts the bytes of words of `1 << L` bytes, 1 to 3, by place.
pub(super) fn shuffle<const L: usize>(page: &Page, into: &mut Page) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_mm_loadu_si128, _mm_setzero_si128, _mm_storeu_si128};
        // Registers of each plane in a block.
        let rows = 8 >> L;
        for (i, block) in page.as_chunks::<BLOCK>().0.iter().enumerate() {
            // SAFETY: SSE2 is part of x86-64.
            let mut r = [unsafe { _mm_setzero_si128() }; 8];
            for (r, from) in r.iter_mut().zip(block.as_chunks::<16>().0) {
                // SAFETY: 16 bytes, at any address.
                *r = unsafe { _mm_loadu_si128(from.as_ptr().cast()) };
            }
            for _ in 0..7 - L {
                r = turn_left(r);
            }
            for (k, r) in r.into_iter().enumerate() {
                let at = (k / rows) * (PAGE_SIZE >> L) + i * (BLOCK >> L) + k % rows * 16;
                // SAFETY: 16 bytes, at any address.
                unsafe { _mm_storeu_si128(into[at..at + 16].as_mut_ptr().cast(), r) };
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    shuffle_plainly::<L>(page, into);
}

/// The inverse of [`shuffle`].
pub(super) fn unshuffle<const L: usize>(planes: &Page, into: &mut Page) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_mm_loadu_si128, _mm_setzero_si128, _mm_storeu_si128};
        let rows = 8 >> L;
        for (i, block) in into.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
            // SAFETY: SSE2 is part of x86-64.
            let mut r = [unsafe { _mm_setzero_si128() }; 8];
            for (k, r) in r.iter_mut().enumerate() {
                let at = (k / rows) * (PAGE_SIZE >> L) + i * (BLOCK >> L) + k % rows * 16;
                // SAFETY: 16 bytes, at any address.
                *r = unsafe { _mm_loadu_si128(planes[at..at + 16].as_ptr().cast()) };
            }
            for _ in 0..L {
                r = turn_left(r);
            }
            for (r, to) in r.into_iter().zip(block.as_chunks_mut::<16>().0) {
                // SAFETY: 16 bytes, at any address.
                unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), r) };
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    unshuffle_plainly::<L>(planes, into);
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn turn_left(r: [core::arch::x86_64::__m128i; 8]) -> [core::arch::x86_64::__m128i; 8] {
    use core::arch::x86_64::{_mm_unpackhi_epi8, _mm_unpacklo_epi8};
    core::array::from_fn(|i| {
        let (a, b) = (r[i / 2], r[i / 2 + 4]);
        // SAFETY: SSE2 is part of x86-64.
        unsafe { if i % 2 == 0 { _mm_unpacklo_epi8(a, b) } else { _mm_unpackhi_epi8(a, b) } }
    })
}

#[cfg(any(test, not(target_arch = "x86_64")))]
fn shuffle_plainly<const L: usize>(page: &Page, into: &mut Page) {
    for (i, byte) in page.iter().enumerate() {
        into[(i & ((1 << L) - 1)) * (PAGE_SIZE >> L) + (i >> L)] = *byte;
    }
}

#[cfg(any(test, not(target_arch = "x86_64")))]
fn unshuffle_plainly<const L: usize>(planes: &Page, into: &mut Page) {
    for (i, byte) in into.iter_mut().enumerate() {
        *byte = planes[(i & ((1 << L) - 1)) * (PAGE_SIZE >> L) + (i >> L)];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both_ways<const L: usize>() {
        let mut x = 88_172_645_463_325_252u64;
        let page: Page = core::array::from_fn(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x as u8
        });
        let [mut fast, mut plain, mut back, mut back_plainly] = [[0; PAGE_SIZE]; 4];
        shuffle::<L>(&page, &mut fast);
        shuffle_plainly::<L>(&page, &mut plain);
        assert!(fast == plain, "{L}");
        unshuffle::<L>(&fast, &mut back);
        unshuffle_plainly::<L>(&fast, &mut back_plainly);
        assert!(back == page && back_plainly == page, "{L}");
    }

    #[test]
    fn bytes_go_to_their_planes_and_back() {
        both_ways::<1>();
        both_ways::<2>();
        both_ways::<3>();
    }
}
