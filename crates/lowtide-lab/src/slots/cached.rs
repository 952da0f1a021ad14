//! lowtide's areas behind a cache for each CPU of single slots to give out and of freed slots, 64
//! at a time: as kernels were between cluster locks and the end of their slot caches.

use lowtide_core::lock::{Lock, rank};
use lowtide_core::percpu::{self, CacheAligned};
use lowtide_core::slot::{Area, Policy};

use super::{Searched, Slots, Taken, area};

/// Slots in each half of a CPU's cache.
const CACHED: usize = 64;

type Cache = Lock<Vec<u64>, { rank::SLOT_CACHE }>;

pub struct Cached {
    area: Area,
    cpus: Vec<CacheAligned<Caches>>,
}

struct Caches {
    ready: Cache,
    freed: Cache,
}

impl Cached {
    /// An area of `slots` slots.
    ///
    /// # Errors
    /// As [`area`].
    pub fn new(slots: u64) -> Result<Cached, String> {
        let cache = || Cache::new(Vec::with_capacity(CACHED));
        let cpus = (0..percpu::count()).map(|_| CacheAligned(Caches { ready: cache(), freed: cache() })).collect();
        Ok(Cached { area: area(slots, Policy::default())?, cpus })
    }

    fn alloc_one(&self) -> Option<u64> {
        let mut ready = self.cpus[percpu::current()].0.ready.lock();
        if ready.is_empty() {
            ready.extend((0..CACHED).map_while(|_| self.area.alloc(0)));
            // Given out in ascending order.
            ready.reverse();
        }
        ready.pop()
    }

    fn free_one(&self, slot: u64) {
        let mut freed = self.cpus[percpu::current()].0.freed.lock();
        freed.push(slot);
        if freed.len() == CACHED {
            // Neighbours together: they share a cluster.
            freed.sort_unstable();
            freed.drain(..).for_each(|slot| self.area.release(slot));
        }
    }
}

impl Slots for Cached {
    const SHARED: u8 = rank::LISTS;
    const LOCAL: u8 = rank::CLUSTER;

    #[inline]
    fn alloc(&self, order: u32) -> Option<u64> {
        if order == 0 { self.alloc_one() } else { self.area.alloc(order) }
    }

    #[inline]
    fn free(&self, first: u64, n: u64) {
        if n == 1 { self.free_one(first) } else { Slots::free(&self.area, first, n) }
    }

    fn has_free_run(&self, order: u32) -> bool {
        self.area.has_free_run(order)
    }

    fn taken(&self) -> Taken {
        Slots::taken(&self.area)
    }

    fn searched(&self) -> Searched {
        Slots::searched(&self.area)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_area_s_locks_are_taken_for_64_slots_and_none_comes_twice() {
        let slots = Cached::new(1 << 13).unwrap();
        let held: Vec<u64> = (0..CACHED * 3).map(|_| slots.alloc(0).unwrap()).collect();
        assert_eq!(held.iter().collect::<HashSet<_>>().len(), held.len());
        held.iter().for_each(|slot| slots.free(*slot, 1));
        // The caches of this thread's CPUs still hold some.
        assert!(slots.area.used() <= 1 + (2 * CACHED * percpu::count()) as u64);
        let run = slots.alloc(4).unwrap();
        slots.free(run, 16);
    }
}
