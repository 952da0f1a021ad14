//! Pages that stay in memory for a moment: the kernel writes there while a thread serves its own
//! fault.

use core::sync::atomic::{Ordering, fence};

use arrayvec::ArrayVec;
use lowtide_core::vm;

use crate::pagemap::ids::PageNo;
use crate::pager::Pager;
use crate::pages::Worker;

/// One for each worker.
pub(crate) const MOST_KEPT: usize = 32;

impl Pager {
    /// Calls `f` while the page at `addr` stays in memory: the kernel writes to it at any moment
    /// (`struct rseq`), and a fault there would wait under lowtide's locks. The caller holds no
    /// lock.
    ///
    /// # Safety
    /// The eight bytes at `addr` can be written, and all other writes there are by this thread.
    pub unsafe fn keeping<R>(&self, addr: usize, worker: &mut Worker, f: impl FnOnce(&mut Worker) -> R) -> R {
        let kept = &self.mappings.kept[worker.number() % MOST_KEPT];
        kept.store(PageNo::of(addr).raw(), Ordering::Relaxed);
        // SeqCst: pairs with the one in `see_held`, as in `hold`.
        fence(Ordering::SeqCst);
        self.pages.space.outlast_exclusive();
        // SAFETY: as the caller says.
        unsafe { vm::write_nothing(addr) };
        let result = f(worker);
        kept.store(0, Ordering::Release);
        result
    }

    /// After [`Pager::see_held`]: the pages that are kept now.
    pub(crate) fn kept(&self) -> ArrayVec<PageNo, MOST_KEPT> {
        self.mappings
            .kept
            .iter()
            .map(|page| page.load(Ordering::Relaxed))
            .filter(|page| *page != 0)
            .map(|page| PageNo::new(page as usize))
            .collect()
    }
}
