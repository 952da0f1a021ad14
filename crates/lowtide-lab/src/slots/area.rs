//! lowtide's own areas.

use lowtide_core::lock::rank;
use lowtide_core::slot::{Area, AreaConfig, Policy};

use super::{Searched, Slots, Taken};

/// An area of `slots` slots without a device behind it.
///
/// # Errors
/// A line: why there is none.
pub fn area(slots: u64, policy: Policy) -> Result<Area, String> {
    let config = AreaConfig { slots, allocator: policy.into(), ..AreaConfig::default() };
    Area::new(None, config).map_err(|e| format!("no area of {slots} slots: {e}"))
}

impl Slots for Area {
    const SHARED: u8 = rank::LISTS;
    const LOCAL: u8 = rank::CLUSTER;

    #[inline]
    fn alloc(&self, order: u32) -> Option<u64> {
        Area::alloc(self, order)
    }

    #[inline]
    fn free(&self, first: u64, n: u64) {
        let freed = self.free_run(first, n);
        assert!(freed.is_ok(), "{n} slots from {first} on: {freed:?}");
    }

    fn has_free_run(&self, order: u32) -> bool {
        Area::has_free_run(self, order)
    }

    fn taken(&self) -> Taken {
        let (local, shared) = self.lock_acquisitions();
        Taken { shared, local }
    }

    fn searched(&self) -> Searched {
        let stats = self.search_stats();
        Searched { searches: stats.searches, opened: stats.opened }
    }
}
