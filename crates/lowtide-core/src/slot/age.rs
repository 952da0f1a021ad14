//! Two clocks over the clusters of an area, for pages in RAM that have slots: which clusters have
//! such pages, and which were used since the hand last passed. One clock is for writing pages to
//! the device, one for recompression. A byte per cluster.

use core::sync::atomic::{AtomicU8, Ordering};

use rustix::io::Errno;

use super::cluster::CLUSTER_SLOTS;
use crate::table::Table;
use crate::vm::OnFork;

/// A clock: its two bits of a cluster's byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// Of the thread that writes pages to the device.
    Writing,
    /// Of the recompressor.
    Recompressing,
}

impl Clock {
    /// Has pages that this hand has not taken.
    const fn pages(self) -> u8 {
        match self {
            Clock::Writing => 1,
            Clock::Recompressing => 4,
        }
    }

    /// Used since this hand passed.
    const fn used(self) -> u8 {
        self.pages() << 1
    }
}

const PAGES: u8 = Clock::Writing.pages() | Clock::Recompressing.pages();
const USED: u8 = Clock::Writing.used() | Clock::Recompressing.used();
/// The device fails to write its pages.
const BROKEN: u8 = 16;

/// The marks of an area's clusters. Thread-safe, without locks.
#[derive(Debug)]
pub struct Ages(Table<AtomicU8>);

/// A hand's finding at a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Visit {
    /// Nothing can be taken.
    Nothing,
    /// Used since the last visit: passed over once.
    Used,
    /// Take its pages in RAM now; those that stay need new marks.
    Old,
}

impl Ages {
    pub(super) fn new(clusters: usize) -> Result<Ages, Errno> {
        Ok(Ages(Table::new(clusters, OnFork::Copy)?))
    }

    fn of(&self, slot: u64) -> Option<&AtomicU8> {
        self.0.get(slot as usize / CLUSTER_SLOTS)
    }

    /// Marks the cluster of a page in RAM, after other threads can find the page there.
    pub fn stored(&self, slot: u64) {
        if let Some(age) = self.of(slot) {
            // Unconditional: a hand that clears the mark now either sees the page, or the mark
            // stays. Release: pairs with the Acquire in `visit`.
            age.fetch_or(PAGES | USED, Ordering::AcqRel);
        }
    }

    /// A page in RAM with this slot was read.
    pub fn used(&self, slot: u64) {
        if let Some(age) = self.of(slot) {
            let now = age.load(Ordering::Relaxed);
            if now & PAGES != 0 && now & USED != USED {
                age.fetch_or(USED, Ordering::Relaxed);
            }
        }
    }

    /// Pages of a cluster due to be taken stay.
    pub fn left(&self, cluster: usize, clock: Clock) {
        // Release: pairs with the Acquire in `visit`.
        self.0[cluster].fetch_or(clock.pages(), Ordering::AcqRel);
    }

    /// The device failed to write pages of a cluster: the writer visits it no more. Whether that is
    /// new.
    pub fn broke(&self, cluster: usize) -> bool {
        self.0[cluster].fetch_or(BROKEN, Ordering::AcqRel) & BROKEN == 0
    }

    /// Undoes [`Ages::broke`].
    pub fn mended(&self, cluster: usize) {
        if self.0[cluster].load(Ordering::Relaxed) & BROKEN != 0 {
            self.0[cluster].fetch_and(!BROKEN, Ordering::AcqRel);
            self.left(cluster, Clock::Writing);
        }
    }

    /// Whether it was used since the hand passed.
    pub fn is_used(&self, cluster: usize, clock: Clock) -> bool {
        self.0.get(cluster).is_some_and(|age| age.load(Ordering::Relaxed) & clock.used() != 0)
    }

    /// Moves a hand over a cluster; one thread at a time.
    pub fn visit(&self, cluster: usize, clock: Clock) -> Visit {
        let Some(age) = self.0.get(cluster) else { return Visit::Nothing };
        let takes = |now: u8| match now & (clock.pages() | clock.used()) {
            _ if now & clock.pages() == 0 || clock == Clock::Writing && now & BROKEN != 0 => None,
            marks => Some(now & !if marks & clock.used() != 0 { clock.used() } else { clock.pages() }),
        };
        // Acquire: pairs with the Release in `stored` and `left`: the pages marked then are
        // visible.
        match age.fetch_update(Ordering::AcqRel, Ordering::Relaxed, takes) {
            Err(_) => Visit::Nothing,
            Ok(before) if before & clock.used() != 0 => Visit::Used,
            Ok(_) => Visit::Old,
        }
    }

    pub(super) fn table_bytes(&self) -> usize {
        self.0.populated_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use Clock::{Recompressing, Writing};

    #[test]
    fn a_second_chance_for_what_was_used_and_none_for_what_is_broken() {
        let ages = Ages::new(3).unwrap();
        let visit = |cluster| ages.visit(cluster, Writing);
        let at = CLUSTER_SLOTS as u64 + 5;
        assert_eq!(visit(1), Visit::Nothing);
        ages.stored(at);
        assert_eq!((visit(1), visit(1), visit(1)), (Visit::Used, Visit::Old, Visit::Nothing));
        ages.left(1, Writing);
        ages.used(at);
        assert_eq!((visit(1), visit(1)), (Visit::Used, Visit::Old));
        assert!(ages.broke(1) && !ages.broke(1));
        ages.stored(at);
        assert_eq!([0, 1, 2, 3].map(visit), [Visit::Nothing; 4]);
    }

    #[test]
    fn the_clocks_go_independently() {
        let ages = Ages::new(1).unwrap();
        ages.used(5);
        assert!(!ages.is_used(0, Recompressing), "there is nothing");
        ages.stored(5);
        assert_eq!((ages.visit(0, Writing), ages.visit(0, Writing)), (Visit::Used, Visit::Old));
        assert!(ages.is_used(0, Recompressing));
        assert_eq!(ages.visit(0, Recompressing), Visit::Used);
        assert!(!ages.is_used(0, Recompressing));
        ages.used(5);
        ages.broke(0);
        assert_eq!((ages.visit(0, Recompressing), ages.visit(0, Recompressing)), (Visit::Used, Visit::Old));
        assert_eq!((ages.visit(0, Recompressing), ages.visit(0, Writing)), (Visit::Nothing, Visit::Nothing));
    }
}
