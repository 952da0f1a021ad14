//! Moves of memory that lowtide makes for threads of programs without hooks, so that they are in order: where the kernel lets it,
//! and the environment does not say otherwise.

use crate::error::Failure;
use crate::host::switch;
use lowtide_pager::sys::call_filter;

/// Off: threads make their own calls. Otherwise they are made.
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
    Ok(choose(switch::read(VARIABLE)?, call_filter::can_tell_moves()))
}

fn choose(switch: Option<bool>, can_be: bool) -> Wanted {
    let in_vain = switch == Some(true) && !can_be;
    let why = || format!("{VARIABLE}=on changes nothing: it takes Linux 6.18, 6.17.3 or 6.12.53");
    Wanted { are_made: can_be && switch != Some(false), warning: in_vain.then(why) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_made_where_they_can_be_unless_the_user_says_otherwise() {
        let cases = [
            (Some(true), true, true, false),
            (Some(true), false, false, true),
            (None, true, true, false),
            (None, false, false, false),
            (Some(false), true, false, false),
        ];
        for (switch, can_be, are_made, warns) in cases {
            let chosen = choose(switch, can_be);
            assert_eq!((chosen.are_made, chosen.warning.is_some()), (are_made, warns), "{switch:?} {can_be}");
        }
    }
}
