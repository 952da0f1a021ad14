//! Where the next allocation tries first. Per CPU and order: the offset after the latest one, so
//! each CPU fills its own cluster. On rotational devices: one offset per area under a lock, so all
//! threads and orders write one sequence without seeks.
//!
//! The lock is held while slots behind the offset or of the next free cluster are taken: some
//! hundred nanoseconds without blocking. Slower steps of a search run without it.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::cluster::{CLUSTER_SLOTS, ORDERS};
use crate::lock::rank;
use crate::percpu::{self, CacheAligned, Zone};
use crate::sync::Lock;

#[derive(Debug, Default)]
struct Cpu {
    /// In the latest cluster, by order; 0: none. A wrong one is slow, never harmful.
    next: [AtomicU64; ORDERS],
}

/// 0: none.
type Shared = Lock<u64, { rank::NEXT }>;

#[derive(Debug)]
pub(super) struct Next {
    cpus: Box<[CacheAligned<Cpu>]>,
    /// Log2 of their count.
    zones: u32,
    /// On rotational devices only.
    shared: Option<Shared>,
}

#[derive(Clone, Copy)]
pub(super) enum Hint<'a> {
    Cpu(&'a AtomicU64),
    Area(&'a Shared),
}

/// The offset after a cluster's last slot is still that cluster's.
#[inline]
pub(super) fn cluster_before(next: u64) -> Option<usize> {
    (next as usize).checked_sub(1).map(|slot| slot / CLUSTER_SLOTS)
}

impl Next {
    /// `zones`: log2; 0 on a rotational device.
    pub(super) fn new(rotating: bool, zones: u32) -> Next {
        let cpus = (0..percpu::count()).map(|_| CacheAligned(Cpu::default())).collect();
        Next { cpus, zones, shared: rotating.then(|| Lock::new(0)) }
    }

    #[inline]
    pub(super) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Clusters that this CPU takes first; all if the offset is shared.
    pub(super) fn zone(&self) -> Zone {
        if self.is_shared() { Zone::ALL } else { Zone::own(self.zones) }
    }

    /// `None` if all CPUs share one.
    #[inline]
    pub(super) fn own(&self, order: u32) -> Option<&AtomicU64> {
        match self.shared {
            None => Some(&self.cpus[percpu::current_of(self.cpus.len())].next[order as usize]),
            Some(_) => None,
        }
    }

    #[inline]
    pub(super) fn hint(&self, order: u32) -> Hint<'_> {
        match &self.shared {
            None => Hint::Cpu(&self.cpus[percpu::current_of(self.cpus.len())].next[order as usize]),
            Some(shared) => Hint::Area(shared),
        }
    }

    pub(super) fn table_bytes(&self) -> usize {
        size_of_val(&*self.cpus)
    }

    /// # Safety
    /// As [`Lock::reset_after_fork`].
    pub(super) unsafe fn reset_after_fork(&self) {
        if let Some(shared) = &self.shared {
            // SAFETY: the caller's contract.
            unsafe { shared.reset_after_fork() }
        }
    }
}

impl Hint<'_> {
    /// For the area's, the caller holds no cluster lock.
    #[inline]
    pub(super) fn get(self) -> u64 {
        match self {
            Hint::Cpu(next) => next.load(Relaxed),
            Hint::Area(next) => *next.lock(),
        }
    }

    /// The area's stays: the caller holds a cluster lock.
    #[inline]
    pub(super) fn set_own(self, offset: u64) {
        if let Hint::Cpu(next) = self {
            next.store(offset, Relaxed);
        }
    }

    /// The caller holds no cluster lock.
    pub(super) fn set_shared(self, offset: u64) {
        if let Hint::Area(next) = self {
            *next.lock() = offset;
        }
    }
}
