//! In place of `lab.rs`, in all that is shipped: no lock is counted.

pub(super) struct Acquisitions;

impl Acquisitions {
    pub(super) const fn new() -> Acquisitions {
        Acquisitions
    }

    /// # Safety
    /// None is needed: it does nothing.
    #[inline(always)]
    pub(super) unsafe fn count(&self, _rank: u8) {}
}
