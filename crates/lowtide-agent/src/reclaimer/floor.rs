//! The limit can't be held: all that can be evicted is out, and the run is above it all the same. Then the program is let run
//! with a working minimum of its memory.

use core::sync::atomic::Ordering;

use lowtide_pager::accounts::pool_share;
use lowtide_pager::pager::Pager;

use crate::agent;

/// How often the reclaimer looks whether the limit can be held again.
const LOOK_EVERY_US: u64 = 1_000_000;

/// What the reclaimer knows of memory that can't be evicted.
#[derive(Default)]
pub(super) struct Floor {
    /// Bytes of adopted memory that could not be moved when nothing else was left: locked, pinned, or in mappings of another
    /// kind than they were adopted as.
    stuck: u64,
    next_look_us: u64,
}

impl Floor {
    /// Bytes of adopted memory that were found not to move.
    pub(super) fn stuck(&self) -> u64 {
        self.stuck
    }

    /// Nothing more could be evicted, and the run uses `total` bytes. Returns how many of them can't be moved out, if that is
    /// more than the limit, and this process has most of them.
    pub(super) fn exhausted(&mut self, pager: &Pager, total: u64, now_us: u64) -> Option<u64> {
        if now_us < self.next_look_us {
            return None;
        }
        self.stuck = pager.adopted_in_memory().unwrap_or(0);
        self.set(pager, total, now_us)
    }

    /// Finds out now and then whether the limit can be held again. `total`: what the run uses. Returns the same.
    pub(super) fn look(&mut self, pager: &Pager, total: u64, now_us: u64) -> Option<u64> {
        if !pager.budget.has_floor() || now_us < self.next_look_us {
            return None;
        }
        let adopted = pager.adopted_in_memory().unwrap_or(0);
        self.stuck = self.stuck.min(adopted);
        self.set(pager, total - (adopted - self.stuck).min(total), now_us)
    }

    /// `fixed`: bytes that the run uses and this process can't evict.
    fn set(&mut self, pager: &Pager, fixed: u64, now_us: u64) -> Option<u64> {
        self.next_look_us = now_us + LOOK_EVERY_US;
        let (asked, minimum) = (pager.budget.asked(), pager.budget.working_minimum(agent::segment().active()));
        if fixed + minimum / 2 <= asked {
            pager.budget.set_floor(0);
            return None;
        }
        // More than the low mark is below the limit, or this would never end.
        pager.budget.set_floor(fixed + minimum.max(fixed / 16));
        // Where other processes have most of it, they can do something about it.
        let is_mine = agent::proc().ram_bytes.load(Ordering::Relaxed) > fixed / 4 * 3;
        // Pools that a device takes something of come down (`PoolShare`), and with them the floor.
        let fixed = fixed.saturating_sub(pool_share::can_give(agent::segment(), pager)?);
        (fixed > asked && is_mine).then_some(fixed)
    }
}
