//! How much RAM there is left: the limit, what was last measured, and what has come and gone since.
//!
//! Measured values come from the kernel at intervals (`/proc/self/statm`); between two measurements the pager counts pages.

use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use lowtide_core::vm::PAGE_SIZE;

/// The RAM budget of a run as one process sees it. All sizes in bytes.
#[derive(Debug, Default)]
pub struct Budget {
    limit: AtomicU64,
    measured: AtomicU64,
    since: AtomicI64,
}

impl Budget {
    /// Sets the limit of the run.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// The limit of the run.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// A new measurement of the whole run.
    pub fn measured(&self, total: u64) {
        self.since.store(0, Ordering::Relaxed);
        self.measured.store(total, Ordering::Relaxed);
    }

    /// Pages that this process gained (or, negative, lost) since.
    pub fn add_pages(&self, pages: isize) {
        self.since.fetch_add(pages as i64 * PAGE_SIZE as i64, Ordering::Relaxed);
    }

    /// Best guess of what the run uses now.
    pub fn now(&self) -> u64 {
        self.measured.load(Ordering::Relaxed).saturating_add_signed(self.since.load(Ordering::Relaxed))
    }

    /// Above this all is made ready for adoption, so that it takes no longer than registering memory when it is time.
    pub fn prepare_mark(&self) -> u64 {
        self.adopt_mark() / 4
    }

    /// Memory is adopted above this: the limit less what a program can touch while lowtide is asleep.
    pub fn adopt_mark(&self) -> u64 {
        let limit = self.limit();
        limit - (limit / 8).clamp(4 << 20, 256 << 20).min(limit / 2)
    }

    /// Nothing is adopted below this, however fast the program grows.
    pub fn earliest_adopt_mark(&self) -> u64 {
        self.adopt_mark() / 2
    }

    /// Background eviction starts above this ...
    pub fn high_mark(&self) -> u64 {
        let limit = self.limit();
        limit - (limit / 32).clamp(1 << 20, 32 << 20)
    }

    /// ... and stops below this.
    pub fn low_mark(&self) -> u64 {
        let limit = self.limit();
        limit - (limit / 20).clamp(1_500 << 10, 48 << 20)
    }

    /// Whether a fault must evict before it is served.
    pub fn at_limit(&self) -> bool {
        self.now() + (1 << 20) > self.limit()
    }

    /// Whether the background should evict.
    pub fn above_high(&self) -> bool {
        self.now() > self.high_mark()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_in_order_at_every_size() {
        let b = Budget::default();
        for mib in [16, 17, 32, 64, 100, 512, 4096, 100_000] {
            b.set_limit(mib << 20);
            assert!(b.low_mark() < b.high_mark() && b.high_mark() < b.limit(), "{mib} MiB");
            assert!(b.adopt_mark() <= b.low_mark(), "memory is adopted before it must be evicted: {mib} MiB");
            b.measured(b.limit());
            assert!(b.at_limit() && b.above_high());
            b.add_pages(-(mib as isize) * 64);
            assert!(!b.at_limit());
        }
    }
}
