//! Leaves taken out of the map because their pages have new words. Freeing what the old words stood
//! for takes a minute a TiB, too long for an mremap.
//!
//! They are in bags: nodes whose first child is the next bag. All under the exclusive space lock.

use core::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use super::{BLOCK_PAGES, CHILDREN, Child, LEAF_GRANULES, LEVELS, NODE_GRANULES, PageMap, PageState, PageWord, child_of};
use crate::pagemap::ids::PageNo;

/// First bags; 0: none.
#[derive(Default)]
pub(super) struct Aside {
    /// Leaves with information.
    full: AtomicU32,
    /// Emptied, but reachable by threads until [`PageMap::collect`].
    done: AtomicU32,
}

impl PageMap {
    fn place(&self, page: PageNo) -> Option<&Child> {
        let mut place = self.top(page)?;
        for shift in LEVELS {
            // Acquire: as in `leaf`.
            let node = place.load(Ordering::Acquire);
            if node == 0 {
                return None;
            }
            place = self.child(node, child_of(page, shift));
        }
        Some(place)
    }

    pub(crate) fn has_aside(&self) -> bool {
        self.aside.full.load(Ordering::Relaxed) != 0
    }

    /// Sets aside the leaf of a block from `first` if all words are `quiet`, without a thread at
    /// work. False: nothing has changed, for lack of quiet or memory. Needs the exclusive space
    /// lock.
    ///
    /// A thread may still claim a word it reached before, unlocked, then finds another at the page,
    /// as after a move.
    pub(crate) fn set_aside(&self, first: PageNo, quiet: impl Fn(PageState) -> bool) -> bool {
        let _grow = self.grow.lock();
        let Some(place) = self.place(first) else { return true };
        let leaf = place.load(Ordering::Relaxed);
        if leaf == 0 {
            return true;
        }
        let all_quiet = || (0..BLOCK_PAGES).all(|i| quiet(self.word(leaf, PageNo::new(i)).peek()));
        if !all_quiet() || self.put_in_bag(leaf).is_err() {
            return false;
        }
        place.store(0, Ordering::Relaxed);
        true
    }

    fn put_in_bag(&self, leaf: u32) -> Result<(), Errno> {
        let first = self.aside.full.load(Ordering::Relaxed);
        let free = |bag: u32| (1..CHILDREN).map(|i| self.child(bag, i)).find(|child| child.load(Ordering::Relaxed) == 0);
        let place = match Some(first).filter(|bag| *bag != 0).and_then(free) {
            Some(place) => place,
            None => {
                let bag = self.arena.take(NODE_GRANULES)?;
                self.child(bag, 0).store(first, Ordering::Relaxed);
                self.aside.full.store(bag, Ordering::Relaxed);
                self.child(bag, 1)
            }
        };
        place.store(leaf, Ordering::Relaxed);
        Ok(())
    }

    /// Calls `f`, which takes all unclaimed words, on some leaves; returns their number. Needs the
    /// exclusive space lock.
    pub(crate) fn empty_some_aside(&self, mut f: impl FnMut(&PageWord)) -> usize {
        let bag = self.aside.full.load(Ordering::Relaxed);
        if bag == 0 {
            return 0;
        }
        let leaves = self.leaves_of(bag).inspect(|leaf| {
            (0..BLOCK_PAGES).for_each(|i| f(self.word(*leaf, PageNo::new(i))));
        });
        let count = leaves.count();
        let next = self.child(bag, 0);
        self.aside.full.store(next.load(Ordering::Relaxed), Ordering::Relaxed);
        next.store(self.aside.done.swap(bag, Ordering::Relaxed), Ordering::Relaxed);
        count
    }

    fn leaves_of(&self, bag: u32) -> impl Iterator<Item = u32> {
        (1..CHILDREN).map(move |i| self.child(bag, i).load(Ordering::Relaxed)).take_while(|leaf| *leaf != 0)
    }

    /// Frees emptied leaves; `f` gets words claimed then and since finished.
    ///
    /// # Safety
    /// As [`PageMap::collect`].
    pub(crate) unsafe fn collect_aside(&self, mut f: impl FnMut(PageState)) {
        loop {
            let bag = self.aside.done.load(Ordering::Relaxed);
            if bag == 0 {
                return;
            }
            self.aside.done.store(self.child(bag, 0).load(Ordering::Relaxed), Ordering::Relaxed);
            for leaf in self.leaves_of(bag) {
                (0..BLOCK_PAGES).for_each(|i| f(self.word(leaf, PageNo::new(i)).take()));
                // SAFETY: no thread (the caller's obligation), nor the tree, has a reference.
                unsafe { self.arena.give_back(leaf, LEAF_GRANULES) };
                self.leaves.fetch_sub(1, Ordering::Relaxed);
            }
            // SAFETY: bags are private to this.
            unsafe { self.arena.give_back(bag, NODE_GRANULES) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pagemap::END;
    use std::vec::Vec;

    #[test]
    fn what_is_aside_is_in_no_place_and_is_let_go_of_once() {
        const BLOCKS: usize = 200;
        let map = PageMap::new().unwrap();
        let first = PageNo::of(1 << 40);
        let pages = || first.up_to(first + BLOCKS * BLOCK_PAGES);
        for page in pages() {
            map.populate(page).unwrap();
            map.set(page, PageState::Swapped(page.number() as u64));
        }
        let busy = first + 3 * BLOCK_PAGES + 5;
        map.set(busy, PageState::ORPHAN_OF_STORE);
        let quiet = |state| matches!(state, PageState::None | PageState::Swapped(_));
        let left: Vec<usize> = (0..BLOCKS).filter(|i| !map.set_aside(first + i * BLOCK_PAGES, quiet)).collect();
        assert!(left == [3] && map.has_aside(), "a thread is at work there: {left:?}");
        assert!(map.set_aside(PageNo::of(1 << 41), quiet), "there is nothing");
        let is_of_busy = |page: &PageNo| page.number() / BLOCK_PAGES == busy.number() / BLOCK_PAGES;
        let mut there = Vec::new();
        map.each(first, END, |page, _| there.push(page));
        assert!(there.len() == BLOCK_PAGES && there.iter().all(is_of_busy), "{there:?}");
        for page in pages().filter(|page| !is_of_busy(page)) {
            assert_eq!(map.claim(page, PageState::None, PageState::Zero), Ok(true));
        }
        let (mut entries, mut leaves) = (Vec::new(), 0);
        loop {
            let some = map.empty_some_aside(|word| {
                if word.peek() != PageState::Swapped(first.number() as u64)
                    && let PageState::Swapped(entry) = word.take()
                {
                    entries.push(entry as usize);
                }
            });
            leaves += some;
            assert!(some < CHILDREN);
            if some == 0 {
                break;
            }
        }
        entries.sort_unstable();
        let expected: Vec<usize> = pages().filter(|page| !is_of_busy(page) && *page != first).map(PageNo::number).collect();
        assert!(leaves == BLOCKS - 1 && entries == expected && !map.has_aside());
        let zeros = pages().filter(|page| map.get(*page) == PageState::Zero).count();
        assert_eq!(zeros, (BLOCKS - 1) * BLOCK_PAGES);
        let used = map.used_bytes();
        let mut claimed = Vec::new();
        // SAFETY: one thread.
        unsafe {
            map.collect_aside(|state| claimed.extend(Some(state).filter(|state| *state != PageState::None)));
            map.collect();
        }
        assert_eq!(claimed, [PageState::Swapped(first.number() as u64)]);
        assert_eq!(map.leaves.load(Ordering::Relaxed), BLOCKS);
        for page in pages() {
            let far = page + (1 << 30);
            assert_eq!(map.claim(far, PageState::None, PageState::Zero), Ok(true));
        }
        assert!(map.used_bytes() < used + 64 * NODE_GRANULES * 64, "{used}, {}", map.used_bytes());
    }
}
