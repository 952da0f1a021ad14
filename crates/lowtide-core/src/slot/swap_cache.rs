//! Swap cache: slots whose page is in memory and clean. They hold only a cache mark: the page can be evicted again without
//! being written, and the slot can be had back at any time without I/O. Such slots are taken back where slots are scarce
//! ([`SwapCache::is_scarce`]: one question, asked when slots are given out and when pages are loaded), and before an allocation
//! fails.
//!
//! As partly used clusters are indexed by their room, those with clean copies are indexed by the room that they have with these
//! given up as well: so "there is no run" is true with clean copies counted as room.

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

/// Most clusters with clean copies that a search for a full one opens: the next one goes on from there.
const VISITS: usize = 64;

/// Who owns the pages behind the slots of an area.
pub trait SwapCache {
    /// The slot holds only a cache mark, or did a moment ago: gives up the clean copy if it is still that. True: the caller
    /// frees the slot. Called without any lock held; may take none that is held around calls of [`Area`].
    fn give_up(&self, area: &Area, slot: u64) -> bool;

    /// Whether slots are worth more free than as clean copies. By default: the area is over half full. Called without any lock
    /// held.
    fn is_scarce(&self, area: &Area) -> bool {
        area.is_over_half_full()
    }
}

/// Nothing is cached.
#[derive(Debug)]
pub struct NoCache;

impl SwapCache for NoCache {
    fn give_up(&self, _area: &Area, _slot: u64) -> bool {
        false
    }
}

/// Which slots of an area hold only a cache mark: a bit for each. The bits of a cluster belong to its lock's holder. Memory
/// only where pages are cached.
#[derive(Debug)]
pub(super) struct CacheMarks {
    words: Table<AtomicU64>,
    /// How many there are.
    count: CacheAligned<AtomicU64>,
    /// Where the next search for full clusters with marks begins.
    at: AtomicU32,
}

impl CacheMarks {
    pub(super) fn new(clusters: usize) -> Result<CacheMarks, Errno> {
        let words = Table::new(clusters * WORDS, OnFork::Copy)?;
        Ok(CacheMarks { words, count: CacheAligned(AtomicU64::new(0)), at: AtomicU32::new(0) })
    }

    /// Whether there are any.
    pub(super) fn any(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    fn is_marked(&self, slot: usize) -> bool {
        self.words[slot / 64].load(Relaxed) >> (slot % 64) & 1 == 1
    }

    /// The marks of cluster `i`.
    pub(super) fn of(&self, i: usize) -> Bitmap {
        Bitmap::from_words(|w| self.words[i * WORDS + w].load(Relaxed))
    }

    /// Marks a slot of a locked cluster, or takes the mark away.
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
    /// Marks a used slot as holding only a clean copy of a page in memory, or takes the mark away.
    pub fn mark_cached(&self, slot: u64, cached: bool) {
        // In a forked child the clusters of its parent's areas are an old copy.
        if slot < self.opened_slots() && !self.is_inherited() {
            let (i, index) = (slot as usize / CLUSTER_SLOTS, slot as usize % CLUSTER_SLOTS);
            let mut inner = self.clusters().lock(i);
            if inner.is_used(index) {
                self.marks().set(&mut inner, slot as usize, cached);
                self.index_copies(i, &mut inner, index, 1);
            }
        }
    }

    /// Whether slots that count as used could be had all the same: clean copies, or those that a dead child held.
    pub(super) fn may_be_reclaimed(&self) -> bool {
        self.marks().any() || self.sharing().is_some_and(|sharing| sharing.zombies.any())
    }

    /// Whether half of the slots that this process can have are used, or more: then slots that hold only a cache mark are worth
    /// more free. What it can have is bounded by the size and by what others leave of the quota.
    pub fn is_over_half_full(&self) -> bool {
        self.clusters().used_about() >= self.slots().min(self.clusters().affordable_slots()) / 2
    }

    /// Takes back slots that hold only a cache mark from up to `most` full clusters. For a background worker, where slots are
    /// scarce; allocation does it with one cluster at a time. Returns how many slots it freed.
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
            }
            #[cfg(feature = "lab")]
            if some == 0 {
                self.put_back(i, inner);
            }
            freed += some;
        }
        self.marks().at.store(from as u32, Relaxed);
        freed
    }

    /// The next full cluster with cache marks, from `from` on in the order of the index (at most [`VISITS`] clusters are looked
    /// at).
    fn next_full(&self, from: &mut usize) -> Option<usize> {
        let clusters = self.clusters();
        #[cfg(feature = "lab")]
        if clusters.rival().is_some() {
            return self.next_full_listed();
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

    /// Which of `n` slots from index `first` of a cluster on hold only a cache mark, and are nobody else's: what can be freed.
    pub(super) fn copies_of(&self, i: usize, first: usize, n: usize) -> Bitmap {
        let copies = self.marks().of(i).part(first, n);
        self.sharing().map_or(copies, |sharing| copies.without(&sharing.held(i, first, n)))
    }

    /// Takes back what holds only a cache mark among `n` slots from index `first` of a locked cluster on, all of which are
    /// free or hold such a mark, so that all are free; stops at the first that can't go. The lock is let go, and had again
    /// once: everything about the cluster is to be looked at again. Also returns how many slots it freed: if any, the caller
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

    /// Frees slots of a locked cluster that were given up, and leaves the cluster where it is. Returns how many were freed.
    fn give_back(&self, i: usize, inner: &mut LockedInner<'_>, given_up: &Bitmap) -> u64 {
        // A child that was forked meanwhile may refer to them.
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

    /// Keeps the index right of what room a locked cluster has if its clean copies are given up. To be called when `n` slots
    /// from index `first` on were freed, or their marks changed; what is taken leaves it as it is, until a search finds that
    /// there is less.
    #[inline]
    pub(super) fn index_copies(&self, i: usize, inner: &mut LockedInner<'_>, first: usize, n: usize) {
        if inner.caches > 0 || inner.copies > 0 {
            self.index_some_copies(i, inner, first, n);
        }
    }

    fn index_some_copies(&self, i: usize, inner: &mut LockedInner<'_>, first: usize, n: usize) {
        #[cfg(feature = "lab")]
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

    /// A search found no more room in a locked cluster than this, clean copies included.
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
