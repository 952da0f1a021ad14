//! The figures that a store keeps while it works.

use core::sync::atomic::{AtomicU64, Ordering};

use super::words::FillWords;
use crate::slot::ORDERS;

/// A number that is only ever reported: relaxed, never relied on.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(super) fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// See [`crate::store::StoreStats`] for what each counts.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub stored_now: Counter,
    pub cached_now: Counter,
    pub folios: [Counter; ORDERS],
    pub folios_split: [Counter; ORDERS],
    pub stuck_references: Counter,
    pub on_device_now: Counter,
    pub zero_seen: Counter,
    pub same_filled: Counter,
    pub same_filled_words: FillWords,
    pub incompressible: Counter,
    pub refused: Counter,
    pub device_read_ios: Counter,
    pub device_write_ios: Counter,
    pub device_read_bytes: Counter,
    pub device_write_bytes: Counter,
    pub written_back: Counter,
    pub recompressed: Counter,
    pub recompressed_bytes: Counter,
    pub pool_refused: Counter,
    pub broken_clusters: Counter,
    pub device_errors: Counter,
    pub corrupt: Counter,
    pub bad_slots: Counter,
    pub bad_frees: Counter,
}
