//! Accessed bits (Linux 7.3): the kernel tells which pages were accessed, and lowtide evicts others first. Used where the kernel
//! has them and the environment says so: docs/design/reclaim.md says why they are not used without being asked for.

use crate::error::Failure;
use lowtide_pager::sys::uffd::{ACCESSED_BITS, NEEDED_FEATURES};

/// `on`: they are used. Empty, unset or `off`: they are not.
const VARIABLE: &str = "LOWTIDE_ACCESSED_BITS";

/// Whether a kernel with these features of userfaultfd has them.
pub fn are_in(features: u64) -> bool {
    features & ACCESSED_BITS == ACCESSED_BITS
}

/// What the processes of a run ask of userfaultfd.
#[derive(Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The features.
    pub features: u64,
    /// Why that is less than what the environment says.
    pub warning: Option<String>,
}

/// What is asked of userfaultfd where the kernel knows these features; the error says what the environment has wrong.
pub fn wanted(features: u64) -> Result<Wanted, Failure> {
    let text = std::env::var_os(VARIABLE).unwrap_or_default();
    read(&text.to_string_lossy(), features).map_err(Failure::usage)
}

fn read(text: &str, features: u64) -> Result<Wanted, String> {
    match text {
        "" | "off" => Ok(Wanted { features: NEEDED_FEATURES, warning: None }),
        "on" if are_in(features) => Ok(Wanted { features: NEEDED_FEATURES | ACCESSED_BITS, warning: None }),
        "on" => {
            let warning = format!("{VARIABLE}=on changes nothing: this kernel has no accessed bits, Linux 7.3 or later has");
            Ok(Wanted { features: NEEDED_FEATURES, warning: Some(warning) })
        }
        other => Err(format!("{VARIABLE}={other}: use on or off, or unset it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_asked_for_where_the_kernel_has_both_and_the_user_wants_them() {
        let all = NEEDED_FEATURES | ACCESSED_BITS;
        let half = all & !(1 << 18);
        for (text, features, wanted, warns) in [
            ("on", all, all, false),
            ("on", NEEDED_FEATURES, NEEDED_FEATURES, true),
            ("on", half, NEEDED_FEATURES, true),
            ("", all, NEEDED_FEATURES, false),
            ("off", all, NEEDED_FEATURES, false),
        ] {
            let read = read(text, features).unwrap();
            assert_eq!((read.features, read.warning.is_some()), (wanted, warns), "{text} {features:x}");
        }
        assert!(read("yes", all).is_err_and(|why| why.contains("LOWTIDE_ACCESSED_BITS=yes") && why.contains("on or off")));
    }
}
