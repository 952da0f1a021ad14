//! The frames of one NUMA node: a buddy under one lock, and in front of it lists per CPU, each set
//! under its own lock. CPUs of other nodes use these lists too.
//!
//! Lock order: the lists of one CPU, then the buddy. No thread holds two CPUs' lists, or returns
//! memory to the kernel under a lock: runs on their way to the buddy are in neither, out of reach
//! of other threads.

use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;

use super::arrivals::Arrivals;
use super::cpu_lists::{CpuLists, ListedRun, Runs, kind_of};
use super::noted::Noted;
use super::share::Share;
use super::stock::Stock;
use super::{FrameNo, Handed, NotHandedOut, Run};
use crate::ledger::{Ledger, Uncounted};
use crate::lock::rank;
use crate::percpu::CacheAligned;
use crate::sync::atomic::{AtomicIsize, AtomicUsize};
use crate::sync::{Array, Guard, Lock};
use crate::vm::{Mapping, OnFork, PAGE_SIZE};

/// Most other CPUs with warm memory that a search tries ...
const NEIGHBOURS: usize = 8;
/// ... among this many noted ones: each figure is on its own cache line.
const LOOKS: usize = 64;

/// Figures change by plain stores under the lock.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Cpu {
    /// Allocated minus freed through these lists; may be negative.
    in_use: AtomicIsize,
    /// A copy of the lists' own.
    pub(super) warm: AtomicIsize,
    pub(super) lists: Lock<CpuLists, { rank::CPU_FRAMES }>,
}

// SAFETY: zeros are a free lock and empty lists that keep none (tested in `cpu_lists.rs`); no drop
// glue.
#[cfg(not(any(feature = "loom", feature = "shuttle")))]
unsafe impl crate::table::Zeroed for CacheAligned<Cpu> {}

impl Cpu {
    /// With the lock of `lists` held.
    #[inline]
    pub(super) fn count(&self, n: isize, lists: &CpuLists) {
        self.in_use.store(self.in_use.load(Relaxed) + n, Relaxed);
        self.warm.store(lists.warm() as isize, Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct Arena {
    /// A multiple of the largest block; runs in the arena count from here.
    pub(super) base: u32,
    frames: u32,
    pub(super) memory: Mapping,
    pub(super) stock: Stock,
    /// 3 KiB each, memory only where used.
    pub(super) cpus: Array<CacheAligned<Cpu>>,
    /// The first sets, as many as [`Share::sets`]; the others keep no memory.
    used: AtomicUsize,
    pub(super) noted: Noted,
    arrivals: Arc<Arrivals>,
    /// Frames on their way to the buddy that still have memory.
    pub(super) returning: AtomicUsize,
    pub(super) ledger: Arc<dyn Ledger>,
}

impl Arena {
    /// `cpus`: sets of lists, which keep none yet.
    pub(super) fn new(
        memory: Mapping,
        (base, frames): (u32, u32),
        cpus: usize,
        arrivals: &Arc<Arrivals>,
    ) -> Result<Arena, Errno> {
        Ok(Arena {
            base,
            frames,
            memory,
            stock: Stock::new(frames as usize, arrivals.clone())?,
            cpus: Array::new(cpus, OnFork::Copy)?,
            used: AtomicUsize::new(1),
            noted: Noted::new(cpus),
            arrivals: arrivals.clone(),
            returning: AtomicUsize::new(0),
            ledger: Arc::new(Uncounted),
        })
    }

    pub(super) fn range(&self) -> core::ops::Range<usize> {
        self.base as usize..(self.base + self.frames) as usize
    }

    /// The set in use for a place's number. `used` may be stale: a wrong set costs a foreign lock,
    /// and keeps no memory.
    #[inline]
    fn wrapped(&self, lists: usize) -> usize {
        let n = self.used.load(Relaxed);
        if lists < n { lists } else { lists % n }
    }

    /// Returns the excess to the kernel. One thread at a time.
    pub(super) fn keep(&self, frames: usize) {
        let share = Share::of(frames, self.cpus.len());
        let before = self.used.swap(share.sets, Relaxed);
        for (number, cpu) in self.cpus.iter().enumerate().take(before.max(share.sets)) {
            loop {
                let mut out = Runs::new();
                let mut lists = cpu.0.lists.lock();
                lists.set_bound(share.bound_of(number), &mut out);
                self.left(&cpu.0, &lists, &out);
                let is_done = lists.warm() <= lists.bound();
                drop(lists);
                self.give_back(out);
                if is_done {
                    break;
                }
            }
        }
    }

    /// Takes no lock.
    pub(super) fn may_have(&self, n: u32) -> bool {
        self.stock.free() >= n || self.noted.any()
    }

    /// Prefers a warm run of lists `lists`, then one of neighbouring CPUs.
    #[inline]
    pub(super) fn take(&self, lists: usize, n: u32, handed: &Handed) -> Option<FrameNo> {
        let start = self.take_listed(self.wrapped(lists), n, kind_of(n)?)?;
        handed.set(self.base + start, n);
        Some(FrameNo(self.base + start))
    }

    #[inline]
    fn take_listed(&self, number: usize, n: u32, kind: usize) -> Option<u32> {
        let own = &self.cpus[number].0;
        let mut lists = own.lists.lock();
        if !lists.top(kind).is_some_and(ListedRun::is_warm) && self.noted.others(number).next().is_some() {
            drop(lists);
            let start = self.take_from_others(number, n, kind);
            if start.is_some() {
                return start;
            }
            lists = own.lists.lock();
        }
        let listed = match lists.pop(kind) {
            Some(listed) => listed,
            None => self.refill(number, &mut lists, kind)?,
        };
        own.count(n as isize, &lists);
        drop(lists);
        if !listed.is_warm() {
            self.ledger.add(n as isize * PAGE_SIZE as isize);
        }
        Some(listed.start())
    }

    /// Threads may free pages on other CPUs than they are stored on. The kernel would then
    /// interrupt all CPUs to take frames back, while this CPU took a fault for each fresh one.
    #[cold]
    fn take_from_others(&self, number: usize, n: u32, kind: usize) -> Option<u32> {
        let others = self.noted.others(number).take(LOOKS).map(|other| &self.cpus[other].0);
        others.filter(|other| other.warm.load(Relaxed) >= n as isize).take(NEIGHBOURS).find_map(|other| {
            let mut lists = other.lists.lock();
            lists.top(kind).filter(|listed| listed.is_warm())?;
            let listed = lists.pop(kind)?;
            other.count(n as isize, &lists);
            Some(listed.start())
        })
    }

    #[cold]
    fn refill(&self, number: usize, lists: &mut CpuLists, kind: usize) -> Option<ListedRun> {
        if self.stock.free() == 0 {
            return None;
        }
        // First: frames neither in the buddy nor in noted lists are unreachable.
        self.note(number, lists);
        self.stock.with(|buddy| lists.refill(kind, buddy))
    }

    /// With the lists locked, before a run is added.
    #[inline]
    fn note(&self, number: usize, lists: &mut CpuLists) {
        if !lists.is_noted {
            lists.is_noted = true;
            self.noted.add(number);
            self.arrivals.add();
        }
    }

    #[inline]
    pub(super) fn put(&self, lists: usize, frame: FrameNo, n: u32, handed: &Handed) -> Result<(), NotHandedOut> {
        let run = Run { start: frame.0 - self.base, frames: n };
        // Lists hold aligned runs only.
        let aligned = |_: &usize| run.start.is_multiple_of(n.next_power_of_two());
        let kind = kind_of(n).filter(aligned).ok_or(NotHandedOut)?;
        handed.clear(frame.0, n)?;
        let number = self.wrapped(lists);
        let cpu = &self.cpus[number].0;
        let mut lists = cpu.lists.lock();
        if lists.push(kind, ListedRun::new(run.start, true)) {
            self.note(number, &mut lists);
            cpu.count(-(n as isize), &lists);
        } else {
            self.overflow(number, lists, kind, run);
        }
        Ok(())
    }

    #[cold]
    fn overflow(&self, number: usize, mut lists: Guard<'_, CpuLists, { rank::CPU_FRAMES }>, kind: usize, run: Run) {
        let cpu = &self.cpus[number].0;
        let mut out = Runs::new();
        lists.make_room(kind, &mut out);
        self.left(cpu, &lists, &out);
        if lists.push(kind, ListedRun::new(run.start, true)) {
            self.note(number, &mut lists);
        } else {
            self.returning.fetch_add(run.frames as usize, Relaxed);
            out.push(run, true);
        }
        cpu.count(-(run.frames as isize), &lists);
        drop(lists);
        self.give_back(out);
    }

    pub(super) fn in_use(&self) -> isize {
        self.cpus.iter().map(|c| c.in_use.load(Relaxed)).sum()
    }

    /// Free frames that may have memory.
    pub(super) fn warm(&self) -> isize {
        self.returning.load(Relaxed) as isize + self.cpus.iter().map(|c| c.warm.load(Relaxed)).sum::<isize>()
    }

    pub(super) fn table_bytes(&self) -> usize {
        self.stock.with(|buddy| buddy.table_bytes()) + self.cpus.populated_bytes() + self.noted.table_bytes()
    }

    /// Makes the locks usable in a forked child.
    ///
    /// # Safety
    /// As [`Lock::reset_after_fork`].
    pub(super) unsafe fn reset_after_fork(&self) {
        // SAFETY: the caller's contract.
        unsafe {
            self.stock.reset_after_fork();
            for cpu in self.cpus.iter() {
                cpu.lists.reset_after_fork();
            }
        }
    }
}
