//! Sentinels in memory that the program has read before it was adopted, and never written: the kernel has mapped its one zero
//! page there. (Afterwards zeros are pages of the program's own: `fault/touch.rs`.)
//!
//! A write there is none of a missing page, so no userfaultfd tells of it: the kernel makes the copy, and nothing would hold
//! the program back at its limit. So when memory is adopted, such places are emptied, not all of them (where the program runs
//! on another CPU, a MOVE of the zero page interrupts that for each page), but one here and there: whoever goes on writing
//! comes to one before long, and its fault waits until there is room. First a few everywhere, then more, because the program
//! writes meanwhile. By MOVE, which takes along what is written in the same moment, where MADV_DONTNEED would drop it.
//!
//! (The kernel maps its zero page also where it splits a huge page. But it does that because a part of it was detached, and
//! that part is the sentinel.)

use arrayvec::ArrayVec;
use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;

use crate::fault::worker::Worker;
use crate::mappings::regions::Range;
use crate::mappings::space::Exclusive;
use crate::pager::{Operation, Pager};
use crate::reclaim::detach::Detached;
use crate::reclaim::evicted::Evicted;
use crate::reclaim::victims::{Found, next_reach};
use crate::sys::clock::now_ns;
use crate::sys::present::{Kind, Ranges};

/// One of this many pages becomes a sentinel, each time memory is gone through.
const STRIDES: [usize; 2] = [1024, 64];
/// Most scans of one step, each of which finds one page at most: as many sentinels go into a batch of staging.
const MOST_SCANS: usize = 128;
/// It does not go on looking after this long.
const LOOK_NS: u64 = 1_000_000;
/// How far one scan looks at least and at first: less far than the hand's, which ends at this many pages.
const LEAST_REACH: usize = 16 << 20;
const FIRST_REACH: usize = 256 << 20;
/// This many ranges are told apart. Where there are more, the last ones are one with what lies between them.
const RANGES: usize = 16;

/// Where sentinels are still to be set. Changed by the thread that sets them, and with the space lock alone.
#[derive(Debug, Clone)]
pub(crate) struct Sentinels {
    /// What is gone through, in order of address; how often it was, this time up to where, and whether there was anything.
    ranges: ArrayVec<Range, RANGES>,
    round: usize,
    at: usize,
    seen: bool,
    /// What was adopted since that began.
    next: ArrayVec<Range, RANGES>,
    /// How far a scan looks.
    reach: usize,
}

impl Sentinels {
    /// Nothing was adopted.
    pub(crate) const fn new() -> Sentinels {
        Sentinels {
            ranges: ArrayVec::new_const(),
            round: 0,
            at: 0,
            seen: false,
            next: ArrayVec::new_const(),
            reach: FIRST_REACH,
        }
    }

    fn add(&mut self, range: Range) {
        let is_full = self.next.is_full();
        match self.next.last_mut() {
            // One look at the program's mappings goes up; the next one begins anew.
            Some(last) if is_full || (last.start <= range.start && range.start <= last.end) => {
                *last = Range { start: last.start.min(range.start), end: last.end.max(range.end) };
            }
            _ => self.next.push(range),
        }
        if self.ranges.is_empty() {
            self.begin();
        }
    }

    fn begin(&mut self) {
        self.next.sort_unstable_by_key(|range| range.start);
        self.ranges = self.next.take();
        (self.round, self.at, self.seen) = (0, 0, false);
    }

    /// All has been gone through once more.
    fn round_ends(&mut self) {
        if self.seen && self.round + 1 < STRIDES.len() {
            (self.round, self.at, self.seen) = (self.round + 1, 0, false);
        } else {
            self.begin();
        }
    }

    /// What is left of the range that it is in.
    fn left(&self) -> Option<Range> {
        let range = self.ranges.iter().find(|range| range.end > self.at)?;
        Some(Range { start: range.start.max(self.at), end: range.end })
    }

    /// A scan has looked at this many bytes and found nothing.
    fn has_looked(&mut self, bytes: usize, took_ns: u64) {
        self.reach = next_reach(self.reach, LEAST_REACH, took_ns, bytes == self.reach);
    }
}

impl Pager {
    /// A range was adopted just now that the program has used before.
    pub(crate) fn needs_sentinels(&self, _: &Exclusive<'_>, range: Range) {
        self.sentinels.lock().add(range);
    }

    /// One step of setting sentinels in memory that was adopted lately. [`Evicted::Progress`]: there may be more; `Later`: an
    /// event must be read first, the program forks, or others have all of staging. By the thread that adopts, without a lock.
    pub fn set_sentinels(&self, worker: &mut Worker) -> Evicted {
        // In an operation, or a child's copy of the lock could be one that is held.
        let Some(operation) = self.enter() else { return Evicted::Later };
        let mut sentinels = {
            let sentinels = self.sentinels.lock();
            if sentinels.ranges.is_empty() {
                return Evicted::Nothing;
            }
            sentinels.clone()
        };
        if self.protects() {
            let protected = self.protect_zero_page(&mut sentinels);
            *self.sentinels.lock() = sentinels;
            return protected;
        }
        let (ranges, is_code) = self.find_sentinels(&mut sentinels);
        let set = if ranges.is_empty() { Evicted::Progress } else { operation.detach_zero_pages(ranges, is_code, worker) };
        if set == Evicted::Progress {
            *self.sentinels.lock() = sentinels;
        }
        set
    }

    /// Where the kernel tells of writes, no sentinels are needed: all of it is write-protected.
    fn protect_zero_page(&self, sentinels: &mut Sentinels) -> Evicted {
        let started = now_ns();
        while now_ns() < started + LOOK_NS {
            let Some(left) = sentinels.left() else {
                sentinels.begin();
                return Evicted::Progress;
            };
            let Some(range) = self.regions.next(&self.space.shared(), left.start).filter(|range| range.start < left.end) else {
                sentinels.at = left.end;
                continue;
            };
            let end = range.end.min(left.end).min(range.start.saturating_add(sentinels.reach));
            let Ok(found) = self.present().scan_zero_page(range.start, end, 0) else {
                sentinels.at = end;
                continue;
            };
            for (start, end) in found.iter() {
                // What was written since waits once for nothing.
                if self.uffd().protect(start, end - start) == Err(Errno::AGAIN) {
                    sentinels.at = start;
                    return Evicted::Later;
                }
            }
            sentinels.at = found.walk_end.max(range.start + PAGE_SIZE);
        }
        Evicted::Progress
    }

    /// The next pages that are to become sentinels, and whether they are code, as all are or none is.
    fn find_sentinels(&self, sentinels: &mut Sentinels) -> (Ranges, bool) {
        let (mut pages, mut is_code) = (Ranges::none(), false);
        let started = now_ns();
        for _ in 0..MOST_SCANS {
            let now = now_ns();
            if now > started + LOOK_NS || sentinels.ranges.is_empty() {
                break;
            }
            let Some(left) = sentinels.left() else {
                sentinels.round_ends();
                // In order of address.
                if pages.is_empty() {
                    continue;
                }
                break;
            };
            let Some(range) = self.regions.next(&self.space.shared(), left.start).filter(|range| range.start < left.end) else {
                sentinels.at = left.end;
                continue;
            };
            let end = range.end.min(left.end).min(range.start.saturating_add(sentinels.reach));
            // Without the lock: what changes meanwhile is seen when the page is detached.
            sentinels.at = match self.present().first_zero_page(range.start, end) {
                Ok(Some(page)) => {
                    sentinels.seen = true;
                    let is_code_too = self.is_code(page);
                    if !pages.is_empty() && is_code_too != is_code {
                        sentinels.at = page;
                        break;
                    }
                    is_code = is_code_too;
                    pages.push(page);
                    page + STRIDES[sentinels.round] * PAGE_SIZE
                }
                _ => {
                    sentinels.has_looked(end - range.start, now_ns() - now);
                    end
                }
            };
        }
        (pages, is_code)
    }
}

impl Operation<'_> {
    fn detach_zero_pages(&self, ranges: Ranges, is_code: bool, worker: &mut Worker) -> Evicted {
        let Some(batch) = self.staging.take_empty() else {
            self.drained(worker);
            return Evicted::Later;
        };
        self.staging.prepare(batch, is_code);
        // Read-only or locked pages can't be moved, and stay.
        let found = Found::all_of(ranges, Kind::ZeroPage);
        match self.detach(&found, self.staging.first(batch), self.staging.batch_frames(), worker) {
            Detached::Pages { pages: pages @ 1.., .. } => {
                self.queue(batch, pages);
                // At once: while they wait they are counted as memory, which they are not.
                self.drained(worker);
            }
            Detached::EventsFirst => {
                self.staging.put_empty(batch);
                return Evicted::Later;
            }
            Detached::Pages { .. } | Detached::Busy => self.staging.put_empty(batch),
        }
        Evicted::Progress
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reclaim::victims::{MOST_REACH, SCAN_NS};

    fn range(start: usize, end: usize) -> Range {
        Range { start, end }
    }

    #[test]
    fn what_is_adopted_meanwhile_comes_next_and_nothing_is_gone_through_in_vain() {
        let mut sentinels = Sentinels::new();
        sentinels.add(range(10, 20));
        sentinels.at = 15;
        sentinels.seen = true;
        sentinels.add(range(40, 50));
        sentinels.add(range(50, 60));
        sentinels.add(range(12, 14));
        assert_eq!((sentinels.left(), sentinels.next.as_slice()), (Some(range(15, 20)), &[range(40, 60), range(12, 14)][..]));
        sentinels.round_ends();
        assert_eq!((sentinels.left(), sentinels.round, sentinels.seen), (Some(range(10, 20)), 1, false));
        sentinels.seen = true;
        sentinels.round_ends();
        assert_eq!((sentinels.ranges.as_slice(), sentinels.round), (&[range(12, 14), range(40, 60)][..], 0));
        sentinels.at = 14;
        assert_eq!(sentinels.left(), Some(range(40, 60)));
        sentinels.at = 60;
        assert_eq!(sentinels.left(), None);
        sentinels.round_ends();
        assert!(sentinels.ranges.is_empty() && sentinels.next.is_empty(), "there was nothing");
    }

    #[test]
    fn of_many_ranges_none_is_forgotten() {
        let mut sentinels = Sentinels::new();
        let of = |i: usize| range(10 * i, 10 * i + 5);
        (0..3 * RANGES).for_each(|i| sentinels.add(of(i)));
        sentinels.round_ends();
        let covered = |i| sentinels.ranges.iter().any(|range| range.covers(of(i)));
        // The first one was begun with at once.
        assert!((1..3 * RANGES).all(covered), "{:?}", sentinels.ranges);
    }

    #[test]
    fn a_scan_looks_as_far_as_takes_its_time() {
        let mut sentinels = Sentinels::new();
        (0..40).for_each(|_| sentinels.has_looked(sentinels.reach, 1));
        assert_eq!(sentinels.reach, MOST_REACH);
        (0..40).for_each(|_| sentinels.has_looked(sentinels.reach, 10 * SCAN_NS));
        assert_eq!(sentinels.reach, LEAST_REACH);
    }
}
