//! The reclaimer of a group, with the policy of `lowtide run`'s (`lowtide_pager::reclaim::policy`).
//! Differences: the group grows only by counted faults, never forks, and gets no requests; and cold
//! pages are not recompressed, because the program may need its CPUs.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use lowtide_pager::accounts::Measuring;
use lowtide_pager::pager::Pager;
use lowtide_pager::pages::Worker;
use lowtide_pager::reclaim::policy::touch_rate;
use lowtide_pager::reclaim::{Host, Nap, Reclaimer, Seen};
use lowtide_sys::clock::now_us;
use lowtide_sys::cpus;

use crate::instance::{self, Instance};
use crate::server::ServerThreads;

const COUNT_AGAIN_US: u64 = 1_000_000;
/// Allowed growth while the group comes down to a lowered limit.
const COMING_DOWN: u64 = 8 << 20;

pub struct ReclaimerThread {
    instance: &'static Instance,
    reclaimer: Reclaimer,
    touch_rate: u64,
    measuring: Measuring,
    counted_us: u64,
    happened: u64,
    group: Group,
    server: Option<Arc<ServerThreads>>,
}

struct Group {
    has_said_full: bool,
}

impl Host for Group {
    fn may_recompress(&mut self, _: u64) -> bool {
        false
    }

    fn between_steps(&mut self, _: &Pager) {}

    fn reap(&mut self, _: &Pager) -> bool {
        false
    }

    fn give_up(&mut self) {}

    /// The program decides what guards keep in memory.
    fn exhausted(&mut self, _: &Pager, _: u64, _: u64) {}

    fn full(&mut self, pager: &Pager, _: u64) {
        if pager.budget().now() > pager.budget().limit() && !core::mem::replace(&mut self.has_said_full, true) {
            instance::warn(b"swap is full: a group of regions goes over its RAM limit (raise it, or give more swap)");
        }
    }
}

impl ReclaimerThread {
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

    /// Works until the instance closes. The thread must block all signals.
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
        let budget = pager.budget();
        let total = budget.now();
        // It follows down, never up.
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
            self.instance.share_with_tables(pager.budget().asked());
            self.server.iter().for_each(|server| server.say_what_is_odd());
        }
        let happened = pager.counters().happened();
        let is_quiet = core::mem::replace(&mut self.happened, happened) == happened;
        if is_quiet && now.saturating_sub(self.counted_us) >= COUNT_AGAIN_US {
            self.counted_us = now;
            pager.publish();
            if let Ok(bytes) = pager.registered_in_memory()
                && pager.counters().happened() == happened
            {
                pager.budget().measured(bytes + pager.budget().own());
            }
        }
    }
}
