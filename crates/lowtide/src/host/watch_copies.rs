//! Whether writes to pages that forks have left shared wait for room (the pager's `fork/protect.rs`): an experiment, which only
//! the environment turns on. docs/design/faults.md says what is left to do.

use crate::error::Failure;
use crate::host::switch;

/// Whether they do; the error says what the environment has wrong.
pub fn is_wanted() -> Result<bool, Failure> {
    Ok(switch::read("LOWTIDE_WATCH_COPIES")? == Some(true))
}
