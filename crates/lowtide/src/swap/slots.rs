//! Undocumented environment settings of the slot allocator, for `lowtide-lab build`, which measures
//! allocators in whole runs. Refused without the feature `lab`.

use crate::error::Failure;
use lowtide_core::slot::MAX_ORDER;
#[cfg(feature = "lab")]
use lowtide_core::slot::Policy;
#[cfg(feature = "lab")]
use lowtide_pager::segment;

/// Names a policy, or the baseline.
const SLOTS: &str = "LOWTIDE_SLOTS";
/// The order of the largest folio: 0 is 4 KiB only, 4 is 64 KiB.
const FOLIOS: &str = "LOWTIDE_FOLIOS";
/// The baseline, unknown to [`Policy`]: one lock for the whole area.
#[cfg(feature = "lab")]
const AREA_LOCK: &str = "area-lock";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotSetting {
    /// See [`lowtide_pager::segment::Settings::slots`].
    pub slots: u32,
    /// See [`lowtide_pager::segment::Settings::folio_order`].
    pub folio_order: u32,
}

impl SlotSetting {
    const USUAL: SlotSetting = SlotSetting { slots: 0, folio_order: MAX_ORDER };

    pub fn from_env() -> Result<SlotSetting, Failure> {
        let given = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let given = |name| given(name).filter(|value| !value.is_empty());
        Self::read(given(SLOTS), given(FOLIOS)).map_err(Failure::usage)
    }

    #[cfg(not(feature = "lab"))]
    fn read(slots: Option<String>, folios: Option<String>) -> Result<SlotSetting, String> {
        let given = [(SLOTS, slots), (FOLIOS, folios)].into_iter().find_map(|(name, value)| Some((name, value?)));
        let how = "is not in this binary: build it with `cargo build --release -p lowtide --features lab`, or unset it";
        given.map_or(Ok(SlotSetting::USUAL), |(name, value)| Err(format!("{name}={value} {how}")))
    }

    #[cfg(feature = "lab")]
    fn read(slots: Option<String>, folios: Option<String>) -> Result<SlotSetting, String> {
        let order = |text: String| {
            let order = text.parse().ok().filter(|order| *order <= MAX_ORDER);
            order.ok_or_else(|| format!("{FOLIOS}={text}: use an order from 0 (4 KiB) to {MAX_ORDER} (2 MiB), or unset it"))
        };
        Ok(SlotSetting {
            slots: slots.map_or(Ok(SlotSetting::USUAL.slots), |name| slots_of(&name))?,
            folio_order: folios.map_or(Ok(SlotSetting::USUAL.folio_order), order)?,
        })
    }
}

#[cfg(feature = "lab")]
fn slots_of(name: &str) -> Result<u32, String> {
    if name == AREA_LOCK {
        return Ok(segment::SLOTS_AREA_LOCK);
    }
    let names = Policy::ALL.map(Policy::name).join(", ");
    let known = Policy::ALL.iter().position(|policy| policy.name() == name).map(|at| at as u32 + 1);
    known.ok_or_else(|| format!("{SLOTS}={name}: there is no such policy; use {names} or {AREA_LOCK}, or unset it"))
}
