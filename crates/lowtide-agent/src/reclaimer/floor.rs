//! The limit can't be held: all that can be evicted is out, and the run is above it all the same. Then the program is let run
//! with a working minimum of its memory.

use core::sync::atomic::Ordering;

use lowtide_pager::accounts::{Stuck, pool_share};
use lowtide_pager::pager::Pager;
use lowtide_pager::sys::clock;

use crate::agent;

/// What the reclaimer knows of memory that can't be evicted.
#[derive(Default)]
pub(super) struct Floor {
    /// Adopted memory that could not be moved when nothing else was left: locked, pinned, shared with many forked processes, or
    /// in mappings of another kind than they were adopted as.
    stuck: Stuck,
}

impl Floor {
    /// Bytes of adopted memory that were found not to move, also if that is being tried just now.
    pub(super) fn stuck(&self, pager: &Pager) -> u64 {
        self.stuck.bytes_at_most(evicted(pager))
    }

    /// Fewer processes share pages with this one than did.
    pub(super) fn is_shared_by_fewer(&mut self) {
        self.stuck.is_shared_by_fewer();
    }

    /// Whether it was lifted to try what was stuck.
    pub(super) fn is_lifted_to_try(&self) -> bool {
        self.stuck.is_being_tried()
    }

    /// Nothing more could be evicted, and the run uses `total` bytes. Returns how many of them can't be moved out, if that is
    /// more than the limit, and this process has most of them.
    pub(super) fn exhausted(&mut self, pager: &Pager, total: u64, now_us: u64) -> Option<u64> {
        // Without a floor the program would go on from fault to fault.
        let adopted = self.look_if(self.stuck.is_being_tried(), pager, now_us)?;
        self.stuck.exhausted(adopted);
        self.set(pager, total)
    }

    /// Finds out now and then whether the limit can be held again. `total`: what the run uses. Returns the same.
    pub(super) fn look(&mut self, pager: &Pager, total: u64, now_us: u64) -> Option<u64> {
        self.stuck.settle(now_us, evicted(pager));
        if !pager.budget.has_floor() {
            self.try_again(None, pager, now_us);
            return None;
        }
        let adopted = self.look_if(false, pager, now_us)?;
        self.try_again(Some(adopted), pager, now_us);
        self.set(pager, total - (adopted - self.stuck.bytes()).min(total))
    }

    /// How many bytes are adopted and in memory. None: it is not the time to look, and there is no other reason.
    fn look_if(&mut self, anyway: bool, pager: &Pager, now_us: u64) -> Option<u64> {
        let active = agent::segment().active();
        if !anyway && !self.stuck.is_due(now_us, active) {
            return None;
        }
        let began = clock::thread_cpu_us();
        let adopted = pager.adopted_in_memory().unwrap_or(0);
        self.stuck.looked(adopted, clock::now_us(), clock::thread_cpu_us() - began, active);
        Some(adopted)
    }

    /// Tries again what was stuck, if it is the time.
    fn try_again(&mut self, adopted: Option<u64>, pager: &Pager, now_us: u64) {
        if !self.stuck.is_worth_a_try(now_us) {
            return;
        }
        if pager.try_what_stayed() {
            self.stuck.is_tried(adopted, now_us, evicted(pager));
        } else {
            self.stuck.is_put_off(now_us);
        }
    }

    /// `fixed`: bytes that the run uses and this process can't evict.
    fn set(&mut self, pager: &Pager, fixed: u64) -> Option<u64> {
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

/// Pages evicted so far.
fn evicted(pager: &Pager) -> u64 {
    pager.counters().evictions_pages.load(Ordering::Relaxed)
}
