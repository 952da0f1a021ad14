//! What this process has and does, in figures: measured, and written into the run's segment for all to see.

use core::sync::atomic::{AtomicU64, Ordering};

use lowtide_core::lock;
use lowtide_core::slot::ORDERS;
use lowtide_core::store::{AreaStats, MAX_AREAS};
use lowtide_core::vm::{self, PAGE_SIZE, Whose};

use super::Pager;
use crate::segment::area_state;

impl Pager {
    /// Writes the gauges of this process into the run's segment.
    pub fn publish(&self) {
        let p = self.proc();
        let s = self.store.stats();
        let staged = (self.staging.staged() * PAGE_SIZE) as u64;
        let set = |gauge: &AtomicU64, value: u64| gauge.store(value, Ordering::Relaxed);
        set(&p.staged_bytes, staged);
        set(&p.pool_bytes, s.pool_bytes as u64);
        set(&p.pool_stored_bytes, s.pool_stored_bytes as u64);
        set(&p.now_stored, s.stored_now);
        set(&p.now_on_device, s.on_device_now);
        set(&p.now_zero, self.zero_now.load(Ordering::Relaxed));
        self.publish_own();
        let c = &p.counters;
        set(&c.space_lock_sleeps, self.space.sleeps.load(Ordering::Relaxed));
        set(&c.space_lock_wait_ns, self.space.waited_ns.load(Ordering::Relaxed));
        let waits = lock::all_waits();
        set(&c.lock_waits, waits.contended);
        set(&c.lock_wait_ns, waits.total_ns);
        set(&c.pool_full_times, s.pool_full_times);
        set(&c.pool_refused_pages, s.pool_refused);
        set(&c.same_filled_pages, s.same_filled);
        p.same_filled_words.set(&s.same_filled_words);
        set(&c.incompressible_pages, s.incompressible);
        set(&c.in_vain_pages, s.in_vain);
        set(&c.recompressed_pages, s.recompressed);
        set(&c.recompressed_bytes, s.recompressed_bytes);
        set(&c.writeback_pages, s.device_write_bytes / PAGE_SIZE as u64);
        set(&c.writeback_ios, s.device_write_ios);
        set(&c.writeback_bytes, s.device_write_bytes);
        for order in 0..ORDERS {
            set(&c.folios[order], s.folios[order]);
            set(&c.folios_split[order], s.folios_split[order]);
        }
        for ((now, counts), area) in p.areas_now.iter().zip(&p.areas).zip(self.store.area_stats()) {
            set(&now.used, area.used);
            set(&now.state, area_state(area.state));
            set(&counts.reads, area.reads);
            set(&counts.writes, area.writes);
            set(&counts.read_bytes, area.read_bytes);
            set(&counts.write_bytes, area.write_bytes);
            set(&counts.errors, area.errors);
        }
    }

    /// Writes the bytes of memory that are lowtide's own in this process into the run's segment: what staging and store have
    /// counted in the budget, pages on their way into staging, and the rest as [`Pager::measure_rest`] found it. Cheap: for
    /// every batch of pages.
    pub(crate) fn publish_own(&self) {
        self.budget.set_uncounted(self.uncounted());
        self.proc().own_bytes.store(self.budget.own(), Ordering::Relaxed);
    }

    /// Bytes that nobody counts as they come and go: see [`Pager::publish_own`].
    pub(crate) fn uncounted(&self) -> u64 {
        // None of these have arrived, or all: half of them is never wrong by more than half of a MOVE.
        let moving = self.moving.load(Ordering::Relaxed) * PAGE_SIZE / 2;
        (moving + self.rest.load(Ordering::Relaxed)) as u64
    }

    /// Of lowtide's own ranges only those of the numbers `first .. end` (see [`vm::own_count`]) are this pager's: there are
    /// others.
    pub fn owns(&self, first: usize, end: usize) {
        self.own[0].store(first, Ordering::Relaxed);
        self.own[1].store(end, Ordering::Relaxed);
    }

    /// Asks the kernel how much memory is behind lowtide's own mappings but for staging and the pool's frames: tables, buffers,
    /// stacks, heap, the library's data. Mappings shared with forked processes (reference counts) are not in it: the kernel
    /// does not count them as anonymous memory of any of them either, and so they are not in `ram_bytes`. Some microseconds for
    /// each mapping: a few times a second.
    pub fn measure_rest(&self) {
        let [frames, buffer] = self.store.addresses();
        let counted = [self.staging.addresses(), frames, buffer];
        let mut rest = 0;
        let [first, end] = self.own.each_ref().map(|number| number.load(Ordering::Relaxed));
        vm::own_ranges_in(first, end, |start, end, whose| {
            if whose == Whose::Lowtide && !counted.iter().any(|c| c.start < end && start < c.end) {
                // What the kernel does not tell is nothing: it told what to evict by the same call.
                rest += self.present().bytes(start, end).unwrap_or(0);
            }
        });
        self.rest.store(rest, Ordering::Relaxed);
    }

    /// What [`Pager::measure_rest`] found: bytes of tables, buffers and stacks.
    pub fn rest_bytes(&self) -> usize {
        self.rest.load(Ordering::Relaxed)
    }

    /// Bytes of the page map that were ever in use at a time.
    pub fn page_map_bytes(&self) -> usize {
        self.map.used_bytes()
    }

    /// Writes how full the clusters of this process's swap areas are into the run's segment. Looks at each of them: only when
    /// somebody asks.
    pub fn publish_fills(&self) {
        self.proc().fills.iter().zip(self.store.area_fills()).for_each(|(to, fills)| to.set(fills));
    }

    /// What this process has of each of the run's swap areas.
    pub fn area_stats(&self) -> [AreaStats; MAX_AREAS] {
        self.store.area_stats()
    }
}
