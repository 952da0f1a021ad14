//! The limit can't be held: all that can be evicted is out, and the run is above it all the same. Then the program is let run
//! with a working minimum of its memory, and the user is told once how much can't be moved out.

use core::sync::atomic::Ordering;

use lowtide_pager::pager::Pager;
use lowtide_pager::sys::Line;

use crate::{agent, say};

/// How often the reclaimer looks whether the limit can be held again.
const LOOK_EVERY_US: u64 = 1_000_000;

/// What the reclaimer knows of memory that can't be evicted.
#[derive(Default)]
pub(super) struct Floor {
    /// Bytes of adopted memory that could not be moved when nothing else was left: locked, pinned, or in mappings of another
    /// kind than they were adopted as.
    stuck: u64,
    next_look_us: u64,
    warned: bool,
}

impl Floor {
    /// Bytes of adopted memory that were found not to move.
    pub(super) fn stuck(&self) -> u64 {
        self.stuck
    }

    /// Nothing more could be evicted, and the run uses `total` bytes. `is_full`: swap is full, so what is left may have no place
    /// to go rather than be unable to move, and another warning says it.
    pub(super) fn exhausted(&mut self, pager: &Pager, total: u64, is_full: bool, now_us: u64) {
        if now_us < self.next_look_us {
            return;
        }
        self.stuck = pager.adopted_in_memory().unwrap_or(0);
        self.set(pager, total, is_full, now_us);
    }

    /// Finds out now and then whether the limit can be held again. `total`: what the run uses; `is_full` as above.
    pub(super) fn look(&mut self, pager: &Pager, total: u64, is_full: bool, now_us: u64) {
        if pager.budget.has_floor() && now_us >= self.next_look_us {
            let adopted = pager.adopted_in_memory().unwrap_or(0);
            self.stuck = self.stuck.min(adopted);
            self.set(pager, total - (adopted - self.stuck).min(total), is_full, now_us);
        }
    }

    /// `fixed`: bytes that the run uses and this process can't evict.
    fn set(&mut self, pager: &Pager, fixed: u64, is_full: bool, now_us: u64) {
        self.next_look_us = now_us + LOOK_EVERY_US;
        let (asked, minimum) = (pager.budget.asked(), pager.budget.working_minimum(agent::segment().active()));
        if fixed + minimum / 2 <= asked {
            pager.budget.set_floor(0);
            return;
        }
        // More than the low mark is below the limit, or this would never end.
        pager.budget.set_floor(fixed + minimum.max(fixed / 16));
        // Where other processes have most of it, they can do something about it.
        let mine = agent::proc().ram_bytes.load(Ordering::Relaxed);
        if fixed > asked && mine > fixed / 4 * 3 && !is_full && !core::mem::replace(&mut self.warned, true) {
            let mut line = Line::new();
            line.number(fixed >> 20)
                .push(b" MiB can't be moved out (locked, executable, shared or pinned memory, and lowtide's own): ");
            line.push(b"the run goes over its limit of ").number(asked >> 20).push(b" MiB");
            say::warn(line.bytes());
        }
    }
}
