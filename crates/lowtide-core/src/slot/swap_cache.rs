//! Swap cache: slots whose page is in memory and clean, with only a cache mark in their table word.
//! The page can be evicted without a write, and the slot reclaimed without I/O: where slots are
//! scarce ([`SwapCache::is_scarce`], at allocations and page loads), and before an allocation
//! fails.
//!
//! The index also has clusters by their room with clean copies given up, so "there is no run"
//! counts these as room.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use rustix::io::Errno;

use super::area::Area;
use super::bitmap::{Bitmap, WORDS};
use super::cluster::{CLUSTER_SLOTS, MAX_ORDER};
use super::index::Level;
use super::lists::LockedInner;
use crate::percpu::CacheAligned;
use crate::table::Table;
use crate::vm::OnFork;

/// Most clusters that one search for a full one opens; the next continues there.
const VISITS: usize = 64;

/// The owner of the pages behind an area's slots.
pub trait SwapCache {
    /// Gives up a clean copy, if the slot still holds only a cache mark. True: the caller frees the
    /// slot. Called without locks; may take none that is held around calls of [`Area`].
    fn give_up(&self, area: &Area, slot: u64) -> bool;

    /// Whether free slots are worth more than clean copies. Called without locks.
    fn is_scarce(&self, area: &Area) -> bool {
        area.is_over_half_full()
    }
}

/// No swap cache.
#[derive(Debug)]
pub struct NoCache;

impl SwapCache for NoCache {
    fn give_up(&self, _area: &Area, _slot: u64) -> bool {
        false
    }
}

/// A bit per cache mark, guarded by the cluster's lock. Memory only where used.
#[derive(Debug)]
pub(super) struct CacheMarks {
    words: Table<AtomicU64>,
    count: CacheAligned<AtomicU64>,
    /// Where the next search for full clusters begins.
    at: AtomicU32,
}

impl CacheMarks {
    pub(super) fn new(clusters: usize) -> Result<CacheMarks, Errno> {
        let words = Table::new(clusters * WORDS, OnFork::Copy)?;
        Ok(CacheMarks { words, count: CacheAligned(AtomicU64::new(0)), at: AtomicU32::new(0) })
    }

    pub(super) fn any(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    fn is_marked(&self, slot: usize) -> bool {
        self.words[slot / 64].load(Relaxed) >> (slot % 64) & 1 == 1
    }

    pub(super) fn of(&self, i: usize) -> Bitmap {
        Bitmap::from_words(|w| self.words[i * WORDS + w].load(Relaxed))
    }

    pub(super) fn set(&self, inner: &mut LockedInner<'_>, slot: usize, marked: bool) {
        if self.is_marked(slot) == marked {
            return;
        }
        self.words[slot / 64].fetch_xor(1 << (slot % 64), Relaxed);
        let change = if marked { 1u16 } else { u16::MAX };
        inner.caches = inner.caches.wrapping_add(change);
        self.count.fetch_add(if marked { 1 } else { u64::MAX }, Relaxed);
    }

    pub(super) fn table_bytes(&self) -> usize {
        self.words.populated_bytes()
    }
}

impl Area {
    /// Marks a used slot as a clean copy, or removes the mark.
    pub fn mark_cached(&self, slot: u64, cached: bool) {
        // A forked child's copy of the clusters is outdated.
        if slot < self.opened_slots() && !self.is_inherited() {
            let (i, index) = (slot as usize / CLUSTER_SLOTS, slot as usize % CLUSTER_SLOTS);
            let mut inner = self.clusters().lock(i);
            if inner.is_used(index) {
                self.marks().set(&mut inner, slot as usize, cached);
                self.index_copies(i, &mut inner, index, 1);
            }
        }
    }

    /// Clean copies, or slots that a dead child held.
    pub(super) fn may_be_reclaimed(&self) -> bool {
        self.marks().any() || self.sharing().is_some_and(|sharing| sharing.zombies.any())
    }

    /// Whether half of the slots that this process can have (size, quota) are used.
    pub fn is_over_half_full(&self) -> bool {
        self.clusters().used_about() >= self.slots().min(self.clusters().affordable_slots()) / 2
    }

    /// Reclaims clean copies from up to `most` full clusters, for a background worker. Returns the
    /// slots freed.
    pub fn reclaim_full(&self, most: usize, cache: &dyn SwapCache) -> u64 {
        let mut freed = 0;
        let mut from = self.marks().at.load(Relaxed) as usize;
        for _ in 0..most {
            if !self.marks().any() {
                break;
            }
            let Some(i) = self.next_full(&mut from) else { break };
            let copies = self.copies_of(i, 0, CLUSTER_SLOTS);
            let mut given_up = Bitmap::EMPTY;
            copies.each_run(|first, n| {
                let gone = (first..first + n).filter(|index| cache.give_up(self, slot_of(i, *index)));
                gone.for_each(|index| given_up.set(index, 1));
            });
            let mut inner = self.clusters().lock(i);
            let some = self.give_back(i, &mut inner, &given_up);
            if some > 0 {
                self.clusters().relocate(i, &mut inner);
            } else if let Some(rival) = self.clusters().rival() {
                rival.put_back(self, i, inner);
            }
            freed += some;
        }
        self.marks().at.store(from as u32, Relaxed);
        freed
    }

    /// The next full cluster with cache marks, in index order, among [`VISITS`].
    fn next_full(&self, from: &mut usize) -> Option<usize> {
        let clusters = self.clusters();
        if let Some(rival) = clusters.rival() {
            return rival.next_full(self);
        }
        for _ in 0..VISITS {
            let Some((i, behind)) = clusters.index().next_of((0..=MAX_ORDER).map(Level::of_copies), *from) else {
                if core::mem::take(from) == 0 {
                    break;
                }
                continue;
            };
            *from = behind;
            let inner = clusters.lock(i);
            if inner.is_full() && inner.caches > 0 {
                return Some(i);
            }
        }
        None
    }

    /// Which of `n` slots hold only a cache mark and have no other references.
    pub(super) fn copies_of(&self, i: usize, first: usize, n: usize) -> Bitmap {
        let copies = self.marks().of(i).part(first, n);
        self.sharing().map_or(copies, |sharing| copies.without(&sharing.held(i, first, n)))
    }

    /// Gives up clean copies among `n` slots, the others being free, until one stays. Releases the
    /// lock meanwhile: the cluster may change. Returns the slots freed; if any, the caller
    /// relocates the cluster.
    pub(super) fn reclaim_run<'a>(
        &'a self,
        i: usize,
        inner: LockedInner<'a>,
        first: usize,
        n: usize,
        cache: &dyn SwapCache,
    ) -> (LockedInner<'a>, u64) {
        let copies = self.copies_of(i, first, n);
        drop(inner);
        let mut given_up = Bitmap::EMPTY;
        let mut all = (first..first + n).filter(|index| copies.is_set(*index));
        while let Some(index) = all.next()
            && cache.give_up(self, slot_of(i, index))
        {
            given_up.set(index, 1);
        }
        let mut inner = self.clusters().lock(i);
        let freed = self.give_back(i, &mut inner, &given_up);
        (inner, freed)
    }

    /// The caller relocates the cluster. Returns the slots freed.
    fn give_back(&self, i: usize, inner: &mut LockedInner<'_>, given_up: &Bitmap) -> u64 {
        // A child forked meanwhile may refer to them.
        let held = self.sharing().map_or(Bitmap::EMPTY, |sharing| sharing.held(i, 0, CLUSTER_SLOTS));
        let mut freed = 0;
        given_up.without(&held).each_run(|first, n| {
            self.give_in_place(i, inner, first, n);
            freed += n as u64;
        });
        if let Some(sharing) = self.sharing() {
            given_up.without(&given_up.without(&held)).each_run(|first, n| {
                for index in first..first + n {
                    self.marks().set(inner, i * CLUSTER_SLOTS + index, false);
                    sharing.zombies.add(inner, i * CLUSTER_SLOTS + index);
                }
                self.index_copies(i, inner, first, n);
            });
        }
        freed
    }

    /// Updates the second level after `n` slots were freed or their marks changed. Allocations
    /// leave it; a search that finds less corrects it.
    #[inline]
    pub(super) fn index_copies(&self, i: usize, inner: &mut LockedInner<'_>, first: usize, n: usize) {
        if inner.caches > 0 || inner.copies > 0 {
            self.index_some_copies(i, inner, first, n);
        }
    }

    fn index_some_copies(&self, i: usize, inner: &mut LockedInner<'_>, first: usize, n: usize) {
        if self.clusters().rival().is_some() {
            return;
        }
        let level = if inner.caches == 0 {
            0
        } else {
            let known = u32::from(inner.copies).checked_sub(1).max(inner.best());
            let room = inner.used_without(&self.marks().of(i));
            room.largest_clear_around(first, n, known).map_or(0, |order| order as u8 + 1)
        };
        self.move_copies(i, inner, level);
    }

    /// After a search found less.
    pub(super) fn correct_copies(&self, i: usize, inner: &mut LockedInner<'_>, room: &Bitmap) {
        let level = if inner.caches == 0 { None } else { room.largest_clear(MAX_ORDER) };
        self.move_copies(i, inner, level.map_or(0, |order| order as u8 + 1));
    }

    fn move_copies(&self, i: usize, inner: &mut LockedInner<'_>, level: u8) {
        let index = self.clusters().index();
        if inner.copies == level {
            return;
        }
        if let Some(order) = inner.copies.checked_sub(1) {
            index.remove(Level::of_copies(order.into()), i);
        }
        if let Some(order) = level.checked_sub(1) {
            index.add(Level::of_copies(order.into()), i);
        }
        inner.copies = level;
    }
}

fn slot_of(i: usize, index: usize) -> u64 {
    (i * CLUSTER_SLOTS + index) as u64
}
