//! Pages that stay in memory for a moment: those to which the kernel writes while a thread serves its own fault.

use core::sync::atomic::{Ordering, fence};

use arrayvec::ArrayVec;
use lowtide_core::vm;

use crate::fault::Worker;
use crate::pagemap::ids::PageNo;
use crate::pager::Pager;

/// Pages that are kept at a time, each for a worker.
pub(crate) const MOST_KEPT: usize = 32;

impl Pager {
    /// Calls `f` while the page at `addr` is in memory and stays there: the kernel writes to it at any moment (`struct rseq`), and
    /// what it misses there the thread would wait for under lowtide's locks. No lock may be held.
    ///
    /// # Safety
    /// The eight bytes at `addr` can be written, and whoever else writes there does so by this thread.
    pub unsafe fn keeping<R>(&self, addr: usize, worker: &mut Worker, f: impl FnOnce(&mut Worker) -> R) -> R {
        let kept = &self.kept[worker.number() % MOST_KEPT];
        kept.store(PageNo::of(addr).raw(), Ordering::Relaxed);
        // SeqCst: pairs with the one in `see_held`, as in `hold`.
        fence(Ordering::SeqCst);
        self.space.outlast_exclusive();
        // SAFETY: as the caller says.
        unsafe { vm::write_nothing(addr) };
        let result = f(worker);
        kept.store(0, Ordering::Release);
        result
    }

    /// After [`Pager::see_held`]: the pages that are kept just now.
    pub(crate) fn kept(&self) -> ArrayVec<PageNo, MOST_KEPT> {
        self.kept
            .iter()
            .map(|page| page.load(Ordering::Relaxed))
            .filter(|page| *page != 0)
            .map(|page| PageNo::new(page as usize))
            .collect()
    }
}
