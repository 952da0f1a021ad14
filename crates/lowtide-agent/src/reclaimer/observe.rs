//! Memory is registered: the reclaimer keeps the run under its limit. The pager's policy
//! (`lowtide_pager::reclaim::policy`) decides; this file feeds it, and does the process's other
//! upkeep.

use core::sync::atomic::Ordering;

use lowtide_pager::accounts::pool_trial::Choice;
use lowtide_pager::pager::Pager;
use lowtide_pager::reclaim::policy::SHORTEST_NAP_US;
use lowtide_pager::reclaim::{Nap, Seen};
use lowtide_sys::clock::now_us;

use super::{ReclaimerThread, areas, made};
use crate::handlers::{self, fault_ring, polling};
use crate::hooks::{self, gate};
use crate::process::{agent, thread};
use crate::reclaimer::wake;

const REAP_EVERY_US: u64 = 1_000_000;

/// Growth past this (plus 1/16 of the limit) means that reclaimers waited for a CPU.
const FAR_OVER: u64 = 4 << 20;
const HURRY_US: u64 = 200_000;

impl ReclaimerThread {
    /// After uncounted growth (`grown`), eviction goes before other threads: on busy CPUs it would
    /// mostly wait.
    fn hurry(&mut self, pager: &Pager, total: u64, now_us: u64, grown: bool) {
        let limit = pager.budget().limit();
        let is_far = total > limit.saturating_add(limit / 16 + FAR_OVER) && !pager.budget().is_coming_down();
        if is_far {
            self.judge.unpaged.say(pager.budget().asked(), now_us);
        }
        if is_far && grown {
            self.hurries =
                self.hurries.take().map(|(urgent, _)| urgent).or_else(thread::Urgent::nice).map(|urgent| (urgent, now_us));
        } else if self.hurries.as_ref().is_some_and(|(_, since)| total <= limit || now_us.saturating_sub(*since) > HURRY_US) {
            self.hurries = None;
        }
    }

    pub(super) fn turn(&mut self, pager: &Pager, total: u64) -> Nap {
        let now = now_us();
        self.housekeep(pager, total, now);
        pager.let_late_children_be_born();
        if !pager.paused() {
            self.in_thread.go_on(pager);
        }
        let Some(reclaimer) = made(&mut self.reclaimer, pager) else { return Nap::UntilFaults(SHORTEST_NAP_US) };
        if self.pool_trial.wants_shrinking(agent::proc()) && self.hurries.is_none() {
            pager.shrink_pool(&mut reclaimer.worker);
        }
        self.answer_what_is_fixed(pager);
        areas::tell_fills(pager);
        if total <= pager.budget().limit() {
            self.judge.full_since_us = None;
            if let Some(nap) = self.reclaim(pager) {
                return nap;
            }
        }
        let seen = self.observe(pager, total, now);
        let Some(reclaimer) = &mut self.reclaimer else { return Nap::UntilFaults(SHORTEST_NAP_US) };
        let look = reclaimer.look(pager, &seen);
        // All polling handlers may be waiting for busy CPUs.
        let waits = !look.faults_come && pager.uffd().is_readable();
        let waited = core::mem::replace(&mut self.faults_wait, waits);
        if waits {
            fault_ring::active().inspect(|ring| ring.look());
            polling::call_all();
            polling::want_another();
        }
        if waits && waited {
            // Not at the first look: a handler may be about to read a new fault.
            polling::bring_another();
        }
        let nap = reclaimer.turn(pager, look, now, &mut self.judge);
        if waits && !waited { nap.at_most(SHORTEST_NAP_US) } else { nap }
    }

    fn observe(&mut self, pager: &Pager, total: u64, now_us: u64) -> Seen {
        // Without hooks, mappings are not counted: CPU time must reveal growth.
        self.is_rung = !hooks::installed() && agent::proc().is_rung_when_it_runs();
        let gives_way = self.yields.look(agent::segment(), agent::proc(), now_us);
        if gives_way && total <= pager.budget().watermarks().high() {
            // It gives only its own pages: shared ones make no room, and each sharer would store
            // them.
            pager.set_sharers(u64::MAX);
        }
        Seen {
            total,
            mine: agent::proc().ram_bytes.load(Ordering::Relaxed),
            gives_way,
            grows_unseen: true,
            is_woken: hooks::installed() || self.is_rung,
            may_reap: pager.was_forked(),
            touch_rate: self.touch_rate,
            now_us,
        }
    }

    fn share_pool(&mut self, pager: &Pager, total: u64, now_us: u64) {
        let settings = agent::settings();
        let asked = settings.pool_limit.load(Ordering::Relaxed);
        let share = self.pool_share.look(agent::segment(), pager, asked, total);
        if pager.paused() {
            return;
        }
        let budget = pager.budget();
        // Processes would try one after another, each with all of the others' effects.
        let has_choice = settings.pool_is_given == 0
            && agent::segment().active() <= 1
            && pager.devices_have_room()
            // Threads of the program do lowtide's work then.
            && pager.counters().faults_in_thread.load(Ordering::Relaxed) == 0
            && !budget.is_coming_down()
            && !budget.has_floor();
        let choice = if has_choice { Choice::Free } else { Choice::Fixed };
        let sizes = (budget.asked(), share);
        let user_us = || thread::program_user_us(polling::threads());
        let limit = self.pool_trial.look(agent::proc(), sizes, choice, now_us, user_us);
        pager.limit_pool(limit as usize);
    }

    fn housekeep(&mut self, pager: &Pager, total: u64, now_us: u64) {
        let settings = agent::settings();
        pager.budget().set_limit(settings.ram_limit.load(Ordering::Relaxed));
        pager.budget().set_ceiling(settings.ram_ceiling.load(Ordering::Relaxed));
        let before = core::mem::replace(&mut self.judge.sharers, self.resident.sharers());
        pager.set_sharers(self.judge.sharers);
        if self.judge.sharers < before && pager.evicts_shared() {
            self.judge.floor.is_shared_by_fewer();
        }
        handlers::start_wanted(pager, now_us);
        self.leavers.look(pager);
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
        pager.set_staging_target(self.staging.target(pager.budget().asked(), agent::segment().active().max(1)));
        self.share_pool(pager, total, now_us);
        let changed = wake::must_look_again();
        let alone = !changed && self.resident.sharers() == 0 && agent::segment().active() <= 1;
        let uncounted = self.expected_alone.uncounted(total);
        pager.budget().set_calm(self.calm.look(now_us, uncounted, alone));
        let grown =
            total.saturating_sub(self.expected) > self.resident.unaccounted() && total > pager.budget().watermarks().register();
        self.hurry(pager, total, now_us, grown);
        self.growth.look(pager, total, now_us, grown);
        if self.look.is_due(now_us, grown || changed) {
            self.register_all(pager);
        }
        self.judge.look_at_floor(pager, total, now_us);
        self.thread_ends.look(pager, now_us);
    }
}
