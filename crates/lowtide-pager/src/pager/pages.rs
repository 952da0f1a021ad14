//! State of pages.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

use lowtide_core::store::Store;
use rustix::io::Errno;

use crate::mappings::space::SpaceLock;
use crate::pagemap::PageMap;
use crate::reclaim::staging::Staging;

pub(crate) struct Pages {
    pub(crate) space: SpaceLock,
    pub(crate) map: PageMap,
    pub(crate) staging: Staging,
    /// Pages beyond staging. Reached through [`super::Operation::store`] and
    /// [`super::Pager::store`].
    pub(super) store: Store,
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
}
