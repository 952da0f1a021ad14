//! The clock hand: goes round the adopted memory and finds pages to evict, in order of address.
//!
//! Where the kernel keeps accessed bits (Linux 7.3) this is a clock as in the textbook: it takes pages that were not accessed
//! since it came by last, and arms the others again. It can't be choosy for long, because others wait for room: it arms no more
//! than [`MOST_ARMED`] pages for each one that it takes, and takes what comes next, accessed or not, before it arms more.
//!
//! Pages that are shared with a forked process are passed by, unless a whole round found nothing else: they must be copied
//! before they can be moved, and make room only when the other processes evict or drop them too. Each of them keeps a
//! compressed copy of its own: so with more than two processes that have the same pages they stay if there is no device, and
//! with more than eight they stay anyway.

use core::sync::atomic::Ordering;

use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;

use crate::mappings::regions::Range;
use crate::pager::Operation;
use crate::sys::clock::now_ns;
use crate::sys::present::{Accessed, Kind, Ranges};

/// How far one scan looks in bytes of address space, at least and at most: as far as takes some 100 us. Address space that was
/// reserved and never touched is passed by the terabyte.
const LEAST_REACH: usize = 256 << 20;
pub(crate) const MOST_REACH: usize = 1 << 44;
pub(crate) const SCAN_NS: u64 = 100_000;
/// Rounds of the hand that find nothing, after which there is nothing: in the first one pages that came back soon and shared
/// pages are passed by.
const IDLE_ROUNDS: u32 = 2;
/// A round that detaches no more than one of this many pages is idle.
const IDLE_SHARE: usize = 64;

/// Pages that one scan looks at where it tells accessed pages from others.
pub(super) const LOOKED_AT: usize = 1024;
/// Pages that the hand arms at most for each that it takes, on the whole. Few enough that a step of reclaim takes something
/// where all is accessed: what a batch may cost is armed by the scans of one step, however few pages each of them comes to.
pub(super) const MOST_ARMED: usize = 16;

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
    /// Pages that it has armed in this round, ...
    armed: usize,
    /// ... and how many more than it may for those that it took.
    owed: usize,
    /// Shared pages are evicted as well, from when this many pages had come into memory on.
    shared_since: Option<usize>,
}

/// With more other processes than this that have the same pages, these stay: where there is a device, ...
const MOST_OTHERS: u32 = 7;
/// ... and where there is none.
const MOST_OTHERS_IN_RAM: u32 = 1;
/// Pages that came into memory since shared ones are evicted, after which exclusive ones are looked for again.
const SHARED_FOR: usize = 512;

impl Hand {
    /// Whether pages that are shared with other processes, so many, are to be passed by. `most`: with more than so many they
    /// stay. `arrived`: pages that have come into memory.
    fn passes_shared(&mut self, others: u32, most: u32, arrived: usize) -> bool {
        if others == 0 || others > most {
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

/// What the hand has found.
pub(crate) struct Found {
    pub ranges: Ranges,
    /// What of it is to be detached.
    pub kind: Kind,
    /// Whether it is code (`alike.rs`). None: that makes no difference.
    pub is_code: Option<bool>,
    /// Pages that are to be spared are taken all the same: nothing else was found in a whole round.
    pub spares_none: bool,
    /// Pages that were accessed are none of them, also those that are accessed only now.
    pub spares_accessed: bool,
    /// What is to be armed, but not before `ranges` are detached, or it would look like them: [`Operation::arm`].
    pub accessed: Range,
    /// Pages that are not in `ranges` are missing, as far as was looked: none was left out because it is shared, or can't be
    /// moved.
    pub is_complete: bool,
}

impl Found {
    /// What was found otherwise than by the hand: all of it is to be detached, and nothing is known of what lies between.
    pub(crate) fn all_of(ranges: Ranges, kind: Kind) -> Found {
        let accessed = Range::NONE;
        Found { ranges, kind, is_code: None, spares_none: true, spares_accessed: false, accessed, is_complete: false }
    }
}

impl Hand {
    /// Whether a round, or two, have found nothing to evict.
    pub(crate) fn is_idle(&self) -> bool {
        self.idle_rounds >= IDLE_ROUNDS
    }

    /// From here on it looks again.
    pub(crate) fn look_again(&mut self) {
        self.idle_rounds = 0;
    }

    /// The same, and shared pages are passed by again: others may not be shared any more.
    pub(crate) fn try_what_stayed(&mut self) {
        self.look_again();
        self.shared_since = None;
    }

    /// This many pages were evicted of what it found.
    pub(crate) fn detached(&mut self, pages: usize) {
        self.detached += pages;
        self.owed = self.owed.saturating_sub(pages * MOST_ARMED);
    }

    /// Whether it passes by what was accessed, where a batch has so many frames.
    pub(super) fn is_choosy(&self, frames: usize) -> bool {
        self.idle_rounds == 0 && self.owed < frames * MOST_ARMED
    }

    /// So many pages that it passed by are armed.
    pub(super) fn armed(&mut self, pages: usize) {
        self.armed += pages;
        self.owed += pages;
    }

    /// So many pages are to be evicted, if they can be.
    pub(super) fn found(&mut self, pages: usize) {
        self.found += pages;
    }

    /// What it has found is left to the next scan.
    pub(super) fn goes_back(&mut self, found: &Found) {
        // Unless another thread has come to the end meanwhile.
        self.at = found.ranges.iter().next().map_or(self.at, |(start, _)| self.at.min(start));
        self.found = self.found.saturating_sub(found.ranges.pages());
    }

    /// No page of this mapping can be moved: it is left behind at once.
    pub(super) fn passes_by(&mut self, mapping: Range) {
        if (mapping.start..mapping.end).contains(&self.at) {
            self.at = mapping.end;
        }
    }

    /// It has come to the end of memory.
    pub(super) fn round_ends(&mut self) {
        // A page here and there that comes in and goes out again proves nothing.
        let is_idle = self.detached <= self.found / IDLE_SHARE;
        // Where all was accessed, it is known only now what is accessed next.
        let has_only_armed = self.found == 0 && self.armed > 0;
        self.idle_rounds = if !is_idle { 0 } else { self.idle_rounds + u32::from(!has_only_armed) };
        (self.at, self.found, self.detached, self.armed) = (0, 0, 0, 0);
    }
}

impl Operation<'_> {
    /// Moves the hand on by one scan. None: a round has ended, or nothing can be seen.
    pub(crate) fn find(&self, room: usize) -> Option<Found> {
        let lock = self.space.shared();
        let mut hand = self.hand.lock();
        let Some(range) = self.regions.next(&lock, hand.at) else {
            hand.round_ends();
            return None;
        };
        let reach = self.reach.load(Ordering::Relaxed);
        let end = range.end.min(range.start.saturating_add(reach));
        let started = now_ns();
        let is_choosy = self.uffd().has_accessed_bits() && hand.is_choosy(self.staging.batch_frames());
        let mut accessed = Accessed::default();
        let mut scan = match is_choosy {
            true => self.present().scan_accesses(range.start, end, LOOKED_AT),
            false => self.present().scan(range.start, end, room),
        }
        .ok();
        if let Some(found) = scan.as_mut().filter(|_| is_choosy) {
            accessed = found.keep_idle(room);
            hand.armed(accessed.pages);
        }
        let others = self.sharers();
        let passes_shared = hand.passes_shared(others, self.most_sharers(), self.arrived.load(Ordering::Relaxed));
        if passes_shared {
            scan = scan.and_then(|mut found| found.keep_exclusive(self.present()).is_ok().then_some(found));
        }
        let alike = scan.as_mut().map(|found| self.keep_alike(found));
        let stay = alike.map_or(0, |alike| alike.stay);
        let took = now_ns() - started;
        self.reach.store(next_reach(reach, LEAST_REACH, took, end == range.start + reach), Ordering::Relaxed);
        hand.at = scan.as_ref().map_or(end, |s| s.walk_end.max(range.start + PAGE_SIZE));
        // What can't be moved counts: a round is idle that has looked at much for next to nothing.
        hand.found(stay + scan.as_ref().map_or(0, Ranges::pages));
        let spares_none = hand.idle_rounds > 0;
        scan.map(|ranges| Found {
            ranges,
            kind: Kind::Page,
            is_code: alike.and_then(|alike| alike.is_code),
            spares_none,
            spares_accessed: is_choosy,
            // What is behind the end was left to the next scan, which is not to take it for idle.
            accessed: Range { start: accessed.start, end: accessed.end.min(hand.at) },
            is_complete: !passes_shared && stay == 0,
        })
    }

    /// Pages that more other processes share stay.
    pub(crate) fn most_sharers(&self) -> u32 {
        if self.store().has_device() { MOST_OTHERS } else { MOST_OTHERS_IN_RAM }
    }

    /// Arms the pages of a range, by one call if that can be, because each interrupts other CPUs: what lies between those that
    /// were accessed is armed already. Where mappings are changing just now nothing is armed. Without a lock.
    pub(crate) fn arm(&self, range: Range) {
        let arm = |part: Range| self.uffd().arm(part.start, part.end - part.start);
        if range.start >= range.end || arm(range) != Err(Errno::NOENT) {
            return;
        }
        // Between them is what was inaccessible when it was registered.
        let mut at = range.start;
        while let Ok(Some(mapping)) = self.present().mappings.next(at)
            && mapping.start < range.end
        {
            let part = Range { start: mapping.start.max(at), end: mapping.end.min(range.end) };
            let _ = arm(part);
            at = part.end;
        }
    }
}

/// How far the next scan looks: further, if one that looked `was` far came to its end (`reached`) soon, or less far, if it took
/// long, but no less far than `least`.
pub(crate) fn next_reach(was: usize, least: usize, took_ns: u64, reached: bool) -> usize {
    if took_ns > 2 * SCAN_NS {
        (was / 2).max(least)
    } else if reached && took_ns < SCAN_NS / 2 {
        (was * 2).min(MOST_REACH)
    } else {
        was
    }
}
