//! The search for zero pages, which leave even if no tier takes pages.
//!
//! Detaching to put most back would stop the program. So pages are read in place first, through
//! `/proc/self/mem`, which fails on missing or unmapped memory (Linux 6.18; it may wait for missing
//! pages).

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use lowtide_core::fill;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::clock::now_ns;
use lowtide_sys::present::{Kind, Ranges};
use rustix::fd::OwnedFd;

use crate::pager::Pager;
use crate::pages::Operation;
use crate::pages::worker::{CHUNK, Worker};
use crate::reclaim::detach::Detached;
use crate::reclaim::evicted::Evicted;
use crate::reclaim::victims::Found;

/// Pages read in one step.
const MOST_READ: usize = 2048;
/// Scans in one step; both limits take about a millisecond.
const MOST_SCANS: usize = 16;
/// The search goes on while one in this many pages leaves.
const WORTHWHILE: usize = 32;
const STEP_REST_NS: u64 = 4_000_000;
/// Pause after a vain round, by step, and its bounds.
const ROUND_REST_NS: u64 = 8_000_000;
const LONGEST_REST_NS: u64 = 10_000_000_000;
const SHORTEST_ROUND_REST_NS: u64 = 50_000_000;

/// Written by the one searching thread.
#[derive(Debug, Default)]
pub(crate) struct Search {
    /// Next address.
    at: AtomicUsize,
    until_ns: AtomicU64,
    /// Of this round.
    steps: AtomicUsize,
    read: AtomicUsize,
    left: AtomicUsize,
}

struct Zeros {
    ranges: Ranges,
    /// Zero pages, and pages read.
    pages: usize,
    read: usize,
    /// None: end of the round.
    next: Option<usize>,
    /// Whether code (`alike.rs`). None: irrelevant.
    is_code: Option<bool>,
}

impl Pager {
    /// Microseconds until the search resumes.
    pub fn search_rests_us(&self) -> u64 {
        self.reclaim.search.until_ns.load(Ordering::Relaxed).saturating_sub(now_ns()) / 1000
    }
}

impl Operation<'_> {
    /// One step, unless paused, by a thread without waiters. [`Evicted::Progress`]: worth it.
    /// Shared pages stay: evicting them frees nothing.
    pub(crate) fn search_zeros(&self, worker: &mut Worker) -> Evicted {
        if now_ns() < self.reclaim.search.until_ns.load(Ordering::Relaxed) {
            return Evicted::Searching;
        }
        // May be zeros too; others are better in place.
        match self.drain(worker) {
            Evicted::Nothing => {}
            Evicted::Later => return self.reclaim.search.rests(STEP_REST_NS),
            _ => return Evicted::Progress,
        }
        // Cheap; some hosts don't want it open.
        let Some(memory) = (self.host.open_memory)() else { return Evicted::Full };
        let Some(batch) = self.pages.staging.take_empty() else { return Evicted::Full };
        let room = self.pages.staging.batch_frames();
        let started = self.reclaim.search.at.load(Ordering::Relaxed);
        let zeros = self.find_zeros(started, &memory, room, worker);
        self.pages.staging.prepare(batch, zeros.is_code.unwrap_or(false));
        let found = Found::all_of(zeros.ranges, Kind::Page);
        let left = match self.detach(&found, self.pages.staging.first(batch), room, worker) {
            Detached::Pages { pages: pages @ 1.., .. } => {
                self.queue(batch, pages);
                self.drain(worker);
                pages
            }
            Detached::EventsFirst => {
                self.pages.staging.put_empty(batch);
                return self.reclaim.search.rests(STEP_REST_NS);
            }
            Detached::Pages { .. } | Detached::Busy => {
                self.pages.staging.put_empty(batch);
                0
            }
        };
        self.reclaim.search.came_to(zeros.next, zeros.read, left)
    }

    /// Reads from `at` until `room` zeros or enough pages.
    fn find_zeros(&self, at: usize, memory: &OwnedFd, room: usize, worker: &mut Worker) -> Zeros {
        let mut zeros = Zeros { ranges: Ranges::none(), pages: 0, read: 0, next: Some(at), is_code: None };
        for _ in 0..MOST_SCANS {
            let range = self.mappings.regions.next(&self.pages.space.shared(), zeros.next.unwrap_or(0));
            let Some(range) = range else {
                zeros.next = None;
                break;
            };
            let end = range.end.min(range.start.saturating_add(self.reclaim.reach.load(Ordering::Relaxed)));
            // Unlocked: detaching and storing notice changes.
            let scan = self.present().scan(range.start, end, MOST_READ - zeros.read).and_then(|mut found| {
                found.keep_exclusive(self.present())?;
                Ok(found)
            });
            let Ok(mut found) = scan else {
                zeros.next = Some(end);
                continue;
            };
            let is_code = self.keep_alike(&mut found).is_code;
            if zeros.pages == 0 {
                zeros.is_code = is_code;
            } else if is_code.is_some() && is_code != zeros.is_code {
                zeros.next = Some(range.start);
                break;
            }
            let stopped = zeros.read(memory, &found, room, worker);
            zeros.next = Some(stopped.unwrap_or(found.walk_end.max(range.start + PAGE_SIZE)));
            if stopped.is_some() || zeros.read >= MOST_READ {
                break;
            }
        }
        zeros
    }
}

impl Search {
    fn rests(&self, ns: u64) -> Evicted {
        self.until_ns.store(now_ns() + ns, Ordering::Relaxed);
        Evicted::Searching
    }

    /// `next`: None at the end of a round.
    fn came_to(&self, next: Option<usize>, read: usize, left: usize) -> Evicted {
        self.at.store(next.unwrap_or(0), Ordering::Relaxed);
        let step = |sum: &AtomicUsize, more: usize| sum.fetch_add(more, Ordering::Relaxed) + more;
        let round = (step(&self.steps, 1), step(&self.read, read), step(&self.left, left));
        let is_worth_it = |read: usize, left: usize| left > 0 && left * WORTHWHILE >= read;
        if next.is_none() {
            [&self.steps, &self.read, &self.left].into_iter().for_each(|sum| sum.store(0, Ordering::Relaxed));
            if !is_worth_it(round.1, round.2) {
                let rest = (round.0 as u64 * ROUND_REST_NS).clamp(SHORTEST_ROUND_REST_NS, LONGEST_REST_NS);
                return self.rests(rest);
            }
        }
        if is_worth_it(read, left) { Evicted::Progress } else { self.rests(STEP_REST_NS) }
    }
}

impl Zeros {
    /// Adds zero pages up to `room`; returns where it stopped early.
    fn read(&mut self, memory: &OwnedFd, found: &Ranges, room: usize, worker: &mut Worker) -> Option<usize> {
        let (buffer, _) = worker.parts(CHUNK);
        for (start, end) in found.iter() {
            let mut at = start;
            while at < end {
                let wanted = &mut buffer.as_flattened_mut()[..(end - at).min(CHUNK * PAGE_SIZE)];
                // Fails for missing pages.
                let read = rustix::io::pread(memory, wanted, at as u64).unwrap_or(0) / PAGE_SIZE;
                self.read += read.max(1);
                for (page, at) in buffer[..read].iter().zip((at..).step_by(PAGE_SIZE)) {
                    if fill::repeated_word(page) != Some(0) {
                        continue;
                    }
                    if self.pages == room || !self.ranges.push(at) {
                        return Some(at);
                    }
                    self.pages += 1;
                }
                at += read.max(1) * PAGE_SIZE;
            }
        }
        None
    }
}
