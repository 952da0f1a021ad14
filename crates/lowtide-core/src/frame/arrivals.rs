//! Whether any frame came since a search of all nodes found none: if not, the next search need not
//! walk them.
//!
//! `count` rises when empty lists or an empty buddy get frames, which is rare. A load (Acquire)
//! sees what preceded its last change (Release). So if a search after it finds nothing and `count`
//! is unchanged, nothing is there: places that were not empty got their frames earlier.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::sync::atomic::AtomicU64;

#[derive(Debug)]
pub(super) struct Arrivals {
    count: AtomicU64,
    /// `count` before the latest search that found nothing.
    none: AtomicU64,
}

impl Arrivals {
    pub(super) fn new() -> Arrivals {
        Arrivals { count: AtomicU64::new(1), none: AtomicU64::new(0) }
    }

    /// After an empty place got frames, with its lock held.
    pub(super) fn add(&self) {
        self.count.fetch_add(1, Release);
    }

    /// Before a search; `None` if it would find nothing.
    pub(super) fn count(&self) -> Option<u64> {
        let count = self.count.load(Acquire);
        (self.none.load(Relaxed) != count).then_some(count)
    }

    /// A search that began at `count` found nothing.
    pub(super) fn none_after(&self, count: u64) {
        self.none.store(count, Relaxed);
    }
}
