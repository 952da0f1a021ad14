//! The clock hand: circles through registered memory to find victims.
//!
//! Pages shared by forks are skipped until a whole round finds nothing else: they need copying, and
//! free room only when all processes evict or drop them. Each process stores its own copy, so they
//! stay if more than two processes share them, with a device more than eight.

use core::sync::atomic::Ordering;

use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::Range;
use lowtide_sys::clock::now_ns;
use lowtide_sys::present::{Kind, Ranges};

use crate::pages::Operation;

/// Bounds of a scan in bytes of address space, and its target time. Untouched address space is
/// skipped by the terabyte.
const LEAST_REACH: usize = 256 << 20;
pub(crate) const MOST_REACH: usize = 1 << 44;
pub(crate) const SCAN_NS: u64 = 100_000;
/// Vain rounds before giving up; the first skips early returners and shared pages.
const IDLE_ROUNDS: u32 = 2;
/// A round is idle below one detached page in this many found.
const IDLE_SHARE: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Hand {
    at: usize,
    found: usize,
    detached: usize,
    /// Consecutive idle rounds.
    idle_rounds: u32,
    /// `arrived` when shared pages began to be evicted.
    shared_since: Option<usize>,
}

/// With more other processes shared pages stay, with a device.
const MOST_OTHERS: u32 = 7;
/// The same without a device.
const MOST_OTHERS_IN_RAM: u32 = 1;
/// Arrivals until exclusive pages are tried again.
const SHARED_FOR: usize = 512;

impl Hand {
    /// Whether to skip pages shared with `others` processes; always above `most`.
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

pub(crate) struct Found {
    pub ranges: Ranges,
    pub kind: Kind,
    /// Whether they are code (`alike.rs`). None: irrelevant.
    pub is_code: Option<bool>,
    /// Ignore marks: nothing else was found.
    pub spares_none: bool,
    /// No present page scanned was skipped.
    pub is_complete: bool,
}

impl Found {
    /// Other pages: detach all; gaps are unknown.
    pub(crate) fn all_of(ranges: Ranges, kind: Kind) -> Found {
        Found { ranges, kind, is_code: None, spares_none: true, is_complete: false }
    }
}

impl Hand {
    pub(crate) fn is_idle(&self) -> bool {
        self.idle_rounds >= IDLE_ROUNDS
    }

    /// Restarts the search.
    pub(crate) fn look_again(&mut self) {
        self.idle_rounds = 0;
    }

    /// The same, skipping shared pages again.
    pub(crate) fn try_what_stayed(&mut self) {
        self.look_again();
        self.shared_since = None;
    }

    /// Records evicted pages.
    pub(crate) fn detached(&mut self, pages: usize) {
        self.detached += pages;
    }

    /// Records pages found.
    fn found(&mut self, pages: usize) {
        self.found += pages;
    }

    pub(super) fn goes_back(&mut self, found: &Found) {
        // Unless another thread has wrapped the hand.
        self.at = found.ranges.iter().next().map_or(self.at, |(start, _)| self.at.min(start));
        self.found = self.found.saturating_sub(found.ranges.pages());
    }

    /// Skips an immovable mapping.
    pub(super) fn passes_by(&mut self, mapping: Range) {
        if (mapping.start..mapping.end).contains(&self.at) {
            self.at = mapping.end;
        }
    }

    /// Wraps the hand.
    fn round_ends(&mut self) {
        // A few pages that come and go don't count.
        let is_idle = self.detached <= self.found / IDLE_SHARE;
        self.idle_rounds = if is_idle { self.idle_rounds + 1 } else { 0 };
        (self.at, self.found, self.detached) = (0, 0, 0);
    }
}

impl Operation<'_> {
    /// One scan. None: the round ends, or the scan failed.
    pub(crate) fn find(&self, room: usize) -> Option<Found> {
        let lock = self.pages.space.shared();
        let mut hand = self.reclaim.hand.lock();
        let Some(range) = self.mappings.regions.next(&lock, hand.at) else {
            hand.round_ends();
            return None;
        };
        let reach = self.reclaim.reach.load(Ordering::Relaxed);
        let end = range.end.min(range.start.saturating_add(reach));
        let started = now_ns();
        let mut scan = self.present().scan(range.start, end, room).ok();
        let others = self.sharers();
        let passes_shared = hand.passes_shared(others, self.most_sharers(), self.pages.arrived.load(Ordering::Relaxed));
        if passes_shared {
            scan = scan.and_then(|mut found| found.keep_exclusive(self.present()).is_ok().then_some(found));
        }
        let alike = scan.as_mut().map(|found| self.keep_alike(found));
        let stay = alike.map_or(0, |alike| alike.stay);
        let took = now_ns() - started;
        self.reclaim.reach.store(next_reach(reach, LEAST_REACH, took, end == range.start + reach), Ordering::Relaxed);
        hand.at = scan.as_ref().map_or(end, |s| s.walk_end.max(range.start + PAGE_SIZE));
        // Immovable pages count, so that vain rounds are idle.
        hand.found(stay + scan.as_ref().map_or(0, Ranges::pages));
        let spares_none = hand.idle_rounds > 0;
        scan.map(|ranges| Found {
            ranges,
            kind: Kind::Page,
            is_code: alike.and_then(|alike| alike.is_code),
            spares_none,
            is_complete: !passes_shared && stay == 0,
        })
    }

    pub(crate) fn most_sharers(&self) -> u32 {
        if self.store().has_device() { MOST_OTHERS } else { MOST_OTHERS_IN_RAM }
    }
}

/// Doubles the length after a fast complete scan, halves it after a slow one.
pub(crate) fn next_reach(was: usize, least: usize, took_ns: u64, reached: bool) -> usize {
    if took_ns > 2 * SCAN_NS {
        (was / 2).max(least)
    } else if reached && took_ns < SCAN_NS / 2 {
        (was * 2).min(MOST_REACH)
    } else {
        was
    }
}
