//! Where the next allocation is tried first: per CPU and order the offset after the latest one, so that each CPU fills its own
//! cluster and takes only that cluster's lock; or, on rotating devices, one offset per order for the whole area under a lock,
//! so that all writes stay sequential.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::cluster::ORDERS;
use crate::lock::rank;
use crate::percpu::{self, CacheAligned};
use crate::sync::{Guard, Lock};

/// What one CPU remembers; all zeros at first.
#[derive(Debug, Default)]
struct Cpu {
    /// Offset of a slot of the cluster used last, by order; 0: none. Only a hint: wrong is slow, never harmful.
    next: [AtomicU64; ORDERS],
    searches: AtomicU64,
    opened: AtomicU64,
}

/// One offset per order, of the whole area.
type Shared = Lock<[u64; ORDERS], { rank::NEXT }>;

#[derive(Debug)]
pub(super) struct Next {
    cpus: Box<[CacheAligned<Cpu>]>,
    /// On rotating devices only.
    shared: Option<Shared>,
}

/// Which "next" an allocation uses; a rotating device's is locked as long as this lives.
pub(super) enum Hint<'a> {
    Cpu(&'a AtomicU64),
    Area(Guard<'a, [u64; ORDERS], { rank::NEXT }>, usize),
}

impl Next {
    pub(super) fn new(rotating: bool) -> Next {
        let cpus = (0..percpu::count()).map(|_| CacheAligned(Cpu::default())).collect();
        Next { cpus, shared: rotating.then(|| Lock::new([0; ORDERS])) }
    }

    #[inline]
    pub(super) fn hint(&self, order: u32) -> Hint<'_> {
        match &self.shared {
            None => Hint::Cpu(&self.cpus[percpu::current()].next[order as usize]),
            Some(shared) => Hint::Area(shared.lock(), order as usize),
        }
    }

    /// Counts one search beyond the first try, and the clusters that it opened. Figures for the lab; racing threads of one CPU
    /// may lose some.
    pub(super) fn count(&self, opened: u64) {
        let cpu = &self.cpus[percpu::current()];
        cpu.searches.store(cpu.searches.load(Relaxed) + 1, Relaxed);
        cpu.opened.store(cpu.opened.load(Relaxed) + opened, Relaxed);
    }

    /// Searches and clusters opened.
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
    /// Offset of a slot; 0: none.
    #[inline]
    pub(super) fn get(&self) -> u64 {
        match self {
            Hint::Cpu(next) => next.load(Relaxed),
            Hint::Area(next, order) => next[*order],
        }
    }

    #[inline]
    pub(super) fn set(&mut self, offset: u64) {
        match self {
            Hint::Cpu(next) => next.store(offset, Relaxed),
            Hint::Area(next, order) => next[*order] = offset,
        }
    }
}
