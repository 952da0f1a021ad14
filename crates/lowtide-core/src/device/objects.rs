//! The form of a page on a server: an object of its own length, compressed if that makes it
//! smaller, then encrypted. A compressed object begins with its filter's number. The tag is the
//! page's, and detects wrong compression or encryption like any other change.
//!
//! Filter and compression depend on the page only: under a tag, the same bytes are always
//! encrypted.

use rustix::io::Errno;

use super::seal::{Seal, Tag};
use crate::codec::{Filter, LZ4_STATE, MAX_COMPRESSED, lz4_compress, lz4_decompress};
use crate::vm::{self, Mapping, OnFork, PAGE_SIZE, Page};

/// Follows a received short object, with its length. A random page ends so with a chance of 2^-112,
/// and then fails its tag.
const MARK: [u8; 14] = *b"lowtide-object";
const AT: usize = PAGE_SIZE - MARK.len() - 2;
const _: () = assert!(MAX_COMPRESSED <= AT);

/// Memory for `n` concurrent compressors, populated on first use.
#[derive(Debug)]
pub struct Compressors {
    map: Mapping,
}

/// A compressor's memory, valid with any bytes.
#[derive(Debug)]
pub struct Compressor {
    lz4: [u64; LZ4_STATE / 8],
    filtered: Page,
    object: Page,
}

const EACH: usize = size_of::<Compressor>().next_multiple_of(PAGE_SIZE);

impl Compressors {
    /// Address space for `n`.
    ///
    /// # Errors
    /// As [`vm::map`].
    pub fn new(n: usize) -> Result<Compressors, Errno> {
        Ok(Compressors { map: vm::map(n * EACH, OnFork::Copy)? })
    }

    /// The memory of compressor `index`.
    ///
    /// # Safety
    /// `index` is less than the `n` of `new`, without another user meanwhile.
    #[allow(clippy::mut_from_ref)] // as is said
    pub unsafe fn get(&self, index: usize) -> &mut Compressor {
        // SAFETY: inside the mapping, page-aligned, any bytes will do; the caller answers for the
        // rest.
        unsafe { &mut *self.map.as_ptr().add(index * EACH).cast() }
    }

    /// In a forked child: frees the unused copies.
    pub fn reset_after_fork(&self) {
        // SAFETY: it has no user.
        unsafe { self.map.discard(0, self.map.len()) }
    }
}

impl Drop for Compressors {
    fn drop(&mut self) {
        // SAFETY: `get` borrows this.
        unsafe { self.map.retire() }
    }
}

/// Packs a page for `slot` at the beginning of `out`. Returns its tag and the object's length.
pub fn pack(seal: &Seal, slot: u64, page: &Page, out: &mut Page, compressor: &mut Compressor) -> (Tag, usize) {
    let tag = seal.tag(slot, page);
    let Compressor { lz4, filtered, object } = compressor;
    let mut length = PAGE_SIZE;
    for filter in Filter::ALL {
        let filtered = filter.apply(page, filtered);
        let len = lz4_compress(lz4, filtered, &mut object[1..MAX_COMPRESSED]);
        if let Some(len) = len.map(|len| len + 1).filter(|len| *len < length) {
            object[0] = filter as u8;
            out[..len].copy_from_slice(&object[..len]);
            length = len;
        }
    }
    if length == PAGE_SIZE {
        *out = *page;
    }
    seal.crypt(slot, tag, &mut out[..length]);
    (tag, length)
}

/// Whether an object may have this length.
pub fn is_length(length: usize) -> bool {
    matches!(length, PAGE_SIZE | 1..=MAX_COMPRESSED)
}

/// Notes an object's length behind it in `page`.
///
/// # Errors
/// `BADMSG`: no object has this length.
pub fn received(page: &mut Page, length: usize) -> Result<(), Errno> {
    match length {
        PAGE_SIZE => Ok(()),
        1..=MAX_COMPRESSED => {
            page[AT..AT + MARK.len()].copy_from_slice(&MARK);
            page[AT + MARK.len()..].copy_from_slice(&(length as u16).to_ne_bytes());
            Ok(())
        }
        _ => Err(Errno::BADMSG),
    }
}

/// Unpacks the object received for `slot` in place. False: it does not match the tag; `page` holds
/// garbage.
pub fn open(seal: &Seal, slot: u64, tag: Tag, page: &mut Page) -> bool {
    let (before, [a, b]) = (&page[..PAGE_SIZE - 2], [page[PAGE_SIZE - 2], page[PAGE_SIZE - 1]]);
    if !before.ends_with(&MARK) {
        return seal.open(slot, tag, page);
    }
    let mut object = [0; MAX_COMPRESSED];
    let length = usize::from(u16::from_ne_bytes([a, b])).min(MAX_COMPRESSED);
    let object = &mut object[..length];
    object.copy_from_slice(&page[..length]);
    seal.crypt(slot, tag, object);
    let Some((filter, object)) = object.split_first() else { return false };
    let Some(filter) = Filter::from_number(*filter) else { return false };
    filter.undo(&mut [0; PAGE_SIZE], page, |into| lz4_decompress(object, into)) && seal.tag(slot, page) == tag
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(seal: &Seal, slot: u64, page: &Page) -> (Tag, Page, usize) {
        let (mut out, compressors) = ([0; PAGE_SIZE], Compressors::new(2).unwrap());
        // SAFETY: it has no other user.
        let (tag, length) = pack(seal, slot, page, &mut out, unsafe { compressors.get(1) });
        (tag, out, length)
    }

    /// As received: old bytes follow the object.
    fn arrived(object: &Page, length: usize) -> Page {
        let mut page = [0xa5; PAGE_SIZE];
        page[..length].copy_from_slice(&object[..length]);
        received(&mut page, length).unwrap();
        page
    }

    #[test]
    fn pages_of_all_kinds_come_back_and_nothing_else_does() {
        let seal = Seal::new().unwrap();
        let text: Page = core::array::from_fn(|i| (i / 100) as u8);
        let mut x = 88_172_645_463_325_252u64;
        let noise: Page = core::array::from_fn(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x as u8
        });
        let mut numbers = noise;
        numbers
            .as_chunks_mut::<8>()
            .0
            .iter_mut()
            .for_each(|word| word[2..].copy_from_slice(&[0x12, 0x34, 0x56, 0x59, 0x40, 0]));
        for (page, small) in [(text, true), (noise, false), ([7; PAGE_SIZE], true), (numbers, true)] {
            let (tag, object, length) = packed(&seal, 5, &page);
            assert_eq!((tag, length < PAGE_SIZE / 2, length == PAGE_SIZE), (seal.tag(5, &page), small, !small));
            let mut back = arrived(&object, length);
            assert!(open(&seal, 5, tag, &mut back) && back == page);
            assert!(!open(&seal, 6, tag, &mut arrived(&object, length)), "another slot");
            assert!(!open(&seal, 5, tag ^ 1, &mut arrived(&object, length)), "what was there before");
            for at in [0, length / 2, length - 1] {
                let mut changed = object;
                changed[at] ^= 4;
                assert!(!open(&seal, 5, tag, &mut arrived(&changed, length)), "byte {at} of {length}");
            }
            for other in [1, length - 1, MAX_COMPRESSED, PAGE_SIZE] {
                let cut = received(&mut [0; PAGE_SIZE], other).is_ok();
                assert!(other == length || !cut || !open(&seal, 5, tag, &mut arrived(&object, other)), "{other} of {length}");
            }
        }
        for nonsense in [0, MAX_COMPRESSED + 1, PAGE_SIZE - 1] {
            assert_eq!(received(&mut [0; PAGE_SIZE], nonsense), Err(Errno::BADMSG));
        }
        // Forged by a server.
        let mut page = [0; PAGE_SIZE];
        received(&mut page, 1).unwrap();
        page[PAGE_SIZE - 2..].fill(0xff);
        assert!(!open(&seal, 5, 3, &mut page));
    }
}
