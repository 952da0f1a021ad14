//! Whether writes to pages that forks have left shared wait for room (the pager's `fork/protect.rs`): an experiment, which only
//! the environment turns on. docs/design/faults.md says what is left to do.

use crate::error::Failure;

/// `on`: they do. Empty, unset or `off`: they don't.
const VARIABLE: &str = "LOWTIDE_WATCH_COPIES";

/// What the environment says; the error says what it has wrong.
pub fn is_wanted() -> Result<bool, Failure> {
    let text = std::env::var_os(VARIABLE).unwrap_or_default();
    read(&text.to_string_lossy()).map_err(Failure::usage)
}

fn read(text: &str) -> Result<bool, String> {
    match text {
        "" | "off" => Ok(false),
        "on" => Ok(true),
        other => Err(format!("{VARIABLE}={other}: use on or off, or unset it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_off_unless_the_user_wants_it() {
        assert_eq!(["", "off", "on"].map(|text| read(text).unwrap()), [false, false, true]);
        assert!(read("yes").is_err_and(|why| why.contains("LOWTIDE_WATCH_COPIES=yes") && why.contains("on or off")));
    }
}
