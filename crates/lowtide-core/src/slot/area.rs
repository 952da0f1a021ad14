//! A swap area: slots in clusters, a table word and (where a forked child may share the slots) a reference count for each.

use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;

use super::cluster::{CLUSTER_SLOTS, Cluster, ListState, MAX_ORDER, Need};
use super::lists::{self, Lists};
use super::refs;
use crate::device::Device;
use crate::lock::{Guard, Lock};
use crate::table::Table;
use crate::vm::{OnFork, PAGE_SIZE};

/// How many partly used clusters of each list an allocation tries before it opens a new one. (A single slot is found in the
/// first.)
const TRIES: usize = 8;
/// How often an allocation starts over when other threads had every cluster with room in their hands.
const ROUNDS: usize = 16;

type Inner<'a> = Guard<'a, super::cluster::Inner>;

/// A limit on bytes of file that the processes of a run share.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Bytes in use by all.
    pub used: &'static AtomicU64,
    /// Most bytes.
    pub limit: u64,
}

/// A swap area. All methods are thread-safe unless they say otherwise.
///
/// A slot's table word is the caller's; 0 means that this process has nothing there. The area itself only tells free slots from
/// used ones. A used slot whose word is 0 is either about to be filled, or a zombie: freed by this process, but not yet by a
/// forked child.
#[derive(Debug)]
pub struct Area {
    slots: u64,
    /// Where the bytes go.
    pub device: Device,
    words: Table<AtomicU64>,
    /// `None`: every slot in use has one reference.
    pub(super) refs: Option<Table<AtomicU16>>,
    pub(super) clusters: Table<Cluster>,
    pub(super) lists: Lock<Lists>,
    /// Clusters ever used: those below this index. Only grows, under the list lock.
    pub(super) opened: AtomicU32,
    /// Per order, the cluster that the last allocation came from, plus one.
    hints: [AtomicU32; MAX_ORDER as usize + 1],
    budget: Option<Budget>,
    /// Used slots, with those that are never given out and zombies.
    used: AtomicU64,
    pub(super) zombies: AtomicU64,
    /// Where the next search for dead zombies begins.
    pub(super) reap_at: AtomicU32,
    /// The area was made by a parent: nothing is allocated here.
    pub(super) inherited: AtomicBool,
}

impl Area {
    /// An area of `slots` slots, none in use. `shared`: slots can be shared with forked children.
    ///
    /// # Errors
    /// `NOMEM` when its tables cannot be mapped.
    pub fn new(slots: u64, device: Device, shared: bool, budget: Option<Budget>) -> Result<Area, Errno> {
        let slots = slots.min(1 << 32);
        let n = slots as usize;
        Ok(Area {
            slots,
            device,
            words: Table::new(n, OnFork::Copy)?,
            refs: if shared { Some(Table::new(n, OnFork::Share)?) } else { None },
            clusters: Table::new(n.div_ceil(CLUSTER_SLOTS), OnFork::Copy)?,
            lists: Lock::new(Lists::new()),
            opened: AtomicU32::new(0),
            hints: [const { AtomicU32::new(0) }; MAX_ORDER as usize + 1],
            budget,
            used: AtomicU64::new(0),
            zombies: AtomicU64::new(0),
            reap_at: AtomicU32::new(0),
            inherited: AtomicBool::new(false),
        })
    }

    /// Gives out 2^`order` slots at a multiple of that; each has one reference and the table word 0. `None` when there is no such
    /// run, or other threads held on to the last ones.
    pub fn alloc(&self, order: u32) -> Option<u64> {
        match order {
            0 => self.find(Need::Run(1)),
            1..=MAX_ORDER => self.find(Need::Aligned(order)),
            _ => None,
        }
    }

    /// Gives out up to `want` consecutive slots, as many as can be had in one piece without searching long, as [`Area::alloc`]
    /// does. Returns the first and how many.
    pub fn alloc_run(&self, want: usize) -> Option<(u64, usize)> {
        let mut n = want.min(CLUSTER_SLOTS);
        while n > 0 {
            if let Some(first) = self.find(Need::Run(n)) {
                return Some((first, n));
            }
            n /= 2;
        }
        None
    }

    fn find(&self, need: Need) -> Option<u64> {
        if self.inherited.load(Ordering::Relaxed) {
            return None;
        }
        for _ in 0..ROUNDS {
            if let Some(slot) = self.search(need) {
                return Some(slot);
            }
            if need.slots() > 1 || self.used.load(Ordering::Relaxed) >= self.opened_slots() {
                break;
            }
            core::hint::spin_loop();
        }
        None
    }

    /// One search in the order of DESIGN.md: the cluster used last, a free one, partly used ones of this order, a new one, the
    /// dead zombies, and for single slots whatever has room.
    fn search(&self, need: Need) -> Option<u64> {
        let order = need.order();
        if let Some(i) = (self.hints[order as usize].load(Ordering::Relaxed) as usize).checked_sub(1) {
            let mut inner = self.clusters[i].inner.lock();
            if inner.usable(order)
                && let Some(slot) = self.take(i, &mut inner, need)
            {
                return Some(slot);
            }
        }
        let o = order as u8;
        let partly = |tries| {
            let lists = [(ListState::Free, 1), (ListState::NonFull, tries), (ListState::Frag, tries)];
            lists.into_iter().find_map(|(state, tries)| self.try_list(state, o, need, tries))
        };
        if let Some(slot) = partly(TRIES) {
            return Some(slot);
        }
        while let Some((i, mut inner)) = self.open() {
            // The first and the last cluster are never empty, and may have no run of a high order.
            inner.order = o;
            if let Some(slot) = self.take(i, &mut inner, need) {
                return Some(slot);
            }
            inner.order = 0;
            self.settle(i, &mut inner, 0, ListState::NonFull);
        }
        if refs::reap(self)
            && let Some(slot) = partly(TRIES)
        {
            return Some(slot);
        }
        if need.slots() == 1 {
            return (1..=MAX_ORDER as u8)
                .find_map(|o| [ListState::Frag, ListState::NonFull].into_iter().find_map(|s| self.try_list(s, o, need, 1)));
        }
        None
    }

    /// Tries up to `tries` clusters of a list; those without room end at the tail of the frag list of their order.
    fn try_list(&self, state: ListState, list_order: u8, need: Need, tries: usize) -> Option<u64> {
        for _ in 0..tries {
            let (i, mut inner) = lists::isolate(&self.lists, &self.clusters, state, list_order)?;
            if let Some(slot) = self.take(i, &mut inner, need) {
                return Some(slot);
            }
            let was = inner.order;
            self.settle(i, &mut inner, was, ListState::Frag);
        }
        None
    }

    /// Takes slots from a locked cluster.
    fn take(&self, i: usize, inner: &mut Inner<'_>, need: Need) -> Option<u64> {
        let was = inner.order;
        let first = i * CLUSTER_SLOTS + inner.take(need)?;
        let n = need.slots();
        if let Some(refs) = &self.refs {
            for count in &refs[first..first + n] {
                count.store(1, Ordering::Relaxed);
            }
        }
        self.used.fetch_add(n as u64, Ordering::Relaxed);
        self.settle(i, inner, was, ListState::Frag);
        self.hints[need.order() as usize].store(i as u32 + 1, Ordering::Relaxed);
        Some(first as u64)
    }

    /// Puts a locked cluster where its count says, or to `partly` if that says neither free nor full. `was_order`: its order
    /// before the change.
    pub(super) fn settle(&self, i: usize, inner: &mut Inner<'_>, was_order: u8, partly: ListState) {
        let to = match inner.used as usize {
            0 => ListState::Free,
            CLUSTER_SLOTS => ListState::Full,
            _ => partly,
        };
        lists::relocate(&self.lists, &self.clusters, i, inner, was_order, to);
    }

    /// Opens a cluster that was never used, if size and budget allow, and returns it locked, on no list.
    fn open(&self) -> Option<(usize, Inner<'_>)> {
        let (i, mut inner, slots) = {
            let _lists = self.lists.lock();
            let i = self.opened.load(Ordering::Relaxed) as usize;
            let inner = self.clusters.get(i)?.inner.try_lock()?;
            let slots = (self.slots - (i * CLUSTER_SLOTS) as u64).min(CLUSTER_SLOTS as u64);
            if let Some(budget) = &self.budget {
                let more = |used: u64| used.checked_add(slots * PAGE_SIZE as u64).filter(|u| *u <= budget.limit);
                budget.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
            }
            self.opened.store(i as u32 + 1, Ordering::Release);
            (i, inner, slots as usize)
        };
        let blocked = (slots..CLUSTER_SLOTS).chain((i == 0).then_some(0));
        for slot in blocked {
            inner.block(slot);
            self.used.fetch_add(1, Ordering::Relaxed);
        }
        Some((i, inner))
    }

    /// Drops this process's reference to a slot, whose table word the caller has set to 0 before. When it was the last one,
    /// the slot is free. Must be called once per slot that [`Area::alloc`] gave out or a fork added.
    pub fn release(&self, slot: u64) {
        if slot >= self.slots {
            return;
        }
        if self.inherited.load(Ordering::Relaxed) {
            // The owner finds out when it runs out of clusters.
            if let Some(count) = self.refs.as_ref().and_then(|r| r.get(slot as usize)) {
                refs::drop_one(count);
            }
            return;
        }
        let (i, index) = (slot as usize / CLUSTER_SLOTS, slot as usize % CLUSTER_SLOTS);
        let mut inner = self.clusters[i].inner.lock();
        // Under the cluster's lock, so that nobody who looks for dead zombies sees a count of 0 before the slot is free.
        if let Some(count) = self.refs.as_ref().and_then(|r| r.get(slot as usize))
            && refs::drop_one(count) != 0
        {
            inner.zombies += 1;
            self.zombies.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.give(i, &mut inner, index);
    }

    /// Frees a slot of a locked cluster.
    pub(super) fn give(&self, i: usize, inner: &mut Inner<'_>, index: usize) {
        let was = inner.order;
        let freed = inner.give(index);
        debug_assert!(freed, "a slot was freed twice");
        if freed {
            self.used.fetch_sub(1, Ordering::Relaxed);
            self.settle(i, inner, was, ListState::NonFull);
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

    fn opened_slots(&self) -> u64 {
        self.opened.load(Ordering::Acquire) as u64 * CLUSTER_SLOTS as u64
    }

    /// Bytes of the device that are in use or once were: what the area has added to the budget.
    pub fn opened_bytes(&self) -> u64 {
        self.opened_slots().min(self.slots) * PAGE_SIZE as u64
    }

    /// Used slots of clusters that were opened, with those that are never given out and zombies.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether this process may not allocate here because a parent made the area.
    pub fn is_inherited(&self) -> bool {
        self.inherited.load(Ordering::Relaxed)
    }

    /// Bytes of memory that the area's tables take.
    #[cfg(test)]
    pub(crate) fn table_bytes(&self) -> usize {
        let refs = self.refs.as_ref().map_or(0, Table::populated_bytes);
        self.words.populated_bytes() + refs + self.clusters.populated_bytes()
    }

    /// Child side of a fork: an area with shared slots becomes inherited; a private one stays what it is, as a copy.
    ///
    /// # Safety
    /// As [`Lock::reset_after_fork`].
    pub unsafe fn after_fork(&self) {
        // SAFETY: the caller answers.
        unsafe { self.lists.reset_after_fork() };
        if self.refs.is_some() {
            self.inherited.store(true, Ordering::Relaxed);
            return;
        }
        for cluster in &self.clusters[..self.opened.load(Ordering::Relaxed) as usize] {
            // SAFETY: the caller answers.
            unsafe { cluster.inner.reset_after_fork() };
        }
    }
}
