//! What the settings may be, with the feature `lab`.

use super::{FOLIOS, SLOTS, SlotSetting};
use lowtide_core::slot::{MAX_ORDER, Policy};
use lowtide_wire::segment;

/// The baseline, unknown to [`Policy`]: one lock for the whole area.
const AREA_LOCK: &str = "area-lock";

pub(super) fn read(slots: Option<String>, folios: Option<String>) -> Result<SlotSetting, String> {
    let order = |text: String| {
        let order = text.parse().ok().filter(|order| *order <= MAX_ORDER);
        order.ok_or_else(|| format!("{FOLIOS}={text}: use an order from 0 (4 KiB) to {MAX_ORDER} (2 MiB), or unset it"))
    };
    Ok(SlotSetting {
        slots: slots.map_or(Ok(SlotSetting::USUAL.slots), |name| slots_of(&name))?,
        folio_order: folios.map_or(Ok(SlotSetting::USUAL.folio_order), order)?,
    })
}

fn slots_of(name: &str) -> Result<u32, String> {
    if name == AREA_LOCK {
        return Ok(segment::SLOTS_AREA_LOCK);
    }
    let names = Policy::ALL.map(Policy::name).join(", ");
    let known = Policy::ALL.iter().position(|policy| policy.name() == name).map(|at| at as u32 + 1);
    known.ok_or_else(|| format!("{SLOTS}={name}: there is no such policy; use {names} or {AREA_LOCK}, or unset it"))
}
