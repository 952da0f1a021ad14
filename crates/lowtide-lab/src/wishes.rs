//! The user's options of a race.

use crate::race::Swap;

/// `None` and empty lists: the defaults.
#[derive(Debug, Clone, Default)]
pub struct Wishes {
    pub swap: Option<Swap>,
    /// The limit in percent of a load's native memory.
    pub percent: Option<u64>,
    /// Names of loads.
    pub only: Vec<String>,
    pub rounds: Option<usize>,
    /// lowtide runs with its default options, whatever the kernel swaps to.
    pub plain: bool,
    /// Burning programs.
    pub burners: Option<usize>,
    /// Thread counts.
    pub threads: Vec<usize>,
}
