//! Eviction: a clock hand goes round the adopted memory and detaches runs of pages from their places into staging.
//!
//! Without access bits the proof that a page is cold is that it was not asked back while it waited in staging. Blocks into which a
//! page came in during the present round are passed by (they are younger than the rest), unless a whole round found nothing else.

use core::sync::atomic::Ordering;

use lowtide_core::slot::Entry;
use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;
use rustix::mm::Advice;

use crate::drain::Drained;
use crate::pagemap::{BLOCK_PAGES, Word};
use crate::pager::{Pager, Worker, add};
use crate::present::Ranges;
use crate::staging::Memory;

/// What one call of [`Pager::evict`] came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evicted {
    /// Memory was or will soon be freed: go on.
    Some,
    /// Nothing more can be evicted at present.
    Nothing,
    /// No tier can take pages.
    Full,
    /// Not now: an event waits to be read, or the program forks.
    Later,
}

/// How far one call looks for pages, in bytes of address space.
const REACH: usize = 1 << 30;
/// Scans of one call at most.
const SCANS: usize = 64;

/// What a MOVE out came to.
enum Moved {
    Pages(usize),
    EventsFirst,
}

impl Pager {
    /// One step of reclaim: fills a segment of staging, and drains the oldest one when enough are filled. May be
    /// called by any thread that holds no lock; never waits for a fault unless the worker may.
    pub fn evict(&self, worker: &mut Worker) -> Evicted {
        let Some(_operation) = self.enter() else { return Evicted::Later };
        let Some(segment) = self.staging.take_empty() else { return self.drained(worker) };
        let frames = self.staging.segment_frames();
        let mut filled = 0;
        let mut later = false;
        let mut rounds = 0;
        for _ in 0..SCANS {
            if filled == frames || rounds > 1 {
                break;
            }
            let first = self.staging.first(segment) + filled as u32;
            match self.detach(first, frames - filled, worker, &mut rounds) {
                Moved::Pages(n) => filled += n,
                Moved::EventsFirst => {
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

    /// Drains until staging holds no more than its target.
    fn drained(&self, worker: &mut Worker) -> Evicted {
        match self.drain(worker) {
            Drained::Freed => Evicted::Some,
            Drained::Nothing => Evicted::Nothing,
            Drained::Full => Evicted::Full,
            Drained::Later => Evicted::Later,
        }
    }

    /// Advances the hand by one scan and moves what it finds into the frames from `first` on, `room` of them.
    fn detach(&self, first: u32, room: usize, worker: &mut Worker, rounds: &mut u32) -> Moved {
        let (mut busy, mut stale) = (None, None);
        let moved = {
            let lock = self.space.shared();
            let Some(found) = ({
                let mut hand = self.hand.lock();
                match self.regions.next(&lock, *hand) {
                    None => {
                        *hand = 0;
                        *rounds += 1;
                        // Zero means "never", so it is left out.
                        self.round.store(self.round.load(Ordering::Relaxed).wrapping_add(1).max(1), Ordering::Relaxed);
                        None
                    }
                    Some(range) => {
                        let end = range.end.min(range.start.saturating_add(REACH));
                        let scan = self.present().scan(range.start, end, room).ok();
                        *hand = scan.as_ref().map_or(end, |s| s.walk_end.max(range.start + PAGE_SIZE));
                        scan
                    }
                }
            }) else {
                return Moved::Pages(0);
            };
            self.detach_found(&found, first, room, &mut busy, &mut stale)
        };
        if let Some((start, end)) = stale {
            self.forget_stale(start, end);
        }
        if let Some((start, end)) = busy
            && worker.may_fault
        {
            self.unshare(start, end);
        }
        moved
    }

    /// Moves the pages of the scan. `busy` is set to pages that the kernel would not move because they are shared or pinned.
    fn detach_found(
        &self,
        found: &Ranges,
        first: u32,
        room: usize,
        busy: &mut Option<(usize, usize)>,
        stale: &mut Option<(usize, usize)>,
    ) -> Moved {
        let round = self.round.load(Ordering::Relaxed);
        let young = |page| self.map.age(page).is_some_and(|age| age.load(Ordering::Relaxed) == round);
        let mut filled = 0;
        for (start, end) in found.iter() {
            let (mut page, end) = (start / PAGE_SIZE, end / PAGE_SIZE);
            if self.map.populate(page).is_err() || self.map.populate(end - 1).is_err() {
                continue;
            }
            while page < end && filled < room {
                let block_end = ((page / BLOCK_PAGES + 1) * BLOCK_PAGES).min(end);
                if young(page) {
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
                match error {
                    None => {}
                    Some(Errno::AGAIN) => return if filled > 0 { Moved::Pages(filled) } else { Moved::EventsFirst },
                    // Not there any more.
                    Some(Errno::NOENT) => page += 1,
                    Some(Errno::BUSY) => {
                        let shared = busy.get_or_insert((page * PAGE_SIZE, page * PAGE_SIZE));
                        // The rest of the run is likely to be shared as well: after a fork all of it is.
                        shared.1 = end * PAGE_SIZE;
                        page = end;
                    }
                    // Locked, read-only or otherwise immovable: a matter of the whole mapping, of which this is a part.
                    Some(_) => {
                        page += (end - page).min(BLOCK_PAGES);
                    }
                }
            }
        }
        Moved::Pages(filled)
    }

    /// Claims a page for the way out that was in memory when it was looked for. It may have left since, by another thread's hand:
    /// a word that holds bytes is never taken for stale here.
    fn claim_out(&self, page: usize, frame: u32) -> bool {
        let word = self.map.get(page);
        let clean = match word {
            Word::None | Word::Zero => 0,
            Word::Clean(raw) => raw,
            _ => return false,
        };
        if !self.map.swap(page, word, Word::Moving(frame)) {
            return false;
        }
        self.staging.clean(frame).store(clean, Ordering::Release);
        if word == Word::Zero {
            // If the page is not there, then None says the same.
            self.forget(word);
        }
        true
    }

    /// Forgets the words of pages that are in memory all the same: faults served during a fork leave such words behind. Alone, so
    /// that what is seen is so.
    fn forget_stale(&self, start: usize, end: usize) {
        if !self.was_forked() {
            return;
        }
        let _lock = self.space.exclusive();
        let Ok(found) = self.present().scan(start, end, (end - start) / PAGE_SIZE) else { return };
        for (start, end) in found.iter() {
            self.map.each(start / PAGE_SIZE, end / PAGE_SIZE, |_, slot| {
                let word = Word::from_bits(slot.load(Ordering::Acquire));
                if matches!(word, Word::Swapped(_) | Word::Staged(_))
                    && slot.compare_exchange(word.bits(), 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
                {
                    self.forget(word);
                }
            });
        }
    }

    /// Lets go of what a word stood for, after the word has been replaced.
    pub(crate) fn forget(&self, word: Word) {
        match word {
            Word::Zero => {
                self.zero_now.fetch_sub(1, Ordering::Relaxed);
            }
            Word::Staged(frame) => self.leave(frame, Memory::Stays),
            Word::Swapped(raw) => {
                if let Some(entry) = Entry::from_raw(raw) {
                    self.store.free(entry);
                }
            }
            Word::Clean(raw) => {
                if let Some(entry) = Entry::from_raw(raw) {
                    self.store.drop_cached(entry);
                }
            }
            _ => {}
        }
    }

    /// The page in `frame` is not needed there any more, nor its clean copy.
    pub(crate) fn leave(&self, frame: u32, memory: Memory) {
        self.forget(self.staging_to_place(frame));
        self.staging.left(frame, memory);
    }

    /// What the word of a page says once the page is back in its place from `frame`: Clean, if it was when it left.
    pub(crate) fn staging_to_place(&self, frame: u32) -> Word {
        match self.staging.clean(frame).swap(0, Ordering::AcqRel) {
            0 => Word::None,
            raw => Word::Clean(raw),
        }
    }

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
                self.uffd().move_pages(self.staging.addr(frame + moved as u32), (page + moved) * PAGE_SIZE, len * PAGE_SIZE)
            };
            add(&self.counters().moved_calls, 1);
            let done = match p.error {
                None => len,
                Some(_) => self.arrived(frame + moved as u32, len).max(p.done / PAGE_SIZE),
            };
            for i in moved..moved + done {
                let f = frame + i as u32;
                if !self.staging.arrived(f, page + i) {
                    self.broken(b"a frame was given out twice", page + i, f);
                }
                self.map.set(page + i, Word::Staged(f));
            }
            self.moving.fetch_sub(len, Ordering::Relaxed);
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

    /// How many of `len` frames from `frame` on, which were empty, hold a page after a MOVE that did not do all of its work. The
    /// kernel's own count can't be relied on then: on Linux 6.18 a MOVE that has to split a huge page on its way has been seen to
    /// report fewer pages than it moved.
    fn arrived(&self, frame: u32, len: usize) -> usize {
        let start = self.staging.addr(frame);
        let found = self.present().scan(start, start + len * PAGE_SIZE, len);
        let first = found.ok().and_then(|ranges| ranges.iter().next());
        first.filter(|&(from, _)| from == start).map_or(0, |(from, to)| (to - from) / PAGE_SIZE)
    }

    /// The tables contradict each other: going on could give the program wrong bytes.
    #[cold]
    pub(crate) fn broken(&self, what: &[u8], page: usize, frame: u32) -> ! {
        let mut text = crate::line::Line::new();
        text.push(b"internal error: ").push(what).push(b", page ").number(page as u64).push(b", frame ").number(frame.into());
        (self.host.fatal)(text.bytes())
    }

    /// Gives the program its own copies of pages that it shares with a forked child, dead or alive: only those can be moved.
    /// No lock may be held: if the program drops a page meanwhile, this waits for a monitor.
    fn unshare(&self, start: usize, end: usize) {
        // SAFETY: populating for write changes no bytes, whatever is mapped there now; errors (nothing mapped) are fine.
        let _ = unsafe { rustix::mm::madvise(start as *mut _, end - start, Advice::LinuxPopulateWrite) };
        // Look at them again.
        let mut hand = self.hand.lock();
        if *hand > start {
            *hand = start;
        }
    }
}
