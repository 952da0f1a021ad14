//! The clock over the clusters of an area, for pages that are in RAM and have their slots there: which clusters have such pages,
//! and which of those were used since the hand last came by. A byte for each cluster.

use core::sync::atomic::{AtomicU8, Ordering};

use rustix::io::Errno;

use super::cluster::CLUSTER_SLOTS;
use crate::table::Table;
use crate::vm::OnFork;

/// No page in RAM, or a writer is at them.
const NONE: u8 = 0;
/// Pages in RAM, not used since the hand came by.
const OLD: u8 = 1;
/// Pages in RAM, used since.
const USED: u8 = 2;
/// The device fails to write them.
const BROKEN: u8 = 3;

/// The marks of an area's clusters. All methods are thread-safe and take no lock.
#[derive(Debug)]
pub struct Ages(Table<AtomicU8>);

/// What the hand finds at a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Visit {
    /// Nothing to write, or nothing that can be written.
    Nothing,
    /// It was used since the last visit: passed over, once.
    Used,
    /// Its pages in RAM are to be written now. Those that come or stay from here on are to be marked again.
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
            // Not only where it seems necessary: if the hand takes the mark away at this moment, then it sees the page, or this
            // leaves a mark behind.
            age.fetch_max(USED, Ordering::AcqRel);
        }
    }

    /// A page in RAM that has this slot was read.
    pub fn used(&self, slot: u64) {
        if let Some(age) = self.of(slot)
            && age.load(Ordering::Relaxed) == OLD
        {
            let _ = age.compare_exchange(OLD, USED, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Pages of a cluster stay in RAM that were to be written.
    pub fn left(&self, cluster: usize) {
        self.0[cluster].fetch_max(OLD, Ordering::AcqRel);
    }

    /// The device failed to write pages of a cluster: it is not visited any more. Whether it was before.
    pub fn broke(&self, cluster: usize) -> bool {
        self.0[cluster].swap(BROKEN, Ordering::AcqRel) != BROKEN
    }

    /// The hand comes by; one thread at a time.
    pub fn visit(&self, cluster: usize) -> Visit {
        let Some(age) = self.0.get(cluster) else { return Visit::Nothing };
        match age.load(Ordering::Relaxed) {
            // Acquire: the pages that were there when it was marked are seen.
            USED => {
                age.compare_exchange(USED, OLD, Ordering::AcqRel, Ordering::Relaxed).map_or(Visit::Nothing, |_| Visit::Used)
            }
            OLD => age.compare_exchange(OLD, NONE, Ordering::AcqRel, Ordering::Relaxed).map_or(Visit::Used, |_| Visit::Old),
            _ => Visit::Nothing,
        }
    }

    pub(super) fn table_bytes(&self) -> usize {
        self.0.populated_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_chance_for_what_was_used_and_none_for_what_is_broken() {
        let ages = Ages::new(3).unwrap();
        let at = CLUSTER_SLOTS as u64 + 5;
        assert_eq!(ages.visit(1), Visit::Nothing);
        ages.stored(at);
        assert_eq!((ages.visit(1), ages.visit(1), ages.visit(1)), (Visit::Used, Visit::Old, Visit::Nothing));
        ages.used(at);
        assert_eq!(ages.visit(1), Visit::Nothing, "what was read is gone from RAM");
        ages.left(1);
        ages.used(at);
        assert_eq!((ages.visit(1), ages.visit(1)), (Visit::Used, Visit::Old));
        assert!(ages.broke(1) && !ages.broke(1));
        ages.stored(at);
        assert_eq!(
            (ages.visit(1), ages.visit(0), ages.visit(2), ages.visit(3)),
            (Visit::Nothing, Visit::Nothing, Visit::Nothing, Visit::Nothing)
        );
    }
}
