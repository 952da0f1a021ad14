//! Runs lose their memory, then reach the buddy. The drain empties the lists of all CPUs, from any
//! thread.
//!
//! It locks all sets that may hold runs (`noted.rs`), one after the other; it wakes no thread and
//! needs nothing from a CPU that is idle or never enters the kernel. To return memory the kernel
//! interrupts CPUs that run threads of this process (TLB shootdown); lists without memory drain
//! without a system call.

use core::sync::atomic::Ordering::Relaxed;

use super::Run;
use super::arena::{Arena, Cpu};
use super::cpu_lists::{CpuLists, Runs};
use crate::vm::PAGE_SIZE;

impl Arena {
    /// Concurrent frees may stay.
    pub(super) fn drain(&self) {
        self.noted.iter().for_each(|number| self.drain_one(number));
    }

    fn drain_one(&self, number: usize) {
        let cpu = &self.cpus[number].0;
        for _ in 0..CpuLists::MOST_TAKES {
            let mut out = Runs::new();
            let mut lists = cpu.lists.lock();
            lists.take_all(&mut out);
            self.left(cpu, &lists, &out);
            let is_empty = lists.is_empty();
            if is_empty && lists.is_noted {
                lists.is_noted = false;
                // Under the lock: the next run put there must be noted.
                self.noted.remove(number);
            }
            drop(lists);
            self.give_back(out);
            if is_empty {
                break;
            }
        }
    }

    /// With the lock of `lists` held, before [`Arena::give_back`].
    pub(super) fn left(&self, cpu: &Cpu, lists: &CpuLists, runs: &Runs) {
        // In this order: a concurrent sum may count a frame twice, but misses none.
        self.returning.fetch_add(runs.warm_frames(), Relaxed);
        cpu.count(0, lists);
    }

    /// For runs that no other thread can reach.
    pub(super) fn give_back(&self, mut runs: Runs) {
        if runs.is_empty() {
            return;
        }
        runs.merge();
        let warm = runs.iter().filter(|(_, warm)| *warm > 0);
        let bytes = |(run, _): (Run, u32)| ((self.base + run.start) as usize * PAGE_SIZE, run.frames as usize * PAGE_SIZE);
        // SAFETY: these frames are not handed out, in no list and not in the buddy: out of reach of
        // other threads.
        unsafe { self.memory.discard_all(warm.map(bytes)) };
        let frames = runs.warm_frames();
        self.returning.fetch_sub(frames, Relaxed);
        self.ledger.add(-((frames * PAGE_SIZE) as isize));
        self.stock.with(|buddy| runs.iter().for_each(|(run, _)| buddy.put(run)));
    }
}
