//! Warnings at the end of eviction: all tiers are full, an area fails, or the limit can't be held.

use core::sync::atomic::Ordering;

use lowtide_core::store::{AreaState, MAX_AREAS};
use lowtide_core::vm;
use lowtide_pager::pager::Pager;
use lowtide_pager::reclaim::Host;
use lowtide_sys::Line;
use lowtide_sys::clock::now_us;
use lowtide_wire::segment;

use super::floor::Floor;
use super::unpaged::{EVERY_US, Unpaged};
use super::{answer, requests};
use crate::process::{agent, say, swap_areas};
use crate::reclaimer::idle::Idle;

/// Before full swap counts, while the reclaimer searches for zeros; shorter far over the limit.
const FULL_FOR_US: u64 = 1_000_000;
const FAR_FULL_FOR_US: u64 = 100_000;

pub(super) struct Judge {
    idle: Idle,
    pub(super) floor: Floor,
    pub(super) sharers: u64,
    warned_full: bool,
    warned_fixed: bool,
    /// Since when the run is over its limit because no tier takes pages, in microseconds.
    pub(super) full_since_us: Option<u64>,
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

    fn areas_fail() -> bool {
        let failing = AreaState::Failing as u64;
        agent::proc().areas_now.iter().any(|area| area.state.load(Ordering::Relaxed) == failing)
    }

    /// `total`: the run's use in bytes.
    pub(super) fn look_at_floor(&mut self, pager: &Pager, total: u64, now_us: u64) {
        let fixed = self.floor.look(pager, total, now_us);
        self.say_what_is_fixed(pager, fixed);
    }

    /// Not after a report of full swap: then `fixed` bytes may only lack a place to go.
    fn say_what_is_fixed(&mut self, pager: &Pager, fixed: Option<u64>) {
        let is_full = self.warned_full || self.full_since_us.is_some();
        if let Some(fixed) = fixed
            && !is_full
            && !core::mem::replace(&mut self.warned_fixed, true)
        {
            self.unpaged.say(pager.budget().asked(), now_us() + EVERY_US);
            let mut line = Line::new();
            line.number(fixed >> 20)
                .push(
                    b" MiB can't be moved out (locked, read-only, executable, shared or pinned memory, the main thread's stack, and \
                      lowtide's own): ",
                )
                .push(b"the run goes over its limit of ")
                .number(pager.budget().asked() >> 20)
                .push(b" MiB");
            say::warn(line.bytes());
        }
    }

    pub(super) fn say_what_fails(&mut self, pager: &Pager) {
        if Judge::areas_fail() {
            swap_areas::say_what_fails(&pager.area_stats(), &mut self.said_failing);
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
        // Recompression would copy a pool shared with forked children.
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
        let total = pager.budget().now();
        if self.floor.is_lifted_to_try() && total > pager.budget().asked() {
            // More had to go than can: known before, and no reason to stop.
            return self.exhausted(pager, total, now_us);
        }
        // A small pool is often full; only being over the limit because of it counts.
        let limit = pager.budget().limit();
        let over = pager.budget().now().saturating_sub(limit);
        if over == 0 {
            self.full_since_us = None;
            return;
        }
        let since = *self.full_since_us.get_or_insert(now_us);
        let is_far = over > (limit / 16).clamp(8 << 20, 64 << 20);
        if now_us.saturating_sub(since) < if is_far { FAR_FULL_FOR_US } else { FULL_FOR_US } {
            return;
        }
        // A user who lowers a limit too far does not want the program to end.
        let is_lowered = pager.budget().ceiling() > pager.budget().limit();
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
