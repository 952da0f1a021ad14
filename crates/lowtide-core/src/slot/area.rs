//! A swap area: slots in clusters, a table word for each, and (where forked children may share them) who else refers to them.
//! Frees are here; allocation is in `search.rs`.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::io::Errno;

use super::age::Ages;
use super::availability::{Availability, Unavailable};
use super::cluster::CLUSTER_SLOTS;
use super::clusters::Clusters;
use super::error::SlotError;
use super::io::IoCounts;
#[cfg(feature = "lab")]
use super::lab::{Policy, area_lock::AreaLock};
use super::lists::LockedInner;
use super::next::Next;
use super::quota::Quota;
use super::sharing::Sharing;
use super::swap_cache::CacheMarks;
use crate::device::Device;
use crate::percpu::Zone;
use crate::table::Table;
use crate::vm::OnFork;

/// Most slots of an area: what an entry can name.
pub const MAX_SLOTS: u64 = 1 << 40;

/// How an area is set up.
#[derive(Debug, Clone, Copy, Default)]
pub struct AreaConfig {
    /// Slots, with slot 0, which is never given out.
    pub slots: u64,
    /// Areas of higher priority are used first; those of the same in turn.
    pub priority: i16,
    /// The device turns: all threads write one sequence of slots (`next.rs`). For [`Policy::Exact`] only.
    pub rotating: bool,
    /// Clusters that become free are punched out before they are given out again.
    pub discard: bool,
    /// Slots can be shared with forked children.
    pub shared: bool,
    /// What clusters in use count against.
    pub quota: Option<Quota>,
    /// How partly used clusters are searched.
    #[cfg(feature = "lab")]
    pub policy: Policy,
    /// One lock for the whole area, and no discard, which would be I/O under it (`lab/area_lock.rs`).
    #[cfg(feature = "lab")]
    pub area_lock: bool,
}

/// A swap area. All methods are thread-safe unless they say otherwise.
///
/// A slot's table word is the caller's; 0 means that this process has nothing there. The area itself only tells free slots from
/// used ones. A used slot whose word is 0 is either about to be filled, or a zombie: freed by this process, but not yet by a
/// forked child.
#[derive(Debug)]
pub struct Area {
    /// Its place among the areas: higher first.
    pub priority: i16,
    /// Where the bytes go; `None`: nowhere, the slots are names for objects in the pool.
    pub device: Option<Device>,
    /// Which clusters the caller's pages in RAM have slots in.
    pub ages: Ages,
    /// What was done with the device.
    pub io: IoCounts,
    words: Table<AtomicU64>,
    clusters: Clusters,
    next: Next,
    availability: Availability,
    marks: CacheMarks,
    /// A slot is in use and nobody's.
    has_bad: AtomicBool,
    /// Who else refers to slots; `None`: nobody ever does.
    sharing: Option<Sharing>,
    #[cfg(feature = "lab")]
    area_lock: Option<AreaLock>,
}

impl Area {
    /// An area with no slot in use.
    ///
    /// # Errors
    /// `Empty`, `SmallerThanCluster`, `TooLarge`, or `NoMemory` when its tables cannot be mapped.
    pub fn new(device: Option<Device>, cfg: AreaConfig) -> Result<Area, SlotError> {
        match cfg.slots {
            0 => return Err(SlotError::Empty),
            n if n < CLUSTER_SLOTS as u64 => return Err(SlotError::SmallerThanCluster),
            n if n > MAX_SLOTS => return Err(SlotError::TooLarge),
            _ => {}
        }
        let n = cfg.slots as usize;
        let n_clusters = n.div_ceil(CLUSTER_SLOTS);
        #[cfg(feature = "lab")]
        let cfg =
            AreaConfig { discard: cfg.discard && !cfg.area_lock, rotating: cfg.rotating && cfg.policy == Policy::Exact, ..cfg };
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
                #[cfg(feature = "lab")]
                area_lock: cfg.area_lock.then(AreaLock::new),
            })
        };
        area().map_err(|_: Errno| SlotError::NoMemory)
    }

    /// The clusters, and where they are.
    #[inline]
    pub(super) fn clusters(&self) -> &Clusters {
        &self.clusters
    }

    /// Where allocations are tried first.
    #[inline]
    pub(super) fn next(&self) -> &Next {
        &self.next
    }

    /// Whether slots may be given out.
    #[inline]
    pub(super) fn availability(&self) -> &Availability {
        &self.availability
    }

    /// Which slots hold only a cache mark.
    #[inline]
    pub(super) fn marks(&self) -> &CacheMarks {
        &self.marks
    }

    /// Who else refers to slots; `None`: nobody ever does.
    #[inline]
    pub(super) fn sharing(&self) -> Option<&Sharing> {
        self.sharing.as_ref()
    }

    /// The lock of the whole area; `None`: it has none.
    #[cfg(feature = "lab")]
    pub(super) fn area_lock(&self) -> Option<&AreaLock> {
        // A forked child takes nothing of its parent's area, and gives nothing back that a lock of both could guard.
        self.area_lock.as_ref().filter(|_| !self.is_inherited())
    }

    /// Drops this process's reference to a slot, whose table word the caller has set to 0 before. When it was the last one,
    /// the slot is free. To be called once per slot that was given out, or that this process got by a fork; anything else is an
    /// error that [`Area::free_run`] reports and that changes nothing here either.
    pub fn release(&self, slot: u64) {
        let freed = self.free_run(slot, 1);
        debug_assert!(freed.is_ok(), "slot {slot}: {freed:?}");
    }

    /// Drops this process's references to `n` slots of one cluster, from `first` on, under one hold of the cluster's lock. See
    /// [`Area::release`].
    ///
    /// # Errors
    /// `NoSuchSlot`, `AcrossClusters`, `NotInUse`: nothing has changed then. In an area that a parent made, where there is no
    /// lock that both processes could take, references are dropped one by one.
    pub fn free_run(&self, first: u64, n: u64) -> Result<(), SlotError> {
        #[cfg(feature = "lab")]
        if let Some(lock) = self.area_lock() {
            return lock.free(self, first, n);
        }
        self.free_run_now(first, n)
    }

    /// As [`Area::free_run`], whatever stands before the clusters.
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
        if !inner.all_used(index, n as usize) {
            return Err(SlotError::NotInUse);
        }
        let Some(sharing) = &self.sharing else {
            self.give(i, &mut inner, index, n as usize);
            return Ok(());
        };
        let held = sharing.held(i, index, n as usize);
        // Slots in a row that nobody else holds, up to here.
        let mut last = 0;
        for index in index..index + n as usize {
            if !held.is_set(index) {
                last += 1;
                continue;
            }
            let slot = i * CLUSTER_SLOTS + index;
            self.marks.set(&mut inner, slot, false);
            self.index_copies(i, &mut inner, index, 1);
            sharing.zombies.add(&mut inner, slot);
            self.give(i, &mut inner, index - last, last);
            last = 0;
        }
        self.give(i, &mut inner, index + n as usize - last, last);
        Ok(())
    }

    /// Frees `n` used slots of a locked cluster.
    #[inline]
    pub(super) fn give(&self, i: usize, inner: &mut LockedInner<'_>, index: usize, n: usize) {
        if n > 0 {
            self.give_in_place(i, inner, index, n);
            self.clusters.relocate(i, inner);
        }
    }

    /// As [`Area::give`], but the cluster stays where it was: the caller relocates it.
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

    /// A slot's table word; `None` for slots that were never given out.
    pub fn word(&self, slot: u64) -> Option<&AtomicU64> {
        if slot >= self.opened_slots() { None } else { self.words.get(slot as usize) }
    }

    /// A slot that was given out stays in use though nobody refers to it: the device can't write it.
    pub fn has_bad_slot(&self) {
        // Relaxed: asked before a fork, which comes after all that was stored.
        self.has_bad.store(true, Ordering::Relaxed);
    }

    /// Whether there is a slot in use that nobody refers to.
    pub(super) fn has_bad_slots(&self) -> bool {
        self.has_bad.load(Ordering::Relaxed)
    }

    /// Whether all threads write one sequence of slots, because the device turns.
    pub fn is_rotating(&self) -> bool {
        self.next.is_shared()
    }

    /// Calls `f` with the number and the table word of each slot that may be in use.
    pub fn each_word(&self, mut f: impl FnMut(u64, &AtomicU64)) {
        let opened = (self.opened_slots() as usize).min(self.words.len());
        for (slot, word) in self.words[..opened].iter().enumerate() {
            f(slot as u64, word);
        }
    }

    /// Whether `f` says yes to the table word of a slot that may be in use; none is looked at after the first: a TiB
    /// that is out has 268 million.
    pub fn any_word(&self, mut f: impl FnMut(u64) -> bool) -> bool {
        let opened = (self.opened_slots() as usize).min(self.words.len());
        self.words[..opened].iter().any(|word| f(word.load(Ordering::Relaxed)))
    }

    /// Clusters that were ever used: those with lower numbers.
    pub fn opened_clusters(&self) -> usize {
        self.clusters.opened()
    }

    /// No slot from this one on was ever given out.
    pub fn opened_slots(&self) -> u64 {
        self.clusters.opened() as u64 * CLUSTER_SLOTS as u64
    }

    /// Slots of the area.
    pub fn slots(&self) -> u64 {
        self.clusters.slots()
    }

    /// Bytes of the device that hold or held pages and were not punched out since: what the area has added to the quota.
    pub fn opened_bytes(&self) -> u64 {
        self.clusters.charged_bytes()
    }

    /// Used slots, with slot 0 and zombies: looks at every cluster.
    pub fn used(&self) -> u64 {
        self.clusters.used()
    }

    /// Whether no slot is free and no cluster can be opened, as far as is known without looking at every cluster.
    pub fn is_full(&self) -> bool {
        self.availability.is_full() || self.clusters.are_full_and_unaffordable()
    }

    /// Why no slots are to be had, if that is sure. (The quota may be used up all the same: [`Area::is_full`].) Reads the clock
    /// if the device fails.
    pub fn unavailable(&self) -> Option<Unavailable> {
        self.availability.reason()
    }

    /// Whether pages can be written here now: there is a device that works, and it is neither a parent's nor being emptied.
    pub fn takes_writes(&self) -> bool {
        self.device.is_some() && matches!(self.unavailable(), None | Some(Unavailable::Full))
    }

    /// Whether nothing is to be written here for the time being, because the device fails. Reads the clock if it does.
    pub fn rests(&self) -> bool {
        self.availability.rests()
    }

    /// The error of the latest write, if it failed.
    pub fn failing(&self) -> Option<Errno> {
        self.availability.failing()
    }

    /// As if the time of a rest had passed.
    #[cfg(test)]
    pub(crate) fn pass_rest(&self) {
        self.availability.pass_rest();
    }

    /// Whether slots may be given out as far as swapoff and forks are concerned: it is neither closed nor a parent's.
    pub fn is_open(&self) -> bool {
        self.availability.is_open()
    }

    /// Whether it is closed: being emptied, or about to be.
    pub fn is_closed(&self) -> bool {
        self.availability.is_closed()
    }

    /// Whether this process may not allocate here because a parent made the area.
    pub fn is_inherited(&self) -> bool {
        self.availability.is_inherited()
    }

    /// Bytes of memory that the area's tables take.
    pub fn table_bytes(&self) -> usize {
        let sharing = self.sharing.as_ref().map_or(0, Sharing::table_bytes);
        self.words.populated_bytes()
            + sharing
            + self.clusters.table_bytes()
            + self.marks.table_bytes()
            + self.ages.table_bytes()
            + self.next.table_bytes()
    }

    /// Child side of a fork: an area with shared slots becomes inherited; a private one stays what it is, as a copy.
    ///
    /// # Safety
    /// As [`crate::lock::Lock::reset_after_fork`].
    pub unsafe fn after_fork(&self) {
        // SAFETY: the caller answers.
        unsafe {
            self.clusters.reset_after_fork(!self.is_shared());
            self.next.reset_after_fork();
        }
        #[cfg(feature = "lab")]
        if let Some(lock) = &self.area_lock {
            // SAFETY: the caller answers.
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
        // A parent's area is the parent's to account for.
        if !self.is_inherited() {
            self.clusters.uncharge_all();
        }
    }
}
