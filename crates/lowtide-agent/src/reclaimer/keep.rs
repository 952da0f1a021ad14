//! Memory is registered: the reclaimer keeps the run under its limit, and uses the time when there is nothing to evict. What it
//! does when is the pager's policy (`lowtide_pager::reclaim::policy`); here is what it must know of this process, and what this
//! process does beside.

use core::sync::atomic::Ordering;

use lowtide_core::store::{AreaState, MAX_AREAS};
use lowtide_core::vm;
use lowtide_pager::fault::Worker;
use lowtide_pager::pager::Pager;
use lowtide_pager::reclaim::policy::SHORTEST_NAP_US;
use lowtide_pager::reclaim::{Host, Nap, Reclaimer, Seen, UNACCOUNTED};
use lowtide_pager::segment::{self, area_state};
use lowtide_pager::sys::Line;
use lowtide_pager::sys::clock::now_us;

use super::floor::Floor;
use super::{LOOK_AGAIN, ReclaimerThread, areas, requests};
use crate::idle::Idle;
use crate::{agent, gate, say, swap_file, watch};

/// What forked children had that are gone is dropped this often.
const REAP_EVERY_US: u64 = 1_000_000;
/// A run that is over its limit because all is full is judged after this: zeros are searched for meanwhile. Sooner if it is far
/// over it.
const FULL_FOR_US: u64 = 1_000_000;
const FAR_FULL_FOR_US: u64 = 100_000;

impl ReclaimerThread {
    /// Memory is registered: keep it under the limit. Returns for how long to sleep.
    pub(super) fn keep(&mut self, pager: &Pager, total: u64) -> Nap {
        let now = now_us();
        self.housekeep(pager, total, now);
        if self.reclaimer.is_none() {
            self.reclaimer = Worker::new(true).ok().map(Reclaimer::new);
        }
        if self.reclaimer.is_none() {
            return Nap::UntilFaults(SHORTEST_NAP_US);
        }
        self.answer_what_is_fixed(pager);
        areas::tell_fills(pager);
        if total <= pager.budget.limit() {
            self.judge.full_since_us = None;
            if let Some(nap) = self.reclaim(pager) {
                return nap;
            }
        }
        let seen = self.observe(pager, total, now);
        let Some(reclaimer) = &mut self.reclaimer else { return Nap::UntilFaults(SHORTEST_NAP_US) };
        let look = reclaimer.look(pager, &seen);
        // The one handler thread that watches may wait for a CPU that others keep busy.
        if !look.faults_come && pager.uffd().is_readable() {
            watch::call_all();
        }
        self.judge.sharers = self.resident.sharers();
        reclaimer.turn(pager, look, now, &mut self.judge)
    }

    /// What the policy must know of this process and its run.
    fn observe(&mut self, pager: &Pager, total: u64, now_us: u64) -> Seen {
        let gives_way = self.yields.look(agent::segment(), agent::proc(), now_us);
        if gives_way && total <= pager.budget.marks().high() {
            // It gives what is its alone: what it shares makes no room, and would be stored by each that has it.
            pager.set_sharers(u64::MAX);
        }
        Seen {
            total,
            mine: agent::proc().ram_bytes.load(Ordering::Relaxed),
            gives_way,
            grows_unseen: true,
            may_reap: pager.was_forked(),
            now_us,
        }
    }

    /// Follows what was set, what was mapped, who forked and what failed.
    fn housekeep(&mut self, pager: &Pager, total: u64, now_us: u64) {
        let settings = agent::settings();
        pager.budget.set_limit(settings.ram_limit.load(Ordering::Relaxed));
        pager.budget.set_ceiling(settings.ram_ceiling.load(Ordering::Relaxed));
        pager.set_sharers(self.resident.sharers());
        if pager.wants_writes_watched() {
            if gate::try_close() {
                pager.watch_writes();
                gate::open();
            } else {
                pager.watch_writes_later();
            }
        }
        if pager.was_forked() && now_us.saturating_sub(self.reaped_us) >= REAP_EVERY_US {
            self.reaped_us = now_us;
            pager.release_dead(agent::segment());
        }
        self.judge.say_what_fails(pager);
        self.judge.say_what_is_kept();
        self.staging.look(pager.counters().faults_total.load(Ordering::Relaxed), pager.have_arrived());
        pager.set_staging_target(self.staging.target(pager.budget.asked(), agent::segment().active()));
        let pool_limit = settings.pool_limit.load(Ordering::Relaxed);
        pager.set_pool_limit(self.pool_share.look(agent::segment(), pager, pool_limit, total) as usize);
        // Acquire: pairs with the Release in `look_again`. The mapping is there.
        let changed = LOOK_AGAIN.load(Ordering::Acquire);
        let alone = !changed && self.resident.sharers() == 0 && agent::segment().active() <= 1;
        let uncounted = (total as i64).wrapping_sub(self.expected_without_others as i64);
        pager.budget.set_calm(self.calm.look(now_us, uncounted, alone));
        let grown = total.saturating_sub(self.expected) > UNACCOUNTED && total > pager.budget.marks().register();
        if self.look.is_due(now_us, grown || changed) {
            self.adopt_all(pager);
        }
        self.judge.floor.look(pager, total, now_us);
        self.thread_ends.look(pager, now_us);
    }
}

/// What this process knows of the limits of eviction, and says about them once.
pub(super) struct Judge {
    idle: Idle,
    pub(super) floor: Floor,
    /// See [`Pager::set_sharers`].
    sharers: u64,
    warned_full: bool,
    /// Since when the run is over its limit because no tier takes pages, in microseconds.
    full_since_us: Option<u64>,
    /// Of which swap areas it was said that they can't be written.
    pub(super) said_failing: [bool; MAX_AREAS],
    said_kept: bool,
}

impl Judge {
    pub(super) fn new() -> Judge {
        Judge {
            idle: Idle::new(),
            floor: Floor::default(),
            sharers: 0,
            warned_full: false,
            full_since_us: None,
            said_failing: [false; MAX_AREAS],
            said_kept: false,
        }
    }

    /// Whether a swap area of this process can't be written, as was last published.
    fn areas_fail() -> bool {
        let failing = area_state(AreaState::Failing);
        agent::proc().areas_now.iter().any(|area| area.state.load(Ordering::Relaxed) == failing)
    }

    fn say_what_fails(&mut self, pager: &Pager) {
        if Judge::areas_fail() {
            swap_file::say_what_fails(&pager.area_stats(), &mut self.said_failing);
        }
    }

    fn say_what_is_kept(&mut self) {
        if let Some(error) = vm::kept_by()
            && !core::mem::replace(&mut self.said_kept, true)
        {
            let mut line = Line::new();
            line.push(b"lowtide may not give memory back to the kernel (madvise: error ").number(error.raw_os_error() as u64);
            say::warn(
                line.push(b"): a filter of system calls or a tracer forbids it, and the run goes over its limit").bytes(),
            );
        }
    }
}

impl Host for Judge {
    fn may_recompress(&mut self, now_us: u64) -> bool {
        // The pool of a forked child is its parent's too, copy-on-write, until one of them changes it: that would take memory
        // in both.
        self.sharers == 0 && self.idle.is_cpu_free(now_us)
    }

    fn reap(&mut self, pager: &Pager) -> bool {
        pager.release_dead(agent::segment())
    }

    fn give_up(&mut self) {
        requests::give_up();
    }

    fn exhausted(&mut self, pager: &Pager, total: u64, now_us: u64) {
        self.floor.exhausted(pager, total, now_us);
    }

    fn full(&mut self, pager: &Pager, now_us: u64) {
        pager.publish();
        self.say_what_fails(pager);
        // Being full at times is normal for a small pool; being over the limit because of it is not.
        let limit = pager.budget.limit();
        let over = pager.budget.now().saturating_sub(limit);
        if over == 0 {
            self.full_since_us = None;
            return;
        }
        // Zeros are searched for, and may be all that is needed.
        let since = *self.full_since_us.get_or_insert(now_us);
        let is_far = over > (limit / 16).clamp(8 << 20, 64 << 20);
        if now_us.saturating_sub(since) < if is_far { FAR_FULL_FOR_US } else { FULL_FOR_US } {
            return;
        }
        // Who lowers a limit to what can't be held does not want the program to end.
        let is_lowered = pager.budget.ceiling() > pager.budget.limit();
        if agent::settings().when_full == segment::WHEN_FULL_STOP && !is_lowered {
            say::fatal(match Judge::areas_fail() {
                true => b"the rest of swap is full, an area can't be written, and --when-full stop was given: see the warnings",
                false => b"swap is full and --when-full stop was given: raise --ram or --pool, or give more --swap",
            });
        }
        if !core::mem::replace(&mut self.warned_full, true) {
            say::warn(b"swap is full: the run goes over its limit (raise --ram or --pool, or give more --swap)");
        }
    }
}
