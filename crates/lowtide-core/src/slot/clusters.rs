//! The clusters of an area: which were ever used, where they are (`lists.rs`, `index.rs`), how many slots they have given out,
//! and what they take of the quota.

#[cfg(feature = "lab")]
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;

use super::area::AreaConfig;
use super::cluster::{CLUSTER_SLOTS, Cluster, Inner, ListState};
use super::index::{Index, Level};
#[cfg(feature = "lab")]
use super::lab::Rival;
use super::lists::{ListId, Lists, LockedInner, Place, Places};
use super::quota::Charge;
use crate::lock::rank;
use crate::percpu::{CacheAligned, Zone};
use crate::sync::{Array, Guard};
use crate::vm::{OnFork, PAGE_SIZE};

/// A cluster tells the area how many of its slots are used when it is empty, or when so many have come or gone: if it told each
/// time, all CPUs would fight for the cache line of the area's count.
const TELL: u16 = 32;

/// How many clusters a search by number looks at: two GiB of a disk.
const REACH: usize = 1024;

/// The clusters of an area. All methods are thread-safe unless they say otherwise.
#[derive(Debug)]
pub(super) struct Clusters {
    slots: u64,
    array: Array<Cluster>,
    places: Places,
    /// Lists partly used clusters and searches them in place of the index.
    #[cfg(feature = "lab")]
    rival: Option<Box<dyn Rival>>,
    /// Clusters that become free are punched out.
    discard: bool,
    /// Clusters ever used: those below this index. Only grows, under the list lock.
    opened: AtomicU32,
    charge: Charge,
    used_about: CacheAligned<AtomicU64>,
}

impl Clusters {
    /// Those of an area of at least one slot, none of which is in use. `zones`: how many shares of them CPUs keep to, as a
    /// power of two.
    pub(super) fn new(cfg: &AreaConfig, zones: u32) -> Result<Clusters, Errno> {
        let clusters = (cfg.slots as usize).div_ceil(CLUSTER_SLOTS);
        Ok(Clusters {
            slots: cfg.slots,
            array: Array::new(clusters, OnFork::Copy)?,
            places: Places::new(clusters, zones)?,
            #[cfg(feature = "lab")]
            rival: cfg.policy.rival(),
            discard: cfg.discard,
            opened: AtomicU32::new(0),
            charge: Charge::new(cfg.quota),
            used_about: CacheAligned(AtomicU64::new(0)),
        })
    }

    /// Slots of all of them.
    #[inline]
    pub(super) fn slots(&self) -> u64 {
        self.slots
    }

    /// Slots of cluster `i`.
    pub(super) fn slots_of(&self, i: usize) -> u64 {
        (self.slots - (i * CLUSTER_SLOTS) as u64).min(CLUSTER_SLOTS as u64)
    }

    /// Clusters ever used: those with lower numbers.
    #[inline]
    pub(super) fn opened(&self) -> usize {
        // Acquire: pairs with the Release in `open`, after which the cluster's first and last slots are what they are.
        self.opened.load(Ordering::Acquire) as usize
    }

    /// Whether all of them were used some time.
    pub(super) fn are_all_opened(&self) -> bool {
        self.opened.load(Ordering::Relaxed) as usize == self.array.len()
    }

    /// Whether clusters that become free are punched out.
    pub(super) fn discards(&self) -> bool {
        self.discard
    }

    /// What lists partly used clusters in place of the index; `None`: the index has them.
    #[cfg(feature = "lab")]
    #[inline]
    pub(super) fn rival(&self) -> Option<&dyn Rival> {
        self.rival.as_deref()
    }

    /// Which partly used clusters have runs of what order.
    #[inline]
    pub(super) fn index(&self) -> &Index {
        &self.places.index
    }

    /// Locks cluster `i`.
    #[inline]
    pub(super) fn lock(&self, i: usize) -> LockedInner<'_> {
        self.array[i].0.lock()
    }

    /// Locks cluster `i`, if nobody has it.
    #[inline]
    pub(super) fn try_lock(&self, i: usize) -> Option<LockedInner<'_>> {
        self.array[i].0.try_lock()
    }

    /// As [`Places::isolate`].
    pub(super) fn isolate(&self, list: ListId, zone: Zone) -> Option<(usize, LockedInner<'_>)> {
        self.places.isolate(&self.array, list, zone)
    }

    /// Takes the first free cluster from `from` on by number off its list, locked; `grow`: also one that is no part of the file
    /// yet, or no more. Looks at [`REACH`] clusters, in so far as nobody has them: beyond that, one is as far as another.
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

    /// How many clusters are on a list, as of a moment ago.
    #[inline]
    pub(super) fn len(&self, list: ListId) -> usize {
        self.places.len(list)
    }

    /// Where a locked cluster belongs.
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
        #[cfg(feature = "lab")]
        if let Some(rival) = self.rival() {
            return Place::List(rival.list_of(inner));
        }
        Place::Index(Level::of(inner))
    }

    /// Puts a locked cluster where it belongs, and tells how many of its slots are used, if that is due.
    #[inline]
    pub(super) fn relocate(&self, i: usize, inner: &mut LockedInner<'_>) {
        let to = self.place_of(inner);
        self.move_to(i, inner, to);
        self.tell(inner);
    }

    /// As [`Places::move_to`].
    #[inline]
    pub(super) fn move_to(&self, i: usize, inner: &mut LockedInner<'_>, to: Place) {
        self.places.move_to(i, inner, to);
    }

    /// Tells how many slots of a locked cluster are used, if that is due.
    #[inline]
    pub(super) fn tell(&self, inner: &mut LockedInner<'_>) {
        if inner.count.abs_diff(inner.told) >= TELL || inner.count == 0 {
            let more = u64::from(inner.count).wrapping_sub(inner.told.into());
            self.used_about.fetch_add(more, Ordering::Relaxed);
            inner.told = inner.count;
        }
    }

    /// Used slots, but for up to [`TELL`] in each cluster that have come or gone since it last told.
    #[inline]
    pub(super) fn used_about(&self) -> u64 {
        self.used_about.load(Ordering::Relaxed)
    }

    /// Used slots, with slot 0 and zombies: looks at every cluster.
    pub(super) fn used(&self) -> u64 {
        let count = |i: usize| u64::from(self.lock(i).count);
        (0..self.opened()).map(|i| count(i) + self.slots_of(i) - CLUSTER_SLOTS as u64).sum()
    }

    /// Counts the bytes of a locked cluster against the quota. False: there is no room.
    pub(super) fn charge(&self, i: usize, inner: &mut LockedInner<'_>) -> bool {
        inner.charged = self.charge.take(self.slots_of(i) * PAGE_SIZE as u64);
        inner.charged
    }

    /// Takes back what [`Clusters::charge`] counted.
    pub(super) fn uncharge(&self, i: usize, inner: &mut LockedInner<'_>) {
        self.charge.give(self.slots_of(i) * PAGE_SIZE as u64);
        inner.charged = false;
    }

    /// Takes back all that was counted: the clusters are going.
    pub(super) fn uncharge_all(&self) {
        self.charge.give(self.charge.bytes());
    }

    /// Bytes that are counted against the quota.
    pub(super) fn charged_bytes(&self) -> u64 {
        self.charge.bytes()
    }

    /// Slots of the clusters that are counted against the quota, and of those that could still be.
    pub(super) fn affordable_slots(&self) -> u64 {
        self.charge.affordable() / PAGE_SIZE as u64
    }

    /// Whether the quota allows no other cluster, and no slot is free, as far as is known without looking at every cluster.
    pub(super) fn are_full_and_unaffordable(&self) -> bool {
        let about_full = || {
            // Of the others no slot is used, and they have told so.
            let charged = self.charged_bytes() / (CLUSTER_SLOTS * PAGE_SIZE) as u64;
            self.used_about() + charged * u64::from(TELL) >= charged * CLUSTER_SLOTS as u64
        };
        self.charge.is_out_of((CLUSTER_SLOTS * PAGE_SIZE) as u64) && about_full()
    }

    /// Opens a cluster that was never used, if size and quota allow, and returns it locked, on no list.
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
        // Slots beyond the end are no slots of the area; slot 0 is one that is always used.
        inner.told = (CLUSTER_SLOTS - slots) as u16;
        Some((i, inner))
    }

    /// The lists, locked: for checks.
    pub(super) fn lock_lists(&self) -> Guard<'_, Lists, { rank::LISTS }> {
        self.places.lists.lock()
    }

    /// How often the locks of all clusters, and the lock of the lists, were taken: takes each of them.
    #[cfg(feature = "lab")]
    pub(super) fn lock_acquisitions(&self) -> (u64, u64) {
        let clusters = (0..self.opened()).map(|i| u64::from(self.array[i].0.acquisitions())).sum();
        (clusters, self.places.lists.acquisitions().into())
    }

    /// Bytes of memory that the tables take.
    pub(super) fn table_bytes(&self) -> usize {
        self.array.populated_bytes() + self.places.table_bytes()
    }

    /// Child side of a fork: the lock of the lists, and, if they are this process's own now, those of the clusters are free.
    ///
    /// # Safety
    /// As [`crate::lock::Lock::reset_after_fork`].
    pub(super) unsafe fn reset_after_fork(&self, own: bool) {
        // SAFETY: the caller answers.
        unsafe { self.places.lists.reset_after_fork() };
        if own {
            for i in 0..self.opened.load(Ordering::Relaxed) as usize {
                // SAFETY: the caller answers.
                unsafe { self.array[i].0.reset_after_fork() };
            }
        }
    }
}
