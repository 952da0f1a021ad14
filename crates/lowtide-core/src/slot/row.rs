//! Freeing of consecutive slots under one hold of their cluster's lock.

use core::ops::Deref;

use super::area::Area;
use super::cluster::CLUSTER_SLOTS;

/// Drops references as [`Area::release`] does, at the latest on drop; batches consecutive slots of
/// a cluster. Pushing and dropping take that cluster's lock, and those behind it in the lock order.
#[derive(Debug)]
pub struct Row<A: Deref<Target = Area>> {
    area: A,
    first: u64,
    n: u64,
}

impl<A: Deref<Target = Area>> Row<A> {
    /// No slots yet.
    pub fn new(area: A) -> Row<A> {
        Row { area, first: 0, n: 0 }
    }

    /// The area.
    pub fn area(&self) -> &A {
        &self.area
    }

    /// Adds a slot, as for [`Area::release`].
    pub fn push(&mut self, slot: u64) {
        if slot != self.first + self.n || slot.is_multiple_of(CLUSTER_SLOTS as u64) {
            self.release();
            self.first = slot;
        }
        self.n += 1;
    }

    fn release(&mut self) {
        if self.n > 0 {
            let freed = self.area.free_run(self.first, self.n);
            debug_assert!(freed.is_ok(), "slots {}+{}: {freed:?}", self.first, self.n);
            self.n = 0;
        }
    }
}

impl<A: Deref<Target = Area>> Drop for Row<A> {
    fn drop(&mut self) {
        self.release();
    }
}
