//! Swap cache: slots whose page is in memory and clean. They hold only a cache mark: the page can be evicted again without
//! being written, and the slot can be had back at any time without I/O. Areas that are over half full take such slots back.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use rustix::io::Errno;

use super::area::Area;
use super::bitmap::{Bitmap, WORDS};
use super::cluster::{CLUSTER_SLOTS, ListState};
use super::index::Level;
use super::lists::{self, ListId, LockedInner};
use crate::percpu::{CacheAligned, Zone};
use crate::table::Table;
use crate::vm::OnFork;

/// Who owns the pages behind the slots of an area.
pub trait SwapCache {
    /// The slot holds only a cache mark, or did a moment ago: gives up the clean copy if it is still that. True: the caller
    /// frees the slot. Called without any lock held; may take none that is held around calls of [`Area`].
    fn give_up(&self, area: &Area, slot: u64) -> bool;
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

    fn any(&self) -> bool {
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

    /// Takes back slots that hold only a cache mark from up to `most` full clusters. For a background worker, when the area
    /// [`Area::is_over_half_full`]; allocation does it with one cluster at a time. Returns how many slots it freed.
    pub fn reclaim_full(&self, most: usize, cache: &dyn SwapCache) -> u64 {
        let mut freed = 0;
        let mut from = self.marks().at.load(Relaxed) as usize;
        for _ in 0..most {
            if !self.marks().any() {
                break;
            }
            let Some(i) = self.next_full(&mut from) else { break };
            freed += self.reclaim(i, 0, CLUSTER_SLOTS, cache);
            self.put_back(i, self.clusters().lock(i));
        }
        self.marks().at.store(from as u32, Relaxed);
        freed
    }

    /// The next full cluster with cache marks, from `from` on in the index, or the first on the list, isolated.
    fn next_full(&self, from: &mut usize) -> Option<usize> {
        let clusters = self.clusters();
        let Some(index) = clusters.index() else {
            let full = clusters.len(ListId::FULL);
            return (0..full).find_map(|_| {
                let (i, inner) = clusters.isolate(ListId::FULL, Zone::ALL)?;
                if inner.caches > 0 {
                    return Some(i);
                }
                self.put_back(i, inner);
                None
            });
        };
        // Twice round at most: once to the end, once from the beginning.
        let mut rounds = 0;
        while rounds < 2 {
            match index.find(Level::FULL, Zone::ALL, *from) {
                Some(i) => {
                    *from = i + 1;
                    if clusters.lock(i).caches > 0 {
                        return Some(i);
                    }
                }
                None => {
                    *from = 0;
                    rounds += 1;
                }
            }
        }
        None
    }

    /// Puts an isolated cluster back on a list, if nobody else has meanwhile.
    fn put_back(&self, i: usize, mut inner: LockedInner<'_>) {
        if lists::of(&inner).is_none() && inner.state == ListState::None {
            self.clusters().relocate(i, &mut inner, true);
        }
    }

    fn is_cached(&self, i: usize, slot: usize) -> bool {
        let _inner = self.clusters().lock(i);
        self.marks().is_marked(slot)
    }

    /// Takes back the slots among `n` from index `first` of a cluster that hold only a cache mark. The cluster must not be
    /// locked: everything about it is to be looked at again afterwards. Returns how many slots it freed.
    pub(super) fn reclaim(&self, i: usize, first: usize, n: usize, cache: &dyn SwapCache) -> u64 {
        let mut freed = 0;
        for index in first..first + n {
            let slot = (i * CLUSTER_SLOTS + index) as u64;
            if self.is_cached(i, slot as usize) && cache.give_up(self, slot) {
                self.release(slot);
                freed += 1;
            }
        }
        freed
    }
}
