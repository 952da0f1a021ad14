//! How much the pool may hold, and whether it takes more.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::vm::PAGE_SIZE;

/// Counts the frames of the pool against its limit.
#[derive(Debug)]
pub(super) struct Limit {
    limit: AtomicUsize,
    accept_percent: u32,
    full: AtomicBool,
    /// Bytes of frames held.
    pub bytes: AtomicUsize,
    /// Bytes that objects take: rounded up, with their words of the directory; whole frames for raw pages.
    pub held: AtomicUsize,
}

impl Limit {
    pub(super) fn new(limit: usize, accept_percent: u32) -> Limit {
        let accept_percent = accept_percent.min(100);
        Limit {
            limit: AtomicUsize::new(limit),
            accept_percent,
            full: AtomicBool::new(false),
            bytes: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
        }
    }

    /// THE predicate: whether the pool takes objects now. It stops when a span did not fit under the limit ([`Limit::reserve`])
    /// or the limit was set below what it holds, and goes on once it holds less than `accept_percent` of the limit. What it holds
    /// is counted in bytes that objects take, not frames: room inside spans that frees have left is room.
    pub(super) fn accepts(&self) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let held = self.held.load(Ordering::Relaxed);
        if !self.full.load(Ordering::Relaxed) {
            if held < limit {
                return true;
            }
            self.full.store(true, Ordering::Relaxed);
            return false;
        }
        let accepts = held < (limit as u128 * self.accept_percent as u128 / 100) as usize;
        if accepts {
            self.full.store(false, Ordering::Relaxed);
        }
        accepts
    }

    /// Counts `frames` more frames, if the limit allows; else the pool is full.
    pub(super) fn reserve(&self, frames: usize) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let more = |bytes: usize| bytes.checked_add(frames * PAGE_SIZE).filter(|b| *b <= limit);
        let fits = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        if !fits {
            self.full.store(true, Ordering::Relaxed);
        }
        fits
    }

    /// Frames that may be added now.
    pub(super) fn left(&self) -> usize {
        self.limit.load(Ordering::Relaxed).saturating_sub(self.bytes.load(Ordering::Relaxed)) / PAGE_SIZE
    }

    /// Counts `frames` fewer frames.
    pub(super) fn release(&self, frames: usize) {
        self.bytes.fetch_sub(frames * PAGE_SIZE, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }
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
}
