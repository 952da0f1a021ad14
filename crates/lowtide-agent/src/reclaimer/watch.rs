//! Nothing is adopted: the reclaimer looks at the process's size now and then, more often the nearer the limit is.

use core::sync::atomic::Ordering;

use lowtide_pager::accounts::is_worth_adopting;
use lowtide_pager::reclaim::Watermarks;
use lowtide_pager::reclaim::policy::{SHORTEST_NAP_US, nap_us};
use lowtide_pager::sys::Line;
use lowtide_pager::sys::clock::now_us;

use super::{ReclaimerThread, requests, sleep_for_ever};
use crate::{agent, gate, say, swap_file};

/// How long it takes to adopt memory where more threads touch it than there are CPUs: the kernel lets nobody change a mapping
/// while a thread is in a page fault there, and most threads that wait for a CPU wait in one.
const ADOPTION_US: u64 = 20_000;

impl ReclaimerThread {
    /// Whether this process is asked to move pages out, and has any that are worth it.
    fn watch_for_requests(&self, total: u64) -> bool {
        let mine = agent::proc().ram_bytes.load(Ordering::Relaxed);
        // Nothing is known to be fixed. Acquire and Release: as in `answer_what_is_fixed`.
        agent::proc().answered.store(agent::settings().question.load(Ordering::Acquire), Ordering::Release);
        match requests::asked() {
            None => false,
            Some(_) if is_worth_adopting(mine, total, agent::segment().processes()) => true,
            Some(number) => {
                requests::done(number);
                false
            }
        }
    }

    /// Nothing is adopted: is it time? Returns for how long to sleep.
    pub(super) fn watch(&mut self, total: u64) -> u64 {
        let limit = agent::settings().ram_limit.load(Ordering::Relaxed);
        let marks = Watermarks::of(limit);
        // A named swap file goes to the largest process when it prepares, and until the limit is near nobody knows which that
        // is.
        let reclaim = self.watch_for_requests(total);
        let prepare_mark = if reclaim {
            0
        } else if swap_file::any_named() {
            marks.register()
        } else {
            marks.prepare()
        };
        if total <= prepare_mark {
            return nap_us(prepare_mark - total, self.touch_rate);
        }
        let now = now_us();
        let (last, at) = core::mem::replace(&mut self.last_watched, (total, now));
        let ahead = total.saturating_sub(last) * ADOPTION_US / now.saturating_sub(at).max(1);
        let mark = marks.register().saturating_sub(ahead).max(marks.earliest_register());
        let room = if reclaim { 0 } else { mark.saturating_sub(total) };
        let mine = agent::proc().ram_bytes.load(Ordering::Relaxed);
        if !is_worth_adopting(mine, total, agent::segment().processes()) {
            return nap_us(room, self.touch_rate).max(SHORTEST_NAP_US * 5);
        }
        if self.prepared.is_some() && room > 0 {
            return nap_us(room, self.touch_rate);
        }
        // It comes near the limit too; until then this one has little that would be better off in a swap file.
        if self.prepared.is_none() && !reclaim && total <= marks.high() && swap_file::named_is_left_to_another() {
            return nap_us(marks.high() - total, self.touch_rate);
        }
        // A fork is under way otherwise.
        if !gate::keep_forks_away() {
            return SHORTEST_NAP_US;
        }
        let done = match self.prepared {
            None => self.prepare(limit),
            Some(pager) => self.activate(pager),
        };
        gate::open();
        if let Err(e) = done {
            let mut line = Line::new();
            line.push(b"memory can't be adopted, error ")
                .number(e.raw_os_error() as u64)
                .push(b": this process is not limited");
            say::warn(line.bytes());
            sleep_for_ever()
        }
        if let Some(pager) = agent::pager() {
            self.adopt_first(pager);
            self.set_first_sentinels(pager);
            self.urgent = None;
        }
        0
    }
}
