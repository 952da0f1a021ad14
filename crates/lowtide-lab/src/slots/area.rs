//! lowtide's own areas.

use lowtide_core::device::{Device, NoDevice};
use lowtide_core::lock::rank;
use lowtide_core::slot::Area;

use super::{Searched, Slots, Taken};

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Policy {
    ScanAll,
    ScanOne,
    Bucketed,
    Exact,
}
impl Policy {
    pub const ALL: [Policy; 4] = [Policy::ScanAll, Policy::ScanOne, Policy::Bucketed, Policy::Exact];
    pub fn name(self) -> &'static str {
        ["scan-all", "scan-one", "bucketed", "exact"][self as usize]
    }
}
pub trait Shim {
    fn table_bytes(&self) -> usize {
        0
    }
    fn validate(&self) -> Result<(), String> {
        Ok(())
    }
}
impl Shim for Area {}
pub fn area(slots: u64, _: Policy) -> Result<Area, String> {
    Area::new(slots, Device::None(NoDevice), false, None).map_err(|e| format!("no area of {slots} slots: {e}"))
}

impl Slots for Area {
    const SHARED: u8 = rank::LISTS;
    const LOCAL: u8 = rank::CLUSTER;

    fn alloc(&self, order: u32) -> Option<u64> {
        Area::alloc(self, order)
    }

    fn free(&self, first: u64, n: u64) {
        for s in first..first + n {
            self.release(s);
        }
    }

    fn has_free_run(&self, _order: u32) -> bool {
        false
    }

    fn taken(&self) -> Taken {
        Taken::default()
    }

    fn searched(&self) -> Searched {
        Searched::default()
    }
}
