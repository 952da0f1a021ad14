//! The frames of one NUMA node: a buddy under one lock, and in front of it the lists of each CPU under a lock of its own.
//!
//! Lock order: the lists of one CPU, then the buddy. Nobody holds two CPUs' lists, and nobody gives memory back to the kernel
//! with a lock held: runs on their way from a list to the buddy are in neither, so that nobody else can reach them.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;

use super::buddy::Buddy;
use super::cpu_lists::{CpuLists, ListedRun, Runs, kind_of};
use super::{FrameNo, Handed, NotHandedOut, Run};
use crate::ledger::{Ledger, Uncounted};
use crate::lock::rank;
use crate::percpu::CacheAligned;
use crate::sync::atomic::{AtomicIsize, AtomicUsize};
use crate::sync::{Guard, Lock};
use crate::vm::{Mapping, PAGE_SIZE};

/// This many CPUs are asked for a run with memory.
const NEIGHBOURS: usize = 8;

/// What one CPU keeps. The figures are changed with the lock held, by plain stores, and read without.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Cpu {
    /// Frames handed out less frames freed by way of these lists: negative where more is freed than handed out.
    in_use: AtomicIsize,
    /// Frames in the lists that may have memory behind them.
    pub(super) warm: AtomicIsize,
    pub(super) lists: Lock<CpuLists, { rank::CPU_FRAMES }>,
}

impl Cpu {
    /// `n` frames more are handed out, and `warm` more are in the lists (negative: fewer). The lock is held.
    #[inline]
    pub(super) fn count(&self, n: isize, warm: isize) {
        self.in_use.store(self.in_use.load(Relaxed) + n, Relaxed);
        self.warm.store(self.warm.load(Relaxed) + warm, Relaxed);
    }
}

/// The frames of a node.
#[derive(Debug)]
pub(super) struct Arena {
    /// Number of the first frame, a multiple of the largest block; runs inside the arena are counted from here.
    pub(super) base: u32,
    frames: u32,
    pub(super) memory: Mapping,
    pub(super) buddy: Lock<Buddy, { rank::BUDDY }>,
    pub(super) cpus: Box<[CacheAligned<Cpu>]>,
    /// Frames on their way to the buddy whose memory is not yet given back.
    pub(super) returning: AtomicUsize,
    /// Told of frames that get or lose the memory behind them.
    pub(super) ledger: Arc<dyn Ledger>,
}

impl Arena {
    /// The frames `base .. base + frames` of `memory`, all free, with `cpus` sets of lists of at most `bound` frames each.
    pub(super) fn new(memory: Mapping, base: u32, frames: u32, cpus: usize, bound: u32) -> Result<Arena, Errno> {
        let cpu = || {
            let lists = Lock::new(CpuLists::new(bound));
            CacheAligned(Cpu { in_use: AtomicIsize::new(0), warm: AtomicIsize::new(0), lists })
        };
        Ok(Arena {
            base,
            frames,
            memory,
            buddy: Lock::new(Buddy::new(frames as usize)?),
            cpus: (0..cpus).map(|_| cpu()).collect(),
            returning: AtomicUsize::new(0),
            ledger: Arc::new(Uncounted),
        })
    }

    /// The frames of this arena, from..to.
    pub(super) fn range(&self) -> core::ops::Range<usize> {
        self.base as usize..(self.base + self.frames) as usize
    }

    #[inline]
    fn cpu(&self, cpu: usize) -> &Cpu {
        let n = self.cpus.len();
        &self.cpus[if cpu < n { cpu } else { cpu % n }].0
    }

    /// Hands out `n` frames, from the lists of `cpu` if they have such a run with memory, else from those of CPUs next to it,
    /// else any.
    #[inline]
    pub(super) fn take(&self, cpu: usize, n: u32, handed: &Handed) -> Option<FrameNo> {
        let start = self.take_listed(cpu, n, kind_of(n)?)?;
        handed.set(self.base + start, n);
        Some(FrameNo(self.base + start))
    }

    #[inline]
    fn take_listed(&self, cpu: usize, n: u32, kind: usize) -> Option<u32> {
        let own = self.cpu(cpu);
        let mut lists = own.lists.lock();
        if !lists.top(kind).is_some_and(ListedRun::is_warm) {
            drop(lists);
            let start = self.take_from_neighbours(cpu, n, kind);
            if start.is_some() {
                return start;
            }
            lists = own.lists.lock();
        }
        let listed = match lists.pop(kind) {
            Some(listed) => listed,
            None => self.refill(&mut lists, kind)?,
        };
        own.count(n as isize, if listed.is_warm() { -(n as isize) } else { 0 });
        drop(lists);
        if !listed.is_warm() {
            self.ledger.add(n as isize * PAGE_SIZE as isize);
        }
        Some(listed.start())
    }

    /// One thread stores pages and others, on other CPUs, free them. Their frames would go back to the kernel, with an
    /// interrupt for all CPUs, while this one got fresh ones from it, with a fault for each.
    #[cold]
    fn take_from_neighbours(&self, cpu: usize, n: u32, kind: usize) -> Option<u32> {
        (1..self.cpus.len().min(NEIGHBOURS + 1)).map(|i| self.cpu(cpu + i)).find_map(|other| {
            if other.warm.load(Relaxed) < n as isize {
                return None;
            }
            let mut lists = other.lists.lock();
            lists.top(kind).filter(|listed| listed.is_warm())?;
            let listed = lists.pop(kind)?;
            other.count(n as isize, -(n as isize));
            Some(listed.start())
        })
    }

    #[cold]
    fn refill(&self, lists: &mut CpuLists, kind: usize) -> Option<ListedRun> {
        lists.refill(kind, &mut self.buddy.lock())
    }

    /// Frees a run into the lists of `cpu`.
    #[inline]
    pub(super) fn put(&self, cpu: usize, frame: FrameNo, n: u32, handed: &Handed) -> Result<(), NotHandedOut> {
        let run = Run { start: frame.0 - self.base, frames: n };
        // The lists promise aligned runs.
        let aligned = |_: &usize| run.start.is_multiple_of(n.next_power_of_two());
        let kind = kind_of(n).filter(aligned).ok_or(NotHandedOut)?;
        handed.clear(frame.0, n)?;
        let cpu = self.cpu(cpu);
        let mut lists = cpu.lists.lock();
        if lists.push(kind, ListedRun::new(run.start, true)) {
            cpu.count(-(n as isize), n as isize);
        } else {
            self.overflow(cpu, lists, kind, run);
        }
        Ok(())
    }

    #[cold]
    fn overflow(&self, cpu: &Cpu, mut lists: Guard<'_, CpuLists, { rank::CPU_FRAMES }>, kind: usize, run: Run) {
        let n = run.frames as isize;
        let mut out = Runs::new();
        lists.make_room(kind, &mut out);
        self.left(cpu, &out);
        if lists.push(kind, ListedRun::new(run.start, true)) {
            cpu.count(-n, n);
        } else {
            self.returning.fetch_add(run.frames as usize, Relaxed);
            cpu.count(-n, 0);
            out.push(run, true);
        }
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

    /// Makes the locks usable in a forked child.
    ///
    /// # Safety
    /// As [`Lock::reset_after_fork`].
    pub(super) unsafe fn reset_after_fork(&self) {
        // SAFETY: the caller answers.
        unsafe {
            self.buddy.reset_after_fork();
            for cpu in &self.cpus {
                cpu.lists.reset_after_fork();
            }
        }
    }
}
