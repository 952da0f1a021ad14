//! The reclaimer of a group: one thread that keeps it below its watermarks, and uses the time when there is nothing to evict.
//! What it does when is the pager's policy (`lowtide_pager::reclaim::policy`), the same as of `lowtide run`. What differs:
//! a group's memory grows by faults only, which are counted; it is never forked; nobody asks for memory back; and cold pages
//! are not compressed again, as nothing is known of what else the program does with its CPUs.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use lowtide_pager::accounts::Measuring;
use lowtide_pager::fault::Worker;
use lowtide_pager::pager::Pager;
use lowtide_pager::reclaim::policy::touch_rate;
use lowtide_pager::reclaim::{Host, Nap, Reclaimer, Seen};
use lowtide_pager::sys::clock::now_us;
use lowtide_pager::sys::cpus;

use crate::instance::{self, Instance};
use crate::server::ServerThreads;

/// Pages are counted as they come and go; whether the count is right is looked at this often, when nothing happens.
const COUNT_AGAIN_US: u64 = 1_000_000;
/// What a group may use more while it comes down to a limit that was lowered.
const COMING_DOWN: u64 = 8 << 20;

/// The thread's own.
pub struct ReclaimerThread {
    instance: &'static Instance,
    reclaimer: Reclaimer,
    touch_rate: u64,
    measuring: Measuring,
    counted_us: u64,
    /// Faults and evictions when it was last looked whether the count is right.
    happened: u64,
    group: Group,
    /// By whom its server is spoken to.
    server: Option<Arc<ServerThreads>>,
}

/// What the policy asks of the library.
struct Group {
    has_said_full: bool,
}

impl Host for Group {
    fn may_recompress(&mut self, _: u64) -> bool {
        false
    }

    /// Nobody asks it for anything.
    fn between_steps(&mut self, _: &Pager) {}

    fn reap(&mut self, _: &Pager) -> bool {
        false
    }

    fn give_up(&mut self) {}

    /// Guards keep in memory what the program wants there: it knows.
    fn exhausted(&mut self, _: &Pager, _: u64, _: u64) {}

    fn full(&mut self, pager: &Pager, _: u64) {
        if pager.budget.now() > pager.budget.limit() && !core::mem::replace(&mut self.has_said_full, true) {
            instance::warn(b"swap is full: a group of regions goes over its RAM limit (raise it, or give more swap)");
        }
    }
}

impl ReclaimerThread {
    /// For an instance whose group begins.
    pub fn new(instance: &'static Instance, worker: Worker, server: Option<Arc<ServerThreads>>) -> ReclaimerThread {
        ReclaimerThread {
            instance,
            reclaimer: Reclaimer::new(worker),
            touch_rate: touch_rate(cpus::allowed()),
            measuring: Measuring::default(),
            counted_us: now_us(),
            happened: 0,
            group: Group { has_said_full: false },
            server,
        }
    }

    /// Works until the instance closes. All signals are to be blocked in the thread.
    pub fn run(mut self) -> Worker {
        let (bell, pager) = (&self.instance.bell, &self.instance.pager);
        loop {
            let seen = bell.seen();
            if self.instance.is_closing.load(Ordering::Acquire) {
                return self.reclaimer.worker;
            }
            pager.set_reclaiming(true);
            let nap = self.turn(pager);
            pager.set_reclaiming(false);
            match nap {
                Nap::UntilFaults(0) | Nap::Undisturbed(0) => {}
                Nap::UntilFaults(us) => bell.sleep(seen, us, true),
                Nap::Undisturbed(us) => bell.sleep(seen, us, false),
            }
        }
    }

    fn turn(&mut self, pager: &Pager) -> Nap {
        let now_us = now_us();
        self.measure(pager, now_us);
        self.instance.let_workers_rest(now_us);
        pager.publish();
        let budget = &pager.budget;
        let total = budget.now();
        // It follows down, and never up.
        budget.set_ceiling(if total > budget.limit() { budget.ceiling().min(total + COMING_DOWN) } else { 0 });
        let seen = Seen {
            total,
            mine: total,
            gives_way: false,
            grows_unseen: false,
            is_woken: false,
            may_reap: false,
            touch_rate: self.touch_rate,
            now_us,
        };
        let look = self.reclaimer.look(pager, &seen);
        self.reclaimer.turn(pager, look, now_us, &mut self.group)
    }

    fn measure(&mut self, pager: &Pager, now: u64) {
        let evicted = pager.counters().evictions_pages.load(Ordering::Relaxed);
        if self.measuring.is_due(now, evicted) {
            pager.measure_rest();
            self.instance.share_with_tables(pager.budget.asked());
            self.server.iter().for_each(|server| server.say_what_is_odd());
        }
        let happened = pager.counters().happened();
        let is_quiet = core::mem::replace(&mut self.happened, happened) == happened;
        if is_quiet && now.saturating_sub(self.counted_us) >= COUNT_AGAIN_US {
            self.counted_us = now;
            pager.publish();
            if let Ok(bytes) = pager.adopted_in_memory()
                && pager.counters().happened() == happened
            {
                pager.budget.measured(bytes + pager.budget.own());
            }
        }
    }
}
