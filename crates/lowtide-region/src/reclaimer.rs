//! The reclaimer: one thread of each group that keeps it below its marks, and uses the time when there is nothing to evict.

use core::sync::atomic::Ordering;

use lowtide_pager::accounts::Measuring;
use lowtide_pager::fault::Worker;
use lowtide_pager::pager::Pager;
use lowtide_pager::reclaim::Evicted;
use lowtide_pager::sys::clock::now_us;

use crate::house::{self, House};

/// Looks are at most this far apart, and at least.
const LONGEST_NAP_US: u64 = 100_000;
const SHORTEST_NAP_US: u64 = 1_000;
/// What threads can touch in a microsecond.
const TOUCH_BYTES_PER_US: u64 = 6_000;
/// Faults detach pages: it is looked after so long at most whether they still do, ...
const AHEAD_US: u64 = 2_000;
/// ... and at least, however little room is left.
const SHORTEST_AHEAD_US: u64 = 100;
/// No tier could take a page: it looks again after this. (Whether it is worth while to try is the pager's affair.)
const FULL_PAUSE_US: u64 = 100_000;
/// Nothing could be evicted: the same.
const EXHAUSTED_PAUSE_US: u64 = 10_000;
/// Pages are counted as they come and go; whether the count is right is looked at this often, when nothing happens.
const COUNT_AGAIN_US: u64 = 1_000_000;
/// Objects of the pool that are moved at a time.
const COMPACT_PAGES: usize = 256;
/// What a group may use more while it comes down to a limit that was lowered.
const COMING_DOWN: u64 = 8 << 20;

/// For how long there is nothing to do.
enum Nap {
    /// Microseconds, or until faults need room.
    UntilFaults(u64),
    /// Microseconds in which faults can't help.
    Undisturbed(u64),
}

/// What the reclaimer remembers.
pub struct Reclaimer {
    house: &'static House,
    worker: Worker,
    measuring: Measuring,
    counted: u64,
    above_low: bool,
    /// Faults and evictions when it last looked.
    faults_seen: u64,
    happened: u64,
    has_said_full: bool,
}

impl Reclaimer {
    /// For a house whose group begins.
    pub fn new(house: &'static House, worker: Worker) -> Reclaimer {
        Reclaimer {
            house,
            worker,
            measuring: Measuring::default(),
            counted: now_us(),
            above_low: false,
            faults_seen: 0,
            happened: 0,
            has_said_full: false,
        }
    }

    /// Works until the house closes. All signals are to be blocked in the thread.
    pub fn run(mut self) -> Worker {
        let (bell, pager) = (&self.house.bell, &self.house.pager);
        loop {
            let seen = bell.seen();
            if self.house.is_closing.load(Ordering::Acquire) {
                return self.worker;
            }
            pager.set_reclaiming(true);
            let nap = self.keep(pager);
            pager.set_reclaiming(false);
            match nap {
                Nap::UntilFaults(0) => {}
                Nap::UntilFaults(us) => bell.sleep(seen, us, true),
                Nap::Undisturbed(us) => bell.sleep(seen, us, false),
            }
        }
    }

    fn keep(&mut self, pager: &Pager) -> Nap {
        let now = now_us();
        self.measure(pager, now);
        pager.publish();
        let (budget, counters) = (&pager.budget, pager.counters());
        let total = budget.now();
        // It follows down, and never up.
        budget.set_ceiling(if total > budget.limit() { budget.ceiling().min(total + COMING_DOWN) } else { 0 });
        let faults = counters.faults_total.load(Ordering::Relaxed);
        let faults_come = core::mem::replace(&mut self.faults_seen, faults) != faults;
        let low = budget.low_mark();
        let was_above = core::mem::replace(&mut self.above_low, total > low);
        if total <= low {
            if !faults_come {
                pager.maintain();
                if pager.shrink_pool(&mut self.worker) || pager.compact(COMPACT_PAGES) {
                    return Nap::UntilFaults(SHORTEST_NAP_US);
                }
            }
            pager.forget_compressor(&mut self.worker);
            let room = budget.high_mark().saturating_sub(total) / TOUCH_BYTES_PER_US;
            return Nap::UntilFaults(if faults_come { room.clamp(SHORTEST_NAP_US, LONGEST_NAP_US) } else { LONGEST_NAP_US });
        }
        // What is free already goes first. While eviction goes on it would only take the drained frames again.
        if !was_above {
            pager.drain_frames();
        }
        let batch = pager.batch_bytes() as u64;
        for _ in 0..((total - low) / batch).clamp(1, (2 << 20) / batch) {
            let ahead = faults_come && !budget.is_coming_down() && !budget.at_limit();
            match if ahead { pager.drain_staged(&mut self.worker) } else { self.evict(pager) } {
                Evicted::Ahead => {
                    let room = budget.limit().saturating_sub(total) / TOUCH_BYTES_PER_US;
                    return Nap::UntilFaults(room.clamp(SHORTEST_AHEAD_US, AHEAD_US));
                }
                Evicted::Some => {}
                Evicted::Later => return Nap::UntilFaults(50),
                Evicted::Nothing => {
                    pager.drain_frames();
                    return Nap::Undisturbed(EXHAUSTED_PAUSE_US);
                }
                // Zeros are not searched for in the library.
                Evicted::Full | Evicted::Searching => {
                    pager.drain_frames();
                    // Room inside the pool's spans is the last resort.
                    if pager.compact(COMPACT_PAGES) {
                        return Nap::UntilFaults(0);
                    }
                    self.full(pager);
                    return Nap::Undisturbed(FULL_PAUSE_US);
                }
            }
        }
        Nap::UntilFaults(0)
    }

    fn evict(&mut self, pager: &Pager) -> Evicted {
        let evicted = &pager.counters().evictions_pages;
        let before = evicted.load(Ordering::Relaxed);
        let result = pager.evict(&mut self.worker);
        let pages = evicted.load(Ordering::Relaxed) - before;
        pager.counters().evictions_background.fetch_add(pages, Ordering::Relaxed);
        result
    }

    fn measure(&mut self, pager: &Pager, now: u64) {
        let evicted = pager.counters().evictions_pages.load(Ordering::Relaxed);
        if self.measuring.is_due(now, evicted) {
            pager.measure_rest();
            self.house.share_with_tables(pager.budget.asked());
        }
        let happened = || {
            let c = pager.counters();
            c.faults_total.load(Ordering::Relaxed).wrapping_add(c.evictions_pages.load(Ordering::Relaxed))
        };
        let is_quiet = core::mem::replace(&mut self.happened, happened()) == self.happened;
        if is_quiet && now.saturating_sub(self.counted) >= COUNT_AGAIN_US {
            self.counted = now;
            pager.publish();
            if let Ok(bytes) = pager.adopted_in_memory()
                && happened() == self.happened
            {
                pager.budget.measured(bytes + pager.proc().own_bytes.load(Ordering::Relaxed));
            }
        }
    }

    /// No tier takes a page.
    fn full(&mut self, pager: &Pager) {
        if pager.budget.now() > pager.budget.limit() && !core::mem::replace(&mut self.has_said_full, true) {
            house::warn(b"swap is full: a group of regions goes over its RAM limit (raise it, or give more swap)");
        }
    }
}
