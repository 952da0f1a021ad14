//! Sentinels in memory that the program has read, but not written, before it was registered: the
//! kernel has mapped its zero page there. (After registration zeros come in as own pages:
//! `fault/touch.rs`.)
//!
//! The kernel copies for a write there without an event, so nothing would hold the program back at
//! its limit. So one such place here and there is emptied: a program that goes on writing soon
//! faults, and waits for room. Not all, because moving the zero page interrupts the program's other
//! CPUs for each page; first a few everywhere, then more. MOVE takes along what is written
//! meanwhile; MADV_DONTNEED would drop it.
//!
//! (The kernel also maps the zero page where it splits a huge page, but only because a part was
//! detached, which is the sentinel.)

use arrayvec::ArrayVec;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::Range;
use lowtide_sys::clock::now_ns;
use lowtide_sys::present::{Kind, Ranges};
use rustix::io::Errno;

use crate::pager::Pager;
use crate::pages::Operation;
use crate::pages::space::Exclusive;
use crate::pages::worker::Worker;
use crate::reclaim::detach::Detached;
use crate::reclaim::evicted::Evicted;
use crate::reclaim::victims::{Found, next_reach};

/// Pages from one to the next, for each walk.
const STRIDES: [usize; 2] = [1024, 64];
const MOST_SCANS: usize = 128;
const LOOK_NS: u64 = 1_000_000;
const LEAST_REACH: usize = 16 << 20;
const FIRST_REACH: usize = 256 << 20;
/// More are merged with the last, gaps included.
const RANGES: usize = 16;

/// Changed by the thread that sets sentinels, and under the exclusive space lock.
#[derive(Debug, Clone)]
pub(crate) struct Sentinels {
    ranges: ArrayVec<Range, RANGES>,
    round: usize,
    at: usize,
    seen: bool,
    /// Ranges registered since the walk began.
    next: ArrayVec<Range, RANGES>,
    reach: usize,
}

impl Sentinels {
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
            // A look at the mappings goes upwards; the next starts anew.
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

    fn round_ends(&mut self) {
        if self.seen && self.round + 1 < STRIDES.len() {
            (self.round, self.at, self.seen) = (self.round + 1, 0, false);
        } else {
            self.begin();
        }
    }

    fn left(&self) -> Option<Range> {
        let range = self.ranges.iter().find(|range| range.end > self.at)?;
        Some(Range { start: range.start.max(self.at), end: range.end })
    }

    fn has_looked(&mut self, bytes: usize, took_ns: u64) {
        self.reach = next_reach(self.reach, LEAST_REACH, took_ns, bytes == self.reach);
    }
}

impl Pager {
    /// A range was registered that the program had used before.
    pub(crate) fn needs_sentinels(&self, _: &Exclusive<'_>, range: Range) {
        self.reclaim.sentinels.lock().add(range);
    }

    /// One step of setting sentinels in newly registered memory. [`Evicted::Progress`]: there may
    /// be more; `Later`: an event waits, the program forks, or staging is taken. By the registering
    /// thread, without a lock.
    pub fn set_sentinels(&self, worker: &mut Worker) -> Evicted {
        // A child must not copy the lock while it is held.
        let Some(operation) = self.enter() else { return Evicted::Later };
        let mut sentinels = {
            let sentinels = self.reclaim.sentinels.lock();
            if sentinels.ranges.is_empty() {
                return Evicted::Nothing;
            }
            sentinels.clone()
        };
        if self.protects() {
            let protected = self.protect_zero_page(&mut sentinels);
            *self.reclaim.sentinels.lock() = sentinels;
            return protected;
        }
        let (ranges, is_code) = self.find_sentinels(&mut sentinels);
        let set = if ranges.is_empty() { Evicted::Progress } else { operation.detach_zero_pages(ranges, is_code, worker) };
        if set == Evicted::Progress {
            *self.reclaim.sentinels.lock() = sentinels;
        }
        set
    }

    fn protect_zero_page(&self, sentinels: &mut Sentinels) -> Evicted {
        let started = now_ns();
        while now_ns() < started + LOOK_NS {
            let Some(left) = sentinels.left() else {
                sentinels.begin();
                return Evicted::Progress;
            };
            let Some(part) = self.next_part(sentinels, left) else { continue };
            let Ok(found) = self.present().scan_zero_page(part.start, part.end, 0) else {
                sentinels.at = part.end;
                continue;
            };
            for (start, end) in found.iter() {
                if self.uffd().protect(start, end - start) == Err(Errno::AGAIN) {
                    sentinels.at = start;
                    return Evicted::Later;
                }
            }
            sentinels.at = found.walk_end.max(part.start + PAGE_SIZE);
        }
        Evicted::Progress
    }

    /// Registered memory at the front of `left`, as much as one scan reaches. None: `left` has no
    /// more, and the walk goes on behind it.
    fn next_part(&self, sentinels: &mut Sentinels, left: Range) -> Option<Range> {
        let range = self.mappings.regions.next(&self.pages.space.shared(), left.start).filter(|range| range.start < left.end);
        let Some(range) = range else {
            sentinels.at = left.end;
            return None;
        };
        let end = range.end.min(left.end).min(range.start.saturating_add(sentinels.reach));
        Some(Range { start: range.start, end })
    }

    /// All are code, or none.
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
                if pages.is_empty() {
                    continue;
                }
                break;
            };
            let Some(part) = self.next_part(sentinels, left) else { continue };
            // Without the lock: detaching sees what changes meanwhile.
            sentinels.at = match self.present().first_zero_page(part.start, part.end) {
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
                    sentinels.has_looked(part.end - part.start, now_ns() - now);
                    part.end
                }
            };
        }
        (pages, is_code)
    }
}

impl Operation<'_> {
    fn detach_zero_pages(&self, ranges: Ranges, is_code: bool, worker: &mut Worker) -> Evicted {
        let Some(batch) = self.pages.staging.take_empty() else {
            self.drain(worker);
            return Evicted::Later;
        };
        self.pages.staging.prepare(batch, is_code);
        // Read-only and locked pages can't be moved, and stay.
        let found = Found::all_of(ranges, Kind::ZeroPage);
        match self.detach(&found, self.pages.staging.first(batch), self.pages.staging.batch_frames(), worker) {
            Detached::Pages { pages: pages @ 1.., .. } => {
                self.queue(batch, pages);
                // At once: while they wait, they count as memory.
                self.drain(worker);
            }
            Detached::EventsFirst => {
                self.pages.staging.put_empty(batch);
                return Evicted::Later;
            }
            Detached::Pages { .. } | Detached::Busy => self.pages.staging.put_empty(batch),
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
    fn what_is_registered_meanwhile_comes_next_and_nothing_is_gone_through_in_vain() {
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
