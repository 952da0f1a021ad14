//! How many clusters of an area are full, and whether the area is off the list of available areas, in one word: who makes the
//! area full, or not full again, decides by compare-and-swap on that word whether the list has to change, so that exactly one
//! thread changes it. All other updates are one atomic add and touch no list.
//!
//! Full clusters and not used slots are counted, because an area is full when all its clusters are, and a word that every
//! allocation writes would be a cache line that all CPUs fight for. (Used slots are known about only: clusters tell the
//! area, now and then, how many they have: `area.rs`, `TELL`.)
//!
//! (The off-list bit is the kernel's, from Kairui Song's series "mm, swap: rework of swap allocator locks", 2024-25.)

use crate::sync::atomic::{AtomicU64, Ordering};

/// Not on the list of available areas.
const OFF: u64 = 1 << 63;
/// It stays off: by swapoff, or because slots are given out there in another way.
const KEPT_OFF: u64 = 1 << 62;
const COUNT: u64 = KEPT_OFF - 1;

#[derive(Debug)]
pub(super) struct Usage {
    word: AtomicU64,
    total: u64,
}

impl Usage {
    /// Of an area of `total` clusters that is on no list yet.
    pub(super) fn new(total: u64) -> Usage {
        Usage { word: AtomicU64::new(OFF | KEPT_OFF), total }
    }

    pub(super) fn count(&self) -> u64 {
        self.word.load(Ordering::Relaxed) & COUNT
    }

    #[inline]
    pub(super) fn add(&self, n: u64) {
        self.word.fetch_add(n, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn sub(&self, n: u64) {
        self.word.fetch_sub(n, Ordering::Relaxed);
    }

    /// Whether the list may have to change: to be asked after each add or sub. If so, [`Usage::try_delist`] and
    /// [`Usage::try_relist`] decide with the list locked.
    #[inline]
    pub(super) fn is_unsettled(&self) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        let full = word & COUNT == self.total;
        (word & OFF == 0) == full && word & KEPT_OFF == 0
    }

    /// Whether the area is full and would be on the list otherwise.
    pub(super) fn is_full(&self) -> bool {
        self.word.load(Ordering::Relaxed) & !OFF == self.total
    }

    /// With the list locked: whether the area is to be taken off it, by this thread.
    pub(super) fn try_delist(&self) -> bool {
        self.word.compare_exchange(self.total, self.total | OFF, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// With the list locked: whether the area is to be put on it, by this thread.
    pub(super) fn try_relist(&self) -> bool {
        let open = |word| (word & (OFF | KEPT_OFF) == OFF && word != OFF | self.total).then_some(word & !OFF);
        self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, open).is_ok()
    }

    /// With the list locked: the area is to stay off it. Whether it is on it now.
    pub(super) fn keep_off(&self) -> bool {
        self.word.fetch_or(OFF | KEPT_OFF, Ordering::AcqRel) & OFF == 0
    }

    /// With the list locked: the area may be on it again; [`Usage::try_relist`] then puts it there.
    pub(super) fn keep_off_no_more(&self) {
        self.word.fetch_and(!KEPT_OFF, Ordering::AcqRel);
    }
}
