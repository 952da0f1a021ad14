//! When not to look for pages to evict: after all of the adopted memory was looked at in vain, or no tier could take a page. To
//! look again at each fault would only burn the CPU that the program needs.

use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use crate::evict::Evicted;

/// A pause lasts so long at first, in nanoseconds, ...
const FIRST_NS: u64 = 250_000_000;
/// ... and twice as long after each failure that follows, up to this.
const LONGEST_NS: u64 = 1_000_000_000;
/// The same where no tier could take a page: room may come to be at any moment, by the death of another process for one, and
/// whether there is some is asked before a page is detached.
const FIRST_FULL_NS: u64 = 25_000_000;
const LONGEST_FULL_NS: u64 = 100_000_000;
/// At the limit it is no longer than this while pages come in: they may be zeros, which need no tier.
const FULL_AT_LIMIT_NS: u64 = 10_000_000;
/// Between steps of a search for zeros that find next to none.
const SEARCHING_NS: u64 = 4_000_000;
/// So many pages that came into memory since are worth a look.
const WORTH_A_LOOK: usize = 512;

/// How a try came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vain {
    /// All memory was looked at.
    Nothing = 1,
    /// No tier could take a page.
    Full,
    /// The same at the limit, and zeros, which need no tier, were searched for in vain.
    FullAtLimit,
    /// The search for them goes on.
    Searching,
}

/// The pause of reclaim in one process. Any thread may call anything; two that fail at the same time pause once or twice.
#[derive(Debug, Default)]
pub struct Backoff {
    /// A [`Vain`], or 0: try.
    why: AtomicU8,
    since_ns: AtomicU64,
    pause_ns: AtomicU64,
    /// Pages that had come into memory when it began.
    arrived: AtomicUsize,
}

impl Backoff {
    /// Why not to try now: as [`Evicted::Nothing`], [`Evicted::Full`] or [`Evicted::Searching`], or None. `arrived` counts the
    /// pages that came into memory; who may search for zeros now tries that first.
    pub fn holds(&self, now_ns: u64, arrived: usize, may_search: bool) -> Option<Evicted> {
        let is_worth_a_look = arrived.wrapping_sub(self.arrived.load(Ordering::Relaxed)) >= WORTH_A_LOOK;
        let (why, pause) = (self.why.load(Ordering::Relaxed), self.pause_ns.load(Ordering::Relaxed));
        let (why, pause) = match why {
            _ if why == Vain::Nothing as u8 => (Evicted::Nothing, if is_worth_a_look { 0 } else { pause }),
            _ if why == Vain::Full as u8 => (Evicted::Full, if may_search { 0 } else { pause }),
            _ if why == Vain::FullAtLimit as u8 => {
                (Evicted::Full, if is_worth_a_look { pause.min(FULL_AT_LIMIT_NS) } else { pause })
            }
            _ if why == Vain::Searching as u8 => (Evicted::Searching, pause),
            _ => return None,
        };
        (now_ns < self.since_ns.load(Ordering::Relaxed) + pause).then_some(why)
    }

    /// A try came to nothing: pause.
    pub fn failed(&self, why: Vain, now_ns: u64, arrived: usize) {
        let (first, longest) = match why {
            Vain::Nothing => (FIRST_NS, LONGEST_NS),
            Vain::Full => (FIRST_FULL_NS, LONGEST_FULL_NS),
            Vain::FullAtLimit => (LONGEST_FULL_NS, LONGEST_FULL_NS),
            Vain::Searching => (SEARCHING_NS, SEARCHING_NS),
        };
        let pause = (self.pause_ns.load(Ordering::Relaxed) * 2).clamp(first, longest);
        self.pause_ns.store(pause, Ordering::Relaxed);
        self.since_ns.store(now_ns, Ordering::Relaxed);
        self.arrived.store(arrived, Ordering::Relaxed);
        self.why.store(why as u8, Ordering::Relaxed);
    }

    /// A page could be evicted.
    pub fn succeeded(&self) {
        if self.why.load(Ordering::Relaxed) != 0 {
            self.why.store(0, Ordering::Relaxed);
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
            if b.holds(now, 7, false).is_none() {
                tries += 1;
                b.failed(Vain::Nothing, now, 7);
            }
            now += 50_000;
        }
        assert!((5..=13).contains(&tries), "{tries} in ten seconds");
        assert_eq!(b.holds(now - 50_000, 7, true), Some(Evicted::Nothing));
        assert_eq!(b.holds(now - 50_000, 7 + WORTH_A_LOOK, true), None, "there is something to find");
        b.succeeded();
        assert_eq!(b.holds(now, 7, false), None);
    }

    #[test]
    fn where_all_is_full_only_zeros_are_worth_a_look() {
        let (b, now) = (Backoff::default(), 1);
        b.failed(Vain::Full, now, 7);
        assert_eq!(b.holds(now, 7 + WORTH_A_LOOK, false), Some(Evicted::Full), "pages that come in make no room elsewhere");
        assert_eq!(b.holds(now, 7, true), None, "nobody has searched for zeros yet");
        b.failed(Vain::Searching, now, 7);
        assert_eq!(b.holds(now + SEARCHING_NS - 1, 7, true), Some(Evicted::Searching), "the program has most of the time");
        assert_eq!(b.holds(now + SEARCHING_NS, 7, true), None);
        b.failed(Vain::FullAtLimit, now, 7);
        let later = now + FULL_AT_LIMIT_NS;
        assert_eq!(b.holds(later, 7, true), Some(Evicted::Full), "all that is there was looked at");
        assert_eq!(b.holds(later - 1, 7 + WORTH_A_LOOK, true), Some(Evicted::Full), "not at each fault");
        assert_eq!(b.holds(later, 7 + WORTH_A_LOOK, true), None, "what has come may be zeros");
    }
}
