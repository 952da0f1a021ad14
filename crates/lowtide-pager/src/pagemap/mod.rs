//! The page map: a 64-bit word for each page of registered memory, its place while away.
//!
//! A radix tree: leaves of 64 pages (256 KiB) with a word and a mark each take 576 bytes, nodes of
//! 64 children 256; the root's entries span 1 GiB. Only handled pages cost memory: 8 bytes each if
//! dense, about a KiB for an isolated small mapping.
//!
//! Touch, eviction and removal create leaves; [`PageMap::collect`] frees empty ones while no thread
//! looks.

mod arena;
mod aside;
pub(crate) mod ids;
pub(crate) mod refault;
mod state;
mod word;

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};

use lowtide_core::lock::Lock;
use lowtide_core::vm::{self, Mapping, OnFork};
use rustix::io::Errno;

use crate::pagemap::ids::PageNo;
use arena::{Arena, GRANULE};
use aside::Aside;
pub use refault::Mark;
pub use state::{Claimant, PageState};
pub use word::PageWord;

const LEAF_SHIFT: u32 = 6;
pub const BLOCK_PAGES: usize = 1 << LEAF_SHIFT;
const NODE_SHIFT: u32 = 6;
const CHILDREN: usize = 1 << NODE_SHIFT;
/// log2 of pages below a child, upper level first.
const LEVELS: [u32; 2] = [LEAF_SHIFT + NODE_SHIFT, LEAF_SHIFT];
/// 1 GiB.
const ROOT_SHIFT: u32 = LEVELS[0] + NODE_SHIFT;
/// 47 bits of address space.
const ROOT: usize = 1 << (47 - 12 - ROOT_SHIFT);
/// End of pages with words. Memory above (five-level page tables) can't be registered.
pub(crate) const END: PageNo = PageNo::new(ROOT << ROOT_SHIFT);
/// The marks follow.
const WORDS_BYTES: usize = BLOCK_PAGES * 8;
const LEAF_GRANULES: usize = (WORDS_BYTES + BLOCK_PAGES) / GRANULE;
const NODE_GRANULES: usize = CHILDREN * 4 / GRANULE;
const WORTH_COLLECTING: usize = 4096;

/// Granule of a node or leaf; 0: none.
type Child = AtomicU32;

fn child_of(page: PageNo, shift: u32) -> usize {
    page.number() >> shift & (CHILDREN - 1)
}

fn behind(page: PageNo, shift: u32) -> PageNo {
    PageNo::new(((page.number() >> shift) + 1) << shift)
}

pub struct PageMap {
    root: Mapping,
    arena: Arena,
    /// Held while nodes or leaves are created.
    grow: Lock<()>,
    leaves: AtomicUsize,
    aside: Aside,
    /// Left by the latest collection.
    collected: AtomicUsize,
}

impl PageMap {
    /// Error: `NOMEM`.
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

    fn top(&self, page: PageNo) -> Option<&Child> {
        let i = page.number() >> ROOT_SHIFT;
        // SAFETY: inside `root`, zero at first, never unmapped.
        (i < ROOT).then(|| unsafe { &*self.root.as_ptr().cast::<Child>().add(i) })
    }

    fn child(&self, node: u32, i: usize) -> &Child {
        debug_assert!(i < CHILDREN);
        // SAFETY: CHILDREN children, zero at first, that stay while threads may look: see
        // `collect`.
        unsafe { &*self.arena.at(node).cast::<Child>().add(i) }
    }

    /// 0: none.
    fn leaf(&self, page: PageNo) -> u32 {
        // Acquire, here and below: pairs with the Release in `make`, after zeroing.
        let mut at = self.top(page).map_or(0, |top| top.load(Ordering::Acquire));
        for shift in LEVELS {
            if at == 0 {
                return 0;
            }
            at = self.child(at, child_of(page, shift)).load(Ordering::Acquire);
        }
        at
    }

    fn word(&self, leaf: u32, page: PageNo) -> &PageWord {
        // SAFETY: BLOCK_PAGES words, zero at first, that stay while threads may look: see
        // `collect`.
        unsafe { &*self.arena.at(leaf).cast::<PageWord>().add(page.number() % BLOCK_PAGES) }
    }

    pub fn slot(&self, page: PageNo) -> Option<&PageWord> {
        let leaf = self.leaf(page);
        (leaf != 0).then(|| self.word(leaf, page))
    }

    pub fn get(&self, page: PageNo) -> PageState {
        self.slot(page).map_or(PageState::None, PageWord::get)
    }

    /// Sets an existing word that is the caller's by the table at [`PageState`].
    pub fn set(&self, page: PageNo, word: PageState) {
        let slot = self.slot(page);
        debug_assert!(slot.is_some() || word == PageState::None, "a word for a page that has none");
        if let Some(slot) = slot {
            slot.set(word);
        }
    }

    /// False: the word differs or is missing, see [`PageMap::claim`].
    pub fn swap(&self, page: PageNo, from: PageState, to: PageState) -> bool {
        self.slot(page).is_some_and(|slot| slot.swap(from, to))
    }

    /// As [`PageMap::swap`], creating the word. Error: `NOMEM`.
    pub fn claim(&self, page: PageNo, from: PageState, to: PageState) -> Result<bool, Errno> {
        self.populate(page)?;
        Ok(self.swap(page, from, to))
    }

    /// Creates a missing word. Error: `NOMEM`.
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

    /// Needs `grow`.
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

    /// Calls `f` for pages of `first .. end` with words; others cost nothing.
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

    /// The end of the `most`-th leaf, or `end`.
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

    /// The next leaf's pages in `first .. end`.
    pub(crate) fn next_block(&self, first: PageNo, end: PageNo) -> Option<(PageNo, PageNo)> {
        let (_, start) = self.next_leaf(first).ok().filter(|(_, start)| *start < end)?;
        Some((start, end.min(behind(start, LEAF_SHIFT))))
    }

    /// The first leaf from `page` on, and its first such page.
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

    pub fn each_used<'a>(&'a self, mut f: impl FnMut(PageNo, &'a PageWord)) {
        self.each(PageNo::new(0), END, |page, slot| {
            if slot.peek() != PageState::None {
                f(page, slot);
            }
        });
    }

    /// Zero at first. See [`Mark`].
    pub fn mark(&self, page: PageNo) -> Option<&AtomicU8> {
        let leaf = self.leaf(page);
        // SAFETY: a leaf has a byte for each page behind its words.
        (leaf != 0).then(|| unsafe { &*self.arena.at(leaf).add(WORDS_BYTES + page.number() % BLOCK_PAGES).cast() })
    }

    pub fn wants_collection(&self) -> bool {
        self.leaves.load(Ordering::Relaxed) >= WORTH_COLLECTING.max(2 * self.collected.load(Ordering::Relaxed))
    }

    /// Frees empty leaves and nodes.
    ///
    /// # Safety
    /// Until this returns no other thread is in a method of the map, or holds or gets a slot or
    /// mark of it.
    pub unsafe fn collect(&self) {
        // SAFETY: the caller's obligation; parents are cleared first.
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
            // SAFETY: the caller's obligation; the parent is cleared.
            unsafe { self.arena.give_back(node, NODE_GRANULES) };
        }
    }

    pub fn used_bytes(&self) -> usize {
        self.arena.used_bytes()
    }

    /// # Safety
    /// As [`Lock::reset_after_fork`].
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: the caller's obligation.
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
