//! Where no tier takes pages: the search for those that are all zero, which need none and are all that can leave.
//!
//! To detach pages only to put most of them back would stop the program again and again. So their bytes are read first, in
//! their places, and through `/proc/self/mem`: that fails where the program has unmapped what is looked at, and where a page is
//! missing (on Linux 6.18; it may wait for it), and nothing more.

use core::sync::atomic::{AtomicUsize, Ordering};

use lowtide_core::fill;
use lowtide_core::vm::PAGE_SIZE;
use rustix::fd::OwnedFd;

use crate::detach::Detached;
use crate::evict::Evicted;
use crate::hand::Found;
use crate::pager::{Operation, add};
use crate::present::Ranges;
use crate::worker::{CHUNK, Worker};

/// What one step does at most: pages that it reads, ...
const MOST_READ: usize = 2048;
/// ... and scans, which find nothing where all is shared or missing: each is a matter of a millisecond together.
const MOST_SCANS: usize = 16;
/// The search goes on at once while at least one of so many pages that were read has left.
const WORTHWHILE: usize = 32;

/// Where the search is; for the thread that may do it.
#[derive(Debug, Default)]
pub(crate) struct Search {
    /// Address up to which it has looked.
    at: AtomicUsize,
    /// Rounds in a row that have ended without a step that was worth while, the first of them perhaps a part of one.
    vain_rounds: AtomicUsize,
}

/// What one step has found.
struct Zeros {
    ranges: Ranges,
    /// Pages of zeros, and all pages that were read.
    pages: usize,
    read: usize,
    /// Where to go on; None: all memory has been looked at.
    next: Option<usize>,
}

impl Operation<'_> {
    /// One step of the search, for the thread that nobody waits for. Pages that are shared with other processes stay: they
    /// would not become less. [`Evicted::Full`]: all memory was searched in vain.
    pub(crate) fn evict_zeros(&self, worker: &mut Worker) -> Evicted {
        // What waits in staging may be zeros too, and else it is better off in its place.
        match self.drained(worker) {
            Evicted::Nothing => {}
            Evicted::Later => return Evicted::Later,
            _ => return Evicted::Some,
        }
        // Opened each time, which is nothing beside the search: not all hosts want to keep it open.
        let Some(memory) = (self.host.open_memory)() else { return Evicted::Full };
        let Some(batch) = self.staging.take_empty() else { return Evicted::Full };
        let room = self.staging.batch_frames();
        let started = self.search.at.load(Ordering::Relaxed);
        let zeros = self.find_zeros(started, &memory, room, worker);
        self.search.at.store(zeros.next.unwrap_or(0), Ordering::Relaxed);
        let found = Found { ranges: zeros.ranges, spares_none: true, is_complete: false };
        let evicted = match self.detach(&found, self.staging.first(batch), room, worker) {
            Detached::Pages { pages: pages @ 1.., .. } => {
                self.staging.put_full(batch);
                self.publish_own();
                add(&self.counters().evictions_pages, pages);
                if self.drained(worker) == Evicted::Later {
                    return Evicted::Later;
                }
                pages
            }
            Detached::EventsFirst => {
                self.staging.put_empty(batch);
                self.search.at.store(started, Ordering::Relaxed);
                return Evicted::Later;
            }
            Detached::Pages { .. } | Detached::Busy => {
                self.staging.put_empty(batch);
                0
            }
        };
        self.search.came_to(evicted > 0 && evicted * WORTHWHILE >= zeros.read, zeros.next.is_none())
    }

    /// Reads pages from `at` on, until so many are zeros or enough were looked at.
    fn find_zeros(&self, at: usize, memory: &OwnedFd, room: usize, worker: &mut Worker) -> Zeros {
        let mut zeros = Zeros { ranges: Ranges::none(), pages: 0, read: 0, next: Some(at) };
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
            let Ok(found) = scan else {
                zeros.next = Some(end);
                continue;
            };
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
    /// A step was worth while or not, and the last one of a round or not.
    fn came_to(&self, is_worth_it: bool, is_round: bool) -> Evicted {
        if is_worth_it {
            self.vain_rounds.store(0, Ordering::Relaxed);
            return Evicted::Some;
        }
        // The first end of a round may be that of a part of one.
        let rounds = self.vain_rounds.load(Ordering::Relaxed) + usize::from(is_round);
        if rounds < 2 {
            self.vain_rounds.store(rounds, Ordering::Relaxed);
            return Evicted::Searching;
        }
        // The next round is a whole one.
        self.vain_rounds.store(1, Ordering::Relaxed);
        Evicted::Full
    }
}

impl Zeros {
    /// Reads pages and adds those that are zero, up to so many in all. Some: where it stopped before the end.
    fn read(&mut self, memory: &OwnedFd, found: &Ranges, room: usize, worker: &mut Worker) -> Option<usize> {
        let (buffer, _) = worker.parts();
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
