//! The frames of one NUMA node: a buddy under one lock, and in front of it the lists of each of its CPUs under a lock of their
//! own. Whoever is not of the node uses the lists of one that is.
//!
//! Lock order: the lists of one CPU, then the buddy. Nobody holds two CPUs' lists, and nobody gives memory back to the kernel
//! with a lock held: runs on their way from a list to the buddy are in neither, so that nobody else can reach them.

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

/// This many other CPUs are asked for a run with memory, at most ...
const NEIGHBOURS: usize = 8;
/// ... of those of so many, at most, that have memory: that of each is written on a cache line of its own.
const LOOKS: usize = 64;

/// What one CPU keeps. The figures are changed with the lock held, by plain stores, and read without.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Cpu {
    /// Frames handed out less frames freed by way of these lists: negative where more is freed than handed out.
    in_use: AtomicIsize,
    /// Frames in the lists that may have memory behind them: what the lists say.
    pub(super) warm: AtomicIsize,
    pub(super) lists: Lock<CpuLists, { rank::CPU_FRAMES }>,
}

// SAFETY: zeros are a free lock, and lists without a run that keep none (`cpu_lists.rs` tests it); there is nothing to drop.
#[cfg(not(any(feature = "loom", feature = "shuttle")))]
unsafe impl crate::table::Zeroed for CacheAligned<Cpu> {}

impl Cpu {
    /// `n` frames more are handed out (negative: fewer), and the lists, whose lock is held, are as they are.
    #[inline]
    pub(super) fn count(&self, n: isize, lists: &CpuLists) {
        self.in_use.store(self.in_use.load(Relaxed) + n, Relaxed);
        self.warm.store(lists.warm() as isize, Relaxed);
    }
}

/// The frames of a node.
#[derive(Debug)]
pub(super) struct Arena {
    /// Number of the first frame, a multiple of the largest block; runs inside the arena are counted from here.
    pub(super) base: u32,
    frames: u32,
    pub(super) memory: Mapping,
    pub(super) stock: Stock,
    /// 3 KiB each, which only those take that are used.
    pub(super) cpus: Array<CacheAligned<Cpu>>,
    /// How many of these are used, from the first on: [`Share::sets`]. The others keep no memory.
    used: AtomicUsize,
    /// Which of these may hold runs.
    pub(super) noted: Noted,
    /// Told when these are no longer as empty as they were known to be.
    arrivals: Arc<Arrivals>,
    /// Frames on their way to the buddy whose memory is not yet given back.
    pub(super) returning: AtomicUsize,
    /// Told of frames that get or lose the memory behind them.
    pub(super) ledger: Arc<dyn Ledger>,
}

impl Arena {
    /// The frames `base .. base + frames` of `memory`, all free, with `cpus` sets of lists, which keep none so far.
    ///
    /// # Errors
    /// As [`Stock::new`] and [`Array::new`].
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

    /// The frames of this arena, from..to.
    pub(super) fn range(&self) -> core::ops::Range<usize> {
        self.base as usize..(self.base + self.frames) as usize
    }

    /// The lists here of who has these on its own node. Stale as soon as it is known: who uses others costs a lock of theirs, and
    /// they keep none of what it frees.
    #[inline]
    fn wrapped(&self, lists: usize) -> usize {
        let n = self.used.load(Relaxed);
        if lists < n { lists } else { lists % n }
    }

    /// All lists are to keep the memory of no more than `frames` frames together; what is too much goes back to the kernel. By
    /// one thread at a time.
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

    /// Whether `n` free frames may be found here. Takes no lock.
    pub(super) fn may_have(&self, n: u32) -> bool {
        self.stock.free() >= n || self.noted.any()
    }

    /// Hands out `n` frames, from lists number `lists` if they have such a run with memory, else from those of CPUs next to
    /// them, else any.
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

    /// One thread stores pages and others, on other CPUs, free them. Their frames would go back to the kernel, with an
    /// interrupt for all CPUs, while this one got fresh ones from it, with a fault for each.
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
        // Before: frames that are neither in the buddy nor in noted lists are there for nobody.
        self.note(number, lists);
        self.stock.with(|buddy| lists.refill(kind, buddy))
    }

    /// These lists, whose lock is held, have a run, or are about to.
    #[inline]
    fn note(&self, number: usize, lists: &mut CpuLists) {
        if !lists.is_noted {
            lists.is_noted = true;
            self.noted.add(number);
            self.arrivals.add();
        }
    }

    /// Frees a run into lists number `lists`.
    #[inline]
    pub(super) fn put(&self, lists: usize, frame: FrameNo, n: u32, handed: &Handed) -> Result<(), NotHandedOut> {
        let run = Run { start: frame.0 - self.base, frames: n };
        // The lists promise aligned runs.
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

    /// Frames handed out.
    pub(super) fn in_use(&self) -> isize {
        self.cpus.iter().map(|c| c.in_use.load(Relaxed)).sum()
    }

    /// Free frames that may have memory behind them.
    pub(super) fn warm(&self) -> isize {
        self.returning.load(Relaxed) as isize + self.cpus.iter().map(|c| c.warm.load(Relaxed)).sum::<isize>()
    }

    /// Bytes of memory that the tables of the node take.
    pub(super) fn table_bytes(&self) -> usize {
        self.stock.with(|buddy| buddy.table_bytes()) + self.cpus.populated_bytes() + self.noted.table_bytes()
    }

    /// Makes the locks usable in a forked child.
    ///
    /// # Safety
    /// As [`Lock::reset_after_fork`].
    pub(super) unsafe fn reset_after_fork(&self) {
        // SAFETY: the caller answers.
        unsafe {
            self.stock.reset_after_fork();
            for cpu in self.cpus.iter() {
                cpu.lists.reset_after_fork();
            }
        }
    }
}
