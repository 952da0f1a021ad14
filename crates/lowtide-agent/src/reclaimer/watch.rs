//! Nothing is registered: the reclaimer checks the process's size, more often nearer the limit. A
//! process not worth registering that can't grow unseen sleeps long (`long_nap.rs`).

use core::sync::atomic::Ordering;

use lowtide_core::vm::room;
use lowtide_pager::accounts::is_worth_registering;
use lowtide_pager::reclaim::policy::{SHORTEST_NAP_US, long_nap_us, nap_us, unwatched};
use lowtide_sys::Line;
use lowtide_sys::clock::now_us;
use lowtide_wire::Watermarks;
use rustix::io::Errno;

use super::{ReclaimerThread, register, requests, sleep_for_ever};
use crate::handlers;
use crate::hooks::{self, gate};
use crate::process::{agent, say, swap_areas, thread};

/// To register memory when more threads touch it than there are CPUs: no mapping can change during
/// a page fault, and most threads that wait for a CPU are in one.
const REGISTRATION_US: u64 = 20_000;
const NO_HANDLERS_US: u64 = 100_000;
/// Longest wait for calls under way.
const CALLS_US: u64 = 250_000;
/// Of naps that only `lowtide run` ends: it may be stopped, and misses some growth.
const ALARMED_NAP_US: u64 = 5_000_000;
const STILL: u64 = 64 << 10;

#[derive(Default)]
pub(super) struct Watching {
    /// The run's use at the last look above the prepare mark, and its time in microseconds.
    last: (u64, u64),
    still: (u64, u64),
    /// Until memory is registered: the work is small but urgent.
    urgent: Option<thread::Urgent>,
    has_warned: bool,
    /// Since when it waits for calls under way; 0: no longer, or not yet.
    waits_since: u64,
    /// The next nap is long; the program may map this many bytes in it.
    pub(super) may_map: Option<usize>,
}

impl Watching {
    pub(super) fn new() -> Watching {
        Watching { urgent: thread::Urgent::new(), ..Watching::default() }
    }
}

impl ReclaimerThread {
    fn watch_for_requests(&self, is_worth_it: bool) -> bool {
        // Nothing is known to be immovable. Acquire and Release: as in `answer_what_is_fixed`.
        agent::proc().answered.store(agent::settings().question.load(Ordering::Acquire), Ordering::Release);
        match requests::asked() {
            None => false,
            Some(_) if is_worth_it => true,
            Some(number) => {
                requests::done(number);
                false
            }
        }
    }

    fn warn_of_handlers(&mut self, error: Errno) {
        if !core::mem::replace(&mut self.watching.has_warned, true) {
            let mut line = Line::new();
            line.push(b"no thread of lowtide's can be started, error ")
                .number(error.raw_os_error() as u64)
                .push(b" (ulimit -u, pids.max, memory): until one can be, a process of the run is not limited");
            say::warn(line.bytes());
        }
    }

    /// In microseconds, for a process not worth registering, while the run may grow by `room`
    /// bytes.
    fn rest(&mut self, room: u64, now: u64) -> u64 {
        let us = nap_us(room, self.touch_rate);
        // Without hooks, mappings are not counted: CPU time must reveal growth.
        if !hooks::installed() && !agent::proc().is_rung_when_it_runs() {
            return us;
        }
        let processes = agent::segment().processes();
        let Some(may_map) = unwatched(room, processes).checked_sub(self.resident.may_grow()) else {
            return us;
        };
        let long = long_nap_us(now.saturating_sub(self.watching.still.1), processes, agent::pid());
        let long = if hooks::installed() { long } else { long.min(ALARMED_NAP_US) };
        if long <= us {
            return us;
        }
        self.watching.may_map = Some(may_map as usize);
        long
    }

    /// A move made after memory is registered can end the run.
    fn calls_have_ended(&mut self, now: u64) -> bool {
        if agent::segment().refuse_calls(agent::proc()) {
            return true;
        }
        if self.watching.waits_since == 0 {
            self.watching.waits_since = now;
        }
        // Nothing is limited meanwhile.
        let is_long = now - self.watching.waits_since >= CALLS_US;
        if is_long {
            agent::proc().waits_no_longer();
        }
        is_long
    }

    /// (Over 70 lines: one look, from the count to the nap.)
    pub(super) fn watch(&mut self, total: u64) -> u64 {
        let limit = agent::settings().ram_limit.load(Ordering::Relaxed);
        let marks = Watermarks::of(limit);
        let now = now_us();
        let mine = agent::proc().ram_bytes.load(Ordering::Relaxed);
        let is_worth_it = is_worth_registering(mine, total, agent::segment().processes());
        if mine.abs_diff(self.watching.still.0) >= STILL {
            self.watching.still = (mine, now);
        }
        // The largest process takes a named swap file; near the limit it becomes known.
        let reclaim = self.watch_for_requests(is_worth_it);
        let prepare_mark = if reclaim {
            0
        } else if swap_areas::any_named() {
            marks.register()
        } else {
            marks.prepare()
        };
        if total <= prepare_mark {
            let room = prepare_mark - total;
            return if is_worth_it { nap_us(room, self.touch_rate) } else { self.rest(room, now) };
        }
        let (last, at) = core::mem::replace(&mut self.watching.last, (total, now));
        let ahead = total.saturating_sub(last) * REGISTRATION_US / now.saturating_sub(at).max(1);
        let mark = marks.register().saturating_sub(ahead).max(marks.earliest_register());
        let room = if reclaim { 0 } else { mark.saturating_sub(total) };
        if !is_worth_it {
            return self.rest(room, now).max(SHORTEST_NAP_US * 5);
        }
        if self.prepared.is_some() && room > 0 {
            return nap_us(room, self.touch_rate);
        }
        // The larger one nears the limit too; until then this one gains little from a swap file.
        if self.prepared.is_none() && !reclaim && total <= marks.high() && swap_areas::named_is_left_to_another() {
            return nap_us(marks.high() - total, self.touch_rate);
        }
        if self.prepared.is_some() && !self.calls_have_ended(now) {
            return SHORTEST_NAP_US;
        }
        // A fork is under way.
        if !gate::keep_forks_away() {
            return SHORTEST_NAP_US;
        }
        // Before threads depend on handlers. There may be room for them later.
        if self.prepared.is_some()
            && let Err(error) = handlers::start()
        {
            gate::open();
            agent::proc().lets_calls_go_on();
            self.watching.waits_since = 0;
            self.warn_of_handlers(error);
            return NO_HANDLERS_US;
        }
        let done = match self.prepared {
            None if register::is_cramped() => Err(Errno::NOMEM),
            None => self.prepare(limit),
            Some(pager) => self.activate(pager),
        };
        gate::open();
        if let Err(e) = done {
            let mut line = Line::new();
            line.push(b"memory can't be registered, error ")
                .number(e.raw_os_error() as u64)
                .push(b": this process is not limited");
            if let (Errno::NOMEM, Some(limit)) = (e, room::limit()) {
                line.push(b" (ulimit -v: of ").number(limit as u64 >> 20).push(b" MiB of address space ");
                line.number(room::left_of_limit().unwrap_or(0) as u64 >> 20).push(b" MiB are left; give it 256 MiB more)");
            }
            say::warn(line.bytes());
            self.prepared.inspect(|pager| pager.deactivate());
            agent::proc().lets_calls_go_on();
            sleep_for_ever(self.prepared)
        }
        if let Some(pager) = agent::pager() {
            self.register_first(pager);
            self.set_first_sentinels(pager);
            self.watching.urgent = None;
        }
        0
    }
}
