//! Eviction: a clock hand goes round the adopted memory and detaches runs of pages from their places into staging.
//!
//! Without access bits the proof that a page is cold is that it was not asked back while it waited in staging. Blocks into which a
//! page came in during the present round are passed by (they are younger than the rest), unless a whole round found nothing else.
//!
//! Pages that are shared with a forked process are passed by as well, unless a whole round found nothing else: they must be copied before
//! they can be moved, and make room only when the other process evicts or drops them too. With more than two processes that have the same
//! pages they stay: each would keep a compressed copy of its own in place of a part of a page.
//!
//! Nothing is detached that no tier would take, and where a look at all memory found nothing, the next one waits (`backoff.rs`).

use core::sync::atomic::{AtomicUsize, Ordering};

use arrayvec::ArrayVec;
use lowtide_core::store::Group;
use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;
use rustix::mm::Advice;

use crate::clock::now_ns;
use crate::drain::Drained;
use crate::pagemap::{BLOCK_PAGES, Word};
use crate::pager::{Operation, Pager, Worker, add};
use crate::present::Ranges;
use crate::uffd::{Holes, Wake};

/// What one call of [`Pager::evict`] came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evicted {
    /// Memory was or will soon be freed, or there is more to look at: go on.
    Some,
    /// Nothing more can be evicted at present.
    Nothing,
    /// No tier can take pages.
    Full,
    /// Not now: an event waits to be read, or the program forks.
    Later,
}

/// Scans of one call at most.
const SCANS: usize = 64;
/// How far one scan looks in bytes of address space, at least and at most: as far as takes some 100 us. Address space that was
/// reserved and never touched is passed by the terabyte.
const LEAST_REACH: usize = 256 << 20;
const MOST_REACH: usize = 1 << 44;
const SCAN_NS: u64 = 100_000;
/// Rounds of the hand that find nothing, after which there is nothing: in the first one young blocks and shared pages are passed by.
const IDLE_ROUNDS: u32 = 2;
/// A round that detaches no more than one of so many pages is idle.
const IDLE_SHARE: usize = 64;

/// The clock hand.
#[derive(Debug, Default)]
pub(crate) struct Hand {
    /// Address up to which it has looked.
    at: usize,
    /// Pages that it has found and detached in this round.
    found: usize,
    detached: usize,
    /// Rounds in a row in which it detached next to none of what it found.
    idle_rounds: u32,
    /// Shared pages are evicted as well, from when this many pages had come into memory on.
    shared_since: Option<usize>,
}

/// Pages that came into memory since shared ones are evicted, after which exclusive ones are looked for again.
const SHARED_FOR: usize = 512;

impl Hand {
    /// Whether pages that are shared with other processes, so many, are to be passed by. `arrived`: pages that have come into memory.
    fn passes_shared(&mut self, others: u32, arrived: usize) -> bool {
        if others != 1 {
            return others > 0;
        }
        match self.shared_since {
            Some(since) if arrived.wrapping_sub(since) > SHARED_FOR => {
                self.shared_since = None;
                self.idle_rounds = 0;
            }
            None if self.idle_rounds > 0 => self.shared_since = Some(arrived),
            _ => {}
        }
        self.shared_since.is_none()
    }
}

/// What a scan came to.
enum Detached {
    Pages(usize),
    EventsFirst,
    /// Nothing, because pages are shared or pinned, which this thread can't do anything about.
    Busy,
}

/// Bytes in which there are no more ranges than a scan finds.
const STALE_BYTES: usize = crate::present::MAX_RANGES * PAGE_SIZE;
/// Runs of pages that the kernel would not move because they are shared or pinned, as addresses; so many are dealt with at a time.
type Busy = ArrayVec<(usize, usize), 16>;
/// Stale words, from the first to behind the last, as addresses.
type Stale = Option<(usize, usize)>;

impl Pager {
    /// One step of reclaim: fills a segment of staging, and drains the oldest one when enough are filled. May be
    /// called by any thread that holds no lock; never waits for a fault unless the worker may.
    pub fn evict(&self, worker: &mut Worker) -> Evicted {
        let Some(operation) = self.enter() else { return Evicted::Later };
        let arrived = self.arrived.load(Ordering::Relaxed);
        if let Some(why) = self.backoff.holds(now_ns(), arrived) {
            return why;
        }
        // Pages that nobody takes would be detached only to be put back, again and again.
        let evicted = if operation.store().would_take(Group::RUN) { operation.evict(worker) } else { Evicted::Full };
        match evicted {
            Evicted::Nothing | Evicted::Full => self.backoff.failed(evicted, now_ns(), arrived),
            Evicted::Some => self.backoff.succeeded(),
            Evicted::Later => {}
        }
        evicted
    }

    /// Bytes of the program that are adopted and in memory: what is not evicted, whether it could be or not. Some milliseconds for a
    /// GiB that is in memory.
    ///
    /// # Errors
    /// Those of looking: then nothing is known.
    pub fn adopted_in_memory(&self) -> Result<u64, Errno> {
        let (mut at, mut bytes) = (0, 0);
        loop {
            let next = self.regions.next(&self.space.shared(), at);
            let Some(range) = next else { return Ok(bytes) };
            // Without the lock: what is unmapped meanwhile has no pages.
            bytes += self.present().bytes(range.start, range.end)? as u64;
            at = range.end;
        }
    }
}

impl Operation<'_> {
    fn evict(&self, worker: &mut Worker) -> Evicted {
        // What waits is memory too: of many processes it would be all that there is.
        if self.staging.is_above_target() {
            match self.drained(worker) {
                Evicted::Nothing => {}
                other => return other,
            }
        }
        let Some(segment) = self.staging.take_empty() else { return self.drained(worker) };
        let frames = self.staging.segment_frames();
        let mut filled = 0;
        let mut later = false;
        for _ in 0..SCANS {
            if filled == frames || self.hand.lock().idle_rounds >= IDLE_ROUNDS {
                break;
            }
            let first = self.staging.first(segment) + filled as u32;
            match self.advance(first, frames - filled, worker) {
                Detached::Pages(n) => filled += n,
                // The keeper unshares what is shared. A monitor that went on looking would try all of it in vain for each fault.
                Detached::EventsFirst | Detached::Busy => {
                    later = true;
                    break;
                }
            }
        }
        if filled == 0 {
            self.staging.put_empty(segment);
            if later {
                return Evicted::Later;
            }
            if core::mem::take(&mut self.hand.lock().idle_rounds) < IDLE_ROUNDS {
                return Evicted::Some;
            }
            // Nothing left to detach: what waits in staging is all there is.
            return match self.drained(worker) {
                Evicted::Some if self.staging.staged() == 0 => Evicted::Nothing,
                other => other,
            };
        }
        self.staging.put_full(segment);
        self.publish_own();
        add(&self.counters().evictions_pages, filled);
        if self.staging.empty_segments() < 2 {
            return self.drained(worker);
        }
        Evicted::Some
    }

    /// Drains the oldest segment.
    fn drained(&self, worker: &mut Worker) -> Evicted {
        match self.drain(worker) {
            Drained::Freed => Evicted::Some,
            Drained::Nothing => Evicted::Nothing,
            Drained::Full => Evicted::Full,
            Drained::Later => Evicted::Later,
        }
    }

    /// Advances the hand by one scan and moves what it finds into the frames from `first` on, `room` of them.
    fn advance(&self, first: u32, room: usize, worker: &mut Worker) -> Detached {
        let (mut busy, mut stale) = (Busy::new(), None);
        let moved = {
            let lock = self.space.shared();
            let Some(found) = ({
                let mut hand = self.hand.lock();
                match self.regions.next(&lock, hand.at) {
                    None => {
                        hand.at = 0;
                        // A page here and there that comes in and goes out again proves nothing.
                        hand.idle_rounds = if hand.detached <= hand.found / IDLE_SHARE { hand.idle_rounds + 1 } else { 0 };
                        (hand.found, hand.detached) = (0, 0);
                        // Zero means "never", so it is left out.
                        self.round.store(self.round.load(Ordering::Relaxed).wrapping_add(1).max(1), Ordering::Relaxed);
                        None
                    }
                    Some(range) => {
                        let reach = self.reach.load(Ordering::Relaxed);
                        let end = range.end.min(range.start.saturating_add(reach));
                        let started = now_ns();
                        let mut scan = self.present().scan(range.start, end, room).ok();
                        if hand.passes_shared(self.sharers(), self.arrived.load(Ordering::Relaxed)) {
                            scan = scan.and_then(|mut found| found.keep_exclusive(self.present()).is_ok().then_some(found));
                        }
                        let took = now_ns() - started;
                        adapt(&self.reach, reach, took, end == range.start + reach);
                        hand.at = scan.as_ref().map_or(end, |s| s.walk_end.max(range.start + PAGE_SIZE));
                        hand.found += scan.as_ref().map_or(0, |s| s.iter().map(|(from, to)| (to - from) / PAGE_SIZE).sum());
                        scan
                    }
                }
            }) else {
                return Detached::Pages(0);
            };
            self.detach(&found, first, room, Some(&mut busy), &mut stale)
        };
        if let Some((start, end)) = stale {
            self.forget_stale(start, end);
        }
        let mut pages = match moved {
            Detached::Pages(n) => n,
            other => return other,
        };
        if !busy.is_empty() && !worker.may_fault && pages == 0 {
            return Detached::Busy;
        }
        for (start, end) in busy.into_iter().filter(|_| worker.may_fault) {
            if pages == room {
                break;
            }
            unshare(start, end);
            // Once more. What is still busy is pinned, and stays: the hand goes on, or it would come to nothing else.
            let _lock = self.space.shared();
            if let Ok(found) = self.present().scan(start, end, room - pages)
                && let Detached::Pages(n) = self.detach(&found, first + pages as u32, room - pages, None, &mut None)
            {
                pages += n;
            }
        }
        self.hand.lock().detached += pages;
        Detached::Pages(pages)
    }

    /// Moves the pages that a scan found. Those that the kernel would not move because they are shared or pinned come into `busy`, or,
    /// without it, are passed by, more of them at a time the more there are.
    fn detach(&self, found: &Ranges, first: u32, room: usize, mut busy: Option<&mut Busy>, stale: &mut Stale) -> Detached {
        let round = self.round.load(Ordering::Relaxed);
        let young = |page| self.map.age(page).is_some_and(|age| age.load(Ordering::Relaxed) == round);
        let again = busy.is_none();
        let mut passed = 1;
        let mut filled = 0;
        for (start, end) in found.iter() {
            let (mut page, end) = (start / PAGE_SIZE, end / PAGE_SIZE);
            while page < end && filled < room {
                let block_end = ((page / BLOCK_PAGES + 1) * BLOCK_PAGES).min(end);
                if young(page) && !again {
                    page = block_end;
                    continue;
                }
                let frame = first + filled as u32;
                // Runs go over block borders where they can: one MOVE for as many pages as possible.
                let mut n = 0;
                while page + n < end && filled + n < room && self.claim_out(page + n, frame + n as u32) {
                    n += 1;
                    if (page + n).is_multiple_of(BLOCK_PAGES) && young(page + n) {
                        break;
                    }
                }
                if n == 0 {
                    if matches!(self.map.get(page), Word::Swapped(_) | Word::Staged(_)) {
                        stale.get_or_insert((page * PAGE_SIZE, 0)).1 = (page + 1) * PAGE_SIZE;
                    }
                    page += 1;
                    continue;
                }
                let (moved, error) = self.move_out(page, frame, n);
                filled += moved;
                page += moved;
                if moved > 0 {
                    passed = 1;
                }
                match error {
                    None => {}
                    Some(Errno::AGAIN) => return if filled > 0 { Detached::Pages(filled) } else { Detached::EventsFirst },
                    // Not there any more.
                    Some(Errno::NOENT) => page += 1,
                    Some(Errno::BUSY) => match &mut busy {
                        // The rest of the run is likely to be shared as well: after a fork all of it is.
                        Some(busy) => {
                            let _ = busy.try_push((page * PAGE_SIZE, end * PAGE_SIZE));
                            page = end;
                        }
                        None => {
                            page += passed;
                            passed = (passed * 2).min(BLOCK_PAGES);
                        }
                    },
                    // Locked, read-only or otherwise immovable: a matter of the whole mapping, of which this is a part.
                    Some(_) => page = end,
                }
            }
        }
        Detached::Pages(filled)
    }

    /// Claims a page for the way out that was in memory when it was looked for. It may have left since, by another thread's hand:
    /// a word that holds bytes is never taken for stale here. A page that can't have a word stays.
    fn claim_out(&self, page: usize, frame: u32) -> bool {
        let word = self.map.get(page);
        let clean = match word {
            Word::None | Word::Zero => 0,
            Word::Clean(raw) => raw,
            _ => return false,
        };
        if self.map.claim(page, word, Word::Moving(frame)) != Ok(true) {
            return false;
        }
        self.staging.clean(frame).store(clean, Ordering::Release);
        if word == Word::Zero {
            // If the page is not there, then None says the same.
            self.forget(self, word);
        }
        true
    }

    /// Forgets the words of pages that are in memory all the same: faults served during a fork leave such words behind. Alone, so
    /// that what is seen is so.
    fn forget_stale(&self, start: usize, end: usize) {
        if !self.may_have_stale_words() {
            return;
        }
        let lock = self.space.exclusive();
        let Ok(found) = self.present().scan(start, end, (end - start) / PAGE_SIZE) else { return };
        for (start, end) in found.iter() {
            self.map.each(start / PAGE_SIZE, end / PAGE_SIZE, |_, slot| {
                let word = Word::from_bits(slot.load(Ordering::Acquire));
                if matches!(word, Word::Swapped(_) | Word::Staged(_))
                    && slot.compare_exchange(word.bits(), 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
                {
                    self.forget(&lock, word);
                }
            });
        }
    }
}

impl Pager {
    /// Forgets the words of pages of a range that are in memory all the same: faults served during a fork leave such words behind. By who holds
    /// no lock.
    pub(crate) fn forget_all_stale(&self, range: crate::regions::Range) {
        if !self.may_have_stale_words() {
            return;
        }
        let Some(operation) = self.enter() else { return };
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at + STALE_BYTES);
            operation.forget_stale(at, end);
            at = end;
        }
    }
}

impl Operation<'_> {
    /// Moves `n` claimed pages into frames; the words of those that stay are what they were. Returns the pages moved and why it stopped.
    fn move_out(&self, page: usize, frame: u32, n: usize) -> (usize, Option<Errno>) {
        let (mut moved, mut most) = (0, n);
        let mut error = None;
        while moved < n && error.is_none() {
            let len = (n - moved).min(most);
            self.moving.fetch_add(len, Ordering::Relaxed);
            self.publish_own();
            // SAFETY: the words say Moving: a fault on these pages waits until they say more.
            let p = unsafe {
                let (to, from) = (self.staging.addr(frame + moved as u32), (page + moved) * PAGE_SIZE);
                self.uffd().move_pages(to, from, len * PAGE_SIZE, Holes::Stop, Wake::Later)
            };
            add(&self.counters().moved_calls, 1);
            let done = match p.error {
                None => len,
                Some(_) => self.landed(frame + moved as u32, len).max(p.done / PAGE_SIZE),
            };
            for i in moved..moved + done {
                let f = frame + i as u32;
                if !self.staging.arrived(f, page + i) {
                    self.broken(b"a frame was given out twice", page + i, f);
                }
                self.map.set(page + i, Word::Staged(f));
            }
            self.moving.fetch_sub(len, Ordering::Relaxed);
            self.budget.add_pages(-(done as isize));
            moved += done;
            error = p.error;
            match error {
                // The true reason comes when the rest is tried again.
                Some(_) if done > 0 => error = None,
                // Perhaps the pages lie in two mappings: one call does one mapping.
                Some(Errno::INVAL) if len > 1 => (most, error) = (len / 2, None),
                _ => {}
            }
        }
        for i in moved..n {
            self.map.set(page + i, self.staging_to_place(frame + i as u32));
        }
        (moved, error)
    }

    /// How many of `len` frames from `frame` on, which were empty, hold a page after a MOVE that did not do all of its work: up to the last
    /// one that does. (The shared zero page is one too: parts of a huge page that was split can be that.) The kernel's own count can't be
    /// relied on then: on Linux 6.18 a MOVE that has to split a huge page on its way has been seen to report fewer pages than it moved.
    fn landed(&self, frame: u32, len: usize) -> usize {
        // None at all is by far the most frequent.
        let is_there = |i: &usize| self.present().holds_page(self.staging.addr(frame + *i as u32));
        if !is_there(&0) { 0 } else { (0..len).rev().find(is_there).map_or(0, |last| last + 1) }
    }
}

/// Gives the program its own copies of pages that it shares with a forked child, dead or alive: only those can be moved.
/// No lock may be held: if the program drops a page meanwhile, this waits for a monitor.
fn unshare(start: usize, end: usize) {
    // SAFETY: populating for write changes no bytes, whatever is mapped there now; errors (nothing mapped) are fine.
    let _ = unsafe { rustix::mm::madvise(start as *mut _, end - start, Advice::LinuxPopulateWrite) };
}

/// Lets the next scan look further, if this one came to its end soon, or less far, if it took long.
fn adapt(reach: &AtomicUsize, was: usize, took_ns: u64, reached: bool) {
    if took_ns > 2 * SCAN_NS {
        reach.store((was / 2).max(LEAST_REACH), Ordering::Relaxed);
    } else if reached && took_ns < SCAN_NS / 2 {
        reach.store((was * 2).min(MOST_REACH), Ordering::Relaxed);
    }
}
