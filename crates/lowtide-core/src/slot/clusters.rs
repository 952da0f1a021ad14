//! The clusters of an area: which were ever used, their places, their used slots, and their quota.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;

use super::area::AreaConfig;
use super::cluster::{CLUSTER_SLOTS, Cluster, Inner, ListState};
use super::index::{Index, Level};
use super::lab::AnyRival;
use super::lists::{self, ListId, Lists, LockedInner, Place, Places};
use super::quota::Charge;
use crate::lock::rank;
use crate::percpu::{CacheAligned, Zone};
use crate::sync::{Array, Guard};
use crate::vm::{OnFork, PAGE_SIZE};

/// A cluster updates the area's count of used slots when it is empty or this many have changed: all
/// CPUs share that cache line.
const TELL: u16 = 32;

/// Clusters of a search by number: 2 GiB of a disk.
const REACH: usize = 1024;

/// Thread-safe unless a method says otherwise.
#[derive(Debug)]
pub(super) struct Clusters {
    slots: u64,
    pub(super) array: Array<Cluster>,
    pub(super) places: Places,
    /// Replaces the index.
    rival: Option<AnyRival>,
    discard: bool,
    /// Clusters below this were ever used. Only grows, under the list lock.
    opened: AtomicU32,
    charge: Charge,
    used_about: CacheAligned<AtomicU64>,
}

impl Clusters {
    /// `zones`: log2.
    pub(super) fn new(cfg: &AreaConfig, zones: u32) -> Result<Clusters, Errno> {
        let clusters = (cfg.slots as usize).div_ceil(CLUSTER_SLOTS);
        Ok(Clusters {
            slots: cfg.slots,
            array: Array::new(clusters, OnFork::Copy)?,
            places: Places::new(clusters, zones)?,
            rival: cfg.allocator.rival(),
            discard: cfg.discard,
            opened: AtomicU32::new(0),
            charge: Charge::new(cfg.quota),
            used_about: CacheAligned(AtomicU64::new(0)),
        })
    }

    #[inline]
    pub(super) fn slots(&self) -> u64 {
        self.slots
    }

    pub(super) fn slots_of(&self, i: usize) -> u64 {
        (self.slots - (i * CLUSTER_SLOTS) as u64).min(CLUSTER_SLOTS as u64)
    }

    #[inline]
    pub(super) fn opened(&self) -> usize {
        // Acquire: pairs with the Release in `open`.
        self.opened.load(Ordering::Acquire) as usize
    }

    pub(super) fn are_all_opened(&self) -> bool {
        self.opened.load(Ordering::Relaxed) as usize == self.array.len()
    }

    pub(super) fn discards(&self) -> bool {
        self.discard
    }

    /// Without the lab a constant, with which the compiler drops the branches.
    #[inline]
    pub(super) fn rival(&self) -> Option<&AnyRival> {
        self.rival.as_ref()
    }

    #[inline]
    pub(super) fn index(&self) -> &Index {
        &self.places.index
    }

    #[inline]
    pub(super) fn lock(&self, i: usize) -> LockedInner<'_> {
        self.array[i].0.lock()
    }

    #[inline]
    pub(super) fn try_lock(&self, i: usize) -> Option<LockedInner<'_>> {
        self.array[i].0.try_lock()
    }

    #[cfg(all(test, not(any(feature = "loom", feature = "shuttle"))))]
    pub(super) fn is_awaited(&self, i: usize) -> bool {
        self.array[i].0.is_awaited()
    }

    pub(super) fn isolate(&self, list: ListId, zone: Zone) -> Option<(usize, LockedInner<'_>)> {
        self.places.isolate(&self.array, list, zone)
    }

    /// Isolates the first free unlocked cluster from `from` on; `grow`: even one that is not part
    /// of the file yet, or no more. Beyond [`REACH`] none is better than another.
    pub(super) fn isolate_free(&self, from: usize, grow: bool) -> Option<(usize, LockedInner<'_>)> {
        if self.len(ListId::FREE) == 0 {
            return None;
        }
        let found = (from..self.opened().min(from + REACH)).find_map(|i| {
            let inner = self.try_lock(i)?;
            (inner.state == ListState::Free && (grow || inner.charged)).then_some((i, inner))
        });
        found.map(|(i, mut inner)| {
            self.places.take_off(i, &mut inner);
            (i, inner)
        })
    }

    #[inline]
    pub(super) fn len(&self, list: ListId) -> usize {
        self.places.len(list)
    }

    #[inline]
    pub(super) fn place_of(&self, inner: &Inner) -> Place {
        match inner.count {
            0 if self.discard => Place::List(ListId::DISCARD),
            0 => Place::List(ListId::FREE),
            _ => self.place_of_used(inner),
        }
    }

    #[inline]
    fn place_of_used(&self, inner: &Inner) -> Place {
        match self.rival() {
            Some(rival) => Place::List(rival.list_of(inner)),
            None => Place::Index(Level::of(inner)),
        }
    }

    /// The usual case after a free.
    #[inline]
    pub(super) fn is_in_place(&self, inner: &Inner) -> bool {
        inner.state == ListState::Frag && inner.count > 0 && lists::is_at(inner, Level::of(inner))
    }

    /// Also updates the count of used slots, if due.
    #[inline]
    pub(super) fn relocate(&self, i: usize, inner: &mut LockedInner<'_>) {
        let to = self.place_of(inner);
        self.move_to(i, inner, to);
        self.tell(inner);
    }

    #[inline]
    pub(super) fn move_to(&self, i: usize, inner: &mut LockedInner<'_>, to: Place) {
        self.places.move_to(i, inner, to);
    }

    /// Updates the area's count, if due.
    #[inline]
    pub(super) fn tell(&self, inner: &mut LockedInner<'_>) {
        if inner.count.abs_diff(inner.told) >= TELL || inner.count == 0 {
            let more = u64::from(inner.count).wrapping_sub(inner.told.into());
            self.used_about.fetch_add(more, Ordering::Relaxed);
            inner.told = inner.count;
        }
    }

    /// Off by up to [`TELL`] per cluster.
    #[inline]
    pub(super) fn used_about(&self) -> u64 {
        self.used_about.load(Ordering::Relaxed)
    }

    /// With slot 0 and zombies. Locks every cluster.
    pub(super) fn used(&self) -> u64 {
        let count = |i: usize| u64::from(self.lock(i).count);
        (0..self.opened()).map(|i| count(i) + self.slots_of(i) - CLUSTER_SLOTS as u64).sum()
    }

    /// False: no room in the quota.
    pub(super) fn charge(&self, i: usize, inner: &mut LockedInner<'_>) -> bool {
        inner.charged = self.charge.take(self.slots_of(i) * PAGE_SIZE as u64);
        inner.charged
    }

    pub(super) fn uncharge(&self, i: usize, inner: &mut LockedInner<'_>) {
        self.charge.give(self.slots_of(i) * PAGE_SIZE as u64);
        inner.charged = false;
    }

    pub(super) fn uncharge_all(&self) {
        self.charge.give(self.charge.bytes());
    }

    pub(super) fn charged_bytes(&self) -> u64 {
        self.charge.bytes()
    }

    /// Charged, or still possible.
    pub(super) fn affordable_slots(&self) -> u64 {
        self.charge.affordable() / PAGE_SIZE as u64
    }

    /// Whether counters say that no slot is free and the quota allows no further cluster.
    pub(super) fn are_full_and_unaffordable(&self) -> bool {
        let about_full = || {
            // Uncharged clusters have reported 0 used slots.
            let charged = self.charged_bytes() / (CLUSTER_SLOTS * PAGE_SIZE) as u64;
            self.used_about() + charged * u64::from(TELL) >= charged * CLUSTER_SLOTS as u64
        };
        self.charge.is_out_of((CLUSTER_SLOTS * PAGE_SIZE) as u64) && about_full()
    }

    /// Opens a cluster never used, if size and quota allow: locked, on no list.
    pub(super) fn open(&self) -> Option<(usize, LockedInner<'_>)> {
        if self.are_all_opened() {
            return None;
        }
        let (i, mut inner) = {
            let _lists = self.places.lists.lock();
            let i = self.opened.load(Ordering::Relaxed) as usize;
            let mut inner = self.array.get(i)?.0.try_lock()?;
            if !self.charge(i, &mut inner) {
                return None;
            }
            // Release: pairs with the Acquire in `opened`.
            self.opened.store(i as u32 + 1, Ordering::Release);
            (i, inner)
        };
        let slots = self.slots_of(i) as usize;
        if i == 0 {
            inner.occupy(0, 1);
        }
        if slots < CLUSTER_SLOTS {
            inner.occupy(slots, CLUSTER_SLOTS - slots);
        }
        // Slots beyond the end do not count as used; slot 0 always does.
        inner.told = (CLUSTER_SLOTS - slots) as u16;
        Some((i, inner))
    }

    pub(super) fn lock_lists(&self) -> Guard<'_, Lists, { rank::LISTS }> {
        self.places.lists.lock()
    }

    pub(super) fn table_bytes(&self) -> usize {
        self.array.populated_bytes() + self.places.table_bytes()
    }

    /// `own`: the clusters are this process's now.
    ///
    /// # Safety
    /// As [`crate::lock::Lock::reset_after_fork`].
    pub(super) unsafe fn reset_after_fork(&self, own: bool) {
        // SAFETY: the caller's contract.
        unsafe { self.places.lists.reset_after_fork() };
        if own {
            for i in 0..self.opened.load(Ordering::Relaxed) as usize {
                // SAFETY: the caller's contract.
                unsafe { self.array[i].0.reset_after_fork() };
            }
        }
    }
}
