//! How much the pool of this process may hold: what the pool limit of the run leaves beside the pools of the others. Where
//! there are devices, no more than what lowtide's own memory in all processes and a working minimum of the program leave: many
//! small processes have more of both than one large. And where a run has passed its limit all the same, each pool gives back
//! its part: what several processes share makes no room before the last of them has its copy out. All this goes by the limit
//! that was asked for: a floor ([`RamBudget::set_floor`]) that has the pools in it must not give them room.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::accounts::budget::RamBudget;
use crate::pager::Pager;
use crate::segment::{Segment, proc_state};

/// The pools may have this part of the limit anyway: all that goes to devices goes through them at times.
const LEAST_PART: u64 = 16;
/// A run that is over its limit by less than this part of it comes down by itself.
const TOLERATED_PART: u64 = 16;

/// What the reclaimer remembers of it.
#[derive(Debug, Default)]
pub struct PoolShare {
    /// The run was over its limit when it was last looked, by more than is tolerated.
    was_over: bool,
}

impl PoolShare {
    /// Bytes, for the pager of one process of a run that uses `total` bytes and whose pools may have `asked` all together. To
    /// be asked at each look.
    pub fn look(&mut self, run: &Segment, pager: &Pager, asked: u64, total: u64) -> u64 {
        let sums = Sums::of(run, pager, total);
        let over = sums.over(&pager.budget);
        let is_over = over > pager.budget.asked() / TOLERATED_PART;
        // A single look may be wrong: processes that share pages are measured one after the other.
        let stays_over = core::mem::replace(&mut self.was_over, is_over) && is_over;
        // What a device does not take, the pool must.
        if !pager.devices_have_room() {
            return asked.saturating_sub(sums.others());
        }
        share(asked, &pager.budget, &sums, if stays_over { over } else { 0 })
    }
}

/// Bytes of the run.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    /// All that counts against the limit.
    total: u64,
    /// How many processes have adopted memory.
    processes: u64,
    /// The pool of this process, and all.
    mine: u64,
    pools: u64,
    /// What lowtide has in its processes besides.
    rest: u64,
}

impl Sums {
    fn of(run: &Segment, pager: &Pager, total: u64) -> Sums {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let mut sums = Sums { total, mine: get(&pager.proc().pool_bytes), ..Sums::default() };
        // Mostly it is the only one, and the others need not be looked at.
        let all = if run.active() > 1 { run.used_procs() } else { core::slice::from_ref(pager.proc()) };
        for p in all.iter().filter(|p| p.state.load(Ordering::Relaxed) == proc_state::ACTIVE) {
            let pool = get(&p.pool_bytes);
            sums.processes += 1;
            sums.pools = sums.pools.saturating_add(pool);
            sums.rest = sums.rest.saturating_add(get(&p.own_bytes).saturating_sub(pool));
        }
        sums
    }

    fn others(&self) -> u64 {
        self.pools.saturating_sub(self.mine)
    }

    fn over(&self, budget: &RamBudget) -> u64 {
        self.total.saturating_sub(budget.wanted())
    }
}

/// Bytes that the pools of a run can still give to its devices. None: that can't be told while the program forks.
pub fn can_give(run: &Segment, pager: &Pager) -> Option<u64> {
    let pools = if pager.enter()?.store().devices_have_room() { Sums::of(run, pager, 0).pools } else { 0 };
    Some(pools.saturating_sub(pager.budget.asked() / LEAST_PART))
}

/// The most that all pools of a run may have beside `rest` bytes that lowtide has in its processes otherwise, and a working
/// minimum of the program.
pub fn room(budget: &RamBudget, rest: u64) -> u64 {
    let limit = budget.asked();
    limit.saturating_sub(rest.saturating_add(budget.working_minimum(1))).max(limit / LEAST_PART)
}

/// Of a run with devices, of which it has to give back its part of `over` bytes.
fn share(asked: u64, budget: &RamBudget, now: &Sums, over: u64) -> u64 {
    let share = asked.min(room(budget, now.rest)).saturating_sub(now.others());
    if over == 0 {
        return share;
    }
    let part = u128::from(over) * u128::from(now.mine) / u128::from(now.pools.max(1));
    share.min(now.mine.saturating_sub(part as u64).max(budget.asked() / LEAST_PART / now.processes.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn budget(mib: u64) -> RamBudget {
        let budget = RamBudget::default();
        budget.set_limit(mib * MIB);
        budget
    }

    #[test]
    fn the_pools_leave_room_for_the_tables_and_a_working_minimum() {
        let one = Sums { total: 500 * MIB, processes: 1, mine: 300 * MIB, pools: 300 * MIB, rest: 20 * MIB };
        assert_eq!(share(432 * MIB, &budget(512), &one, 0), 428 * MIB, "an eighth of the limit is the program's");
        assert_eq!(share(100 * MIB, &budget(512), &one, 0), 100 * MIB, "what was asked for is a limit");
        let many = Sums { total: 142 * MIB, processes: 7, mine: 15 * MIB, pools: 105 * MIB, rest: 41 * MIB };
        assert!(share(120 * MIB, &budget(142), &many, 0) < 15 * MIB, "it gives back");
        let hopeless = Sums { total: 64 * MIB, processes: 7, mine: 0, pools: 0, rest: 200 * MIB };
        assert_eq!(share(120 * MIB, &budget(64), &hopeless, 0), 4 * MIB);
    }

    #[test]
    fn a_floor_with_the_pool_in_it_gives_the_pool_no_room() {
        let lifted = budget(33);
        lifted.set_floor(39 * MIB);
        let one = Sums { total: 39 * MIB, processes: 1, mine: 28 * MIB, pools: 28 * MIB, rest: 7 * MIB };
        assert!(share(28 * MIB, &lifted, &one, 0) < 22 * MIB, "what was asked for, less the rest and a minimum");
        assert_eq!(one.over(&lifted), 6 * MIB, "the floor doesn't allow it");
        assert_eq!(share(28 * MIB, &lifted, &Sums { rest: 0, ..one }, 6 * MIB), 22 * MIB);
    }

    #[test]
    fn over_the_limit_each_pool_gives_back_its_part_and_keeps_something() {
        let over = Sums { total: 212 * MIB, processes: 4, mine: 20 * MIB, pools: 80 * MIB, rest: 20 * MIB };
        assert_eq!(over.over(&budget(142)), 70 * MIB);
        assert_eq!(share(120 * MIB, &budget(142), &over, 40 * MIB), 10 * MIB);
        assert_eq!(share(120 * MIB, &budget(142), &over, 400 * MIB), 142 * MIB / 16 / 4);
        assert!(share(120 * MIB, &budget(142), &over, 0) > 20 * MIB);
        let coming_down = budget(142);
        coming_down.set_ceiling(220 * MIB);
        assert_eq!(over.over(&coming_down), 0, "a limit that was lowered is not passed");
    }
}
