//! The hand with accessed bits, on a model of memory.

use std::collections::BTreeSet;
use std::vec::Vec;

use lowtide_core::vm::PAGE_SIZE;

use super::victims::{Hand, LOOKED_AT, MOST_ARMED};
use crate::sys::present::{MAX_RANGES, Ranges};

const FRAMES: usize = 128;
const SCANS: usize = 64;

/// Pages. None: evicted; else whether accessed since armed.
struct Memory {
    pages: Vec<Option<bool>>,
    /// Immovable pages.
    stuck: BTreeSet<usize>,
    hand: Hand,
    at: usize,
    armed: usize,
}

impl Memory {
    /// All pages just touched for the first time.
    fn new(pages: usize) -> Memory {
        Memory { pages: std::vec![Some(true); pages], stuck: BTreeSet::new(), hand: Hand::default(), at: 0, armed: 0 }
    }

    fn scan(&self, most: usize, tells: bool) -> Ranges {
        let mut found: Vec<(usize, usize, bool)> = Vec::new();
        let (mut at, mut pages) = (self.at, 0);
        while at < self.pages.len() && pages < most {
            if let Some(accessed) = self.pages[at] {
                let accessed = accessed && tells;
                let (start, end) = (at * PAGE_SIZE, (at + 1) * PAGE_SIZE);
                let is_full = found.len() == MAX_RANGES;
                match found.last_mut() {
                    Some(last) if last.1 == start && last.2 == accessed => last.1 = end,
                    _ if is_full => break,
                    _ => found.push((start, end, accessed)),
                }
                pages += 1;
            }
            at += 1;
        }
        Ranges::of(&found, at * PAGE_SIZE)
    }

    /// Fills a batch as `evict.rs` does; returns the pages.
    fn batch(&mut self) -> Vec<usize> {
        let mut left = Vec::new();
        for _ in 0..SCANS {
            if left.len() == FRAMES || self.hand.is_idle() {
                break;
            }
            if self.at >= self.pages.len() {
                self.at = 0;
                self.hand.round_ends();
                continue;
            }
            let room = FRAMES - left.len();
            let is_choosy = self.hand.is_choosy(FRAMES);
            let mut found = self.scan(if is_choosy { LOOKED_AT } else { room }, is_choosy);
            if is_choosy {
                let accessed = found.keep_idle(room);
                if accessed.pages > 0 {
                    self.pages[accessed.start / PAGE_SIZE..accessed.end / PAGE_SIZE]
                        .iter_mut()
                        .flatten()
                        .for_each(|p| *p = false);
                    self.hand.armed(accessed.pages);
                    self.armed += accessed.pages;
                }
            }
            self.at = found.walk_end / PAGE_SIZE;
            let pages: Vec<usize> = found.iter().flat_map(|(from, to)| from / PAGE_SIZE..to / PAGE_SIZE).collect();
            self.hand.found(pages.len());
            let moved: Vec<usize> = pages.into_iter().filter(|page| !self.stuck.contains(page)).collect();
            moved.iter().for_each(|page| self.pages[*page] = None);
            self.hand.detached(moved.len());
            left.extend(moved);
        }
        left
    }

    fn touch(&mut self, pages: impl Iterator<Item = usize>) -> usize {
        pages.filter(|page| self.pages[*page].replace(true).is_none()).count()
    }
}

#[test]
fn what_is_accessed_stays_and_what_is_not_leaves() {
    const PAGES: usize = 8192;
    let mut memory = Memory::new(PAGES);
    let is_hot = |page: &usize| page % 4 == 1;
    let hot = |page: usize| (page..page + PAGES).map(|page| page % PAGES).filter(is_hot);
    let mut out = Vec::new();
    while out.len() < PAGES / 2 {
        memory.touch(hot(0));
        out.extend(memory.batch());
    }
    let wrong = out.iter().filter(|page| is_hot(page)).count();
    assert!(wrong <= FRAMES, "{wrong} of {} pages that left were hot", out.len());
}

#[test]
fn no_more_is_armed_than_was_said() {
    let mut memory = Memory::new(100_000);
    let (mut left, mut batches) = (0, 0);
    while batches < 200 {
        memory.touch(0..100_000);
        left += memory.batch().len();
        batches += 1;
        assert!(memory.armed <= MOST_ARMED * (left + FRAMES) + LOOKED_AT, "{} armed for {left}", memory.armed);
    }
    assert!(left >= batches * FRAMES / 2, "{left} pages left in {batches} batches, all of which were accessed");
}

#[test]
fn small_memory_that_is_all_in_use_is_no_place_to_turn_in_circles() {
    for pages in [1, 100, 5000] {
        let mut memory = Memory::new(pages);
        let batches = (0..100).find(|_| {
            memory.touch(0..pages);
            !memory.batch().is_empty()
        });
        assert!(batches.is_some_and(|vain| vain < 4), "of {pages}: {batches:?}");
    }
}

#[test]
fn where_nothing_can_be_moved_there_is_an_end() {
    for (pages, touched) in [(100, 0), (5000, 0), (100, 1), (100_000, 1), (100_000, 2)] {
        let mut memory = Memory::new(pages);
        memory.stuck = (0..pages).collect();
        let batches = (0..10_000).find(|_| {
            memory.touch((0..pages).filter(|page| touched > 0 && page % touched == 0));
            assert_eq!(memory.batch(), []);
            memory.hand.is_idle()
        });
        // Each batch scans at least the pages it may arm.
        let most = 4 * (pages / (MOST_ARMED * FRAMES / 2) + 2);
        assert!(batches.is_some_and(|batches| batches <= most), "of {pages}, every {touched} touched: {batches:?}, {most}");
    }
}
