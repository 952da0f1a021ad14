//! Unseen growth: a program without hooks touches mappings before lowtide finds them. Once it has
//! passed the limit that way, `lowtide run` holds its threads until there is room.

use lowtide_pager::pager::Pager;

use crate::hooks;
use crate::process::agent;

/// The run may pass the limit by this part before a hold.
const TOLERATED_PART: u64 = 32;
/// A hold that lasts this long ends at the limit: there may be no more to evict.
const FOR_ROOM_US: u64 = 10_000;
/// Growth is expected for this long after a look has found more.
const GROWS_FOR_US: u64 = 20_000;
/// Holds that last this long (`lowtide run` ends them after 100 ms) without this much eviction are
/// in vain; after this many in a row, none for a while. (On busy CPUs the reclaimer may get no
/// time.)
const HELD_US: u64 = 90_000;
const LEAST_EVICTED: u64 = 1 << 20;
const MOST_IN_VAIN: u32 = 5;
const NOT_HELD_US: u64 = 1_000_000;

#[derive(Default)]
pub(super) struct Growth {
    found_us: u64,
    /// Start of the current hold, or 0, and the run's peak since.
    asked: (u64, u64),
    in_vain: u32,
    not_before_us: u64,
}

impl Growth {
    pub(super) fn found(&mut self, now_us: u64) {
        self.found_us = now_us;
    }

    /// Requests or ends a hold. `total`: the run's use. `grown`: through uncounted growth.
    pub(super) fn look(&mut self, pager: &Pager, total: u64, now_us: u64, grown: bool) {
        if hooks::installed() {
            return;
        }
        let (limit, proc, run) = (pager.budget().limit(), agent::proc(), agent::segment());
        if proc.is_to_be_held() {
            // It grew until the hold.
            self.asked.1 = self.asked.1.max(total);
            let is_enough = total <= limit && now_us.saturating_sub(self.asked.0) >= FOR_ROOM_US;
            if is_enough || total <= pager.budget().watermarks().high() {
                run.ask_to_hold(proc, false);
                self.asked = (0, 0);
            }
            return;
        }
        // The excess can't be evicted.
        let (asked_us, asked) = self.asked;
        let in_vain =
            asked_us != 0 && now_us.saturating_sub(asked_us) >= HELD_US && total > asked.saturating_sub(LEAST_EVICTED);
        if asked_us != 0 {
            self.in_vain = if in_vain { self.in_vain + 1 } else { 0 };
        }
        if self.in_vain >= MOST_IN_VAIN {
            self.in_vain = 0;
            self.not_before_us = now_us + NOT_HELD_US;
        }
        self.asked = (0, 0);
        let grows = grown || self.found_us != 0 && now_us.saturating_sub(self.found_us) < GROWS_FOR_US;
        if grows && now_us >= self.not_before_us && total > limit.saturating_add(limit / TOLERATED_PART) {
            self.asked = (now_us, total);
            run.ask_to_hold(proc, true);
        }
    }
}
