//! Environment switches: variables that are `on`, `off`, or unset.

use crate::error::Failure;

/// None: empty or unset. The error says what is wrong in the environment.
pub fn read(variable: &str) -> Result<Option<bool>, Failure> {
    let text = std::env::var_os(variable).unwrap_or_default();
    parse(variable, &text.to_string_lossy()).map_err(Failure::usage)
}

fn parse(variable: &str, text: &str) -> Result<Option<bool>, String> {
    match text {
        "" => Ok(None),
        "on" => Ok(Some(true)),
        "off" => Ok(Some(false)),
        other => Err(format!("{variable}={other}: use on or off, or unset it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_off_or_neither() {
        assert_eq!(["", "off", "on"].map(|text| parse("X", text).unwrap()), [None, Some(false), Some(true)]);
        assert!(parse("X", "yes").is_err_and(|why| why.contains("X=yes") && why.contains("on or off")));
    }
}
