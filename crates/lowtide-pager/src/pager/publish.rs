//! Publishes this process's figures in the run's segment.

use core::sync::atomic::{AtomicU64, Ordering};

use lowtide_core::lock::{self, rank::RANKS};
use lowtide_core::slot::ORDERS;
use lowtide_core::store::{AreaStats, MAX_AREAS};
use lowtide_core::vm::{self, PAGE_SIZE, Whose};

use super::Pager;

impl Pager {
    /// Writes this process's gauges.
    pub fn publish(&self) {
        let p = self.proc();
        let s = self.pages.store_to_read().stats();
        let staged = (self.pages.staging.staged() * PAGE_SIZE) as u64;
        let set = |gauge: &AtomicU64, value: u64| gauge.store(value, Ordering::Relaxed);
        set(&p.staged_bytes, staged);
        set(&p.pool_bytes, s.pool_bytes as u64);
        set(&p.pool_stored_bytes, s.pool_stored_bytes as u64);
        set(&p.now_stored, s.stored_now);
        set(&p.now_on_device, s.on_device_now);
        set(&p.now_zero, self.pages.zero_now.load(Ordering::Relaxed));
        self.publish_own();
        let c = &p.counters;
        set(&c.space_lock_sleeps, self.pages.space.sleeps.load(Ordering::Relaxed));
        set(&c.space_lock_wait_ns, self.pages.space.waited_ns.load(Ordering::Relaxed));
        for rank in 0..RANKS {
            let waits = lock::waits(rank as u8);
            set(&c.lock_waits[rank], waits.contended);
            set(&c.lock_wait_ns[rank], waits.total_ns);
            set(&c.lock_wait_max_ns[rank], waits.max_ns);
        }
        set(&c.pool_full_times, s.pool_full_times);
        set(&c.pool_refused_pages, s.pool_refused);
        set(&c.same_filled_pages, s.same_filled);
        p.same_filled_words.set(&s.same_filled_words);
        set(&c.incompressible_pages, s.incompressible);
        set(&c.in_vain_pages, s.in_vain);
        set(&c.shuffled_pages, s.shuffled);
        set(&c.recompressed_pages, s.recompressed);
        set(&c.recompressed_bytes, s.recompressed_bytes);
        set(&c.writeback_pages, s.device_write_bytes / PAGE_SIZE as u64);
        set(&c.writeback_ios, s.device_write_ios);
        set(&c.writeback_bytes, s.device_write_bytes);
        for order in 0..ORDERS {
            set(&c.folios[order], s.folios[order]);
            set(&c.folios_split[order], s.folios_split[order]);
        }
        for ((now, counts), area) in p.areas_now.iter().zip(&p.areas).zip(self.pages.store_to_read().area_stats()) {
            set(&now.used, area.used);
            set(&now.state, area.state as u64);
            set(&counts.reads, area.reads);
            set(&counts.writes, area.writes);
            set(&counts.read_bytes, area.read_bytes);
            set(&counts.write_bytes, area.write_bytes);
            set(&counts.errors, area.errors);
        }
    }

    /// Writes lowtide's own bytes, for every batch: of staging and store, in transit to staging,
    /// and the rest of [`Pager::measure_rest`].
    pub(crate) fn publish_own(&self) {
        self.accounts.budget.set_uncounted(self.uncounted());
        self.proc().own_bytes.store(self.accounts.budget.own(), Ordering::Relaxed);
    }

    /// Without a ledger.
    pub(crate) fn uncounted(&self) -> u64 {
        // Half of a MOVE in flight, for the least error.
        let moving = self.pages.moving.load(Ordering::Relaxed) * PAGE_SIZE / 2;
        (moving + self.accounts.rest.load(Ordering::Relaxed)) as u64
    }

    /// Only own ranges `first .. end` are this pager's (see [`vm::own_count`]).
    pub fn owns(&self, first: usize, end: usize) {
        self.accounts.own[0].store(first, Ordering::Relaxed);
        self.accounts.own[1].store(end, Ordering::Relaxed);
    }

    /// Measures lowtide's mappings but staging and pool frames: tables, buffers, stacks, heap,
    /// library data. Those shared with forked processes (reference counts) are not anonymous, so
    /// not in `ram_bytes` either. Takes microseconds a mapping.
    pub fn measure_rest(&self) {
        let [frames, buffer] = self.pages.store_to_read().addresses();
        let counted = [self.pages.staging.addresses(), frames, buffer];
        let mut rest = 0;
        let [first, end] = self.accounts.own.each_ref().map(|number| number.load(Ordering::Relaxed));
        vm::own_ranges_in(first, end, |start, end, whose| {
            if whose == Whose::Lowtide && !counted.iter().any(|c| c.start < end && start < c.end) {
                // Errors count as zero: eviction uses the same call.
                rest += self.present().bytes(start, end).unwrap_or(0);
            }
        });
        self.accounts.rest.store(rest, Ordering::Relaxed);
    }

    /// Of [`Pager::measure_rest`].
    pub fn rest_bytes(&self) -> usize {
        self.accounts.rest.load(Ordering::Relaxed)
    }

    /// Peak bytes of the page map.
    pub fn page_map_bytes(&self) -> usize {
        self.pages.map.used_bytes()
    }

    /// Publishes fill levels of clusters, on request: scans all.
    pub fn publish_fills(&self) {
        self.proc().fills.iter().zip(self.pages.store_to_read().area_fills()).for_each(|(to, fills)| to.set(fills));
    }

    /// Use of each swap area.
    pub fn area_stats(&self) -> [AreaStats; MAX_AREAS] {
        self.pages.store_to_read().area_stats()
    }
}
