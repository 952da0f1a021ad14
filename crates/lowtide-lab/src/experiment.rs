//! The definition of an experiment.

use crate::plot::Chart;
use crate::progress::Progress;
use crate::report::{Finding, Table};
use crate::wishes::Wishes;

/// An experiment. To add one: a file in `experiments/` and a line in the list there.
#[derive(Debug)]
pub struct Experiment {
    pub name: &'static str,
    /// One line.
    pub question: &'static str,
    /// The error says in a line what the machine could not do.
    pub run: fn(&Scale) -> Result<Outcome, String>,
}

#[derive(Debug, Clone)]
pub struct Scale {
    pub quick: bool,
    pub race: Wishes,
    pub progress: Progress,
}

impl Scale {
    /// One value for quick runs, one for full ones.
    pub fn pick<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }
}

#[derive(Debug, Default)]
pub struct Outcome {
    pub tables: Vec<Table>,
    pub findings: Vec<Finding>,
    /// Empty if there is nothing to draw.
    pub charts: Vec<Chart>,
}
