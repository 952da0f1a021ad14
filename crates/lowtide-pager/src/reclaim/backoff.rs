//! When not to look for pages to evict: after all of the adopted memory was looked at in vain, or no tier could take a page. To
//! look again at each fault would only burn the CPU that the program needs.

use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use crate::reclaim::evicted::Evicted;

/// A pause lasts this long at first, in nanoseconds, ...
const FIRST_NS: u64 = 250_000_000;
/// ... and twice as long after each failure that follows, up to this.
const LONGEST_NS: u64 = 1_000_000_000;
/// The same where no tier could take a page: room may come to be at any moment, by the death of another process for one, and
/// whether there is some is asked before a page is detached.
const FIRST_FULL_NS: u64 = 25_000_000;
const LONGEST_FULL_NS: u64 = 100_000_000;
/// This many pages that came into memory since are worth a look.
const WORTH_A_LOOK: usize = 512;

const TRY: u8 = 0;
const NOTHING: u8 = 1;
const FULL: u8 = 2;

/// The pause of reclaim in one process. Any thread may call anything; two that fail at the same time pause once or twice.
#[derive(Debug, Default)]
pub struct Backoff {
    why: AtomicU8,
    until_ns: AtomicU64,
    pause_ns: AtomicU64,
    /// Pages that had come into memory when it began.
    arrived: AtomicUsize,
}

impl Backoff {
    /// Why not to try now: as [`Evicted::Nothing`] or [`Evicted::Full`], or None. `arrived` counts the pages that came into
    /// memory.
    pub fn holds(&self, now_ns: u64, arrived: usize) -> Option<Evicted> {
        let why = match self.why.load(Ordering::Relaxed) {
            NOTHING if arrived.wrapping_sub(self.arrived.load(Ordering::Relaxed)) < WORTH_A_LOOK => Evicted::Nothing,
            FULL => Evicted::Full,
            _ => return None,
        };
        (now_ns < self.until_ns.load(Ordering::Relaxed)).then_some(why)
    }

    /// A try came to nothing: pause.
    pub fn failed(&self, why: Evicted, now_ns: u64, arrived: usize) {
        let (first, longest) = if why == Evicted::Full { (FIRST_FULL_NS, LONGEST_FULL_NS) } else { (FIRST_NS, LONGEST_NS) };
        let pause = (self.pause_ns.load(Ordering::Relaxed) * 2).clamp(first, longest);
        self.pause_ns.store(pause, Ordering::Relaxed);
        self.until_ns.store(now_ns + pause, Ordering::Relaxed);
        self.arrived.store(arrived, Ordering::Relaxed);
        self.why.store(if why == Evicted::Full { FULL } else { NOTHING }, Ordering::Relaxed);
    }

    /// All that was looked at in vain may be worth a look. Where no tier could take a page, that is still so.
    pub fn look_again(&self) {
        if self.why.load(Ordering::Relaxed) == NOTHING {
            self.succeeded();
        }
    }

    /// A page could be evicted.
    pub fn succeeded(&self) {
        if self.why.load(Ordering::Relaxed) != TRY {
            self.why.store(TRY, Ordering::Relaxed);
            self.pause_ns.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_vain_a_few_times_a_second() {
        let b = Backoff::default();
        let (mut now, mut tries) = (0, 0);
        while now < 10_000_000_000 {
            if b.holds(now, 7).is_none() {
                tries += 1;
                b.failed(Evicted::Nothing, now, 7);
            }
            now += 50_000;
        }
        assert!((5..=13).contains(&tries), "{tries} in ten seconds");
        assert_eq!(b.holds(now - 50_000, 7), Some(Evicted::Nothing));
        assert_eq!(b.holds(now - 50_000, 7 + WORTH_A_LOOK), None, "there is something to find");
        b.look_again();
        assert_eq!(b.holds(now, 7), None, "at once");
        b.failed(Evicted::Full, now, 7);
        b.look_again();
        assert_eq!(b.holds(now, 7 + WORTH_A_LOOK), Some(Evicted::Full), "pages that come in make no room elsewhere");
        b.succeeded();
        assert_eq!(b.holds(now, 7), None);
    }
}
