//! What is done with the store, staging and the page map beside evicting and serving: by the reclaimer, when there is time or a
//! limit has changed.

use core::sync::atomic::Ordering;

use lowtide_core::vm::PAGE_SIZE;

use super::Pager;
use crate::fault::worker::Worker;
use crate::pagemap::PageState;
use crate::reclaim::drain::Drained;
use crate::segment::Segment;

/// Bytes of objects that leave the pool at a time: those of one cluster, or a few.
const SHRINK_BYTES: usize = 1 << 20;

impl Pager {
    /// Whether there is something for the reclaimer to do that should not wait.
    pub fn wants_reclaimer(&self) -> bool {
        self.budget.above_high() && (self.staging.is_above_target() || self.budget.at_limit())
    }

    /// The reclaimer says whether it is awake: pages are detached for it while it is not.
    pub fn set_reclaiming(&self, awake: bool) {
        // Release: pairs with the Acquire in `is_reclaiming`.
        self.reclaiming.store(awake, Ordering::Release);
    }

    pub(crate) fn is_reclaiming(&self) -> bool {
        // Acquire: pairs with the Release in `set_reclaiming`.
        self.reclaiming.load(Ordering::Acquire)
    }

    /// Pages of the program that have come into memory so far; wraps.
    pub fn have_arrived(&self) -> usize {
        self.arrived.load(Ordering::Relaxed)
    }

    /// How many bytes of evicted pages are to wait before they are stored, in this process.
    pub fn set_staging_target(&self, bytes: usize) {
        self.staging.set_target(bytes);
    }

    /// Bytes of a batch of staging, which is what is evicted at a time.
    pub fn batch_bytes(&self) -> usize {
        self.staging.batch_frames() * PAGE_SIZE
    }

    /// Stores all that waits in staging, a batch at a time; false: nothing is left to store, or it can't be now.
    pub fn empty_staging(&self, worker: &mut Worker) -> bool {
        let Some(operation) = self.enter() else { return false };
        operation.drain(worker) == Drained::Freed
    }

    /// Changes the limit of the pool, in bytes of frames; not while the program forks.
    pub fn limit_pool(&self, bytes: usize) {
        if let Some(operation) = self.enter() {
            operation.store().limit_pool(bytes);
        }
    }

    /// Whether a swap area with a device has room now. `false` also while the program forks.
    pub fn devices_have_room(&self) -> bool {
        self.enter().is_some_and(|operation| operation.store().devices_have_room())
    }

    /// Writes old pages from the pool to the swap file, a cluster or a few, if the pool is about to get full. Whether pages
    /// were written; `false` also while the program forks.
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

    /// The same whether or not the pool is about to get full: its memory is for others.
    pub fn empty_pool(&self, worker: &mut Worker) -> bool {
        let Some(operation) = self.enter() else { return false };
        let shrunk = operation.store().shrink(SHRINK_BYTES, worker.scratch());
        self.publish_own();
        shrunk.pages > 0 && !shrunk.failed
    }

    /// Whether [`Pager::recompress`] would find something to do.
    pub fn wants_recompression(&self, now_us: u64) -> bool {
        self.store.wants_recompression(now_us)
    }

    /// Compresses up to `pages` cold pages of the pool again ([`lowtide_core::store::Store::recompress`]); how many words it
    /// looked at, 0 also while the program forks. The worker keeps the compressor until [`Pager::forget_compressor`]. For
    /// the reclaimer.
    pub fn recompress(&self, worker: &mut Worker, pages: usize, now_us: u64) -> usize {
        let Some(operation) = self.enter() else { return 0 };
        let scratch = worker.scratch();
        let had = scratch.has_compressor();
        let looked = operation.store().recompress(pages, now_us, scratch).looked;
        self.compressor_changed(scratch.has_compressor() != had);
        looked
    }

    /// Gives back what only compressing with zstd needs. For the reclaimer.
    pub fn forget_compressor(&self, worker: &mut Worker) {
        let had = worker.forget_compressor();
        self.compressor_changed(had);
    }

    /// Counts a compressor that has come or gone, which is a megabyte at once, without waiting for the next measurement.
    fn compressor_changed(&self, changed: bool) {
        if changed {
            self.measure_rest();
            self.publish_own();
        }
    }

    /// Moves up to `pages` objects of a sparse pool together. False: there was nothing to do; also while the program forks.
    pub fn compact(&self, pages: usize) -> bool {
        let Some(operation) = self.enter() else { return false };
        operation.store().wants_compaction() && operation.store().compact(pages)
    }

    /// Gives the frames that the pool keeps at hand back to the kernel; not while the program forks.
    pub fn drain_frames(&self) {
        let Some(operation) = self.enter() else { return };
        operation.store().drain_frames();
        self.publish_own();
    }

    /// Gives memory of the page map back, when there may be much of it that speaks of no page any more. By one thread at a time.
    pub fn collect_page_map(&self) {
        if !self.map.wants_collection() || self.paused() {
            return;
        }
        self.pause();
        let alone = self.space.exclusive();
        // SAFETY: no operation is under way, nobody else has the space lock, and no thread of the program walks through it.
        self.walks.none(|| unsafe {
            let mut freer = self.store(&alone).freer();
            // What was claimed while it was set aside: nobody is at work on it any more.
            self.map.collect_aside(|word| match word {
                PageState::Loading(0, _) => self.forget(&mut freer, PageState::Zero),
                PageState::Loading(entry, _) => self.forget(&mut freer, PageState::Swapped(entry)),
                _ => {}
            });
            self.map.collect();
        });
        // Before the lock: whoever waits for it to serve a fault by copying, as in a fork, finds that there is no need.
        self.resume();
        drop(alone);
    }

    /// Drops what forked descendants that are gone had of this process's swap files. Whether there was anything to do; `false`
    /// also while the program forks.
    pub fn release_dead(&self, run: &Segment) -> bool {
        let Some(operation) = self.enter() else { return false };
        operation.store().release_dead(run.image(self.proc()), &mut |image| run.is_alive(image))
    }

    /// What the store does when there is time; not while the program forks.
    pub fn maintain(&self) {
        let Some(operation) = self.enter() else { return };
        operation.store().maintain();
        self.publish_own();
    }
}
