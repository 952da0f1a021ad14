//! A group's figures.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::instance::Instance;

/// Figures of a group. Sizes in bytes, pages of 4 KiB; each is exact by itself, but they are no
/// snapshot of one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The RAM limit.
    pub ram_limit: u64,
    /// Counts against it now: pages in memory, and all of lowtide's memory for the group. May
    /// briefly exceed the limit ([limits and groups](crate#limits-and-groups)).
    pub ram_now: u64,
    /// Of that, lowtide's own: pool, staging, tables, buffers.
    pub own_bytes: u64,
    /// Evicted pages that wait to be stored.
    pub staged_bytes: u64,
    /// Memory of the compressed pool.
    pub pool_bytes: u64,
    /// Compressed pages in the pool.
    pub pool_stored_bytes: u64,
    /// Pages now in the pool, the swap file or on the server; pages of zeros need no store.
    pub stored_pages: u64,
    /// Of those, pages only in the swap file or on the server.
    pub file_pages: u64,
    /// Guarded memory.
    pub resident_bytes: u64,
    /// Touches of, or requests for, a missing page.
    pub faults: u64,
    /// Of those: pages never touched before, ...
    pub first_touches: u64,
    /// ... pages of zeros, ...
    pub faults_zero: u64,
    /// ... pages not stored yet, ...
    pub faults_staged: u64,
    /// ... from the pool, ...
    pub faults_pool: u64,
    /// ... and from the swap file.
    pub faults_file: u64,
    /// Evicted pages that came in again, read-ahead included.
    pub pages_in: u64,
    /// Evicted pages.
    pub pages_out: u64,
    /// Of those, pages with a valid copy in the swap file.
    pub pages_out_clean: u64,
    /// The longest fault, in nanoseconds.
    pub longest_fault_ns: u64,
    /// Bytes written to the swap file.
    pub file_written_bytes: u64,
}

impl Stats {
    /// With signals blocked.
    pub(crate) fn of(instance: &Instance) -> Stats {
        let pager = &instance.pager;
        pager.publish();
        let (proc, counts, budget) = (pager.proc(), pager.counters(), pager.budget());
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
