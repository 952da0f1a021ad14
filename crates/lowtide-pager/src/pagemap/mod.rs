//! The page map: one 64-bit word for each page of adopted memory, which says where the page is while it is not in its place.
//!
//! A radix tree with small leaves: 64 pages (256 KiB of address space) share a leaf of 576 bytes, a word and a mark each, 64
//! leaves a node of 256 bytes, 64 of these another one for each GiB. A program pays for pages that were in lowtide's hands,
//! wherever they are: 8 bytes each where memory is dense, a KiB or so for a small mapping far from all others.
//!
//! Leaves come to be as pages are touched, evicted or removed. They go again, those that say nothing of any page, in
//! [`PageMap::collect`], when nobody looks.

mod arena;
mod aside;
pub(crate) mod ids;
mod state;
mod transitions;
mod word;

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};

use lowtide_core::lock::Lock;
use lowtide_core::vm::{self, Mapping, OnFork};
use rustix::io::Errno;

use crate::pagemap::ids::PageNo;
pub use crate::reclaim::refault::Mark;
use arena::{Arena, GRANULE};
use aside::Aside;
pub use state::{Claimant, PageState};
pub use word::PageWord;

/// log2 of the pages of a leaf.
const LEAF_SHIFT: u32 = 6;
/// Pages that share a leaf.
pub const BLOCK_PAGES: usize = 1 << LEAF_SHIFT;
/// log2 of the children of a node.
const NODE_SHIFT: u32 = 6;
const CHILDREN: usize = 1 << NODE_SHIFT;
/// log2 of the pages below a child of a node of each level, the upper one first.
const LEVELS: [u32; 2] = [LEAF_SHIFT + NODE_SHIFT, LEAF_SHIFT];
/// log2 of the pages below an entry of the root: 1 GiB.
const ROOT_SHIFT: u32 = LEVELS[0] + NODE_SHIFT;
/// Entries of the root: 47 bits of address space.
const ROOT: usize = 1 << (47 - 12 - ROOT_SHIFT);
/// Behind the last page that can have a word. With page tables of five levels a program can map memory there, if it asks for it
/// by an address: that can't be adopted.
pub(crate) const END: PageNo = PageNo::new(ROOT << ROOT_SHIFT);
/// Bytes of the words of a leaf; the marks come behind them.
const WORDS_BYTES: usize = BLOCK_PAGES * 8;
/// Granules of a leaf and of a node.
const LEAF_GRANULES: usize = (WORDS_BYTES + BLOCK_PAGES) / GRANULE;
const NODE_GRANULES: usize = CHILDREN * 4 / GRANULE;
/// Leaves from which on it may be worth while to look for empty ones.
const WORTH_COLLECTING: usize = 4096;

/// A child: the granule of a node or a leaf; 0: there is none.
type Child = AtomicU32;

/// Which child of its node `page` is below; `shift`: as in [`LEVELS`].
fn child_of(page: PageNo, shift: u32) -> usize {
    page.number() >> shift & (CHILDREN - 1)
}

/// The first page behind all that are below the same entry.
fn behind(page: PageNo, shift: u32) -> PageNo {
    PageNo::new(((page.number() >> shift) + 1) << shift)
}

/// The words of all adopted memory.
pub struct PageMap {
    root: Mapping,
    arena: Arena,
    /// Held while a node or leaf comes to be.
    grow: Lock<()>,
    leaves: AtomicUsize,
    aside: Aside,
    /// How many leaves were left by the latest [`PageMap::collect`].
    collected: AtomicUsize,
}

impl PageMap {
    /// An empty map.
    ///
    /// # Errors
    /// `NOMEM`.
    pub fn new() -> Result<PageMap, Errno> {
        let arena = Arena::new()?;
        Ok(PageMap {
            root: vm::map(ROOT * 4, OnFork::Copy)?,
            arena,
            grow: Lock::new(()),
            leaves: AtomicUsize::new(0),
            aside: Aside::default(),
            collected: AtomicUsize::new(0),
        })
    }

    /// The root's entry for `page`.
    fn top(&self, page: PageNo) -> Option<&Child> {
        let i = page.number() >> ROOT_SHIFT;
        // SAFETY: inside `root`, whose zero bytes are no children; it lives as long as the process.
        (i < ROOT).then(|| unsafe { &*self.root.as_ptr().cast::<Child>().add(i) })
    }

    /// Child `i` of a node.
    fn child(&self, node: u32, i: usize) -> &Child {
        debug_assert!(i < CHILDREN);
        // SAFETY: a node holds CHILDREN children, zero at first. It stays as long as somebody may look: see `collect`.
        unsafe { &*self.arena.at(node).cast::<Child>().add(i) }
    }

    /// The leaf that holds the word of `page`; 0: there is none.
    fn leaf(&self, page: PageNo) -> u32 {
        // Acquire, here and below: pairs with the Release in `make`, before which what is below was zero.
        let mut at = self.top(page).map_or(0, |top| top.load(Ordering::Acquire));
        for shift in LEVELS {
            if at == 0 {
                return 0;
            }
            at = self.child(at, child_of(page, shift)).load(Ordering::Acquire);
        }
        at
    }

    /// The word of `page` in its leaf.
    fn word(&self, leaf: u32, page: PageNo) -> &PageWord {
        // SAFETY: a leaf holds BLOCK_PAGES words, zero at first. It stays as long as somebody may look: see `collect`.
        unsafe { &*self.arena.at(leaf).cast::<PageWord>().add(page.number() % BLOCK_PAGES) }
    }

    /// The word of `page`, if there is one.
    pub fn slot(&self, page: PageNo) -> Option<&PageWord> {
        let leaf = self.leaf(page);
        (leaf != 0).then(|| self.word(leaf, page))
    }

    /// What the map says of `page`.
    pub fn get(&self, page: PageNo) -> PageState {
        self.slot(page).map_or(PageState::None, PageWord::get)
    }

    /// Sets the word of `page`, which has one; the caller owns it in the sense of the table at [`PageState`].
    pub fn set(&self, page: PageNo, word: PageState) {
        let slot = self.slot(page);
        debug_assert!(slot.is_some() || word == PageState::None, "a word for a page that has none");
        if let Some(slot) = slot {
            slot.set(word);
        }
    }

    /// Replaces `from` by `to` if it still stands there. A page without a word has none to replace: see [`PageMap::claim`].
    pub fn swap(&self, page: PageNo, from: PageState, to: PageState) -> bool {
        self.slot(page).is_some_and(|slot| slot.swap(from, to))
    }

    /// As [`PageMap::swap`], for a page that may not have a word yet: it gets one.
    ///
    /// # Errors
    /// `NOMEM`: it can't have one.
    pub fn claim(&self, page: PageNo, from: PageState, to: PageState) -> Result<bool, Errno> {
        self.populate(page)?;
        Ok(self.swap(page, from, to))
    }

    /// Makes sure that `page` has a word.
    ///
    /// # Errors
    /// `NOMEM`.
    pub fn populate(&self, page: PageNo) -> Result<(), Errno> {
        if self.leaf(page) != 0 {
            return Ok(());
        }
        let _grow = self.grow.lock();
        let mut at = self.make(self.top(page).ok_or(Errno::NOMEM)?, NODE_GRANULES)?;
        for shift in LEVELS {
            let granules = if shift == LEAF_SHIFT { LEAF_GRANULES } else { NODE_GRANULES };
            at = self.make(self.child(at, child_of(page, shift)), granules)?;
        }
        Ok(())
    }

    /// The child, which comes to be if it is not there. The lock of growing is held.
    fn make(&self, child: &Child, granules: usize) -> Result<u32, Errno> {
        let there = child.load(Ordering::Relaxed);
        if there != 0 {
            return Ok(there);
        }
        let new = self.arena.take(granules)?;
        if granules == LEAF_GRANULES {
            self.leaves.fetch_add(1, Ordering::Relaxed);
        }
        // Release: pairs with the Acquire in `leaf`.
        child.store(new, Ordering::Release);
        Ok(new)
    }

    /// Calls `f` with each page of `first .. end` that has a word. What has none costs nothing.
    pub fn each<'a>(&'a self, first: PageNo, end: PageNo, mut f: impl FnMut(PageNo, &'a PageWord)) {
        let mut page = first;
        while page < end {
            match self.next_leaf(page) {
                Ok((leaf, start)) if start < end => {
                    let stop = end.min(behind(start, LEAF_SHIFT));
                    start.up_to(stop).for_each(|p| f(p, self.word(leaf, p)));
                    page = stop;
                }
                _ => return,
            }
        }
    }

    /// Where the `most`-th leaf of `first .. end` ends; `end`: there are no more.
    pub fn behind_blocks(&self, first: PageNo, end: PageNo, most: usize) -> PageNo {
        let mut page = first;
        for _ in 0..most {
            match self.next_leaf(page) {
                Ok((_, start)) if start < end => page = behind(start, LEAF_SHIFT),
                _ => return end,
            }
        }
        end.min(page)
    }

    /// The pages of `first .. end` that have words, in the next leaf.
    pub(crate) fn next_block(&self, first: PageNo, end: PageNo) -> Option<(PageNo, PageNo)> {
        let (_, start) = self.next_leaf(first).ok().filter(|(_, start)| *start < end)?;
        Some((start, end.min(behind(start, LEAF_SHIFT))))
    }

    /// The first leaf that holds a page at or after `page`, and the first such page in it.
    fn next_leaf(&self, mut page: PageNo) -> Result<(u32, PageNo), ()> {
        'root: while page < END {
            // Acquire, here and below: as in `leaf`.
            let mut at = self.top(page).map_or(0, |top| top.load(Ordering::Acquire));
            if at == 0 {
                page = behind(page, ROOT_SHIFT);
                continue;
            }
            for shift in LEVELS {
                at = self.child(at, child_of(page, shift)).load(Ordering::Acquire);
                if at == 0 {
                    page = behind(page, shift);
                    continue 'root;
                }
            }
            return Ok((at, page));
        }
        Err(())
    }

    /// Calls `f` with each page that has a word other than None. Looks only at leaves that exist.
    pub fn each_used<'a>(&'a self, mut f: impl FnMut(PageNo, &'a PageWord)) {
        self.each(PageNo::new(0), END, |page, slot| {
            if slot.peek() != PageState::None {
                f(page, slot);
            }
        });
    }

    /// What is remembered of `page`, if it has a word: see [`Mark`]. Zero at first.
    pub fn mark(&self, page: PageNo) -> Option<&AtomicU8> {
        let leaf = self.leaf(page);
        // SAFETY: behind the words of a leaf there is a byte for each of its pages; it stays as the words do.
        (leaf != 0).then(|| unsafe { &*self.arena.at(leaf).add(WORDS_BYTES + page.number() % BLOCK_PAGES).cast() })
    }

    /// Whether [`PageMap::collect`] may have much to find: there are twice as many leaves as it left.
    pub fn wants_collection(&self) -> bool {
        self.leaves.load(Ordering::Relaxed) >= WORTH_COLLECTING.max(2 * self.collected.load(Ordering::Relaxed))
    }

    /// Gives back leaves that say nothing of any page, and nodes without leaves.
    ///
    /// # Safety
    /// Nobody may be in a method of this map, hold a slot or a mark of it, or come to one, until this has returned.
    pub unsafe fn collect(&self) {
        // SAFETY: handed on to the caller; what is given back was taken out of its parent first.
        let empty_leaf = |child: &Child| unsafe {
            let leaf = child.load(Ordering::Relaxed);
            let is_empty =
                leaf != 0 && (0..BLOCK_PAGES).map(PageNo::new).all(|page| self.word(leaf, page).peek() == PageState::None);
            if is_empty {
                child.store(0, Ordering::Relaxed);
                self.arena.give_back(leaf, LEAF_GRANULES);
                self.leaves.fetch_sub(1, Ordering::Relaxed);
            }
        };
        for i in 0..ROOT {
            let Some(top) = self.top(PageNo::new(i << ROOT_SHIFT)) else { break };
            let upper = top.load(Ordering::Relaxed);
            if upper == 0 {
                continue;
            }
            for child in (0..CHILDREN).map(|i| self.child(upper, i)) {
                let lower = child.load(Ordering::Relaxed);
                if lower != 0 {
                    (0..CHILDREN).for_each(|i| empty_leaf(self.child(lower, i)));
                    // SAFETY: as above.
                    unsafe { self.give_back_if_childless(child) };
                }
            }
            // SAFETY: as above.
            unsafe { self.give_back_if_childless(top) };
        }
        self.collected.store(self.leaves.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// # Safety
    /// As [`PageMap::collect`].
    unsafe fn give_back_if_childless(&self, of: &Child) {
        let node = of.load(Ordering::Relaxed);
        if (0..CHILDREN).all(|i| self.child(node, i).load(Ordering::Relaxed) == 0) {
            of.store(0, Ordering::Relaxed);
            // SAFETY: handed on to the caller, and no parent names it any more.
            unsafe { self.arena.give_back(node, NODE_GRANULES) };
        }
    }

    /// Bytes of nodes and leaves that there have ever been at a time.
    pub fn used_bytes(&self) -> usize {
        self.arena.used_bytes()
    }

    /// Frees the lock whoever holds it.
    ///
    /// # Safety
    /// As [`Lock::reset_after_fork`].
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: handed on to the caller.
        unsafe {
            self.grow.reset_after_fork();
            self.arena.reset_after_fork();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    #[test]
    fn absent_words_read_none_and_present_ones_are_found() {
        let map = PageMap::new().unwrap();
        let page = PageNo::of(0x7f12_3456_7000);
        let far = page + (1 << ROOT_SHIFT);
        assert_eq!(map.get(page), PageState::None);
        assert!(!map.swap(page, PageState::None, PageState::Zero), "no word, no swap");
        assert_eq!(map.claim(page, PageState::None, PageState::Swapped(9)), Ok(true));
        assert_eq!(map.claim(page, PageState::None, PageState::Zero), Ok(false));
        map.populate(far).unwrap();
        map.set(far, PageState::Zero);
        let mut seen = Vec::new();
        map.each_used(|p, _| seen.push(p));
        assert_eq!(seen, [page, far]);
        let mut n = 0;
        map.each(page, far + 1, |_, _| n += 1);
        assert_eq!(
            n,
            BLOCK_PAGES - page.number() % BLOCK_PAGES + far.number() % BLOCK_PAGES + 1,
            "two leaves in part, and nothing between"
        );
        assert_eq!(map.claim(END, PageState::None, PageState::Zero), Err(Errno::NOMEM), "no such address");
    }

    #[test]
    fn behaves_like_a_map_of_numbers_and_collects_what_is_empty() {
        let map = PageMap::new().unwrap();
        let mut model = BTreeMap::new();
        let mut seed = 4711u64;
        let mut random = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 20) % n
        };
        for round in 0..20 {
            for _ in 0..2000 {
                // Here and there, close together and far apart.
                let page = PageNo::new(((random(7) << random(33)) + random(300)) as usize % END.number());
                let word = if random(3) == 0 { PageState::None } else { PageState::Swapped(random(1000) + 1) };
                map.populate(page).unwrap();
                map.set(page, word);
                model.insert(page, word);
            }
            model.retain(|_, word| *word != PageState::None);
            let listed = |map: &PageMap| {
                let mut all = Vec::new();
                map.each_used(|page, slot| all.push((page, slot.get())));
                all
            };
            let expected: Vec<_> = model.iter().map(|(page, word)| (*page, *word)).collect();
            assert_eq!(listed(&map), expected);
            if round % 3 == 2 {
                // SAFETY: one thread.
                unsafe { map.collect() };
                assert_eq!(listed(&map), expected);
                let blocks: std::collections::BTreeSet<_> = model.keys().map(|page| page.number() / BLOCK_PAGES).collect();
                assert_eq!(map.leaves.load(Ordering::Relaxed), blocks.len());
            }
            if round % 5 == 4 {
                model.keys().for_each(|page| map.set(*page, PageState::None));
                model.clear();
            }
        }
    }

    #[test]
    fn scattered_pages_cost_by_their_number_and_are_given_back() {
        let map = PageMap::new().unwrap();
        // 20,000 areas of 256 KiB all over 100 TiB, then as many elsewhere.
        let mut most = 0;
        for shift in 0..10 {
            let area = |i: usize| PageNo::new((i * 0x14_0000 + shift * 0x1_0000 + 0x1000) % (100 << 28));
            for page in (0..20_000).flat_map(|i| area(i).up_to(area(i) + BLOCK_PAGES)) {
                assert_eq!(map.claim(page, PageState::None, PageState::Zero), Ok(true));
            }
            assert!(map.wants_collection());
            map.each_used(|_, slot| slot.set(PageState::None));
            // SAFETY: one thread.
            unsafe { map.collect() };
            most = most.max(map.used_bytes());
        }
        assert!(most < 20_000 * 1600, "{} bytes for each area, whose words alone are 512", most / 20_000);
    }
}
