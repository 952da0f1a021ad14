//! Numbers that are only reported.

use core::sync::atomic::{AtomicU64, Ordering};

/// A number that is only ever reported: relaxed, never relied on.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// More by `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Less by `n`.
    pub fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    /// The number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// From zero again.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
