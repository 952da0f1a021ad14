//! What the user says of a race.

use crate::race::Swap;

/// What the user says of a race; `None` and no names: as it was meant.
#[derive(Debug, Clone, Default)]
pub struct Wishes {
    /// What is swapped to.
    pub swap: Option<Swap>,
    /// The limit, of what a load takes natively.
    pub percent: Option<u64>,
    /// The names of loads.
    pub only: Vec<String>,
    /// How often each runs.
    pub rounds: Option<usize>,
    /// lowtide runs with its default options, whatever the kernel swaps to.
    pub plain: bool,
    /// How many programs burn CPU meanwhile.
    pub burners: Option<usize>,
    /// With these numbers of threads.
    pub threads: Vec<usize>,
}
