//! Areas whose device fails rest: no allocations or writes for a while, so a full disk or dead
//! device costs an occasional I/O, not one per page. The first rest is short; each failure after a
//! rest doubles the next. Reads go on.
//!
//! Checked when an area is chosen, not per slot: a failure removes the area as the latest of all
//! CPUs ([`super::AreaRef::failed`]).

use core::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};

use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds.
const SHORTEST: u64 = 100_000_000;
/// Nanoseconds.
const LONGEST: u64 = 10_000_000_000;
/// From here on the whole device fails, not one bad place.
const OUTAGE: u64 = 800_000_000;

/// Thread-safe; a race makes a rest start a moment later, or as long as the last.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    /// End of the rest, monotonic nanoseconds; 0: the latest write succeeded.
    until: AtomicU64,
    /// Nanoseconds.
    length: AtomicU64,
    errno: AtomicI32,
}

impl Backoff {
    pub(super) fn error(&self) -> Option<Errno> {
        (self.until.load(Relaxed) != 0).then(|| Errno::from_raw_os_error(self.errno.load(Relaxed)))
    }

    pub(super) fn is_on(&self) -> bool {
        let until = self.until.load(Relaxed);
        until != 0 && now() < until
    }

    /// No effect during a rest: the write began before.
    #[cold]
    pub(super) fn failed(&self, errno: Errno) {
        self.errno.store(errno.raw_os_error(), Relaxed);
        self.failed_at(now());
    }

    /// No effect during a rest. Whether that ended an outage: several failures in a row.
    pub(super) fn succeeded(&self) -> bool {
        self.until.load(Relaxed) != 0 && self.succeeded_at(now())
    }

    fn failed_at(&self, now: u64) {
        let until = self.until.load(Relaxed);
        if now < until {
            return;
        }
        let length = if until == 0 { SHORTEST } else { (2 * self.length.load(Relaxed)).min(LONGEST) };
        self.length.store(length, Relaxed);
        self.until.store(now + length, Relaxed);
    }

    fn succeeded_at(&self, now: u64) -> bool {
        let over = |until| (until != 0 && now >= until).then_some(0);
        self.until.fetch_update(Relaxed, Relaxed, over).is_ok() && self.length.load(Relaxed) >= OUTAGE
    }

    #[cfg(test)]
    pub(super) fn pass(&self) {
        let _ = self.until.fetch_update(Relaxed, Relaxed, |until| (until != 0).then_some(1));
    }
}

fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // From 1: 0 means no rest.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_grow_while_writes_fail_and_end_with_one_that_does_not() {
        let backoff = Backoff::default();
        assert!(!backoff.is_on() && backoff.error().is_none());
        let mut now = 1000;
        let mut lengths = std::vec::Vec::new();
        for _ in 0..10 {
            backoff.failed_at(now);
            let until = backoff.until.load(Relaxed);
            lengths.push((until - now) / 1_000_000);
            // Begun before the rest: no effect.
            backoff.failed_at(until - 1);
            backoff.succeeded_at(until - 1);
            assert_eq!(backoff.until.load(Relaxed), until);
            now = until;
        }
        assert_eq!(lengths, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000]);
        backoff.succeeded_at(now);
        assert!(backoff.error().is_none());
        backoff.failed_at(now);
        assert_eq!(backoff.until.load(Relaxed) - now, SHORTEST, "the next failure is a first one again");
    }

    #[test]
    fn a_rest_is_on_from_the_failure() {
        let backoff = Backoff::default();
        backoff.succeeded();
        backoff.failed(Errno::NOSPC);
        assert!(backoff.is_on());
        backoff.pass();
        assert_eq!((backoff.is_on(), backoff.error()), (false, Some(Errno::NOSPC)), "failing until a write goes well");
        backoff.succeeded();
        assert!(backoff.error().is_none());
    }
}
