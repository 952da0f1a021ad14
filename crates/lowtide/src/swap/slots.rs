//! Settings that no option and no page of the manual names: how swap files' slots are found, for `lowtide-lab build`, which
//! measures what an allocator is worth in a whole run.

use crate::error::Failure;
use lowtide_core::slot::{MAX_ORDER, Policy};
use lowtide_pager::segment;
use std::ffi::OsString;

/// Names a policy, or the baseline.
const SLOTS: &str = "LOWTIDE_SLOTS";
/// The order of the largest folio: 0 is 4 KiB only, 4 is 64 KiB.
const FOLIOS: &str = "LOWTIDE_FOLIOS";
/// What [`Policy`] does not know: one lock for the whole area.
const AREA_LOCK: &str = "area-lock";

/// How slots are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotSetting {
    /// As [`segment::Settings::slots`].
    pub slots: u32,
    /// As [`segment::Settings::folio_order`].
    pub folio_order: u32,
}

impl SlotSetting {
    /// What the environment says, or what is good for everybody.
    pub fn from_env() -> Result<SlotSetting, Failure> {
        let given = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Self::read(given(SLOTS), given(FOLIOS)).map_err(Failure::usage)
    }

    fn read(slots: Option<OsString>, folios: Option<OsString>) -> Result<SlotSetting, String> {
        let text = |value: Option<OsString>| value.map(|value| value.to_string_lossy().into_owned());
        let slots = text(slots).map_or_else(|| Ok(place(Policy::default())), |name| slots_of(&name))?;
        let order = |text: String| {
            let order = text.parse().ok().filter(|order| *order <= MAX_ORDER);
            order.ok_or_else(|| format!("{FOLIOS}={text}: use an order from 0 (4 KiB) to {MAX_ORDER} (2 MiB), or unset it"))
        };
        Ok(SlotSetting { slots, folio_order: text(folios).map_or(Ok(MAX_ORDER), order)? })
    }
}

fn slots_of(name: &str) -> Result<u32, String> {
    if name == AREA_LOCK {
        let line = "is not in this binary: build it with `cargo build --release -p lowtide --features baselines`";
        return if cfg!(feature = "baselines") { Ok(segment::SLOTS_AREA_LOCK) } else { Err(format!("{SLOTS}={name} {line}")) };
    }
    let names = Policy::ALL.map(Policy::name).join(", ");
    let known = Policy::named(name).map(place);
    known.ok_or_else(|| format!("{SLOTS}={name}: there is no such policy; use {names} or {AREA_LOCK}, or unset it"))
}

fn place(policy: Policy) -> u32 {
    Policy::ALL.iter().position(|other| *other == policy).map_or(0, |at| at as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_what_everybody_gets() {
        let usual = SlotSetting::read(None, None).unwrap();
        assert_eq!((Policy::ALL[usual.slots as usize], usual.folio_order), (Policy::default(), MAX_ORDER));
        for policy in Policy::ALL {
            let chosen = SlotSetting::read(Some(policy.name().into()), Some("4".into())).unwrap();
            assert_eq!((Policy::ALL[chosen.slots as usize], chosen.folio_order), (policy, 4));
        }
    }
}
