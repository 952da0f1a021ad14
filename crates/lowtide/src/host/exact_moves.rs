//! Moves of memory that lowtide makes for threads of programs without hooks, so that they are in order: where the kernel lets it,
//! and the environment does not say otherwise.

use crate::error::Failure;
use lowtide_pager::sys::call_filter;

/// Empty, unset or `on`: they are made. `off`: threads make their own calls.
const VARIABLE: &str = "LOWTIDE_EXACT_MOVES";

/// What the processes of a run do.
#[derive(Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Agents make moves.
    pub are_made: bool,
    /// Why that is less than what the environment says.
    pub warning: Option<String>,
}

/// What is done on this machine; the error says what the environment has wrong.
pub fn wanted() -> Result<Wanted, Failure> {
    let text = std::env::var_os(VARIABLE).unwrap_or_default();
    read(&text.to_string_lossy(), call_filter::can_tell_moves()).map_err(Failure::usage)
}

fn read(text: &str, can_be: bool) -> Result<Wanted, String> {
    match text {
        "" => Ok(Wanted { are_made: can_be, warning: None }),
        "off" => Ok(Wanted { are_made: false, warning: None }),
        "on" => {
            let why = || format!("{VARIABLE}=on changes nothing: it takes Linux 6.18, 6.17.3 or 6.12.53");
            Ok(Wanted { are_made: can_be, warning: (!can_be).then(why) })
        }
        other => Err(format!("{VARIABLE}={other}: use on or off, or unset it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_made_where_they_can_be_unless_the_user_says_otherwise() {
        let cases = [
            ("on", true, true, false),
            ("on", false, false, true),
            ("", true, true, false),
            ("", false, false, false),
            ("off", true, false, false),
        ];
        for (text, can_be, are_made, warns) in cases {
            let read = read(text, can_be).unwrap();
            assert_eq!((read.are_made, read.warning.is_some()), (are_made, warns), "{text} {can_be}");
        }
        assert!(read("yes", true).is_err_and(|why| why.contains("LOWTIDE_EXACT_MOVES=yes") && why.contains("on or off")));
    }
}
