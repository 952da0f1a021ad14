//! The pager's parts, and the rules for changing them.
//!
//! LOCK ORDER: space lock > hand > staging queues > locks of the store. Threads in an *operation*
//! ([`Pager::enter`]) may change words and the store; a fork stops operations, for a consistent
//! copy. Only an [`Operation`] or the exclusive space lock give access to the store (`MayChange`).
//!
//! [`Operation`]: crate::pages::Operation

mod descriptors;
mod host;
mod kernel;
mod publish;
mod register;
mod sharing;
mod upkeep;

use core::sync::atomic::Ordering;

use alloc::sync::Arc;
use lowtide_core::device::DeviceName;
use lowtide_core::ledger::Ledger;
use lowtide_core::slot::Entry;
use lowtide_core::store::Store;
use lowtide_core::vm::{self, OnFork, PAGE_SIZE};
use rustix::io::Errno;

use lowtide_sys::uffd::Uffd;
use lowtide_wire::segment::{Counters, Proc};

use crate::accounts::Accounts;
use crate::accounts::budget::RamBudget;
use crate::fault::Faults;
use crate::fault::stream::MAX_WINDOW;
use crate::fork::Forks;
use crate::mappings::Mappings;
use crate::mappings::guards::Guards;
use crate::pager::kernel::Kernel;
use crate::pages::Pages;
use crate::pages::staging::Staging;
use crate::reclaim::Reclaim;
use crate::reclaim::soft_dirty::SoftDirty;

pub use host::Host;

/// The pager of one process.
pub struct Pager {
    pub(crate) kernel: Kernel,
    pub(crate) pages: Pages,
    pub(crate) mappings: Mappings,
    pub(crate) reclaim: Reclaim,
    pub(crate) faults: Faults,
    pub(crate) forks: Forks,
    pub(crate) accounts: Accounts,
    pub(crate) host: Host,
}

impl Pager {
    /// Without registered memory, unknown to the kernel until [`Pager::activate`]. `staging`: its
    /// target in bytes.
    ///
    /// # Errors
    /// `NOMEM`, and those of opening the page map.
    pub fn new(uffd: Uffd, mut store: Store, staging: usize, proc: &'static Proc, host: Host) -> Result<Pager, Errno> {
        let budget = Arc::<RamBudget>::default();
        budget.publish_in(proc);
        let ledger: Arc<dyn Ledger> = budget.clone();
        store.count_in(&ledger);
        let staging = Staging::new(staging, ledger)?;
        let present = (host.open_page_map)()?;
        let zeros = vm::map(MAX_WINDOW * PAGE_SIZE, OnFork::Copy)?;
        let soft_dirty = SoftDirty::new(present.is_soft_dirty(zeros.addr()) == Some(true));
        Ok(Pager {
            kernel: Kernel::new(uffd, present),
            pages: Pages::new(staging, store)?,
            mappings: Mappings::new()?,
            reclaim: Reclaim::new(soft_dirty)?,
            faults: Faults::new(zeros),
            forks: Forks::new()?,
            accounts: Accounts::new(budget, proc),
            host,
        })
    }

    /// Before the first registration and the handlers' start: forks wait from here on.
    ///
    /// # Errors
    /// Those of registering staging.
    pub fn activate(&self) -> Result<(), Errno> {
        self.keep_reserve();
        self.pages.staging.register(self.uffd())
    }

    /// This process's slot in the run's segment.
    pub fn proc(&self) -> &'static Proc {
        // SAFETY: a `&'static Proc` of atomics.
        unsafe { &*self.accounts.proc.load(Ordering::Relaxed) }
    }

    /// In a forked child.
    pub(crate) fn set_proc(&self, proc: &'static Proc) {
        self.accounts.proc.store(core::ptr::from_ref(proc).cast_mut(), Ordering::Relaxed);
        self.accounts.budget.publish_in(proc);
    }

    /// The RAM budget.
    pub fn budget(&self) -> &Arc<RamBudget> {
        &self.accounts.budget
    }

    /// The program's guards.
    pub fn guards(&self) -> &Guards {
        &self.mappings.guards
    }

    /// Fault and eviction counters.
    pub fn counters(&self) -> &'static Counters {
        &self.proc().counters
    }

    /// Events read from the userfaultfd so far; wraps.
    pub fn events_read(&self) -> u64 {
        self.mappings.events_read.load(Ordering::Relaxed)
    }

    pub(crate) fn device_of(&self, entry: Entry) -> DeviceName {
        self.pages.store_to_read().device_of(entry)
    }
}
