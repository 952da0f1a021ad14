//! In place of `lab.rs`, in all that is shipped: folios have no limit but their largest order.

#[derive(Debug)]
pub(super) struct LargestFolio;

impl LargestFolio {
    pub(super) fn new() -> LargestFolio {
        LargestFolio
    }

    #[inline(always)]
    pub(super) fn limit(&self, pages: usize) -> usize {
        pages
    }
}
