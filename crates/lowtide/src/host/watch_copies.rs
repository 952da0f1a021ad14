//! Whether writes to pages that forks have left shared wait for room (the pager's `fork/protect.rs`): they do, unless the
//! environment says otherwise.

use crate::error::Failure;

/// `off`: they don't. Empty, unset or `on`: they do.
const VARIABLE: &str = "LOWTIDE_WATCH_COPIES";

/// What the environment says; the error says what it has wrong.
pub fn is_wanted() -> Result<bool, Failure> {
    let text = std::env::var_os(VARIABLE).unwrap_or_default();
    read(&text.to_string_lossy()).map_err(Failure::usage)
}

fn read(text: &str) -> Result<bool, String> {
    match text {
        "" | "on" => Ok(true),
        "off" => Ok(false),
        other => Err(format!("{VARIABLE}={other}: use on or off, or unset it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_on_unless_the_user_wants_it_off() {
        assert_eq!(["", "off", "on"].map(|text| read(text).unwrap()), [true, false, true]);
        assert!(read("yes").is_err_and(|why| why.contains("LOWTIDE_WATCH_COPIES=yes") && why.contains("on or off")));
    }
}
