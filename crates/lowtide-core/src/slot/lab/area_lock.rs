//! The baseline of `lowtide-lab build`: one lock for the whole area, and per CPU 64 slots to
//! allocate and 64 freed ones. Swap allocators in kernels worked like this until 2024. Only the
//! locks differ from the area's.
//!
//! Slots in a cache count as used: a swapoff never ends. Background reclaim of clean copies, rare,
//! frees slots without this lock.

use alloc::boxed::Box;

use arrayvec::ArrayVec;

use crate::lock::rank;
use crate::percpu::{self, CacheAligned};
use crate::slot::area::Area;
use crate::slot::areas::AreaRef;
use crate::slot::error::SlotError;
use crate::slot::swap_cache::{NoCache, SwapCache};
use crate::sync::Lock;

const CACHED: usize = 64;

type Cache = Lock<ArrayVec<u64, CACHED>, { rank::SLOT_CACHE }>;

#[derive(Debug, Default)]
struct Caches {
    ready: Cache,
    freed: Cache,
}

#[derive(Debug)]
pub(in crate::slot) struct AreaLock {
    whole: Lock<(), { rank::AREA }>,
    cpus: Box<[CacheAligned<Caches>]>,
}

impl AreaLock {
    pub(in crate::slot) fn new() -> AreaLock {
        let cpus = (0..percpu::count()).map(|_| CacheAligned(Caches::default())).collect();
        AreaLock { whole: Lock::new(()), cpus }
    }

    fn caches(&self) -> &Caches {
        &self.cpus[percpu::current()].0
    }

    fn alloc(&self, area: &Area, order: u32, cache: &dyn SwapCache) -> Option<u64> {
        if order > 0 || !area.is_open() {
            let _whole = self.whole.lock();
            return area.alloc_reclaiming(order, cache);
        }
        let mut ready = self.caches().ready.lock();
        if ready.is_empty() {
            let _whole = self.whole.lock();
            // Reversed below, so that they come out in order.
            ready.extend(area.alloc_reclaiming(0, cache));
            while !ready.is_empty()
                && !ready.is_full()
                && let Some(slot) = area.alloc_reclaiming(0, &NoCache)
            {
                ready.push(slot);
            }
            ready.reverse();
        }
        ready.pop()
    }

    pub(in crate::slot) fn free(&self, area: &Area, first: u64, n: u64) -> Result<(), SlotError> {
        if n != 1 || !area.is_open() {
            let _whole = self.whole.lock();
            return area.free_run_now(first, n);
        }
        let mut freed = self.caches().freed.lock();
        freed.push(first);
        if freed.is_full() {
            // Neighbours share a cluster and its cache line.
            freed.sort_unstable();
            let _whole = self.whole.lock();
            freed.drain(..).try_for_each(|slot| area.free_run_now(slot, 1))?;
        }
        Ok(())
    }

    /// # Safety
    /// As [`Lock::reset_after_fork`].
    pub(in crate::slot) unsafe fn reset_after_fork(&self) {
        // SAFETY: the caller's contract.
        unsafe { self.whole.reset_after_fork() };
        for cpu in &self.cpus {
            // SAFETY: the caller's contract.
            unsafe { cpu.0.ready.reset_after_fork() };
            // SAFETY: the caller's contract.
            unsafe { cpu.0.freed.reset_after_fork() };
        }
    }
}

/// Called by the store: they shadow methods of [`Area`].
impl AreaRef<'_> {
    pub(in crate::slot) fn alloc_next(&self, order: u32) -> Option<u64> {
        if self.area_lock().is_some() { None } else { Area::alloc_next(self, order) }
    }

    pub(in crate::slot) fn alloc_reclaiming(&self, order: u32, cache: &dyn SwapCache) -> Option<u64> {
        match self.area_lock() {
            Some(lock) => lock.alloc(self, order, cache),
            None => Area::alloc_reclaiming(self, order, cache),
        }
    }

    pub(in crate::slot) fn alloc_where_scarce(&self, order: u32, cache: &dyn SwapCache) -> Option<u64> {
        match self.area_lock() {
            Some(_) => self.alloc_reclaiming(order, cache),
            None => Area::alloc_where_scarce(self, order, cache),
        }
    }

    pub(in crate::slot) fn alloc_from_copies(&self, order: u32, cache: &dyn SwapCache) -> Option<u64> {
        // `alloc_where_scarce` has reclaimed them.
        if self.area_lock().is_some() { None } else { Area::alloc_from_copies(self, order, cache) }
    }

    /// As [`Area::alloc_behind`]; `None` in the baseline.
    pub fn alloc_behind(&self, slot: u64, n: usize) -> Option<u64> {
        if self.area_lock().is_some() { None } else { Area::alloc_behind(self, slot, n) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::{Allocator, AreaConfig, Areas, CLUSTER_SLOTS};
    use std::collections::BTreeSet;
    use std::vec::Vec;

    #[test]
    fn slots_of_all_orders_come_once_and_the_area_s_lock_seldom() {
        let areas = Areas::new();
        let slots = 4 * CLUSTER_SLOTS as u64;
        let cfg = AreaConfig { slots, allocator: Allocator { area_lock: true, ..Allocator::SHIPPED }, ..AreaConfig::default() };
        let id = areas.add(Area::new(None, cfg).unwrap(), true).unwrap();
        let area = areas.get(id).unwrap();
        let taken = || area.area_lock().map_or(0, |lock| lock.whole.acquisitions());
        let singles: Vec<u64> = (0..CACHED * 4).map(|_| areas.alloc(0, &NoCache).unwrap().1).collect();
        assert_eq!(taken(), 4, "one for each 64");
        let (_, run) = areas.alloc(4, &NoCache).unwrap();
        assert_eq!((taken(), run % 16), (5, 0));
        let all: BTreeSet<u64> = singles.iter().copied().chain(run..run + 16).collect();
        assert_eq!(all.len(), singles.len() + 16, "none twice");
        singles.iter().for_each(|slot| area.release(*slot));
        area.free_run(run, 16).unwrap();
        assert_eq!((taken(), area.used()), (10, 1));
        assert!(area.alloc_behind(run, 1).is_none(), "the baseline has nothing like it");
    }
}
