//! The pages of the process: the page map, staging and the store; the space lock and operations,
//! which are the rights to change them; and the workers that do.

pub(crate) mod install;
mod operation;
pub(crate) mod patience;
pub(crate) mod space;
pub(crate) mod staging;
mod transitions;
pub(crate) mod worker;

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

use lowtide_core::store::Store;
use rustix::io::Errno;

use crate::pagemap::PageMap;
use crate::pages::space::SpaceLock;
use crate::pages::staging::Staging;

pub use operation::Operation;
pub use patience::{IN_HAND_SECONDS, Patience};
pub use worker::{Fault, Rights, Worker};

pub(crate) struct Pages {
    pub(crate) space: SpaceLock,
    pub(crate) map: PageMap,
    pub(crate) staging: Staging,
    /// Pages beyond staging. Reached through [`Operation::store`] and [`Pager::store`].
    ///
    /// [`Pager::store`]: crate::pager::Pager::store
    store: Store,
    pub(crate) operations: AtomicU32,
    /// Evicted zero pages.
    pub(crate) zero_now: AtomicU64,
    /// Pages on their way into staging.
    pub(crate) moving: AtomicUsize,
    /// Pages brought in; wraps.
    pub(crate) arrived: AtomicUsize,
}

impl Pages {
    pub(crate) fn new(staging: Staging, store: Store) -> Result<Pages, Errno> {
        Ok(Pages {
            space: SpaceLock::new(),
            map: PageMap::new()?,
            staging,
            store,
            operations: AtomicU32::new(0),
            zero_now: AtomicU64::new(0),
            moving: AtomicUsize::new(0),
            arrived: AtomicUsize::new(0),
        })
    }

    /// To read figures. Changes need [`Operation::store`] or [`Pager::store`].
    ///
    /// [`Pager::store`]: crate::pager::Pager::store
    pub(crate) fn store_to_read(&self) -> &Store {
        &self.store
    }
}
