//! How much the pool may hold, and whether it takes more.

use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::vm::PAGE_SIZE;

/// Counts the frames of the pool against a limit.
#[derive(Debug)]
pub(crate) struct Limit {
    limit: AtomicUsize,
    accept_percent: u32,
    full: AtomicBool,
    /// How often it became full.
    pub full_times: AtomicU64,
    /// Objects are to leave until the low mark is reached.
    shrinking: AtomicBool,
    /// Bytes of frames held.
    pub bytes: AtomicUsize,
    /// Bytes that objects take: rounded up, with their words of the directory; whole frames for raw pages.
    pub held: AtomicUsize,
}

impl Limit {
    pub(crate) fn new(limit: usize, accept_percent: u32) -> Limit {
        let accept_percent = accept_percent.min(100);
        Limit {
            limit: AtomicUsize::new(limit),
            accept_percent,
            full: AtomicBool::new(false),
            full_times: AtomicU64::new(0),
            shrinking: AtomicBool::new(false),
            bytes: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
        }
    }

    /// THE predicate: whether the pool takes objects now. It stops when a span did not fit under the limit ([`Limit::reserve`])
    /// or the limit was set below what it holds, and goes on once it holds less than `accept_percent` of the limit. What it
    /// holds is counted in bytes that objects take, not frames: room inside spans that frees have left is room.
    pub(crate) fn accepts(&self) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let held = self.held.load(Ordering::Relaxed);
        if !self.full.load(Ordering::Relaxed) {
            if held < limit {
                return true;
            }
            self.set_full();
            return false;
        }
        let accepts = held < percent(limit, self.accept_percent);
        if accepts {
            self.full.store(false, Ordering::Relaxed);
        }
        accepts
    }

    /// Whether more than three fifths of the limit are taken.
    pub(crate) fn is_mostly_taken(&self) -> bool {
        self.held.load(Ordering::Relaxed) > percent(self.limit.load(Ordering::Relaxed), 60)
    }

    /// Whether half of the limit is left: more than what is written to make room leaves of a pool that gets full again.
    pub(crate) fn has_room(&self) -> bool {
        self.held.load(Ordering::Relaxed) < percent(self.limit.load(Ordering::Relaxed), 50)
    }

    fn set_full(&self) {
        if !self.full.swap(true, Ordering::Relaxed) {
            self.full_times.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Bytes of objects that should leave the pool, so that it seldom gets full. From the high mark on (half way between the
    /// acceptance threshold and the limit), or once the pool is full, until the low mark, which is as far below the threshold.
    pub(crate) fn excess(&self) -> usize {
        let (limit, held) = (self.limit.load(Ordering::Relaxed), self.held.load(Ordering::Relaxed));
        let half_gap = (100 - self.accept_percent).div_ceil(2).max(1);
        let low = percent(limit, self.accept_percent.saturating_sub(half_gap));
        if held > percent(limit, 100 - half_gap) || self.full.load(Ordering::Relaxed) {
            self.shrinking.store(true, Ordering::Relaxed);
        }
        // All of it where the limit is 0.
        let excess = held.saturating_sub(low);
        if excess == 0 {
            self.shrinking.store(false, Ordering::Relaxed);
        }
        if self.shrinking.load(Ordering::Relaxed) { excess } else { 0 }
    }

    /// Counts `frames` more frames, if the limit allows; else the pool is full.
    pub(crate) fn reserve(&self, frames: usize) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let more = |bytes: usize| bytes.checked_add(frames * PAGE_SIZE).filter(|b| *b <= limit);
        let fits = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        if !fits {
            self.set_full();
        }
        fits
    }

    /// Frames that may be added now.
    pub(crate) fn left(&self) -> usize {
        self.limit.load(Ordering::Relaxed).saturating_sub(self.bytes.load(Ordering::Relaxed)) / PAGE_SIZE
    }

    /// Counts `frames` fewer frames.
    pub(crate) fn release(&self, frames: usize) {
        self.bytes.fetch_sub(frames * PAGE_SIZE, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }
}

fn percent(of: usize, percent: u32) -> usize {
    (of as u128 * u128::from(percent) / 100) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_at_the_limit_and_again_open_below_the_threshold() {
        let limit = Limit::new(100 * PAGE_SIZE, 90);
        assert!(limit.accepts() && limit.reserve(100));
        limit.held.store(99 * PAGE_SIZE, Ordering::Relaxed);
        assert!(limit.accepts(), "nothing was refused yet");
        assert!(!limit.reserve(1));
        assert!(!limit.accepts());
        limit.held.store(90 * PAGE_SIZE, Ordering::Relaxed);
        assert!(!limit.accepts(), "not below the threshold");
        limit.held.store(90 * PAGE_SIZE - 1, Ordering::Relaxed);
        assert!(limit.accepts());
        limit.held.store(95 * PAGE_SIZE, Ordering::Relaxed);
        assert!(limit.accepts(), "open until full again");
        limit.set(0);
        assert!(!limit.accepts());
        limit.held.store(0, Ordering::Relaxed);
        assert!(!limit.accepts(), "a limit of 0 keeps nothing");
    }

    #[test]
    fn objects_are_to_leave_from_the_high_mark_to_the_low_one() {
        let limit = Limit::new(1000 * PAGE_SIZE, 90);
        for (frames, excess) in [(950, 0), (951, 101), (851, 1), (850, 0), (900, 0)] {
            limit.held.store(frames * PAGE_SIZE, Ordering::Relaxed);
            assert_eq!(limit.excess(), excess * PAGE_SIZE, "{frames}");
        }
        assert!(!limit.reserve(1001));
        assert_eq!(limit.excess(), 50 * PAGE_SIZE, "full, for want of frames");
        assert!(!limit.accepts());
        assert_eq!(limit.full_times.load(Ordering::Relaxed), 1);
        limit.set(0);
        assert_eq!(limit.excess(), 900 * PAGE_SIZE, "a limit of 0 keeps nothing");
    }
}
