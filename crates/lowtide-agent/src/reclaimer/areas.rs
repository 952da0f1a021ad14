//! Turns the run's swap areas on and off as the settings order, and reports this in the process's
//! place in the segment.

use core::sync::atomic::Ordering;

use lowtide_core::store::MAX_AREAS;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_pager::pager::Pager;
use lowtide_pager::reclaim::policy::SHORTEST_NAP_US;
use lowtide_pager::reclaim::swapoff::{Step, Swapoff};
use lowtide_sys::clock;
use lowtide_wire::segment::{AreaGauges, Order, Phase};

use super::{ReclaimerThread, made};
use crate::process::{agent, say, swap_areas};

const STUCK_PAUSE_US: u64 = 50_000;
const LONGEST_STUCK_PAUSE_US: u64 = 1_000_000;
/// Interval between counts of the rest, and its multiple of a count's time.
const COUNT_EVERY_US: u64 = 100_000;
const COUNT_REST: u64 = 20;
/// How long a process leaves a new area to larger ones.
const AFTER_YOU_US: u64 = 1_000_000;

#[derive(Default)]
pub(super) struct Orders {
    done: [u64; MAX_AREAS],
    off: Option<Swapoff>,
    not_before_us: u64,
    counted_us: u64,
    /// Earliest next count: counts of much evicted memory are slow.
    count_at_us: u64,
    stuck_pause_us: u64,
    waiting: u64,
    waiting_since_us: u64,
}

enum Obeyed {
    Yes,
    NotYet(u64),
}

pub(super) fn have_nothing() {
    for (gauges, area) in agent::proc().areas_now.iter().zip(&agent::settings().swap) {
        // Release: pairs with the Acquire of `lowtide run` (`live/evacuation.rs`).
        gauges.order.store(area.order().raw(), Ordering::Release);
    }
}

/// Reports how full the areas' clusters are, on request.
pub(super) fn tell_fills(pager: &Pager) {
    let proc = agent::proc();
    // Acquire: pairs with the AcqRel of `lowtide run`'s request (`stats/fills.rs`).
    let asked = agent::settings().fills_asked.load(Ordering::Acquire);
    if asked != proc.fills_told.load(Ordering::Relaxed) {
        pager.publish_fills();
        // Release: pairs with the Acquire of `lowtide run`. The answer comes before.
        proc.fills_told.store(asked, Ordering::Release);
    }
}

impl ReclaimerThread {
    /// Returns the microseconds until there is more to do.
    pub(super) fn follow_orders(&mut self, now_us: u64) -> u64 {
        let mut pause = u64::MAX;
        for (number, area) in (0..).zip(&agent::settings().swap) {
            let order = area.order();
            let place = usize::from(number);
            if order.raw() == self.orders.done[place] {
                continue;
            }
            let Some(gauges) = agent::proc().areas_now.get(place) else { continue };
            match self.obey(number, order, gauges, now_us) {
                Obeyed::Yes => {
                    self.orders.done[place] = order.raw();
                    for gauge in [&gauges.left, &gauges.homeless, &gauges.unreadable, &gauges.unreadable_at] {
                        gauge.store(0, Ordering::Relaxed);
                    }
                    // Release: pairs with the Acquire of `lowtide run` (`live/evacuation.rs`),
                    // which then sees the rest.
                    gauges.order.store(order.raw(), Ordering::Release);
                }
                Obeyed::NotYet(us) => pause = pause.min(us),
            }
        }
        pause
    }

    fn obey(&mut self, number: u8, order: Order, gauges: &AreaGauges, now_us: u64) -> Obeyed {
        // A later pager will follow the settings.
        let Some(pager) = agent::pager().or(self.prepared) else { return Obeyed::Yes };
        match order.phase() {
            Phase::Absent => Obeyed::Yes,
            Phase::On => self.turn_on(pager, number, order, now_us),
            Phase::Off => self.turn_off(pager, number, gauges, now_us),
        }
    }

    fn turn_on(&mut self, pager: &Pager, number: u8, order: Order, now_us: u64) -> Obeyed {
        if self.orders.off.as_ref().is_some_and(|off| off.number() == number) {
            self.orders.off = None;
        }
        match pager.reopen_area(number) {
            None => return Obeyed::NotYet(SHORTEST_NAP_US),
            Some(true) => {}
            Some(false) => {
                // The largest process goes first: only one can have a device or a named file.
                let since = if self.orders.waiting == order.raw() { self.orders.waiting_since_us } else { now_us };
                (self.orders.waiting, self.orders.waiting_since_us) = (order.raw(), since);
                if now_us - since < AFTER_YOU_US && swap_areas::goes_to_a_larger(number, order) {
                    return Obeyed::NotYet(SHORTEST_NAP_US);
                }
                let Some(operation) = pager.enter() else { return Obeyed::NotYet(SHORTEST_NAP_US) };
                swap_areas::add_one(operation.store(), number);
            }
        }
        self.judge.said_failing[usize::from(number)] = false;
        Obeyed::Yes
    }

    fn turn_off(&mut self, pager: &Pager, number: u8, gauges: &AreaGauges, now_us: u64) -> Obeyed {
        if now_us < self.orders.not_before_us {
            return Obeyed::NotYet(self.orders.not_before_us - now_us);
        }
        let off = match &mut self.orders.off {
            Some(off) if off.number() == number => off,
            Some(_) => return Obeyed::NotYet(SHORTEST_NAP_US),
            none => match Swapoff::begin(pager, number) {
                Ok(Some(off)) => none.insert(off),
                Ok(None) => return Obeyed::NotYet(SHORTEST_NAP_US),
                Err(_) => {
                    say::warn(b"no memory for taking a swap area off: it is tried again");
                    return Obeyed::NotYet(STUCK_PAUSE_US);
                }
            },
        };
        // Eviction above the limit comes first.
        if pager.budget().now() > pager.budget().ceiling()
            && pager.budget().above_high()
            && now_us < self.orders.counted_us + COUNT_EVERY_US
        {
            return Obeyed::NotYet(SHORTEST_NAP_US);
        }
        let Some(reclaimer) = made(&mut self.reclaimer, pager) else { return Obeyed::NotYet(STUCK_PAUSE_US) };
        let step = off.step(pager, &mut reclaimer.worker);
        if step != Step::Done && now_us >= self.orders.count_at_us {
            self.orders.counted_us = now_us;
            let (obstacles, started) = (off.obstacles(), clock::now_us());
            gauges.left.store(pager.left_in_area(number), Ordering::Relaxed);
            self.orders.count_at_us = now_us + COUNT_EVERY_US.max((clock::now_us() - started) * COUNT_REST);
            gauges.homeless.store(obstacles.homeless * PAGE_SIZE as u64, Ordering::Relaxed);
            gauges.unreadable.store(obstacles.unreadable, Ordering::Relaxed);
            gauges.unreadable_at.store(obstacles.unreadable_at as u64, Ordering::Relaxed);
        }
        match step {
            Step::More => {
                self.orders.stuck_pause_us = STUCK_PAUSE_US;
                Obeyed::NotYet(0)
            }
            Step::Later => Obeyed::NotYet(SHORTEST_NAP_US),
            Step::Stuck => {
                let pause = self.orders.stuck_pause_us.clamp(STUCK_PAUSE_US, LONGEST_STUCK_PAUSE_US);
                self.orders.stuck_pause_us = pause * 2;
                self.orders.not_before_us = now_us + pause;
                Obeyed::NotYet(pause)
            }
            Step::Done => {
                self.orders.off = None;
                swap_areas::gave_up(number, pager.was_forked());
                Obeyed::Yes
            }
        }
    }
}
