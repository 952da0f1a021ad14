//! Traps in memory that the program has read before it was adopted, and never written: the kernel has mapped its one zero page
//! there. (Afterwards zeros are pages of the program's own: `fault/touch.rs`.)
//!
//! A write there is none of a missing page, so no userfaultfd tells of it: the kernel makes the copy, and nothing would hold the
//! program back at its limit. So when memory is adopted, such places are emptied, not all of them (where the program runs on
//! another CPU, a MOVE of the zero page interrupts that for each page), but one here and there: whoever goes on writing comes to
//! one before long, and its fault waits until there is room. First a few everywhere, then more, because the program writes
//! meanwhile. By MOVE, which takes along what is written in the same moment, where MADV_DONTNEED would drop it.
//!
//! (The kernel maps its zero page also where it splits a huge page. But it does that because a part of it was detached, and
//! that part is the trap.)

use core::sync::atomic::Ordering;

use lowtide_core::vm::PAGE_SIZE;

use crate::clock::now_ns;
use crate::detach::Detached;
use crate::evict::Evicted;
use crate::hand::Found;
use crate::pager::Pager;
use crate::present::{Kind, Ranges};
use crate::regions::Range;
use crate::space::Exclusive;
use crate::worker::Worker;

/// One of so many pages becomes a trap, each time memory is gone through.
const STRIDES: [usize; 2] = [1024, 64];
/// Most scans of one step, each of which finds one page at most: as many traps go into a batch of staging.
const MOST_SCANS: usize = 128;
/// It does not go on looking after so long.
const LOOK_NS: u64 = 1_000_000;
/// Batches that are left to those who evict.
const SPARE_BATCHES: usize = 2;

/// Where traps are still to be set. Changed by the thread that sets them, and with the space lock alone.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Traps {
    /// What is gone through, from the first address that was adopted to behind the last one; how often it was, this time up to
    /// where, and whether there was anything.
    span: Option<Range>,
    round: usize,
    at: usize,
    seen: bool,
    /// The same of what was adopted since that began.
    next: Option<Range>,
}

impl Traps {
    fn add(&mut self, range: Range) {
        let next = self.next.unwrap_or(range);
        self.next = Some(Range { start: next.start.min(range.start), end: next.end.max(range.end) });
        if self.span.is_none() {
            self.begin();
        }
    }

    fn begin(&mut self) {
        *self = Traps { span: self.next, at: self.next.map_or(0, |next| next.start), ..Traps::default() };
    }

    /// All has been gone through once more.
    fn round_ends(&mut self) {
        match self.span {
            Some(span) if self.seen && self.round + 1 < STRIDES.len() => {
                *self = Traps { round: self.round + 1, at: span.start, seen: false, ..*self };
            }
            _ => self.begin(),
        }
    }
}

impl Pager {
    /// A range was adopted just now.
    pub(crate) fn needs_traps(&self, _: &Exclusive<'_>, range: Range) {
        self.traps.lock().add(range);
    }

    /// One step of setting traps in memory that was adopted lately. [`Evicted::Some`]: there may be more; `Ahead`: staging must
    /// be drained first. By the thread that adopts, without a lock.
    pub fn set_traps(&self, worker: &mut Worker) -> Evicted {
        let mut traps = *self.traps.lock();
        if traps.span.is_none() {
            return Evicted::Nothing;
        }
        let Some(operation) = self.enter() else { return Evicted::Later };
        if self.staging.empty_batches() <= SPARE_BATCHES {
            return Evicted::Ahead;
        }
        let Some(batch) = self.staging.take_empty() else { return Evicted::Ahead };
        let ranges = self.find_traps(&mut traps);
        // Read-only or locked pages can't be moved, and stay.
        let found = Found { ranges, kind: Kind::ZeroPage, spares_none: true, is_complete: false };
        let detached = operation.detach(&found, self.staging.first(batch), self.staging.batch_frames(), worker);
        match detached {
            Detached::Pages { pages: pages @ 1.., .. } => operation.queue(batch, pages),
            _ => self.staging.put_empty(batch),
        }
        if matches!(detached, Detached::EventsFirst) {
            return Evicted::Later;
        }
        *self.traps.lock() = traps;
        Evicted::Some
    }

    /// The next pages that are to become traps.
    fn find_traps(&self, traps: &mut Traps) -> Ranges {
        let mut pages = Ranges::none();
        let started = now_ns();
        for _ in 0..MOST_SCANS {
            if now_ns() > started + LOOK_NS {
                break;
            }
            let Some(span) = traps.span else { break };
            let range = self.regions.next(&self.space.shared(), traps.at);
            let Some(range) = range.filter(|range| range.start < span.end) else {
                traps.round_ends();
                // In order of address.
                if pages.is_empty() { continue } else { break }
            };
            let reach = self.reach.load(Ordering::Relaxed);
            let end = range.end.min(span.end).min(range.start.saturating_add(reach));
            // Without the lock: what changes meanwhile is seen when the page is detached.
            let found = self.present().scan_zero_page(range.start, end, 1);
            let page = found.as_ref().ok().and_then(|found| found.iter().next());
            traps.at = match (page, found) {
                (Some((page, _)), _) => {
                    traps.seen = true;
                    pages.push(page);
                    page + STRIDES[traps.round] * PAGE_SIZE
                }
                (None, Ok(found)) => found.walk_end.max(range.start + PAGE_SIZE),
                (None, Err(_)) => end,
            };
        }
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: usize, end: usize) -> Option<Range> {
        Some(Range { start, end })
    }

    #[test]
    fn what_is_adopted_meanwhile_comes_next_and_nothing_is_gone_through_in_vain() {
        let mut traps = Traps::default();
        traps.add(Range { start: 10, end: 20 });
        traps.at = 15;
        traps.seen = true;
        traps.add(Range { start: 40, end: 50 });
        traps.add(Range { start: 12, end: 14 });
        assert_eq!((traps.span, traps.at, traps.next), (range(10, 20), 15, range(12, 50)));
        traps.round_ends();
        assert_eq!((traps.span, traps.round, traps.at, traps.seen), (range(10, 20), 1, 10, false));
        traps.seen = true;
        traps.round_ends();
        assert_eq!((traps.span, traps.round, traps.at, traps.next), (range(12, 50), 0, 12, None));
        traps.round_ends();
        assert_eq!((traps.span, traps.next), (None, None), "there was nothing");
        traps.add(Range { start: 1, end: 2 });
        assert_eq!((traps.span, traps.at), (range(1, 2), 1));
    }
}
