//! The way back: runs that left a list lose their memory and go to the buddy; and the drain, by which any thread empties the
//! lists of all CPUs.
//!
//! The lists are under real locks, not "only for this CPU". So the drain takes the lock of all that may hold runs (`noted.rs`),
//! one after the other, wakes nobody, and needs nothing from a CPU that sleeps, or runs a thread that never makes a system call.
//! (The kernel interrupts CPUs that run threads of this process when memory is given back, because they may remember its
//! addresses; lists without memory drain without a system call.)

use core::sync::atomic::Ordering::Relaxed;

use super::Run;
use super::arena::{Arena, Cpu};
use super::cpu_lists::{CpuLists, Runs};
use crate::vm::PAGE_SIZE;

impl Arena {
    /// Empties the lists of all CPUs that may hold runs. What other threads free meanwhile may stay.
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
                // With the lock held: what is put there next must not go unnoted.
                self.noted.remove(number);
            }
            drop(lists);
            self.give_back(out);
            if is_empty {
                break;
            }
        }
    }

    /// Notes that `runs` have left `lists`, which are those of `cpu`, and will be given back. The lock is held.
    pub(super) fn left(&self, cpu: &Cpu, lists: &CpuLists, runs: &Runs) {
        // In this order: who adds up meanwhile may count a frame twice, and misses none.
        self.returning.fetch_add(runs.warm_frames(), Relaxed);
        cpu.count(0, lists);
    }

    /// Gives the memory of runs that nobody else can reach back to the kernel, and then the runs to the buddy.
    pub(super) fn give_back(&self, mut runs: Runs) {
        if runs.is_empty() {
            return;
        }
        runs.merge();
        let warm = runs.iter().filter(|(_, warm)| *warm > 0);
        let bytes = |(run, _): (Run, u32)| ((self.base + run.start) as usize * PAGE_SIZE, run.frames as usize * PAGE_SIZE);
        // SAFETY: these frames are not handed out, in no list and not in the buddy: nobody else can reach them.
        unsafe { self.memory.discard_all(warm.map(bytes)) };
        let frames = runs.warm_frames();
        self.returning.fetch_sub(frames, Relaxed);
        self.ledger.add(-((frames * PAGE_SIZE) as isize));
        self.stock.with(|buddy| runs.iter().for_each(|(run, _)| buddy.put(run)));
    }
}
