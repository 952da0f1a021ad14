//! The baseline for lowtide's areas: one lock for the whole area, and in front of it a cache for
//! each CPU of slots to give out and of freed slots. Kernels' swap allocators worked like this
//! until 2024.
//!
//! Single slots come from the CPU's cache, refilled 64 at a time, and go back to it, emptied 64 at
//! a time; larger runs go straight to the area. It keeps its clusters by order, so that its
//! searches are short: only its locks make it slow. A map with a byte for each slot shows use as
//! its users see it, whatever the caches hold, and prevents double frees.

mod clusters;

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use clusters::Clusters;
use lowtide_core::lock::{Lock, rank};
use lowtide_core::percpu::{self, CacheAligned};

use super::{Searched, Slots, Taken};

/// Slots in each half of a CPU's cache.
const CACHED: usize = 64;

/// A class of locks for the caches: their waits count beside those for lowtide's cluster locks,
/// their counterpart. A cache's lock is taken before the area's.
type CacheLock = Lock<Vec<u64>, { rank::CLUSTER }>;

pub struct Baseline {
    /// Unranked, so that its waits are in a class of their own.
    area: Lock<Clusters, { rank::UNRANKED }>,
    cpus: Vec<CacheAligned<Caches>>,
    /// 1 for slots held by users.
    map: Vec<AtomicU8>,
}

struct Caches {
    ready: CacheLock,
    freed: CacheLock,
}

impl Baseline {
    /// An area of `slots` slots, of which the first is never given out.
    pub fn new(slots: u64) -> Baseline {
        Self::with(slots, true)
    }

    /// The state before clusters had orders: runs come from free clusters only.
    pub fn without_orders(slots: u64) -> Baseline {
        Self::with(slots, false)
    }

    fn with(slots: u64, by_order: bool) -> Baseline {
        let cache = || CacheLock::new(Vec::with_capacity(CACHED));
        let cpus = percpu::count();
        Baseline {
            area: Lock::new(Clusters::new(slots as usize, cpus, by_order)),
            cpus: (0..cpus).map(|_| CacheAligned(Caches { ready: cache(), freed: cache() })).collect(),
            map: (0..slots).map(|_| AtomicU8::new(0)).collect(),
        }
    }

    fn alloc_one(&self) -> Option<u64> {
        let cpu = percpu::current();
        let caches = &self.cpus[cpu];
        let mut ready = caches.ready.lock();
        if ready.is_empty() {
            self.area.lock().take_singles(cpu, CACHED, &mut ready);
        }
        // Only try_lock: a thread never waits for two locks of one class.
        if ready.is_empty()
            && let Some(mut freed) = caches.freed.try_lock()
        {
            // The area is full, but for what the caches hold back.
            std::mem::swap(&mut *ready, &mut *freed);
        }
        ready.pop()
    }

    fn free_one(&self, slot: u64) {
        let mut freed = self.cpus[percpu::current()].freed.lock();
        freed.push(slot);
        if freed.len() == CACHED {
            // Neighbours together: they share a cluster and its cache line.
            freed.sort_unstable();
            let mut area = self.area.lock();
            for slot in freed.drain(..) {
                area.give(slot, 1);
            }
        }
    }

    /// Returns what the caches hold to the area.
    #[cfg(test)]
    fn drain(&self) {
        for caches in &self.cpus {
            for cache in [&caches.ready, &caches.freed] {
                let slots = std::mem::take(&mut *cache.lock());
                let mut area = self.area.lock();
                slots.iter().for_each(|slot| area.give(*slot, 1));
            }
        }
    }
}

impl Slots for Baseline {
    const SHARED: u8 = rank::UNRANKED;
    const LOCAL: u8 = rank::CLUSTER;

    fn alloc(&self, order: u32) -> Option<u64> {
        let first = match order {
            0 => self.alloc_one(),
            _ => self.area.lock().take(percpu::current(), order),
        }?;
        self.map[first as usize..][..1 << order].iter().for_each(|byte| byte.store(1, Relaxed));
        Some(first)
    }

    fn free(&self, first: u64, n: u64) {
        let in_use = |byte: &AtomicU8| byte.swap(0, Relaxed) == 1;
        assert!(self.map[first as usize..][..n as usize].iter().all(in_use), "slots freed that were not in use");
        match n {
            1 => self.free_one(first),
            _ => self.area.lock().give(first, n),
        }
    }

    fn has_free_run(&self, order: u32) -> bool {
        self.area.lock().has_free_run(order)
    }

    fn taken(&self) -> Taken {
        let of = |lock: &CacheLock| lock.acquisitions() as u64;
        let local = self.cpus.iter().map(|caches| of(&caches.ready) + of(&caches.freed)).sum();
        Taken { shared: self.area.acquisitions() as u64, local }
    }

    fn searched(&self) -> Searched {
        Searched::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const SLOTS: u64 = 512 * 9 + 100;
    /// Slot 0 and those beyond the end.
    const BLOCKED: usize = 1 + 412;

    #[test]
    fn no_slot_is_given_out_twice_and_all_come_back() {
        let slots = Baseline::new(SLOTS);
        let mut rng = fastrand::Rng::with_seed(1);
        let (mut used, mut held) = (HashSet::new(), Vec::new());
        for _ in 0..20_000 {
            let order = rng.choice([0, 0, 0, 2, 4, 9]).unwrap();
            if rng.u32(..100) < 55
                && let Some(first) = slots.alloc(order)
            {
                let run = first..first + (1 << order);
                assert!(first % (1 << order) == 0 && first > 0 && run.end <= SLOTS, "{first} of order {order}");
                assert!(run.into_iter().all(|s| used.insert(s)), "{first} of order {order} was in use");
                held.push((first, 1 << order));
            } else if !held.is_empty() {
                let (first, n) = held.swap_remove(rng.usize(..held.len()));
                assert!((first..first + n).all(|s| used.remove(&s)));
                slots.free(first, n);
            }
        }
        held.drain(..).for_each(|(first, n)| slots.free(first, n));
        slots.drain();
        assert_eq!(slots.area.lock().used(), BLOCKED);
        let whole = std::iter::from_fn(|| slots.alloc(9)).count();
        assert_eq!(whole, 8, "all clusters but the first and the last, which are not whole, are free again");
        assert!(!slots.has_free_run(9) && slots.has_free_run(8));
        let singles = std::iter::from_fn(|| slots.alloc(0)).count();
        assert_eq!(singles as u64, 511 + 100);
    }

    #[test]
    fn threads_share_it() {
        let slots = Baseline::new(SLOTS);
        let held: Vec<u64> = std::thread::scope(|scope| {
            let work = || {
                let mut mine: Vec<u64> = Vec::new();
                for i in 0..4_000 {
                    if i % 3 == 2 {
                        slots.free(mine.swap_remove(i % mine.len()), 1);
                    } else if let Some(slot) = slots.alloc(0) {
                        mine.push(slot);
                    }
                }
                mine
            };
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(work)).collect();
            threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(held.iter().collect::<HashSet<_>>().len(), held.len());
        held.iter().for_each(|slot| slots.free(*slot, 1));
        slots.drain();
        assert_eq!(slots.area.lock().used(), BLOCKED);
        assert!(slots.taken().local > 0);
    }
}
