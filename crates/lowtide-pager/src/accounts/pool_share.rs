//! This process's pool limit: the run's, less other pools. With devices at most the limit less
//! lowtide's other memory everywhere and a working minimum: many small processes have more of both.
//! Above the limit each pool gives back its part: shared pages free room only once all have stored
//! copies. By the user's limit, not the floor ([`RamBudget::set_floor`]), which contains pools.

use core::sync::atomic::{AtomicU64, Ordering};

use lowtide_wire::Watermarks;
use lowtide_wire::segment::{Segment, proc_state};

use crate::accounts::budget::RamBudget;
use crate::pager::Pager;

/// Always allowed: pages pass through on their way to devices.
/// A smaller excess vanishes.
const TOLERATED_PART: u64 = 16;

/// State between looks.
#[derive(Debug, Default)]
pub struct PoolShare {
    was_over: bool,
}

impl PoolShare {
    /// In bytes, for a run that uses `total` and allows `asked`. Call at each look.
    pub fn look(&mut self, run: &Segment, pager: &Pager, asked: u64, total: u64) -> u64 {
        let sums = Sums::of(run, pager, total);
        let over = sums.over(&pager.accounts.budget);
        let is_over = over > pager.accounts.budget.asked() / TOLERATED_PART;
        // Sharing processes are measured in turn, so one look may be wrong.
        let stays_over = core::mem::replace(&mut self.was_over, is_over) && is_over;
        // The pool must take what no device takes.
        if !pager.devices_have_room() {
            return asked.saturating_sub(sums.others());
        }
        share(asked, &pager.accounts.budget, &sums, if stays_over { over } else { 0 })
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    total: u64,
    processes: u64,
    mine: u64,
    pools: u64,
    rest: u64,
}

impl Sums {
    fn of(run: &Segment, pager: &Pager, total: u64) -> Sums {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let mut sums = Sums { total, mine: get(&pager.proc().pool_bytes), ..Sums::default() };
        // Usually alone.
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

/// Bytes that pools can still give to devices. None during a fork.
pub fn can_give(run: &Segment, pager: &Pager) -> Option<u64> {
    let pools = if pager.enter()?.store().devices_have_room() { Sums::of(run, pager, 0).pools } else { 0 };
    Some(pools.saturating_sub(Watermarks::of(pager.accounts.budget.asked()).least_pools()))
}

fn share(asked: u64, budget: &RamBudget, now: &Sums, over: u64) -> u64 {
    let limit = Watermarks::of(budget.asked());
    let share = asked.min(limit.room_for_pools(now.rest)).saturating_sub(now.others());
    if over == 0 {
        return share;
    }
    let part = u128::from(over) * u128::from(now.mine) / u128::from(now.pools.max(1));
    share.min(now.mine.saturating_sub(part as u64).max(limit.least_pools() / now.processes.max(1)))
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
