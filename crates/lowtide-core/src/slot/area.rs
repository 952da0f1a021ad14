//! A swap area: slots in clusters, a table word for each, and the references of forked children.
//! Frees are here; allocation is in `search.rs`.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::io::Errno;

use super::age::Ages;
use super::availability::{Availability, Unavailable};
use super::cluster::CLUSTER_SLOTS;
use super::clusters::Clusters;
use super::error::SlotError;
use super::io::IoCounts;
use super::lab::{Allocator, AreaLock, Searches};
use super::lists::LockedInner;
use super::next::Next;
use super::quota::Quota;
use super::sharing::Sharing;
use super::swap_cache::CacheMarks;
use crate::device::Device;
use crate::percpu::Zone;
use crate::table::Table;
use crate::vm::OnFork;

/// Most slots of an area: the limit of an entry.
pub const MAX_SLOTS: u64 = 1 << 40;

/// The setup of an area.
#[derive(Debug, Clone, Copy, Default)]
pub struct AreaConfig {
    /// Slots, with slot 0, which is never allocated.
    pub slots: u64,
    /// Areas of higher priority come first; equal ones take turns.
    pub priority: i16,
    /// Rotational device: all threads write one sequence of slots (`next.rs`).
    pub rotating: bool,
    /// Punches out free clusters before reuse.
    pub discard: bool,
    /// Forked children can share slots.
    pub shared: bool,
    /// Limits the clusters in use.
    pub quota: Option<Quota>,
    /// For experiments.
    pub allocator: Allocator,
}

/// A swap area. All methods are thread-safe unless they say otherwise.
///
/// A slot's table word is the caller's; 0: this process has nothing there. The area only tells free
/// slots from used ones. A used slot with word 0 is about to be filled, or a zombie: freed by this
/// process, but not yet by a forked child.
#[derive(Debug)]
pub struct Area {
    /// Higher first.
    pub priority: i16,
    /// `None`: slots only name objects in the pool.
    pub device: Option<Device>,
    /// Clusters with slots of the caller's pages in RAM.
    pub ages: Ages,
    /// I/O counts.
    pub io: IoCounts,
    words: Table<AtomicU64>,
    clusters: Clusters,
    next: Next,
    availability: Availability,
    marks: CacheMarks,
    /// A used slot has no reference.
    has_bad: AtomicBool,
    sharing: Option<Sharing>,
    area_lock: Option<AreaLock>,
    searches: Searches,
}

impl Area {
    /// An area with no slot in use.
    ///
    /// # Errors
    /// `Empty`, `SmallerThanCluster`, `TooLarge`, or `NoMemory` for its tables.
    pub fn new(device: Option<Device>, cfg: AreaConfig) -> Result<Area, SlotError> {
        match cfg.slots {
            0 => return Err(SlotError::Empty),
            n if n < CLUSTER_SLOTS as u64 => return Err(SlotError::SmallerThanCluster),
            n if n > MAX_SLOTS => return Err(SlotError::TooLarge),
            _ => {}
        }
        let n = cfg.slots as usize;
        let n_clusters = n.div_ceil(CLUSTER_SLOTS);
        let cfg = cfg.allocator.adapt(cfg);
        let area = || {
            let zones = if cfg.rotating { 0 } else { Zone::shares(n_clusters) };
            let clusters = Clusters::new(&cfg, zones)?;
            Ok(Area {
                priority: cfg.priority,
                device,
                ages: Ages::new(n_clusters)?,
                io: IoCounts::default(),
                words: Table::new(n, OnFork::Copy)?,
                next: Next::new(cfg.rotating, zones),
                clusters,
                availability: Availability::new(n_clusters as u64),
                marks: CacheMarks::new(n_clusters)?,
                has_bad: AtomicBool::new(false),
                sharing: if cfg.shared { Some(Sharing::new(n_clusters)?) } else { None },
                area_lock: cfg.allocator.area_lock(),
                searches: Searches::new(),
            })
        };
        area().map_err(|_: Errno| SlotError::NoMemory)
    }

    #[inline]
    pub(super) fn clusters(&self) -> &Clusters {
        &self.clusters
    }

    #[inline]
    pub(super) fn next(&self) -> &Next {
        &self.next
    }

    #[inline]
    pub(super) fn availability(&self) -> &Availability {
        &self.availability
    }

    #[inline]
    pub(super) fn marks(&self) -> &CacheMarks {
        &self.marks
    }

    #[inline]
    pub(super) fn sharing(&self) -> Option<&Sharing> {
        self.sharing.as_ref()
    }

    #[inline]
    pub(super) fn searches(&self) -> &Searches {
        &self.searches
    }

    #[inline]
    pub(super) fn area_lock(&self) -> Option<&AreaLock> {
        // A forked child neither allocates nor frees in its parent's area.
        self.area_lock.as_ref().filter(|_| !self.is_inherited())
    }

    /// Drops this process's reference to a slot, whose table word is 0 by now; the last one frees
    /// it. Once per slot that this process was given or got by a fork; [`Area::free_run`] reports
    /// misuse.
    pub fn release(&self, slot: u64) {
        let freed = self.free_run(slot, 1);
        debug_assert!(freed.is_ok(), "slot {slot}: {freed:?}");
    }

    /// As [`Area::release`], for `n` slots of one cluster, under one hold of its lock.
    ///
    /// # Errors
    /// `NoSuchSlot`, `AcrossClusters`, `NotInUse`: nothing has changed. In a parent's area, without
    /// a common lock, references are dropped one by one.
    pub fn free_run(&self, first: u64, n: u64) -> Result<(), SlotError> {
        match self.area_lock() {
            Some(lock) => lock.free(self, first, n),
            None => self.free_run_now(first, n),
        }
    }

    pub(super) fn free_run_now(&self, first: u64, n: u64) -> Result<(), SlotError> {
        let (i, index) = (first as usize / CLUSTER_SLOTS, first as usize % CLUSTER_SLOTS);
        let end = first.checked_add(n).ok_or(SlotError::NoSuchSlot)?;
        if first == 0 || end > self.opened_slots().min(self.slots()) {
            return Err(SlotError::NoSuchSlot);
        }
        if n == 0 || index + n as usize > CLUSTER_SLOTS {
            return Err(SlotError::AcrossClusters);
        }
        if let Some(sharing) = self.sharing.as_ref().filter(|_| self.is_inherited()) {
            // The owner finds out (`zombies.rs`).
            (first..end).for_each(|slot| sharing.drop_one(slot as usize));
            return Ok(());
        }
        let mut inner = self.clusters.lock(i);
        if self.give_at_hand(i, &mut inner, index, n as usize) { Ok(()) } else { self.give_all(i, inner, index, n as usize) }
    }

    #[inline(never)]
    fn give_all(&self, i: usize, mut inner: LockedInner<'_>, index: usize, n: usize) -> Result<(), SlotError> {
        if !inner.all_used(index, n) {
            return Err(SlotError::NotInUse);
        }
        match &self.sharing {
            None => self.give(i, &mut inner, index, n),
            Some(sharing) => self.give_what_is_not_held(sharing, i, &mut inner, index, n),
        }
        Ok(())
    }

    /// Slots with other references become zombies.
    fn give_what_is_not_held(&self, sharing: &Sharing, i: usize, inner: &mut LockedInner<'_>, index: usize, n: usize) {
        let held = sharing.held(i, index, n);
        // Length of the unreferenced run that ends here.
        let mut last = 0;
        for index in index..index + n {
            if !held.is_set(index) {
                last += 1;
                continue;
            }
            let slot = i * CLUSTER_SLOTS + index;
            self.marks.set(inner, slot, false);
            self.index_copies(i, inner, index, 1);
            sharing.zombies.add(inner, slot);
            self.give(i, inner, index - last, last);
            last = 0;
        }
        self.give(i, inner, index + n - last, last);
    }

    #[inline]
    pub(super) fn give(&self, i: usize, inner: &mut LockedInner<'_>, index: usize, n: usize) {
        if n == 0 {
            return;
        }
        self.give_in_place(i, inner, index, n);
        self.clusters.relocate(i, inner);
    }

    /// The caller relocates the cluster.
    #[inline]
    pub(super) fn give_in_place(&self, i: usize, inner: &mut LockedInner<'_>, index: usize, n: usize) {
        let full = inner.is_full();
        inner.give(index, n);
        if inner.caches > 0 {
            let first = i * CLUSTER_SLOTS + index;
            (first..first + n).for_each(|slot| self.marks.set(inner, slot, false));
        }
        self.index_copies(i, inner, index, n);
        if full {
            self.availability.cluster_has_room();
        }
    }

    /// A slot's table word; `None` in clusters never used.
    pub fn word(&self, slot: u64) -> Option<&AtomicU64> {
        if slot >= self.opened_slots() { None } else { self.words.get(slot as usize) }
    }

    /// Notes that a slot without references stays used: the device can't write it.
    pub fn has_bad_slot(&self) {
        // Relaxed: read before a fork, which comes after all stores.
        self.has_bad.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_bad_slots(&self) -> bool {
        self.has_bad.load(Ordering::Relaxed)
    }

    /// Whether all threads write one sequence of slots.
    pub fn is_rotating(&self) -> bool {
        self.next.is_shared()
    }

    /// Calls `f` with each slot of opened clusters, and its table word.
    pub fn each_word(&self, mut f: impl FnMut(u64, &AtomicU64)) {
        let opened = (self.opened_slots() as usize).min(self.words.len());
        for (slot, word) in self.words[..opened].iter().enumerate() {
            f(slot as u64, word);
        }
    }

    /// Whether `f` returns true for a table word of opened clusters; stops at the first: a TiB has
    /// 268 million.
    pub fn any_word(&self, mut f: impl FnMut(u64) -> bool) -> bool {
        let opened = (self.opened_slots() as usize).min(self.words.len());
        self.words[..opened].iter().any(|word| f(word.load(Ordering::Relaxed)))
    }

    /// Number of clusters ever used.
    pub fn opened_clusters(&self) -> usize {
        self.clusters.opened()
    }

    /// Slots of the clusters ever used.
    pub fn opened_slots(&self) -> u64 {
        self.clusters.opened() as u64 * CLUSTER_SLOTS as u64
    }

    /// Slots of the area.
    pub fn slots(&self) -> u64 {
        self.clusters.slots()
    }

    /// Bytes counted against the quota: used, and not punched out since.
    pub fn opened_bytes(&self) -> u64 {
        self.clusters.charged_bytes()
    }

    /// Used slots, with slot 0 and zombies. Locks every cluster.
    pub fn used(&self) -> u64 {
        self.clusters.used()
    }

    /// Whether counters say that no slot is free and no cluster can be opened.
    pub fn is_full(&self) -> bool {
        self.availability.is_full() || self.clusters.are_full_and_unaffordable()
    }

    /// Why no slots are available, if certain. [`Area::is_full`] covers the quota. Reads the clock
    /// if the device fails.
    pub fn unavailable(&self) -> Option<Unavailable> {
        self.availability.reason()
    }

    /// Whether pages can be written here.
    pub fn takes_writes(&self) -> bool {
        self.device.is_some() && matches!(self.unavailable(), None | Some(Unavailable::Full))
    }

    /// Whether writes pause after device failures. Reads the clock then.
    pub fn rests(&self) -> bool {
        self.availability.rests()
    }

    /// The error of the latest write, if it failed.
    pub fn failing(&self) -> Option<Errno> {
        self.availability.failing()
    }

    #[cfg(test)]
    pub(crate) fn pass_rest(&self) {
        self.availability.pass_rest();
    }

    /// Whether the area is neither closed nor a parent's.
    pub fn is_open(&self) -> bool {
        self.availability.is_open()
    }

    /// Whether swapoff has closed it.
    pub fn is_closed(&self) -> bool {
        self.availability.is_closed()
    }

    /// Whether a parent made the area: no allocations here.
    pub fn is_inherited(&self) -> bool {
        self.availability.is_inherited()
    }

    /// Bytes of the area's tables.
    pub fn table_bytes(&self) -> usize {
        let sharing = self.sharing.as_ref().map_or(0, Sharing::table_bytes);
        self.words.populated_bytes()
            + sharing
            + self.clusters.table_bytes()
            + self.marks.table_bytes()
            + self.ages.table_bytes()
            + self.next.table_bytes()
    }

    /// Child side of a fork: a shared area becomes inherited; a private one is a copy.
    ///
    /// # Safety
    /// As [`crate::lock::Lock::reset_after_fork`].
    pub unsafe fn after_fork(&self) {
        // SAFETY: the caller's contract.
        unsafe {
            self.clusters.reset_after_fork(!self.is_shared());
            self.next.reset_after_fork();
        }
        if let Some(lock) = &self.area_lock {
            // SAFETY: the caller's contract.
            unsafe { lock.reset_after_fork() }
        }
        self.io.after_fork();
        if self.is_shared() {
            self.availability.inherit();
        }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // The parent accounts for its own areas.
        if !self.is_inherited() {
            self.clusters.uncharge_all();
        }
    }
}
