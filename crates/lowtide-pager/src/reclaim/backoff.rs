//! Pauses after a vain search of all registered memory, or without room in any tier: retries at
//! each fault waste CPU.

use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use crate::reclaim::evicted::Evicted;

/// In nanoseconds.
const FIRST_NS: u64 = 250_000_000;
/// After doubling.
const LONGEST_NS: u64 = 1_000_000_000;
/// Without room, which may appear at any time (a process dies) and is cheap to check.
const FIRST_FULL_NS: u64 = 25_000_000;
const LONGEST_FULL_NS: u64 = 100_000_000;
const WORTH_A_LOOK: usize = 512;

const TRY: u8 = 0;
const NOTHING: u8 = 1;
const FULL: u8 = 2;

/// Concurrent failures count once or twice.
#[derive(Debug, Default)]
pub struct Backoff {
    why: AtomicU8,
    until_ns: AtomicU64,
    pause_ns: AtomicU64,
    arrived: AtomicUsize,
}

impl Backoff {
    /// Why not to search: [`Evicted::Nothing`] or [`Evicted::Full`].
    pub fn holds(&self, now_ns: u64, arrived: usize) -> Option<Evicted> {
        let why = match self.why.load(Ordering::Relaxed) {
            NOTHING if arrived.wrapping_sub(self.arrived.load(Ordering::Relaxed)) < WORTH_A_LOOK => Evicted::Nothing,
            FULL => Evicted::Full,
            _ => return None,
        };
        (now_ns < self.until_ns.load(Ordering::Relaxed)).then_some(why)
    }

    pub fn failed(&self, why: Evicted, now_ns: u64, arrived: usize) {
        let (first, longest) = if why == Evicted::Full { (FIRST_FULL_NS, LONGEST_FULL_NS) } else { (FIRST_NS, LONGEST_NS) };
        let pause = (self.pause_ns.load(Ordering::Relaxed) * 2).clamp(first, longest);
        self.pause_ns.store(pause, Ordering::Relaxed);
        self.until_ns.store(now_ns + pause, Ordering::Relaxed);
        self.arrived.store(arrived, Ordering::Relaxed);
        self.why.store(if why == Evicted::Full { FULL } else { NOTHING }, Ordering::Relaxed);
    }

    /// Ends a pause, but not one for lack of room.
    pub fn look_again(&self) {
        if self.why.load(Ordering::Relaxed) == NOTHING {
            self.succeeded();
        }
    }

    /// Ends the pause.
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
