//! Where no tier takes pages: the search for those that are all zero, which need none and are all that can leave.
//!
//! To detach pages only to put most of them back would stop the program again and again. So their bytes are read first, in
//! their places, and through `/proc/self/mem`: that fails where the program has unmapped what is looked at, and where a page is
//! missing (on Linux 6.18; it may wait for it), and nothing more.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use lowtide_core::fill;
use lowtide_core::vm::PAGE_SIZE;
use rustix::fd::OwnedFd;

use crate::fault::worker::{CHUNK, Worker};
use crate::pager::{Operation, Pager};
use crate::reclaim::detach::Detached;
use crate::reclaim::evicted::Evicted;
use crate::reclaim::victims::Found;
use crate::sys::clock::now_ns;
use crate::sys::present::{Kind, Ranges};

/// What one step does at most: pages that it reads, ...
const MOST_READ: usize = 2048;
/// ... and scans, which find nothing where all is shared or missing: each is a matter of a millisecond together.
const MOST_SCANS: usize = 16;
/// The search goes on at once while at least one of this many pages that were read has left, ...
const WORTHWHILE: usize = 32;
/// ... and else rests after each step, ...
const STEP_REST_NS: u64 = 4_000_000;
/// ... and after a whole round that was not worth while for so long for each step of it, within these bounds: so much of the
/// memory is read in vain that it must not go on all the time.
const ROUND_REST_NS: u64 = 8_000_000;
const LONGEST_REST_NS: u64 = 10_000_000_000;
const SHORTEST_ROUND_REST_NS: u64 = 50_000_000;

/// Where the search is. Changed by the one thread that may search; any other may read it.
#[derive(Debug, Default)]
pub(crate) struct Search {
    /// Address up to which it has looked.
    at: AtomicUsize,
    /// It rests until then.
    until_ns: AtomicU64,
    /// Steps of this round, pages that were read in it, and those that left.
    steps: AtomicUsize,
    read: AtomicUsize,
    left: AtomicUsize,
}

/// What one step has found.
struct Zeros {
    ranges: Ranges,
    /// Pages of zeros, and all pages that were read.
    pages: usize,
    read: usize,
    /// Where to go on; None: all memory has been looked at.
    next: Option<usize>,
    /// Whether they are code (`alike.rs`). None: that makes no difference.
    is_code: Option<bool>,
}

impl Pager {
    /// For how long the search rests, in microseconds.
    pub fn search_rests_us(&self) -> u64 {
        self.search.until_ns.load(Ordering::Relaxed).saturating_sub(now_ns()) / 1000
    }
}

impl Operation<'_> {
    /// One step of the search, for the thread that nobody waits for, if it does not rest. [`Evicted::Progress`]: it was worth
    /// while. Pages that are shared with other processes stay: they would not become less.
    pub(crate) fn search_zeros(&self, worker: &mut Worker) -> Evicted {
        if now_ns() < self.search.until_ns.load(Ordering::Relaxed) {
            return Evicted::Searching;
        }
        // What waits in staging may be zeros too, and else it is better off in its place.
        match self.drained(worker) {
            Evicted::Nothing => {}
            Evicted::Later => return self.search.rests(STEP_REST_NS),
            _ => return Evicted::Progress,
        }
        // Opened each time, which is nothing beside the search: not all hosts want to keep it open.
        let Some(memory) = (self.host.open_memory)() else { return Evicted::Full };
        let Some(batch) = self.staging.take_empty() else { return Evicted::Full };
        let room = self.staging.batch_frames();
        let started = self.search.at.load(Ordering::Relaxed);
        let zeros = self.find_zeros(started, &memory, room, worker);
        self.staging.prepare(batch, zeros.is_code.unwrap_or(false));
        let found = Found::all_of(zeros.ranges, Kind::Page);
        let left = match self.detach(&found, self.staging.first(batch), room, worker) {
            Detached::Pages { pages: pages @ 1.., .. } => {
                self.queue(batch, pages);
                // What could not be put back yet is so by the next step.
                self.drained(worker);
                pages
            }
            Detached::EventsFirst => {
                self.staging.put_empty(batch);
                return self.search.rests(STEP_REST_NS);
            }
            Detached::Pages { .. } | Detached::Busy => {
                self.staging.put_empty(batch);
                0
            }
        };
        self.search.came_to(zeros.next, zeros.read, left)
    }

    /// Reads pages from `at` on, until this many are zeros or enough were looked at.
    fn find_zeros(&self, at: usize, memory: &OwnedFd, room: usize, worker: &mut Worker) -> Zeros {
        let mut zeros = Zeros { ranges: Ranges::none(), pages: 0, read: 0, next: Some(at), is_code: None };
        for _ in 0..MOST_SCANS {
            let range = self.regions.next(&self.space.shared(), zeros.next.unwrap_or(0));
            let Some(range) = range else {
                zeros.next = None;
                break;
            };
            let end = range.end.min(range.start.saturating_add(self.reach.load(Ordering::Relaxed)));
            // Without the lock: what changes meanwhile is seen when the page is detached, or when it is stored.
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

    /// A step has read this many pages, of which this many left; `next`: where to go on, None at the end of a round.
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
    /// Reads pages and adds those that are zero, up to this many in all. Some: where it stopped before the end.
    fn read(&mut self, memory: &OwnedFd, found: &Ranges, room: usize, worker: &mut Worker) -> Option<usize> {
        let (buffer, _) = worker.parts(CHUNK);
        for (start, end) in found.iter() {
            let mut at = start;
            while at < end {
                let wanted = &mut buffer.as_flattened_mut()[..(end - at).min(CHUNK * PAGE_SIZE)];
                // Fails for what is not there any more, which is no zeros to evict.
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
