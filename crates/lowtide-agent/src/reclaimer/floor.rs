//! The limit can't be held: all that can be evicted is out, and the run is above it all the same. Then the program is let run
//! with a working minimum of its memory.

use core::sync::atomic::Ordering;

use lowtide_pager::accounts::pool_share;
use lowtide_pager::pager::Pager;
use lowtide_pager::sys::clock;

use crate::agent;

/// How often the reclaimer looks whether the limit can be held again.
const LOOK_EVERY_US: u64 = 1_000_000;
/// How soon after a look another is worth it, where processes have come or gone: a forked child that is gone leaves its parent
/// pages that were stuck because both had them.
const SOON_US: u64 = 50_000;
/// Looks take one part of this many of a CPU at most.
const REST: u64 = 20;

/// With whom a process shares the limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Company {
    /// With how many others it may have pages in common.
    sharers: u64,
    /// How many processes of the run have registered memory.
    active: u64,
}

impl Company {
    pub(super) fn now(sharers: u64) -> Company {
        Company { sharers, active: agent::segment().active() }
    }
}

/// What the reclaimer knows of memory that can't be evicted.
#[derive(Default)]
pub(super) struct Floor {
    /// Bytes of adopted memory that could not be moved when nothing else was left: locked, pinned, shared with many forked
    /// processes, or in mappings of another kind than they were adopted as.
    stuck: u64,
    /// With how many processes pages were shared then.
    stuck_with: u64,
    looks: Looks,
}

impl Floor {
    /// Bytes of adopted memory that were found not to move.
    pub(super) fn stuck(&self) -> u64 {
        self.stuck
    }

    /// Nothing more could be evicted, and the run uses `total` bytes. Returns how many of them can't be moved out, if that is
    /// more than the limit, and this process has most of them.
    pub(super) fn exhausted(&mut self, pager: &Pager, total: u64, now_us: u64, company: Company) -> Option<u64> {
        if !self.looks.is_due(now_us, company) {
            return None;
        }
        self.stuck = self.looks.took(now_us, company, || pager.adopted_in_memory().unwrap_or(0));
        self.stuck_with = company.sharers;
        self.set(pager, total)
    }

    /// Finds out now and then whether the limit can be held again. `total`: what the run uses. Returns the same.
    pub(super) fn look(&mut self, pager: &Pager, total: u64, now_us: u64, company: Company) -> Option<u64> {
        if !pager.budget.has_floor() || !self.looks.is_due(now_us, company) {
            return None;
        }
        let adopted = self.looks.took(now_us, company, || pager.adopted_in_memory().unwrap_or(0));
        // What was stuck because it was shared may not be any more: that is found by trying.
        self.stuck = if company.sharers < self.stuck_with { 0 } else { self.stuck.min(adopted) };
        self.set(pager, total - (adopted - self.stuck).min(total))
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

/// When it is time to look.
#[derive(Default)]
struct Looks {
    /// With whom the process shared the limit at the last one.
    company: Company,
    /// When the next one may be if that has changed, and when anyway.
    soon_us: u64,
    next_us: u64,
}

impl Looks {
    fn is_due(&self, now_us: u64, company: Company) -> bool {
        now_us >= if company == self.company { self.next_us } else { self.soon_us }
    }

    /// Makes a look, begun at `now_us`.
    fn took<T>(&mut self, now_us: u64, company: Company, look: impl FnOnce() -> T) -> T {
        let began = clock::now_us();
        let found = look();
        let took = clock::now_us() - began;
        *self = Looks { company, soon_us: now_us + SOON_US.max(took * REST), next_us: now_us + LOOK_EVERY_US.max(took * REST) };
        found
    }
}
