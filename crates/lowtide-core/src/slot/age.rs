//! Two clocks over the clusters of an area, for pages that are in RAM and have their slots there: which clusters have such
//! pages, and which of those were used since the hand last came by. One clock is of who writes pages to the device, one of who
//! compresses them better. A byte for each cluster.

use core::sync::atomic::{AtomicU8, Ordering};

use rustix::io::Errno;

use super::cluster::CLUSTER_SLOTS;
use crate::table::Table;
use crate::vm::OnFork;

/// A clock: its two bits of a cluster's byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// The clock of the thread that writes pages to the device.
    Writing,
    /// The clock of who compresses pages better.
    Recompressing,
}

impl Clock {
    /// There are pages that this clock's hand has not taken yet.
    const fn pages(self) -> u8 {
        match self {
            Clock::Writing => 1,
            Clock::Recompressing => 4,
        }
    }

    /// They were used since the hand came by.
    const fn used(self) -> u8 {
        self.pages() << 1
    }
}

const PAGES: u8 = Clock::Writing.pages() | Clock::Recompressing.pages();
const USED: u8 = Clock::Writing.used() | Clock::Recompressing.used();
/// The device fails to write pages of the cluster.
const BROKEN: u8 = 16;

/// The marks of an area's clusters. All methods are thread-safe and take no lock.
#[derive(Debug)]
pub struct Ages(Table<AtomicU8>);

/// What the hand finds at a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Visit {
    /// Nothing to take, or nothing that can be taken.
    Nothing,
    /// It was used since the last visit: passed over, once.
    Used,
    /// Its pages in RAM are to be taken now. Those that come or stay from here on are to be marked again.
    Old,
}

impl Ages {
    pub(super) fn new(clusters: usize) -> Result<Ages, Errno> {
        Ok(Ages(Table::new(clusters, OnFork::Copy)?))
    }

    fn of(&self, slot: u64) -> Option<&AtomicU8> {
        self.0.get(slot as usize / CLUSTER_SLOTS)
    }

    /// A page in RAM has got this slot. To be called after others can find the page there.
    pub fn stored(&self, slot: u64) {
        if let Some(age) = self.of(slot) {
            // Not only where it seems necessary: if a hand takes the mark away at this moment, then it sees the page, or this
            // leaves a mark behind. Release: pairs with the Acquire in `visit`.
            age.fetch_or(PAGES | USED, Ordering::AcqRel);
        }
    }

    /// A page in RAM that has this slot was read.
    pub fn used(&self, slot: u64) {
        if let Some(age) = self.of(slot) {
            let now = age.load(Ordering::Relaxed);
            if now & PAGES != 0 && now & USED != USED {
                age.fetch_or(USED, Ordering::Relaxed);
            }
        }
    }

    /// Pages of a cluster stay as they are that were to be taken.
    pub fn left(&self, cluster: usize, clock: Clock) {
        // Release: pairs with the Acquire in `visit`.
        self.0[cluster].fetch_or(clock.pages(), Ordering::AcqRel);
    }

    /// The device failed to write pages of a cluster: it is not visited any more to write them. Whether that is new.
    pub fn broke(&self, cluster: usize) -> bool {
        self.0[cluster].fetch_or(BROKEN, Ordering::AcqRel) & BROKEN == 0
    }

    /// Undoes [`Ages::broke`]: the cluster is visited again.
    pub fn mended(&self, cluster: usize) {
        if self.0[cluster].load(Ordering::Relaxed) & BROKEN != 0 {
            self.0[cluster].fetch_and(!BROKEN, Ordering::AcqRel);
            self.left(cluster, Clock::Writing);
        }
    }

    /// Whether a cluster was used since the hand came by.
    pub fn is_used(&self, cluster: usize, clock: Clock) -> bool {
        self.0.get(cluster).is_some_and(|age| age.load(Ordering::Relaxed) & clock.used() != 0)
    }

    /// The hand of a clock comes by; one thread at a time.
    pub fn visit(&self, cluster: usize, clock: Clock) -> Visit {
        let Some(age) = self.0.get(cluster) else { return Visit::Nothing };
        let takes = |now: u8| match now & (clock.pages() | clock.used()) {
            _ if now & clock.pages() == 0 || clock == Clock::Writing && now & BROKEN != 0 => None,
            marks => Some(now & !if marks & clock.used() != 0 { clock.used() } else { clock.pages() }),
        };
        // Acquire: pairs with the Release in `stored` and `left`. The pages that were there when it was marked are seen.
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
