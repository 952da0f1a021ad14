//! In place of `lab.rs`, in all that is shipped: refuses each setting.

use super::{FOLIOS, SLOTS, SlotSetting};

pub(super) fn read(slots: Option<String>, folios: Option<String>) -> Result<SlotSetting, String> {
    let given = [(SLOTS, slots), (FOLIOS, folios)].into_iter().find_map(|(name, value)| Some((name, value?)));
    let how = "is not in this binary: build it with `cargo build --release -p lowtide --features lab`, or unset it";
    given.map_or(Ok(SlotSetting::USUAL), |(name, value)| Err(format!("{name}={value} {how}")))
}
