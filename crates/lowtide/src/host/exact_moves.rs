//! Whether lowtide makes memory moves for threads of programs without hooks, to keep their order:
//! if the kernel supports it and the environment does not say otherwise.

use crate::error::Failure;
use crate::host::switch;
use lowtide_pager::sys::call_filter;

/// Off: threads make their own calls. Default: on.
const VARIABLE: &str = "LOWTIDE_EXACT_MOVES";

#[derive(Debug, PartialEq, Eq)]
pub struct Wanted {
    pub are_made: bool,
    /// Why the environment's wish is not fulfilled.
    pub warning: Option<String>,
}

/// The decision for this machine; the error says what is wrong in the environment.
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
