//! What experiments limit and count in a store (feature `lab`).

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use super::Store;
use crate::slot::MAX_ORDER;

/// Its order.
#[derive(Debug)]
pub(super) struct LargestFolio(AtomicU8);

impl LargestFolio {
    pub(super) fn new() -> LargestFolio {
        LargestFolio(AtomicU8::new(MAX_ORDER as u8))
    }

    pub(super) fn limit(&self, pages: usize) -> usize {
        pages.min(1 << self.0.load(Relaxed))
    }
}

impl Store {
    /// Limits folios to 2^`order` pages, or the largest size.
    pub fn limit_folios(&self, order: u32) {
        self.largest_folio.0.store(order.min(MAX_ORDER) as u8, Relaxed);
    }

    /// Acquisitions of all clusters' locks; takes each.
    pub fn cluster_locks(&self) -> u64 {
        self.areas.iter().map(|area| area.lock_acquisitions().0).sum()
    }
}
