//! Undocumented environment settings of the slot allocator, for `lowtide-lab build`, which measures
//! allocators in whole runs. Refused without the feature `lab`.

#[cfg_attr(not(feature = "lab"), path = "no_lab.rs")]
mod lab;

use crate::error::Failure;
use lowtide_core::slot::MAX_ORDER;

/// Names a policy, or the baseline.
const SLOTS: &str = "LOWTIDE_SLOTS";
/// The order of the largest folio: 0 is 4 KiB only, 4 is 64 KiB.
const FOLIOS: &str = "LOWTIDE_FOLIOS";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotSetting {
    /// See [`lowtide_wire::segment::Settings::slots`].
    pub slots: u32,
    /// See [`lowtide_wire::segment::Settings::folio_order`].
    pub folio_order: u32,
}

impl SlotSetting {
    const USUAL: SlotSetting = SlotSetting { slots: 0, folio_order: MAX_ORDER };

    pub fn from_env() -> Result<SlotSetting, Failure> {
        let given = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let given = |name| given(name).filter(|value| !value.is_empty());
        lab::read(given(SLOTS), given(FOLIOS)).map_err(Failure::usage)
    }
}
