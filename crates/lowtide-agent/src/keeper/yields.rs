//! An idle process gives way to a busy one. Each process evicts its part of what is too much, by its size; but who has not
//! missed a page for a while, when another process of the run has only just, begins before all others
//! ([`Budget::yielding_mark`]) and evicts all that is above that; when nothing is left to evict, it writes what it has in
//! compressed RAM to the devices. So the busy ones find room below the marks at which they would evict themselves, as long as
//! the idle ones have anything.
//!
//! [`Budget::yielding_mark`]: lowtide_pager::budget::Budget::yielding_mark

use core::sync::atomic::Ordering;

use lowtide_pager::segment::{Proc, Segment, proc_state};

/// A process that has missed no page for so long is idle, ...
const IDLE_US: u64 = 1_000_000;
/// ... and one is busy that has, within so long before now. (A keeper looks ten times a second at least.)
const BUSY_US: u64 = 300_000;
/// For so long after it gave way its own faults make nobody else do so.
const SETTLES_US: u64 = 5_000_000;
/// With less of the program's memory than this, compressed or not, a process has nothing to give.
const LEAST: u64 = 1 << 20;

/// What the keeper remembers to find out.
#[derive(Default)]
pub(super) struct Yields {
    /// Faults that were served when it last looked; None: it has not looked.
    faults: Option<u64>,
    /// When it saw that there were more.
    faulted_us: u64,
    /// When this process last gave way.
    yielded_us: Option<u64>,
}

impl Yields {
    /// Whether this process, `mine`, is to give way now. To be asked at each look: says to the others when it was last seen to
    /// miss pages.
    pub(super) fn look(&mut self, run: &Segment, mine: &Proc, now_us: u64) -> bool {
        let get = |n: &core::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
        let faults = get(&mine.counters.faults_total);
        if self.faults.replace(faults) != Some(faults) {
            self.faulted_us = now_us;
            // What it gave away it takes back. That makes it no busy one to which the other gives way in turn.
            if self.yielded_us.is_none_or(|at| now_us.saturating_sub(at) >= SETTLES_US) {
                mine.faulted_us.store(now_us, Ordering::Relaxed);
            }
            return false;
        }
        if now_us.saturating_sub(self.faulted_us) < IDLE_US
            || (get(&mine.ram_bytes) + get(&mine.pool_bytes)).saturating_sub(get(&mine.own_bytes)) < LEAST
        {
            return false;
        }
        let is_busy = |p: &Proc| {
            p.state.load(Ordering::Relaxed) == proc_state::ACTIVE && now_us.saturating_sub(get(&p.faulted_us)) < BUSY_US
        };
        let yields = run.used_procs().iter().any(|p| !core::ptr::eq(p, mine) && is_busy(p));
        if yields {
            self.yielded_us = Some(now_us);
        }
        yields
    }
}
