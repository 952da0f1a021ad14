//! What searches and locks cost.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::percpu::{self, CacheAligned};
use crate::slot::area::Area;

/// Clusters that one request opened.
#[derive(Clone, Copy, Debug)]
pub(in crate::slot) struct Opened(u64);

impl Opened {
    pub(in crate::slot) const NONE: Opened = Opened(0);

    #[inline]
    pub(in crate::slot) fn add_one(&mut self) {
        self.0 += 1;
    }

    pub(super) fn since(self, before: Opened) -> u64 {
        self.0 - before.0
    }
}

#[derive(Debug, Default)]
struct Cpu {
    searches: AtomicU64,
    opened: AtomicU64,
}

/// Searches beyond the first try, of an area.
#[derive(Debug)]
pub(in crate::slot) struct Searches(Box<[CacheAligned<Cpu>]>);

impl Searches {
    pub(in crate::slot) fn new() -> Searches {
        Searches((0..percpu::count()).map(|_| CacheAligned(Cpu::default())).collect())
    }

    /// Races may lose some.
    pub(in crate::slot) fn add(&self, opened: Opened) {
        let cpu = &self.0[percpu::current()];
        cpu.searches.store(cpu.searches.load(Relaxed) + 1, Relaxed);
        cpu.opened.store(cpu.opened.load(Relaxed) + opened.0, Relaxed);
    }
}

/// Work beyond first tries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SearchStats {
    /// Allocations that this CPU's own cluster could not serve.
    pub searches: u64,
    /// Clusters that these opened.
    pub opened: u64,
}

impl Area {
    /// Whether 2^`order` aligned free slots exist. Locks every cluster.
    pub fn has_free_run(&self, order: u32) -> bool {
        let clusters = self.clusters();
        !clusters.are_all_opened() || (0..clusters.opened()).any(|i| clusters.lock(i).find_best() >= Some(order))
    }

    /// Statistics so far.
    pub fn search_stats(&self) -> SearchStats {
        let sum = |of: fn(&Cpu) -> &AtomicU64| self.searches().0.iter().map(|cpu| of(cpu).load(Relaxed)).sum();
        SearchStats { searches: sum(|cpu| &cpu.searches), opened: sum(|cpu| &cpu.opened) }
    }

    /// Acquisitions of all cluster locks, and of the list lock. Takes each.
    pub fn lock_acquisitions(&self) -> (u64, u64) {
        let clusters = self.clusters();
        let of_clusters = (0..clusters.opened()).map(|i| u64::from(clusters.array[i].0.acquisitions())).sum();
        (of_clusters, clusters.places.lists.acquisitions().into())
    }
}
