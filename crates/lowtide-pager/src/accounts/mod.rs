//! RAM accounting: the run's budget, shares of shared memory, and the pool's part.

pub(crate) mod budget;
mod expected;
mod measuring;
pub mod pool_share;
pub mod pool_trial;
mod share;
mod stuck;

use core::sync::atomic::{AtomicPtr, AtomicUsize};

use alloc::sync::Arc;

use lowtide_wire::segment::Proc;

pub use budget::{RamBudget, is_worth_registering};
pub use expected::Expected;
pub use measuring::Measuring;
pub use share::{Look, Now, Share, rest_after_look};
pub use stuck::Stuck;

pub(crate) struct Accounts {
    /// RAM budget; staging and store count their memory in it.
    pub(crate) budget: Arc<RamBudget>,
    pub(crate) proc: AtomicPtr<Proc>,
    /// See [`crate::pager::Pager::measure_rest`].
    pub(crate) rest: AtomicUsize,
    /// See [`crate::pager::Pager::owns`].
    pub(crate) own: [AtomicUsize; 2],
}

impl Accounts {
    pub(crate) fn new(budget: Arc<RamBudget>, proc: &'static Proc) -> Accounts {
        Accounts {
            budget,
            proc: AtomicPtr::new(core::ptr::from_ref(proc).cast_mut()),
            rest: AtomicUsize::new(0),
            own: [AtomicUsize::new(0), AtomicUsize::new(usize::MAX)],
        }
    }
}
