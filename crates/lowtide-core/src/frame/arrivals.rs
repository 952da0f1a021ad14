//! Whether anything has become free since somebody found nothing at all: then who looks again need not go round all nodes.
//!
//! Counted is not each free, but each time that lists or a buddy that had nothing have something, which is seldom. Whoever has
//! read the count (Acquire) sees what came before it was changed (Release). So if there was nothing after that, and the count is
//! still the same, there is nothing now: what came into lists or a buddy that had something came before, too.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::sync::atomic::AtomicU64;

/// How often something came where nothing was.
#[derive(Debug)]
pub(super) struct Arrivals {
    count: AtomicU64,
    /// The count before nothing was found last.
    none: AtomicU64,
}

impl Arrivals {
    /// Nobody has looked yet.
    pub(super) fn new() -> Arrivals {
        Arrivals { count: AtomicU64::new(1), none: AtomicU64::new(0) }
    }

    /// Something is, and can be seen to be, where nothing was. The lock of that place is held.
    pub(super) fn add(&self) {
        self.count.fetch_add(1, Release);
    }

    /// To be asked before looking: the count; `None` if there is nothing.
    pub(super) fn count(&self) -> Option<u64> {
        let count = self.count.load(Acquire);
        (self.none.load(Relaxed) != count).then_some(count)
    }

    /// There was nothing anywhere after the count was this.
    pub(super) fn none_after(&self, count: u64) {
        self.none.store(count, Relaxed);
    }
}
