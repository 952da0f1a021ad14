//! What this process says when eviction comes to its end: that all is full, that an area fails, that the limit can't be held.

use core::sync::atomic::Ordering;

use lowtide_core::store::{AreaState, MAX_AREAS};
use lowtide_core::vm;
use lowtide_pager::pager::Pager;
use lowtide_pager::reclaim::Host;
use lowtide_pager::segment::{self, area_state};
use lowtide_pager::sys::Line;
use lowtide_pager::sys::clock::now_us;

use super::floor::Floor;
use super::unpaged::{EVERY_US, Unpaged};
use super::{answer, requests};
use crate::idle::Idle;
use crate::{agent, say, swap_file};

/// A run that is over its limit because all is full is judged after this: zeros are searched for meanwhile. Sooner if it is far
/// over it.
const FULL_FOR_US: u64 = 1_000_000;
const FAR_FULL_FOR_US: u64 = 100_000;

/// What this process knows of the limits of eviction, and says about them once.
pub(super) struct Judge {
    idle: Idle,
    pub(super) floor: Floor,
    /// See [`Pager::set_sharers`].
    pub(super) sharers: u64,
    warned_full: bool,
    warned_fixed: bool,
    /// Since when the run is over its limit because no tier takes pages, in microseconds.
    pub(super) full_since_us: Option<u64>,
    /// Of which swap areas it was said that they can't be written.
    pub(super) said_failing: [bool; MAX_AREAS],
    said_kept: bool,
    pub(super) unpaged: Unpaged,
}

impl Judge {
    pub(super) fn new() -> Judge {
        Judge {
            idle: Idle::new(),
            floor: Floor::default(),
            sharers: 0,
            warned_full: false,
            warned_fixed: false,
            full_since_us: None,
            said_failing: [false; MAX_AREAS],
            said_kept: false,
            unpaged: Unpaged::default(),
        }
    }

    /// Whether a swap area of this process can't be written, as was last published.
    fn areas_fail() -> bool {
        let failing = area_state(AreaState::Failing);
        agent::proc().areas_now.iter().any(|area| area.state.load(Ordering::Relaxed) == failing)
    }

    /// Finds out now and then whether a limit that can't be held can be again. `total`: bytes that the run uses.
    pub(super) fn look_at_floor(&mut self, pager: &Pager, total: u64, now_us: u64) {
        let fixed = self.floor.look(pager, total, now_us);
        self.say_what_is_fixed(pager, fixed);
    }

    /// `fixed`: bytes that can't be moved out, where that is to be said. Not where the run is over its limit because swap is full,
    /// or was, and that was said: what is left may have no place to go.
    fn say_what_is_fixed(&mut self, pager: &Pager, fixed: Option<u64>) {
        let is_full = self.warned_full || self.full_since_us.is_some();
        if let Some(fixed) = fixed
            && !is_full
            && !core::mem::replace(&mut self.warned_fixed, true)
        {
            // However lately it was looked for.
            self.unpaged.say(pager.budget.asked(), now_us() + EVERY_US);
            let mut line = Line::new();
            line.number(fixed >> 20)
                .push(
                    b" MiB can't be moved out (locked, read-only, executable, shared or pinned memory, the main thread's stack, and \
                      lowtide's own): ",
                )
                .push(b"the run goes over its limit of ")
                .number(pager.budget.asked() >> 20)
                .push(b" MiB");
            say::warn(line.bytes());
        }
    }

    pub(super) fn say_what_fails(&mut self, pager: &Pager) {
        if Judge::areas_fail() {
            swap_file::say_what_fails(&pager.area_stats(), &mut self.said_failing);
        }
    }

    pub(super) fn say_what_is_kept(&mut self) {
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

    fn between_steps(&mut self, pager: &Pager) {
        answer::all(pager);
    }

    fn reap(&mut self, pager: &Pager) -> bool {
        pager.release_dead(agent::segment())
    }

    fn give_up(&mut self) {
        requests::give_up();
    }

    fn exhausted(&mut self, pager: &Pager, total: u64, now_us: u64) {
        let fixed = self.floor.exhausted(pager, total, now_us);
        self.say_what_is_fixed(pager, fixed);
    }

    fn full(&mut self, pager: &Pager, now_us: u64) {
        pager.publish();
        self.say_what_fails(pager);
        let total = pager.budget.now();
        if self.floor.is_lifted_to_try() && total > pager.budget.asked() {
            // It is full because more was to go than can: that was known, and the run went on.
            return self.exhausted(pager, total, now_us);
        }
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
        // A user who lowers a limit to what can't be held does not want the program to end.
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
