//! Slots that are let go of one after another: those in a row together, under one hold of their cluster's lock.

use core::ops::Deref;

use super::area::Area;
use super::cluster::CLUSTER_SLOTS;

/// Drops this process's references to slots of one area, as [`Area::release`] does, at the latest when it is dropped itself.
/// Slots that are pushed in a row wait for each other as long as they are of one cluster. Pushing and dropping take that
/// cluster's lock, and what is behind it in the lock order.
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

    /// The area, or the reference to it.
    pub fn area(&self) -> &A {
        &self.area
    }

    /// One more slot, whose table word the caller has set to 0 before. See [`Area::release`].
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
