//! The pool's limit.

use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::vm::PAGE_SIZE;

#[derive(Debug)]
pub(crate) struct Limit {
    limit: AtomicUsize,
    accept_percent: u32,
    full: AtomicBool,
    pub full_times: AtomicU64,
    /// Objects must leave until the low mark.
    shrinking: AtomicBool,
    /// Bytes of frames held.
    pub bytes: AtomicUsize,
    /// Bytes of objects: rounded up, with directory words; whole frames for raw pages.
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

    /// Whether the pool takes objects now. It stops when a span exceeds the limit
    /// ([`Limit::reserve`]) or the limit falls below the content, until that is below
    /// `accept_percent` of it. Content is bytes of objects, because free room inside spans is room.
    pub(crate) fn accepts(&self) -> bool {
        if self.is_full() {
            return false;
        }
        let accepts = self.held.load(Ordering::Relaxed) < self.limit.load(Ordering::Relaxed);
        if !accepts {
            self.set_full();
        }
        accepts
    }

    /// Full, and not yet below the threshold.
    fn is_full(&self) -> bool {
        let full = self.full.load(Ordering::Relaxed);
        if full && self.is_below_threshold() {
            self.full.store(false, Ordering::Relaxed);
            return false;
        }
        full
    }

    fn is_below_threshold(&self) -> bool {
        self.held.load(Ordering::Relaxed) < percent(self.limit.load(Ordering::Relaxed), self.accept_percent)
    }

    pub(crate) fn is_mostly_taken(&self) -> bool {
        self.held.load(Ordering::Relaxed) > percent(self.limit.load(Ordering::Relaxed), 60)
    }

    /// Whether half of the limit is left, more than a full pool has after its writeback.
    pub(crate) fn has_room(&self) -> bool {
        self.held.load(Ordering::Relaxed) < percent(self.limit.load(Ordering::Relaxed), 50)
    }

    fn set_full(&self) {
        if !self.full.swap(true, Ordering::Relaxed) {
            self.full_times.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Bytes of objects that should leave: from the high mark (half way from the threshold to the
    /// limit), or a full pool, down to the low mark, as far below the threshold.
    pub(crate) fn excess(&self) -> usize {
        let (limit, held) = (self.limit.load(Ordering::Relaxed), self.held.load(Ordering::Relaxed));
        let half_gap = (100 - self.accept_percent).div_ceil(2).max(1);
        let low = percent(limit, self.accept_percent.saturating_sub(half_gap));
        if held > percent(limit, 100 - half_gap) || self.is_full() {
            self.shrinking.store(true, Ordering::Relaxed);
        }
        // Everything if the limit is 0.
        let excess = held.saturating_sub(low);
        if excess == 0 {
            self.shrinking.store(false, Ordering::Relaxed);
        }
        if self.shrinking.load(Ordering::Relaxed) { excess } else { 0 }
    }

    /// Counts `frames` more if the limit allows. Otherwise the pool is full, unless its content is
    /// below the threshold: then it needs compaction.
    pub(crate) fn reserve(&self, frames: usize) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let more = |bytes: usize| bytes.checked_add(frames * PAGE_SIZE).filter(|b| *b <= limit);
        let fits = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        if !fits && !self.is_below_threshold() {
            self.set_full();
        }
        fits
    }

    pub(crate) fn left(&self) -> usize {
        self.limit.load(Ordering::Relaxed).saturating_sub(self.bytes.load(Ordering::Relaxed)) / PAGE_SIZE
    }

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
    fn room_that_is_scattered_does_not_make_the_pool_full() {
        let limit = Limit::new(1000 * PAGE_SIZE, 90);
        assert!(limit.reserve(1000));
        for held in [600, 899] {
            limit.held.store(held * PAGE_SIZE, Ordering::Relaxed);
            assert!(!limit.reserve(1) && limit.accepts());
            assert_eq!((limit.excess(), limit.full_times.load(Ordering::Relaxed)), (0, 0), "{held}");
        }
        limit.held.store(900 * PAGE_SIZE, Ordering::Relaxed);
        assert!(!limit.reserve(1) && !limit.accepts());
        limit.held.store(899 * PAGE_SIZE, Ordering::Relaxed);
        assert_eq!(limit.excess(), 0, "full no more, though nobody has asked whether it accepts");
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
