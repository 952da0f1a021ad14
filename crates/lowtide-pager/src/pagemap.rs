//! The page map: one 64-bit word for each page of adopted memory, which says where the page is while it is not in its place.
//!
//! A word counts only while its page is missing. A page in memory may have a stale word (after a fork: see `fault.rs`); whoever
//! evicts it forgets the word first. Two levels: a table of 2^17 pointers, and a chunk for each GiB of address space, both
//! filled lazily, so that a word costs 8 bytes a page where memory is in use and nothing elsewhere.

use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use lowtide_core::lock::Lock;
use lowtide_core::vm::{self, Mapping, OnFork};
use rustix::io::Errno;

/// log2 of the pages of a chunk: 1 GiB.
const CHUNK_SHIFT: u32 = 18;
/// Pages a chunk covers.
const CHUNK_PAGES: usize = 1 << CHUNK_SHIFT;
/// Chunks in 47 bits of address space.
const CHUNKS: usize = 1 << (47 - 12 - CHUNK_SHIFT);
/// Pages that share one mark of youth.
pub const BLOCK_PAGES: usize = 64;

/// What a word says. Every change is one store or compare-and-swap, under the shared or the exclusive space lock:
///
/// | from | to | who |
/// |---|---|---|
/// | None, Zero, Clean | Moving | evict, before the MOVE |
/// | Moving | Staged, None, Clean | evict, after the MOVE |
/// | Staged | Moving, None, Clean | fault (moved back) |
/// | Staged, Swapped | None | evict, when it is proven stale (exclusive lock) |
/// | Staged | Storing | drain |
/// | Storing | Swapped, Zero, Staged (no room) | drain |
/// | Storing | Moving | fault (copied back) |
/// | Moving | None, Storing (not this time) | fault, from Storing; the drainer waits for it |
/// | Swapped | Loading | fault, read-ahead |
/// | Loading | None, Clean, Swapped (not this time) | fault, read-ahead |
/// | Clean | None | fault on a page that is missing all the same |
/// | Swapped, Staged, Zero, None, Clean | None or Removing | events |
/// | Storing, Loading | Orphan | events: whoever is at work cleans up |
/// | Removing | None | fault, which saw the page missing; the end of the call |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// Not in lowtide's hands: in its place, or never touched (reads as zero).
    None,
    /// In its place and about to be dropped by the program: must not be evicted until that is proven done.
    Removing,
    /// Was evicted while it was all zero.
    Zero,
    /// In its place, and when it came in it was what the store's swap cache still holds under this raw entry.
    Clean(u64),
    /// In this staging frame.
    Staged(u32),
    /// On its way into this staging frame.
    Moving(u32),
    /// In this staging frame, being stored.
    Storing(u32),
    /// In the store (raw swap entry).
    Swapped(u64),
    /// In the store, being brought in (raw swap entry; 0: a zero page).
    Loading(u64),
    /// Dropped by the program while being stored or loaded: the thread at work makes it None.
    Orphan,
}

impl Word {
    /// The word as bits.
    pub const fn bits(self) -> u64 {
        match self {
            Word::None => 0,
            Word::Removing => 1,
            Word::Zero => 2,
            Word::Staged(f) => 3 | (f as u64) << 4,
            Word::Moving(f) => 4 | (f as u64) << 4,
            Word::Storing(f) => 5 | (f as u64) << 4,
            Word::Swapped(e) => 6 | e << 4,
            Word::Loading(e) => 7 | e << 4,
            Word::Orphan => 8,
            Word::Clean(e) => 9 | e << 4,
        }
    }

    /// The word that `bits` encode.
    pub const fn from_bits(bits: u64) -> Word {
        let arg = bits >> 4;
        match bits & 15 {
            1 => Word::Removing,
            2 => Word::Zero,
            3 => Word::Staged(arg as u32),
            4 => Word::Moving(arg as u32),
            5 => Word::Storing(arg as u32),
            6 => Word::Swapped(arg),
            7 => Word::Loading(arg),
            8 => Word::Orphan,
            9 => Word::Clean(arg),
            _ => Word::None,
        }
    }
}

/// The words of all adopted memory. Page numbers are addresses / 4096.
pub struct PageMap {
    top: Mapping,
    grow: Lock<()>,
}

impl PageMap {
    /// An empty map.
    ///
    /// # Errors
    /// `NOMEM`.
    pub fn new() -> Result<PageMap, Errno> {
        Ok(PageMap { top: vm::map(CHUNKS * 8, OnFork::Copy)?, grow: Lock::new(()) })
    }

    fn chunk(&self, page: usize) -> Option<&AtomicPtr<u8>> {
        let i = page >> CHUNK_SHIFT;
        // SAFETY: inside `top`, whose zero bytes are null pointers; it lives as long as the process.
        (i < CHUNKS).then(|| unsafe { &*self.top.as_ptr().cast::<AtomicPtr<u8>>().add(i) })
    }

    /// The word of `page`, if its chunk exists.
    pub fn slot(&self, page: usize) -> Option<&AtomicU64> {
        let base = self.chunk(page)?.load(Ordering::Acquire);
        // SAFETY: a chunk holds CHUNK_PAGES words, zero at first, and is never unmapped.
        (!base.is_null()).then(|| unsafe { &*base.cast::<AtomicU64>().add(page & (CHUNK_PAGES - 1)) })
    }

    /// What the map says of `page`.
    pub fn get(&self, page: usize) -> Word {
        self.slot(page).map_or(Word::None, |w| Word::from_bits(w.load(Ordering::Acquire)))
    }

    /// Sets the word of `page`; the caller owns it in the sense of the table at [`Word`].
    pub fn set(&self, page: usize, word: Word) {
        if let Some(slot) = self.slot(page) {
            slot.store(word.bits(), Ordering::Release);
        }
    }

    /// Replaces `from` by `to` if it still stands there.
    pub fn swap(&self, page: usize, from: Word, to: Word) -> bool {
        self.slot(page).is_some_and(|w| w.compare_exchange(from.bits(), to.bits(), Ordering::AcqRel, Ordering::Acquire).is_ok())
    }

    /// Makes sure that `page` has a word.
    ///
    /// # Errors
    /// `NOMEM`.
    pub fn populate(&self, page: usize) -> Result<(), Errno> {
        let top = self.chunk(page).ok_or(Errno::NOMEM)?;
        if top.load(Ordering::Acquire).is_null() {
            let _grow = self.grow.lock();
            if top.load(Ordering::Acquire).is_null() {
                let chunk = vm::map(CHUNK_PAGES * 8 + CHUNK_PAGES / BLOCK_PAGES, OnFork::Copy)?;
                top.store(chunk.as_ptr(), Ordering::Release);
            }
        }
        Ok(())
    }

    /// Calls `f` with each page of `first .. end` that has a word.
    pub fn each(&self, first: usize, end: usize, mut f: impl FnMut(usize, &AtomicU64)) {
        let mut page = first;
        while page < end {
            let next = ((page >> CHUNK_SHIFT) + 1) << CHUNK_SHIFT;
            if self.slot(page).is_some() {
                for p in page..next.min(end) {
                    if let Some(slot) = self.slot(p) {
                        f(p, slot);
                    }
                }
            }
            page = next;
        }
    }

    /// Calls `f` with each page that has a word other than None. Looks only at chunks that exist.
    pub fn each_used(&self, mut f: impl FnMut(usize, &AtomicU64)) {
        for chunk in 0..CHUNKS {
            let first = chunk << CHUNK_SHIFT;
            if self.slot(first).is_some() {
                self.each(first, first + CHUNK_PAGES, |page, slot| {
                    if slot.load(Ordering::Acquire) != 0 {
                        f(page, slot);
                    }
                });
            }
        }
    }

    /// The mark of youth of the block of `page`: the round of the clock hand in which a page of it last came in.
    pub fn age(&self, page: usize) -> Option<&core::sync::atomic::AtomicU8> {
        let base = self.chunk(page)?.load(Ordering::Acquire);
        if base.is_null() {
            return None;
        }
        let block = (page & (CHUNK_PAGES - 1)) / BLOCK_PAGES;
        // SAFETY: the bytes of the marks lie behind the words of the chunk.
        Some(unsafe { &*base.add(CHUNK_PAGES * 8 + block).cast() })
    }

    /// Frees the lock whoever holds it.
    ///
    /// # Safety
    /// As [`Lock::reset_after_fork`].
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: handed on to the caller.
        unsafe { self.grow.reset_after_fork() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_their_bits() {
        let entry = 0xff_ff_ff_ff_ff_ff;
        for word in [
            Word::None,
            Word::Removing,
            Word::Zero,
            Word::Staged(0),
            Word::Staged(u32::MAX),
            Word::Moving(3),
            Word::Storing(4),
            Word::Swapped(entry),
            Word::Loading(entry),
            Word::Loading(0),
            Word::Orphan,
        ] {
            assert_eq!(Word::from_bits(word.bits()), word);
        }
    }

    #[test]
    fn absent_words_read_none_and_present_ones_are_found() {
        let map = PageMap::new().unwrap();
        let page = (0x7f12_3456_7000usize) >> 12;
        assert_eq!(map.get(page), Word::None);
        assert!(!map.swap(page, Word::None, Word::Zero), "no word, no swap");
        map.populate(page).unwrap();
        assert!(map.swap(page, Word::None, Word::Swapped(9)));
        assert!(!map.swap(page, Word::None, Word::Zero));
        map.populate(page + CHUNK_PAGES).unwrap();
        map.set(page + CHUNK_PAGES, Word::Zero);
        let mut seen = std::vec::Vec::new();
        map.each_used(|p, _| seen.push(p));
        assert_eq!(seen, [page, page + CHUNK_PAGES]);
        let mut n = 0;
        map.each(page, page + CHUNK_PAGES + 1, |_, _| n += 1);
        assert_eq!(n, CHUNK_PAGES + 1);
    }
}
