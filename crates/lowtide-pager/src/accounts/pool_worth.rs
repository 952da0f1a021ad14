//! What the compressed pool is worth: the part of the limit with which the program waits least, found while the run goes on.
//!
//! A MiB of the pool holds more than a MiB of pages, but each of them costs a fault and the compressor's time; the same MiB of
//! the program's own pages costs nothing. Which of them is better depends on what the program asks for again, how well it
//! compresses, and what a device takes to bring a page back. All three are seen (`misses.rs`). So the time that another size
//! would have cost is worked out for each size in steps of a 32nd of the limit. The share goes half of the way to the best one,
//! four times a second at most, and only where that saves something worth mentioning; what was seen is forgotten within some
//! seconds, so that it follows the program's phases.

use arrayvec::ArrayVec;
use lowtide_core::vm::PAGE_SIZE;

use super::misses::{ENOUGH, Misses, Places};
use crate::pager::Pager;
use crate::segment::EPOCHS_A_LIMIT;

/// Sizes that are compared: in steps of this part of the limit.
const STEPS: u64 = 32;
/// It is looked this often at most.
const EVERY_US: u64 = 250_000;
/// What was seen before the latest look counts by this much.
const REMEMBERED: f64 = 0.8;
/// Where devices had no room the pool may have all for so long.
const REST_US: u64 = 5_000_000;
/// A pool that may have less than this part of the limit is not worth a thought.
const SMALL: u64 = 8;
/// A size must promise to save this part of the time to be worth a change.
const WORTH: f64 = 0.04;

/// What the pool of a process is worth: see above. The reclaimer's.
#[derive(Debug)]
pub struct PoolWorth {
    looked_us: u64,
    then: Misses,
    seen: Misses,
    share: Option<u64>,
    /// When devices were last found without room, in microseconds.
    full_us: u64,
}

impl Default for PoolWorth {
    fn default() -> PoolWorth {
        PoolWorth { looked_us: 0, then: Misses::NONE, seen: Misses::NONE, share: None, full_us: 0 }
    }
}

impl PoolWorth {
    /// The most bytes that the pool of this process should have now, which may have `asked`; to be asked at each look, of a
    /// process that uses `mine` bytes.
    pub fn look(&mut self, pager: &Pager, asked: u64, mine: u64, now_us: u64) -> u64 {
        // What no device takes, the pool must; and what has forked has pages that can't leave it.
        if !pager.devices_have_room() || pager.was_forked() {
            self.full_us = now_us;
            return asked;
        }
        // A small part of a run whose others may have all the rest.
        if now_us.saturating_sub(self.full_us) < REST_US || asked < pager.budget.asked() / SMALL {
            return asked;
        }
        if now_us.saturating_sub(self.looked_us) >= EVERY_US {
            self.looked_us = now_us;
            let stats = pager.store_stats();
            let seen = Misses::of(pager.counters(), &stats);
            if self.have_seen(seen) {
                let pages = |bytes: u64| bytes as f64 / PAGE_SIZE as f64;
                let now = Places {
                    limit: pages(pager.budget.asked()),
                    resident: pages(mine.saturating_sub(pager.budget.own())),
                    pool: pages(stats.pool_bytes as u64),
                    objects: pages(stats.pool_stored_bytes as u64),
                    compresses: stats.pool_compresses,
                    on_device: stats.on_device_now as f64,
                    in_pool: stats.stored_now.saturating_sub(stats.on_device_now) as f64,
                };
                self.decide(asked, &now);
            }
        }
        self.share.unwrap_or(asked).min(asked)
    }

    /// Takes what was counted since the beginning. False: that is no more than before, and it is the same while.
    fn have_seen(&mut self, all: Misses) -> bool {
        let mut since = all.clone();
        since.each(&self.then, |now, then| (now - then).max(0.0));
        let enough = since.refaults() >= ENOUGH;
        if enough {
            self.then = all;
            self.seen.each(&since, |before, since| before * REMEMBERED + since);
        }
        enough
    }

    fn decide(&mut self, asked: u64, now: &Places) {
        // While little has come back what has left has hardly begun to.
        if self.seen.loaded >= now.limit / EPOCHS_A_LIMIT as f64 {
            self.share = Some(better(&self.seen, self.share.unwrap_or(asked).min(asked), asked, now));
        }
    }
}

/// The share after `share`, of `asked` bytes at most.
fn better(seen: &Misses, share: u64, asked: u64, now: &Places) -> u64 {
    let step = (now.limit as u64 / STEPS).max(1) * PAGE_SIZE as u64;
    let time = |pool: u64| seen.time_with(pool as f64 / PAGE_SIZE as f64, now);
    // What it holds, not what it may hold: a pool that has room does not take it from anybody.
    let here = (now.pool as u64 * PAGE_SIZE as u64).min(share);
    let sizes = (0..=STEPS).map(|i| i * step).take_while(|size| *size < asked).chain([asked]);
    let times: ArrayVec<(u64, f64), { STEPS as usize + 2 }> = sizes.map(|size| (size, time(size))).collect();
    let least = times.iter().map(|(_, time)| *time).fold(f64::INFINITY, f64::min);
    // Of those that are about as good the largest: too small a pool costs more than one that is too large.
    let best = times.iter().rev().find(|(_, time)| *time <= least * (1.0 + WORTH)).map_or(share, |(size, _)| *size);
    if best >= here {
        return share.max(best);
    }
    // What was to leave has not left yet.
    if now.pool * PAGE_SIZE as f64 > (share + step) as f64 * 1.1 {
        return share;
    }
    if time(here) <= least * (1.0 + 2.0 * WORTH) {
        // It may go on as it does.
        return share;
    }
    here.saturating_sub((here - best) / 2).max(best)
}

#[cfg(test)]
#[path = "pool_worth_tests.rs"]
mod tests;
