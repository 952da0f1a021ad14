//! Calls of the library's regions: evicts a registered range.

use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::Range;
use lowtide_sys::present::Kind;
use lowtide_wire::segment::add;

use crate::pager::Pager;
use crate::pages::Operation;
use crate::pages::worker::Worker;
use crate::reclaim::detach::Detached;
use crate::reclaim::evicted::Evicted;
use crate::reclaim::victims::Found;

impl Pager {
    /// Evicts the pages of a range that can be moved and stored, and stores all of staging.
    pub fn evict_range(&self, range: Range, worker: &mut Worker) -> Evicted {
        let mut at = range.start;
        while at < range.end {
            let Some(operation) = self.enter() else { return Evicted::Later };
            if !operation.store().would_take() {
                return Evicted::Full;
            }
            match operation.evict_some(at, range.end, worker) {
                Ok(next) => at = next,
                Err(Evicted::Progress) => {}
                Err(why) => return why,
            }
        }
        while self.empty_staging(worker) {}
        Evicted::Progress
    }
}

impl Operation<'_> {
    /// Returns where to go on. `Progress`: room was made, try again.
    fn evict_some(&self, at: usize, end: usize, worker: &mut Worker) -> Result<usize, Evicted> {
        let Some(batch) = self.pages.staging.take_empty() else {
            return Err(match self.drain(worker) {
                Evicted::Nothing if self.pages.staging.is_lost() => Evicted::Full,
                // Other threads hold all batches.
                Evicted::Nothing => {
                    rustix::thread::sched_yield();
                    Evicted::Progress
                }
                other => other,
            });
        };
        let room = self.pages.staging.batch_frames();
        let ranges = match self.present().scan(at, end, room) {
            Ok(ranges) => ranges,
            Err(_) => {
                self.pages.staging.put_empty(batch);
                return Err(Evicted::Nothing);
            }
        };
        let next = ranges.walk_end.max(at + PAGE_SIZE);
        // Runs without their holes: more pages than frames would be skipped.
        let found = Found::all_of(ranges, Kind::Page);
        let detached = self.detach(&found, self.pages.staging.first(batch), room, worker);
        let pages = if let Detached::Pages { pages, .. } = detached { pages } else { 0 };
        if pages > 0 {
            self.pages.staging.put_full(batch);
            add(&self.counters().evictions_pages, pages);
        } else {
            self.pages.staging.put_empty(batch);
        }
        self.publish_own();
        Ok(next)
    }
}
