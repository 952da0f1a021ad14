//! Upkeep of store, staging and page map by the reclaimer.

use core::sync::atomic::Ordering;

use lowtide_core::vm::PAGE_SIZE;
use lowtide_wire::segment::Segment;

use super::Pager;
use crate::pagemap::PageState;
use crate::pages::worker::Worker;
use crate::reclaim::evicted::Evicted;

/// A cluster or a few.
const SHRINK_BYTES: usize = 1 << 20;

impl Pager {
    /// Whether the reclaimer has urgent work.
    pub fn wants_reclaimer(&self) -> bool {
        self.accounts.budget.above_high() && (self.pages.staging.is_above_target() || self.accounts.budget.at_limit())
    }

    /// Sets whether the reclaimer is awake; handlers detach while it sleeps.
    pub fn set_reclaiming(&self, awake: bool) {
        // Release: pairs with the Acquire in `is_reclaiming`.
        self.reclaim.reclaiming.store(awake, Ordering::Release);
    }

    pub(crate) fn is_reclaiming(&self) -> bool {
        // Acquire: pairs with the Release in `set_reclaiming`.
        self.reclaim.reclaiming.load(Ordering::Acquire)
    }

    /// Program pages brought in; wraps.
    pub fn have_arrived(&self) -> usize {
        self.pages.arrived.load(Ordering::Relaxed)
    }

    /// Bytes to stage.
    pub fn set_staging_target(&self, bytes: usize) {
        self.pages.staging.set_target(bytes);
    }

    /// Bytes of a batch.
    pub fn batch_bytes(&self) -> usize {
        self.pages.staging.batch_frames() * PAGE_SIZE
    }

    /// Stores a staged batch. False: none, or blocked.
    pub fn empty_staging(&self, worker: &mut Worker) -> bool {
        let Some(operation) = self.enter() else { return false };
        operation.drain(worker) == Evicted::Progress
    }

    /// Limits the pool's frames, in bytes, except during a fork.
    pub fn limit_pool(&self, bytes: usize) {
        if let Some(operation) = self.enter() {
            operation.store().limit_pool(bytes);
        }
    }

    /// Whether a device has room; false during a fork.
    pub fn devices_have_room(&self) -> bool {
        self.enter().is_some_and(|operation| operation.store().devices_have_room())
    }

    /// Writes a cluster or a few of a nearly full pool to swap, if it can; false during a fork.
    pub fn shrink_pool(&self, worker: &mut Worker) -> bool {
        let Some(operation) = self.enter() else { return false };
        let wanted = operation.store().wants_shrinking().min(SHRINK_BYTES);
        if wanted == 0 {
            return false;
        }
        let shrunk = operation.store().shrink(wanted, worker.scratch());
        self.publish_own();
        shrunk.pages > 0
    }

    /// The same with any pool.
    pub fn empty_pool(&self, worker: &mut Worker) -> bool {
        let Some(operation) = self.enter() else { return false };
        let shrunk = operation.store().shrink(SHRINK_BYTES, worker.scratch());
        self.publish_own();
        shrunk.pages > 0 && !shrunk.failed
    }

    /// Whether [`Pager::recompress`] would find work.
    pub fn wants_recompression(&self, now_us: u64) -> bool {
        self.pages.store_to_read().wants_recompression(now_us)
    }

    /// Recompresses up to `pages` cold pages ([`lowtide_core::store::Store::recompress`]). Returns
    /// words looked at, 0 during a fork. Keeps the compressor until [`Pager::forget_compressor`].
    pub fn recompress(&self, worker: &mut Worker, pages: usize, now_us: u64) -> usize {
        let Some(operation) = self.enter() else { return 0 };
        let scratch = worker.scratch();
        let had = scratch.has_compressor();
        let looked = operation.store().recompress(pages, now_us, scratch).looked;
        self.compressor_changed(scratch.has_compressor() != had);
        looked
    }

    /// Frees the zstd compressor.
    pub fn forget_compressor(&self, worker: &mut Worker) {
        let had = worker.forget_compressor();
        self.compressor_changed(had);
    }

    /// Counts its megabyte at once.
    fn compressor_changed(&self, changed: bool) {
        if changed {
            self.measure_rest();
            self.publish_own();
        }
    }

    /// Compacts up to `pages` objects. False: none, or during a fork.
    pub fn compact(&self, pages: usize) -> bool {
        let Some(operation) = self.enter() else { return false };
        operation.store().wants_compaction() && operation.store().compact(pages)
    }

    /// Frees spare frames, except during a fork.
    pub fn drain_frames(&self) {
        let Some(operation) = self.enter() else { return };
        operation.store().drain_frames();
        self.publish_own();
    }

    /// Frees unused page map memory, if much. One thread at a time.
    pub fn collect_page_map(&self) {
        if !self.pages.map.wants_collection() || self.paused() {
            return;
        }
        self.pause();
        let alone = self.pages.space.exclusive();
        // SAFETY: no operation runs (paused), this holds the exclusive space lock, and `none` keeps
        // out the program's walks: no one else is in the map.
        self.mappings.walks.none(|| unsafe {
            let mut freer = self.store(&alone).freer();
            // Claimed when set aside; that is over.
            self.pages.map.collect_aside(|word| match word {
                PageState::Loading(0, _) => self.forget(&mut freer, PageState::Zero),
                PageState::Loading(entry, _) => self.forget(&mut freer, PageState::Swapped(entry)),
                _ => {}
            });
            self.pages.map.collect();
        });
        // First: faults waiting for the lock need not copy.
        self.resume();
        drop(alone);
    }

    /// Drops swap references of dead descendants, if any; false during a fork.
    pub fn release_dead(&self, run: &Segment) -> bool {
        let Some(operation) = self.enter() else { return false };
        operation.store().release_dead(run.image(self.proc()), &mut |image| run.is_alive(image))
    }

    /// Upkeep of the store, except during a fork.
    pub fn maintain(&self) {
        let Some(operation) = self.enter() else { return };
        operation.store().maintain();
        self.publish_own();
    }
}
