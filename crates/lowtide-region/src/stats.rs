//! What a group has now, and what it has done.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::instance::Instance;

/// Figures of a group of regions (of a region that is alone in its group, that region's). Sizes in bytes, pages of 4 KiB; each
/// is exact by itself, not a snapshot of one moment together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The RAM limit.
    pub ram_limit: u64,
    /// What counts against it now: pages in memory, and all that lowtide has for the group. For a moment it can be a little
    /// more than the limit ([limits and groups](crate#limits-and-groups)).
    pub ram_now: u64,
    /// Of that, lowtide's own: pool, staging, tables, buffers.
    pub own_bytes: u64,
    /// Evicted pages that wait to be stored.
    pub staged_bytes: u64,
    /// Memory of the compressed pool.
    pub pool_bytes: u64,
    /// Compressed pages in it.
    pub pool_stored_bytes: u64,
    /// Pages that are stored now, in the pool, in the swap file or on the server; pages that are all zeros need no store.
    pub stored_pages: u64,
    /// Of those, in the swap file, or on the server, only.
    pub file_pages: u64,
    /// What guards keep in memory.
    pub resident_bytes: u64,
    /// Times that a thread touched a missing page, or asked for it.
    pub faults: u64,
    /// Of those, of pages that were never touched, ...
    pub first_touches: u64,
    /// ... that were all zeros when they were evicted, ...
    pub faults_zero: u64,
    /// ... that waited to be stored, ...
    pub faults_staged: u64,
    /// ... from the pool, ...
    pub faults_pool: u64,
    /// ... and from the swap file.
    pub faults_file: u64,
    /// Evicted pages that came in again, with those that came along.
    pub pages_in: u64,
    /// Pages that were evicted.
    pub pages_out: u64,
    /// Of those, that a copy in the swap file was still good for.
    pub pages_out_clean: u64,
    /// Nanoseconds of the fault that took longest.
    pub longest_fault_ns: u64,
    /// Bytes written to the swap file.
    pub file_written_bytes: u64,
}

impl Stats {
    /// With signals blocked.
    pub(crate) fn of(instance: &Instance) -> Stats {
        let pager = &instance.pager;
        pager.publish();
        let (proc, counts, budget) = (pager.proc(), pager.counters(), &pager.budget);
        let get = |value: &AtomicU64| value.load(Ordering::Relaxed);
        Stats {
            ram_limit: budget.asked(),
            ram_now: budget.now(),
            own_bytes: get(&proc.own_bytes),
            staged_bytes: get(&proc.staged_bytes),
            pool_bytes: get(&proc.pool_bytes),
            pool_stored_bytes: get(&proc.pool_stored_bytes),
            stored_pages: get(&proc.now_stored),
            file_pages: get(&proc.now_on_device),
            resident_bytes: get(&instance.resident),
            faults: get(&counts.faults_total),
            first_touches: get(&counts.faults_first_touch),
            faults_zero: get(&counts.faults_zero),
            faults_staged: get(&counts.faults_staged),
            faults_pool: get(&counts.faults_pool),
            faults_file: get(&counts.faults_device),
            pages_in: get(&counts.pages_in),
            pages_out: get(&counts.evictions_pages),
            pages_out_clean: get(&counts.evictions_clean),
            longest_fault_ns: get(&counts.latency_max_ns),
            file_written_bytes: get(&counts.writeback_bytes),
        }
    }
}
