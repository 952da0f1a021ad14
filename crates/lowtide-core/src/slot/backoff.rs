//! Areas whose device fails rest: for a while nothing is allocated or written there, so that a full disk or a dead device costs
//! one I/O now and then and not one for each page, and pages go to other areas meanwhile. The first rest is short; as long as
//! the write that follows a rest fails, the next is twice as long. What is on the device is read all the same.
//!
//! Asked where areas are chosen, not for each slot: who fails takes the area away from the CPUs that would go on with it
//! ([`super::AreaRef::failed`]).

use core::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};

use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

/// The first rest, in nanoseconds.
const SHORTEST: u64 = 100_000_000;
/// No rest is longer.
const LONGEST: u64 = 10_000_000_000;
/// Who fails until rests are so long is not one bad place of a device, but all of it.
const OUTAGE: u64 = 800_000_000;

/// How long an area rests. All methods are thread-safe; a race of two makes a rest start a moment later, or be as long as the
/// last.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    /// When the rest is over, in nanoseconds of the monotonic clock; 0: the latest write went well.
    until: AtomicU64,
    /// How long it is.
    length: AtomicU64,
    /// The number of the error.
    errno: AtomicI32,
}

impl Backoff {
    /// The error of the latest write, if it failed.
    pub(super) fn error(&self) -> Option<Errno> {
        (self.until.load(Relaxed) != 0).then(|| Errno::from_raw_os_error(self.errno.load(Relaxed)))
    }

    /// Whether nothing is to be written now.
    pub(super) fn is_on(&self) -> bool {
        let until = self.until.load(Relaxed);
        until != 0 && now() < until
    }

    /// A write failed. During a rest that changes nothing: it began before.
    #[cold]
    pub(super) fn failed(&self, errno: Errno) {
        self.errno.store(errno.raw_os_error(), Relaxed);
        self.failed_at(now());
    }

    /// A write went well. During a rest that changes nothing, as above. Returns whether that ended an outage: several failures
    /// with none that went well between.
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

    /// As if the time of the rest had passed.
    #[cfg(test)]
    pub(super) fn pass(&self) {
        let _ = self.until.fetch_update(Relaxed, Relaxed, |until| (until != 0).then_some(1));
    }
}

fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // From 1: 0 means that there is no rest.
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
            // Writes that had begun before: nothing new.
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
