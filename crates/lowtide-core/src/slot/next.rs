//! Where the next allocation is tried first: per CPU and order the offset after the latest one, so that each CPU fills its own
//! cluster and takes only that cluster's lock; or, on rotating devices, one offset for the whole area under a lock, so that all
//! threads write one sequence, whatever sizes they write. (An offset for each order would be a place for each, between which
//! the heads go back and forth.)
//!
//! The lock is held while slots behind the offset, or of the next free cluster, are taken: for some hundred nanoseconds, in
//! which nothing blocks. Whatever else a search does (it may take copies back, or punch holes) goes without it, and then says
//! where it found something.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::cluster::ORDERS;
use crate::lock::rank;
use crate::percpu::{self, CacheAligned, Zone};
use crate::sync::Lock;

/// What one CPU remembers; all zeros at first.
#[derive(Debug, Default)]
struct Cpu {
    /// Offset of a slot of the cluster used last, by order; 0: none. Only a hint: wrong is slow, never harmful.
    next: [AtomicU64; ORDERS],
    #[cfg(feature = "lab")]
    searches: AtomicU64,
    #[cfg(feature = "lab")]
    opened: AtomicU64,
}

/// The offset of the whole area; 0: none.
type Shared = Lock<u64, { rank::NEXT }>;

#[derive(Debug)]
pub(super) struct Next {
    cpus: Box<[CacheAligned<Cpu>]>,
    /// How many zones CPUs keep to, as a power of two.
    zones: u32,
    /// On rotating devices only.
    shared: Option<Shared>,
}

/// Which "next" an allocation uses.
#[derive(Clone, Copy)]
pub(super) enum Hint<'a> {
    Cpu(&'a AtomicU64),
    Area(&'a Shared),
}

impl Next {
    /// `zones`: how many CPUs keep to, as a power of two; 0 on a device that turns.
    pub(super) fn new(rotating: bool, zones: u32) -> Next {
        let cpus = (0..percpu::count()).map(|_| CacheAligned(Cpu::default())).collect();
        Next { cpus, zones, shared: rotating.then(|| Lock::new(0)) }
    }

    /// Whether all CPUs share one.
    #[inline]
    pub(super) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// The clusters that this CPU takes first: without a "next" of its own it has none of its own.
    pub(super) fn zone(&self) -> Zone {
        if self.is_shared() { Zone::ALL } else { Zone::own(self.zones) }
    }

    #[inline]
    pub(super) fn hint(&self, order: u32) -> Hint<'_> {
        match &self.shared {
            None => Hint::Cpu(&self.cpus[percpu::current()].next[order as usize]),
            Some(shared) => Hint::Area(shared),
        }
    }

    /// Counts one search beyond the first try, and the clusters that it opened. Racing threads of one CPU may lose some.
    #[cfg(feature = "lab")]
    pub(super) fn count(&self, opened: u64) {
        let cpu = &self.cpus[percpu::current()];
        cpu.searches.store(cpu.searches.load(Relaxed) + 1, Relaxed);
        cpu.opened.store(cpu.opened.load(Relaxed) + opened, Relaxed);
    }

    /// Searches and clusters opened.
    #[cfg(feature = "lab")]
    pub(super) fn counted(&self) -> (u64, u64) {
        self.cpus.iter().fold((0, 0), |(s, o), cpu| (s + cpu.searches.load(Relaxed), o + cpu.opened.load(Relaxed)))
    }

    pub(super) fn table_bytes(&self) -> usize {
        size_of_val(&*self.cpus)
    }

    /// See [`Lock::reset_after_fork`].
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn reset_after_fork(&self) {
        if let Some(shared) = &self.shared {
            // SAFETY: the caller answers.
            unsafe { shared.reset_after_fork() }
        }
    }
}

impl Hint<'_> {
    /// Offset of a slot; 0: none. Where it is the area's, the caller holds no lock of a cluster.
    #[inline]
    pub(super) fn get(self) -> u64 {
        match self {
            Hint::Cpu(next) => next.load(Relaxed),
            Hint::Area(next) => *next.lock(),
        }
    }

    /// This CPU's own goes on at `offset`. The area's stays: a cluster's lock is held.
    #[inline]
    pub(super) fn set_own(self, offset: u64) {
        if let Hint::Cpu(next) = self {
            next.store(offset, Relaxed);
        }
    }

    /// The area's goes on at `offset`, where a search found something. The caller holds no lock of a cluster.
    pub(super) fn set_shared(self, offset: u64) {
        if let Hint::Area(next) = self {
            *next.lock() = offset;
        }
    }
}
