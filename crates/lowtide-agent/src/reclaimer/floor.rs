//! The limit can't be held: all evictable memory is out and the run is still above it. The program
//! then runs with a working minimum.

use core::sync::atomic::Ordering;

use lowtide_pager::accounts::{Stuck, pool_share};
use lowtide_pager::pager::Pager;
use lowtide_sys::clock;
use lowtide_wire::Watermarks;

use crate::process::agent;

#[derive(Default)]
pub(super) struct Floor {
    /// Registered memory that would not move: locked, pinned, shared with many forked processes, or
    /// in a mapping of another kind than when registered.
    stuck: Stuck,
}

impl Floor {
    pub(super) fn stuck(&self, pager: &Pager) -> u64 {
        self.stuck.bytes_at_most(evicted(pager))
    }

    pub(super) fn is_shared_by_fewer(&mut self) {
        self.stuck.is_shared_by_fewer();
    }

    pub(super) fn is_lifted_to_try(&self) -> bool {
        self.stuck.is_being_tried()
    }

    /// The run uses `total` bytes. Returns the immovable bytes if they exceed the limit and are
    /// mostly this process's.
    pub(super) fn exhausted(&mut self, pager: &Pager, total: u64, now_us: u64) -> Option<u64> {
        // Without a floor the program would only fault.
        let registered = self.look_if(self.stuck.is_being_tried(), pager, now_us)?;
        self.stuck.exhausted(registered);
        self.set(pager, total)
    }

    /// Returns as [`Floor::exhausted`].
    pub(super) fn look(&mut self, pager: &Pager, total: u64, now_us: u64) -> Option<u64> {
        self.stuck.settle(now_us, evicted(pager));
        if !pager.budget().has_floor() {
            self.try_again(None, pager, now_us);
            return None;
        }
        let registered = self.look_if(false, pager, now_us)?;
        self.try_again(Some(registered), pager, now_us);
        self.set(pager, total - (registered - self.stuck.bytes()).min(total))
    }

    fn look_if(&mut self, anyway: bool, pager: &Pager, now_us: u64) -> Option<u64> {
        let active = agent::segment().active();
        if !anyway && !self.stuck.is_due(now_us, active) {
            return None;
        }
        let began = clock::thread_cpu_us();
        let registered = pager.registered_in_memory().unwrap_or(0);
        self.stuck.looked(registered, clock::now_us(), clock::thread_cpu_us() - began, active);
        Some(registered)
    }

    fn try_again(&mut self, registered: Option<u64>, pager: &Pager, now_us: u64) {
        if !self.stuck.is_worth_a_try(now_us) {
            return;
        }
        if pager.try_what_stayed() {
            self.stuck.is_tried(registered, now_us, evicted(pager));
        } else {
            self.stuck.is_put_off(now_us);
        }
    }

    /// `fixed`: bytes that this process can't evict.
    fn set(&mut self, pager: &Pager, fixed: u64) -> Option<u64> {
        let asked = pager.budget().asked();
        let minimum = Watermarks::of(asked).working_minimum(agent::segment().active());
        if fixed + minimum / 2 <= asked {
            pager.budget().set_floor(0);
            return None;
        }
        // Above `fixed` by more than the gap between limit and low mark, or eviction would never
        // end.
        pager.budget().set_floor(fixed + minimum.max(fixed / 16));
        // If other processes have most of it, they can act.
        let is_mine = agent::proc().ram_bytes.load(Ordering::Relaxed) > fixed / 4 * 3;
        // Pools come down as a device takes pages (`PoolShare`), and with them the floor.
        let fixed = fixed.saturating_sub(pool_share::can_give(agent::segment(), pager)?);
        (fixed > asked && is_mine).then_some(fixed)
    }
}

fn evicted(pager: &Pager) -> u64 {
    pager.counters().evictions_pages.load(Ordering::Relaxed)
}
