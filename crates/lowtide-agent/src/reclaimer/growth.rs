//! Growth that nobody sees: what a program without hooks maps, it touches before it is found. Where it has passed the limit like
//! that, `lowtide run` is asked to hold its threads until there is room.

use lowtide_pager::pager::Pager;

use crate::{agent, hooks};

/// By this much, beside 1/16 of it, a program may pass the limit before its threads are held.
const MOST_GROWN: u64 = 4 << 20;
/// A program in which a look has found more is taken to go on growing for so long.
const GROWS_FOR_US: u64 = 20_000;
/// If they were held for so long (`lowtide run` lets them go after 100 ms) and the run did not come to use that much less, so many
/// times in a row, they are not held for a while. (Where CPUs are busy the reclaimer may get none in that time.)
const HELD_US: u64 = 90_000;
const LEAST_EVICTED: u64 = 1 << 20;
const MOST_IN_VAIN: u32 = 5;
const NOT_HELD_US: u64 = 1_000_000;

/// Of the reclaimer of a process. Times in microseconds.
#[derive(Default)]
pub(super) struct Growth {
    /// When a look last found that more was mapped than before.
    found_us: u64,
    /// When it was asked that threads be held which still are, or 0, and the most that the run has used since.
    asked: (u64, u64),
    /// How often in a row they were held in vain.
    in_vain: u32,
    /// It is not asked for before.
    not_before_us: u64,
}

impl Growth {
    /// A look at the mappings has found more than the one before.
    pub(super) fn found(&mut self, now_us: u64) {
        self.found_us = now_us;
    }

    /// Asks for the threads to be held, or to be let go. `total`: what the run uses. `grown`: it has grown by what nobody has
    /// counted.
    pub(super) fn look(&mut self, pager: &Pager, total: u64, now_us: u64, grown: bool) {
        if hooks::installed() {
            return;
        }
        let (limit, proc, run) = (pager.budget.limit(), agent::proc(), agent::segment());
        if proc.is_to_be_held() {
            // It went on growing until it was held.
            self.asked.1 = self.asked.1.max(total);
            if total <= limit {
                run.ask_to_hold(proc, false);
                self.asked = (0, 0);
            }
            return;
        }
        // What there is too much of can't be evicted.
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
        if grows && now_us >= self.not_before_us && total > limit.saturating_add(limit / 16 + MOST_GROWN) {
            self.asked = (now_us, total);
            run.ask_to_hold(proc, true);
        }
    }
}
