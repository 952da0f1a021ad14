//! The filter before a codec: the bytes of a page's words of 8 bytes, sorted by place in the word.
//!
//! The high bytes of neighbouring numbers and pointers are alike, but LZ4 finds them only if they
//! lie together (the "shuffle" of Blosc and HDF5). A page becomes eight planes: plane `k` has byte
//! `k` of each word. (Words of 4 bytes save no more: `lowtide-lab density`.)
//!
//! With SSE2, eight registers hold 128 bytes: bits 6 to 4 of a byte's place name its register. To
//! interleave registers `i` and `i + 4` turns this number of seven bits left by one
//! (`turn_left`). Four turns put the place in the word (three bits) before the word's (four bits),
//! and three more put it back.

use crate::vm::{PAGE_SIZE, Page};

const PLANE: usize = PAGE_SIZE / 8;

/// Sorts a page's bytes into planes.
pub(super) fn shuffle(page: &Page, planes: &mut Page) {
    #[cfg(target_arch = "x86_64")]
    for (i, block) in page.as_chunks::<{ sse2::BLOCK }>().0.iter().enumerate() {
        let mut registers = sse2::load(|k| &block[16 * k..]);
        for _ in 0..4 {
            registers = sse2::turn_left(registers);
        }
        sse2::store(registers, |k, bytes| planes[k * PLANE + i * 16..][..16].copy_from_slice(bytes));
    }
    #[cfg(not(target_arch = "x86_64"))]
    shuffle_plainly(page, planes);
}

/// The inverse of [`shuffle`].
pub(super) fn unshuffle(planes: &Page, page: &mut Page) {
    #[cfg(target_arch = "x86_64")]
    for (i, block) in page.as_chunks_mut::<{ sse2::BLOCK }>().0.iter_mut().enumerate() {
        let mut registers = sse2::load(|k| &planes[k * PLANE + i * 16..]);
        for _ in 0..3 {
            registers = sse2::turn_left(registers);
        }
        sse2::store(registers, |k, bytes| block[16 * k..][..16].copy_from_slice(bytes));
    }
    #[cfg(not(target_arch = "x86_64"))]
    unshuffle_plainly(planes, page);
}

#[cfg(target_arch = "x86_64")]
mod sse2 {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_storeu_si128, _mm_unpackhi_epi8, _mm_unpacklo_epi8};

    /// Bytes in eight registers.
    pub const BLOCK: usize = 128;

    /// Loads the first 16 bytes of each `part(k)`.
    #[inline]
    pub fn load<'a>(part: impl Fn(usize) -> &'a [u8]) -> [__m128i; 8] {
        core::array::from_fn(|k| {
            let bytes = &part(k)[..16];
            // SAFETY: 16 bytes, at any address; SSE2 is part of x86-64.
            unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
        })
    }

    #[inline]
    pub fn store(registers: [__m128i; 8], mut to: impl FnMut(usize, &[u8; 16])) {
        for (k, register) in registers.into_iter().enumerate() {
            let mut bytes = [0; 16];
            // SAFETY: as above.
            unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), register) };
            to(k, &bytes);
        }
    }

    #[inline]
    pub fn turn_left(r: [__m128i; 8]) -> [__m128i; 8] {
        core::array::from_fn(|i| {
            let (a, b) = (r[i / 2], r[i / 2 + 4]);
            // SAFETY: SSE2 is part of x86-64.
            unsafe { if i % 2 == 0 { _mm_unpacklo_epi8(a, b) } else { _mm_unpackhi_epi8(a, b) } }
        })
    }
}

#[cfg(any(test, not(target_arch = "x86_64")))]
fn shuffle_plainly(page: &Page, planes: &mut Page) {
    page.iter().enumerate().for_each(|(i, byte)| planes[i % 8 * PLANE + i / 8] = *byte);
}

#[cfg(any(test, not(target_arch = "x86_64")))]
fn unshuffle_plainly(planes: &Page, page: &mut Page) {
    page.iter_mut().enumerate().for_each(|(i, byte)| *byte = planes[i % 8 * PLANE + i / 8]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_to_their_planes_and_back() {
        let mut x = 88_172_645_463_325_252u64;
        let page: Page = core::array::from_fn(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x as u8
        });
        let [mut fast, mut plain, mut back, mut back_plainly] = [[0; PAGE_SIZE]; 4];
        shuffle(&page, &mut fast);
        shuffle_plainly(&page, &mut plain);
        assert!(fast == plain);
        unshuffle(&fast, &mut back);
        unshuffle_plainly(&fast, &mut back_plainly);
        assert!(back == page && back_plainly == page);
    }
}
