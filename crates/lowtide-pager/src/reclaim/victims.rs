//! The clock hand: goes round the adopted memory and finds pages to evict, in order of address.
//!
//! Pages that are shared with a forked process are passed by, unless a whole round found nothing else: they must be copied
//! before they can be moved, and make room only when the other processes evict or drop them too. Each of them keeps a
//! compressed copy of its own: so with more than two processes that have the same pages they stay if there is no device, and
//! with more than eight they stay anyway.

use core::sync::atomic::Ordering;

use lowtide_core::vm::PAGE_SIZE;

use crate::pager::Operation;
use crate::sys::clock::now_ns;
use crate::sys::present::{Kind, Ranges};

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
    /// Pages that are to be spared are taken all the same: nothing else was found in a whole round.
    pub spares_none: bool,
    /// Pages that are not in `ranges` are missing, as far as was looked: none was left out because it is shared.
    pub is_complete: bool,
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

    /// This many pages were evicted of what it found.
    pub(crate) fn detached(&mut self, pages: usize) {
        self.detached += pages;
    }
}

impl Operation<'_> {
    /// Moves the hand on by one scan. None: a round has ended, or nothing can be seen.
    pub(crate) fn find(&self, room: usize) -> Option<Found> {
        let lock = self.space.shared();
        let mut hand = self.hand.lock();
        let Some(range) = self.regions.next(&lock, hand.at) else {
            hand.at = 0;
            // A page here and there that comes in and goes out again proves nothing.
            hand.idle_rounds = if hand.detached <= hand.found / IDLE_SHARE { hand.idle_rounds + 1 } else { 0 };
            (hand.found, hand.detached) = (0, 0);
            return None;
        };
        let reach = self.reach.load(Ordering::Relaxed);
        let end = range.end.min(range.start.saturating_add(reach));
        let started = now_ns();
        let mut scan = self.present().scan(range.start, end, room).ok();
        let others = self.sharers();
        let most = if others > MOST_OTHERS_IN_RAM && self.store().has_device() { MOST_OTHERS } else { MOST_OTHERS_IN_RAM };
        let passes_shared = hand.passes_shared(others, most, self.arrived.load(Ordering::Relaxed));
        if passes_shared {
            scan = scan.and_then(|mut found| found.keep_exclusive(self.present()).is_ok().then_some(found));
        }
        let took = now_ns() - started;
        self.reach.store(next_reach(reach, LEAST_REACH, took, end == range.start + reach), Ordering::Relaxed);
        hand.at = scan.as_ref().map_or(end, |s| s.walk_end.max(range.start + PAGE_SIZE));
        hand.found += scan.as_ref().map_or(0, |s| s.iter().map(|(from, to)| (to - from) / PAGE_SIZE).sum());
        let spares_none = hand.idle_rounds > 0;
        scan.map(|ranges| Found { ranges, kind: Kind::Page, spares_none, is_complete: !passes_shared })
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
