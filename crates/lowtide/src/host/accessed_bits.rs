//! Accessed bits (Linux 7.3): the kernel reports which pages were accessed, and lowtide evicts
//! others first. Needs the kernel's feature and the environment's switch; docs/design/reclaim.md
//! says why they are off by default.

use crate::error::Failure;
use crate::host::switch;
use lowtide_pager::sys::uffd::{ACCESSED_BITS, NEEDED_FEATURES};

/// On: use them. Default: off.
const VARIABLE: &str = "LOWTIDE_ACCESSED_BITS";

/// Whether a kernel with these features of userfaultfd has them.
pub fn are_in(features: u64) -> bool {
    features & ACCESSED_BITS == ACCESSED_BITS
}

#[derive(Debug, PartialEq, Eq)]
pub struct Wanted {
    pub features: u64,
    /// Why the environment's wish is not fulfilled.
    pub warning: Option<String>,
}

/// The features to request of a kernel that knows `features`; the error says what is wrong in the
/// environment.
pub fn wanted(features: u64) -> Result<Wanted, Failure> {
    Ok(choose(switch::read(VARIABLE)?, features))
}

fn choose(switch: Option<bool>, features: u64) -> Wanted {
    match switch {
        None | Some(false) => Wanted { features: NEEDED_FEATURES, warning: None },
        Some(true) if are_in(features) => Wanted { features: NEEDED_FEATURES | ACCESSED_BITS, warning: None },
        Some(true) => {
            let warning = format!("{VARIABLE}=on changes nothing: this kernel has no accessed bits, Linux 7.3 or later has");
            Wanted { features: NEEDED_FEATURES, warning: Some(warning) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_asked_for_where_the_kernel_has_both_and_the_user_wants_them() {
        let all = NEEDED_FEATURES | ACCESSED_BITS;
        let half = all & !(1 << 18);
        for (switch, features, wanted, warns) in [
            (Some(true), all, all, false),
            (Some(true), NEEDED_FEATURES, NEEDED_FEATURES, true),
            (Some(true), half, NEEDED_FEATURES, true),
            (None, all, NEEDED_FEATURES, false),
            (Some(false), all, NEEDED_FEATURES, false),
        ] {
            let chosen = choose(switch, features);
            assert_eq!((chosen.features, chosen.warning.is_some()), (wanted, warns), "{switch:?} {features:x}");
        }
    }
}
