//! A swap area: slots in clusters, a table word for each, and (where forked children may share them) who else refers to them.
//! Allocation is in `search.rs`.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;

use super::age::Ages;
use super::backoff::Rest;
use super::cluster::{CLUSTER_SLOTS, Cluster};
use super::error::SlotError;
use super::io::IoCounts;
use super::lists::{ListId, LockedInner, Place, Places};
use super::next::Next;
use super::policy::{Policy, Search, Searcher};
use super::sharing::Sharing;
use super::swap_cache::CacheMarks;
use super::usage::Usage;
use crate::device::Device;
use crate::percpu::CacheAligned;
use crate::sync::Array;
use crate::table::Table;
use crate::vm::{OnFork, PAGE_SIZE};

/// Most slots of an area: what an entry can name.
pub const MAX_SLOTS: u64 = 1 << 40;

/// A cluster tells the area how many of its slots are used when it is empty, or when so many have come or gone: if it told each
/// time, all CPUs would fight for the cache line of the area's count.
const TELL: u16 = 32;

/// A limit on bytes of file that the processes of a run share.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Bytes in use by all.
    pub used: &'static AtomicU64,
    /// Those of `used` that are this process's: what is to be taken off `used` when it is gone without having given them back.
    /// Changed after `used` when bytes come and before it when they go, so that a process that is killed between the two leaves
    /// too much in `used`, by a cluster, and never too little.
    pub mine: Option<&'static AtomicU64>,
    /// Most bytes.
    pub limit: u64,
}

impl Budget {
    /// Adds bytes. False: there is no room, and nothing was added.
    fn take(&self, bytes: u64) -> bool {
        let more = |used: u64| used.checked_add(bytes).filter(|u| *u <= self.limit);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        if taken && let Some(mine) = self.mine {
            mine.fetch_add(bytes, Ordering::Release);
        }
        taken
    }

    /// Takes back what [`Budget::take`] added.
    fn give(&self, bytes: u64) {
        if let Some(mine) = self.mine {
            mine.fetch_sub(bytes, Ordering::Relaxed);
        }
        self.used.fetch_sub(bytes, Ordering::Release);
    }
}

/// How an area is set up.
#[derive(Debug, Clone, Copy, Default)]
pub struct AreaConfig {
    /// Slots, with slot 0, which is never given out.
    pub slots: u64,
    /// Areas of higher priority are used first; those of the same in turn.
    pub priority: i16,
    /// How fragmented clusters are searched.
    pub policy: Policy,
    /// The device turns: one area-wide "next" keeps writes sequential.
    pub rotating: bool,
    /// Clusters that become free are punched out before they are given out again.
    pub discard: bool,
    /// Slots can be shared with forked children.
    pub shared: bool,
    /// What clusters in use count against.
    pub budget: Option<Budget>,
}

/// A swap area. All methods are thread-safe unless they say otherwise.
///
/// A slot's table word is the caller's; 0 means that this process has nothing there. The area itself only tells free slots from
/// used ones. A used slot whose word is 0 is either about to be filled, or a zombie: freed by this process, but not yet by a
/// forked child.
#[derive(Debug)]
pub struct Area {
    slots: u64,
    /// Its place among the areas: higher first.
    pub priority: i16,
    /// Where the bytes go.
    pub device: Device,
    words: Table<AtomicU64>,
    /// Who else refers to slots; `None`: nobody ever does.
    pub(super) sharing: Option<Sharing>,
    pub(super) clusters: Array<Cluster>,
    pub(super) places: Places,
    /// Clusters ever used: those below this index. Only grows, under the list lock.
    pub(super) opened: AtomicU32,
    pub(super) next: Next,
    pub(super) searcher: Searcher,
    pub(super) discard: bool,
    budget: Option<Budget>,
    /// Bytes that this area has added to the budget.
    charged: AtomicU64,
    used_about: CacheAligned<AtomicU64>,
    /// Counts full clusters.
    pub(super) usage: CacheAligned<Usage>,
    pub(super) marks: CacheMarks,
    /// Which clusters the caller's pages in RAM have slots in.
    pub ages: Ages,
    /// What was done with the device.
    pub io: IoCounts,
    pub(super) rest: Rest,
    /// Where the next search for full clusters with cache marks begins.
    pub(super) reclaim_at: AtomicU32,
    /// The area was made by a parent: nothing is allocated here.
    pub(super) inherited: AtomicBool,
    /// Nothing is allocated here: swapoff.
    pub(super) closed: AtomicBool,
    /// It is closed, and no allocation is in flight any more. Who removes or reopens it takes this away first.
    pub(super) quiet: AtomicBool,
}

impl Area {
    /// An area with no slot in use.
    ///
    /// # Errors
    /// `Empty`, `SmallerThanCluster`, `TooLarge`, or `NoMemory` when its tables cannot be mapped.
    pub fn new(device: Device, cfg: AreaConfig) -> Result<Area, SlotError> {
        match cfg.slots {
            0 => return Err(SlotError::Empty),
            n if n < CLUSTER_SLOTS as u64 => return Err(SlotError::SmallerThanCluster),
            n if n > MAX_SLOTS => return Err(SlotError::TooLarge),
            _ => {}
        }
        let n = cfg.slots as usize;
        let clusters = n.div_ceil(CLUSTER_SLOTS);
        let area = || {
            Ok(Area {
                slots: cfg.slots,
                priority: cfg.priority,
                device,
                words: Table::new(n, OnFork::Copy)?,
                sharing: if cfg.shared { Some(Sharing::new(clusters)?) } else { None },
                clusters: Array::new(clusters, OnFork::Copy)?,
                places: Places::new(clusters, cfg.policy == Policy::Exact)?,
                opened: AtomicU32::new(0),
                next: Next::new(cfg.rotating),
                searcher: Searcher::new(cfg.policy),
                discard: cfg.discard,
                budget: cfg.budget,
                charged: AtomicU64::new(0),
                used_about: CacheAligned(AtomicU64::new(0)),
                usage: CacheAligned(Usage::new(clusters as u64)),
                marks: CacheMarks::new(clusters)?,
                ages: Ages::new(clusters)?,
                io: IoCounts::default(),
                rest: Rest::default(),
                reclaim_at: AtomicU32::new(0),
                inherited: AtomicBool::new(false),
                closed: AtomicBool::new(false),
                quiet: AtomicBool::new(false),
            })
        };
        area().map_err(|_: Errno| SlotError::NoMemory)
    }

    /// Puts a locked cluster where its count says. `freed`: the latest change was a free.
    #[inline]
    pub(super) fn settle(&self, i: usize, inner: &mut LockedInner<'_>, freed: bool) {
        let to = match inner.count {
            0 if self.discard => Place::List(ListId::DISCARD),
            0 => Place::List(ListId::FREE),
            _ => self.searcher.place(inner, freed),
        };
        self.places.relocate(i, inner, to);
        self.tell(inner);
    }

    /// Tells the area how many slots of a locked cluster are used, if that is due.
    #[inline]
    pub(super) fn tell(&self, inner: &mut LockedInner<'_>) {
        if inner.count.abs_diff(inner.told) >= TELL || inner.count == 0 {
            let more = u64::from(inner.count).wrapping_sub(inner.told.into());
            self.used_about.fetch_add(more, Ordering::Relaxed);
            inner.told = inner.count;
        }
    }

    /// Slots of cluster `i`.
    fn slots_of(&self, i: usize) -> u64 {
        (self.slots - (i * CLUSTER_SLOTS) as u64).min(CLUSTER_SLOTS as u64)
    }

    /// Counts the bytes of cluster `i` against the budget. False: there is no room.
    pub(super) fn charge(&self, i: usize) -> bool {
        let bytes = self.slots_of(i) * PAGE_SIZE as u64;
        if self.budget.as_ref().is_some_and(|budget| !budget.take(bytes)) {
            return false;
        }
        self.charged.fetch_add(bytes, Ordering::Relaxed);
        true
    }

    /// Takes back what [`Area::charge`] counted.
    pub(super) fn uncharge(&self, i: usize) {
        let bytes = self.slots_of(i) * PAGE_SIZE as u64;
        self.charged.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(budget) = &self.budget {
            budget.give(bytes);
        }
    }

    /// Opens a cluster that was never used, if size and budget allow, and returns it locked, on no list.
    pub(super) fn open(&self) -> Option<(usize, LockedInner<'_>)> {
        if self.opened.load(Ordering::Relaxed) as usize == self.clusters.len() {
            return None;
        }
        let (i, mut inner) = {
            let _lists = self.places.lists.lock();
            let i = self.opened.load(Ordering::Relaxed) as usize;
            let mut inner = self.clusters.get(i)?.0.try_lock()?;
            if !self.charge(i) {
                return None;
            }
            inner.charged = true;
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
        let (i, index) = (first as usize / CLUSTER_SLOTS, first as usize % CLUSTER_SLOTS);
        let end = first.checked_add(n).ok_or(SlotError::NoSuchSlot)?;
        if first == 0 || end > self.opened_slots().min(self.slots) {
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
        let mut inner = self.clusters[i].0.lock();
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
            sharing.zombies.add(&mut inner, slot);
            self.give(i, &mut inner, index - last, last);
            last = 0;
        }
        self.give(i, &mut inner, index + n as usize - last, last);
        Ok(())
    }

    /// Frees `n` used slots of a locked cluster.
    pub(super) fn give(&self, i: usize, inner: &mut LockedInner<'_>, index: usize, n: usize) {
        if n > 0 {
            let full = inner.is_full();
            inner.give(index, n);
            if inner.caches > 0 {
                let first = i * CLUSTER_SLOTS + index;
                (first..first + n).for_each(|slot| self.marks.set(inner, slot, false));
            }
            self.settle(i, inner, true);
            if full {
                self.usage.sub(1);
            }
        }
    }

    /// A slot's table word; `None` for slots that were never given out.
    pub fn word(&self, slot: u64) -> Option<&AtomicU64> {
        if slot >= self.opened_slots() { None } else { self.words.get(slot as usize) }
    }

    /// Calls `f` with the number and the table word of each slot that may be in use.
    pub fn each_word(&self, mut f: impl FnMut(u64, &AtomicU64)) {
        let opened = (self.opened_slots() as usize).min(self.words.len());
        for (slot, word) in self.words[..opened].iter().enumerate() {
            f(slot as u64, word);
        }
    }

    /// Clusters that were ever used: those with lower numbers.
    pub fn opened_clusters(&self) -> usize {
        self.opened.load(Ordering::Acquire) as usize
    }

    /// No slot from this one on was ever given out.
    pub fn opened_slots(&self) -> u64 {
        self.opened.load(Ordering::Acquire) as u64 * CLUSTER_SLOTS as u64
    }

    /// Slots of the area.
    pub fn slots(&self) -> u64 {
        self.slots
    }

    /// Bytes of the device that hold or held pages and were not punched out since: what the area has added to the budget.
    pub fn opened_bytes(&self) -> u64 {
        self.charged.load(Ordering::Relaxed)
    }

    /// Used slots, with slot 0 and zombies: looks at every cluster.
    pub fn used(&self) -> u64 {
        let opened = self.opened.load(Ordering::Acquire) as usize;
        let count = |i: usize| u64::from(self.clusters[i].0.lock().count);
        (0..opened).map(|i| count(i) + self.slots_of(i) - CLUSTER_SLOTS as u64).sum()
    }

    /// Used slots, but for up to [`TELL`] in each cluster that have come or gone since it last told.
    #[inline]
    pub(super) fn used_about(&self) -> u64 {
        self.used_about.load(Ordering::Relaxed)
    }

    /// Slots of the clusters that are counted against the budget, and of those that could still be.
    pub(super) fn affordable_slots(&self) -> u64 {
        let left = |budget: &Budget| budget.limit.saturating_sub(budget.used.load(Ordering::Relaxed));
        let left = self.budget.as_ref().map_or(u64::MAX, left);
        left.saturating_add(self.opened_bytes()) / PAGE_SIZE as u64
    }

    /// Whether no slot is free and no cluster can be opened, as far as is known without looking at every cluster.
    pub fn is_full(&self) -> bool {
        let no_budget =
            |budget: &Budget| budget.used.load(Ordering::Relaxed) + (CLUSTER_SLOTS * PAGE_SIZE) as u64 > budget.limit;
        let about_full =
            || self.used_about() + self.opened_clusters() as u64 * u64::from(TELL) >= self.opened_bytes() / PAGE_SIZE as u64;
        self.usage.is_full() || self.budget.as_ref().is_some_and(no_budget) && about_full()
    }

    /// Whether it is surely full. (One that is not may be full all the same: its budget may be used up.)
    pub fn is_off_list(&self) -> bool {
        self.usage.is_full()
    }

    /// Whether nothing is to be written here for the time being, because the device fails. Reads the clock if it does.
    pub fn rests(&self) -> bool {
        self.rest.is_on()
    }

    /// Whether pages can be written here now: there is a device that works, and it is neither a parent's nor being emptied.
    pub fn takes_writes(&self) -> bool {
        self.device.takes_pages() && !self.is_inherited() && !self.is_closed() && !self.rests()
    }

    /// The error of the latest write, if it failed.
    pub fn failing(&self) -> Option<Errno> {
        self.rest.error()
    }

    /// As if the time of a rest had passed.
    #[cfg(test)]
    pub(crate) fn pass_rest(&self) {
        self.rest.pass();
    }

    /// Whether it is closed: being emptied, or about to be.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Whether this process may not allocate here because a parent made the area.
    pub fn is_inherited(&self) -> bool {
        self.inherited.load(Ordering::Relaxed)
    }

    /// Bytes of memory that the area's tables take.
    pub fn table_bytes(&self) -> usize {
        let sharing = self.sharing.as_ref().map_or(0, Sharing::table_bytes);
        let places = self.places.table_bytes();
        self.words.populated_bytes()
            + sharing
            + self.clusters.populated_bytes()
            + places
            + self.marks.table_bytes()
            + self.ages.table_bytes()
            + self.next.table_bytes()
    }

    /// How often the locks of all clusters, and the lock of the lists, were taken. For experiments: takes each of them.
    pub fn lock_acquisitions(&self) -> (u64, u64) {
        let opened = self.opened.load(Ordering::Acquire) as usize;
        let clusters = (0..opened).map(|i| u64::from(self.clusters[i].0.acquisitions())).sum();
        (clusters, self.places.lists.acquisitions().into())
    }

    /// Child side of a fork: an area with shared slots becomes inherited; a private one stays what it is, as a copy.
    ///
    /// # Safety
    /// As [`crate::lock::Lock::reset_after_fork`].
    pub unsafe fn after_fork(&self) {
        // SAFETY: the caller answers.
        unsafe {
            self.places.lists.reset_after_fork();
            self.next.reset_after_fork();
        }
        self.io.after_fork();
        if self.is_shared() {
            self.inherited.store(true, Ordering::Relaxed);
            return;
        }
        for i in 0..self.opened.load(Ordering::Relaxed) as usize {
            // SAFETY: the caller answers.
            unsafe { self.clusters[i].0.reset_after_fork() };
        }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // A parent's area is the parent's to account for.
        if let Some(budget) = &self.budget
            && !self.is_inherited()
        {
            budget.give(self.opened_bytes());
        }
    }
}
