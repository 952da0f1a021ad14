//! What an experiment is.

use crate::plot::Chart;
use crate::progress::Progress;
use crate::report::{Finding, Table};
use crate::wishes::Wishes;

/// An experiment. To add one: a file in `experiments/` and a line in the list there.
#[derive(Debug)]
pub struct Experiment {
    /// What the user calls it.
    pub name: &'static str,
    /// What it asks, in a line.
    pub question: &'static str,
    /// Runs it. The error says in a line what the machine could not do.
    pub run: fn(&Scale) -> Result<Outcome, String>,
}

/// How thoroughly to measure.
#[derive(Debug, Clone)]
pub struct Scale {
    /// Smaller sizes and fewer runs.
    pub quick: bool,
    /// How the race is to be.
    pub race: Wishes,
    /// What is said of how far it is.
    pub progress: Progress,
}

impl Scale {
    /// One value for quick runs, one for full ones.
    pub fn pick<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// What an experiment found.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The figures.
    pub tables: Vec<Table>,
    /// What follows from them, with the targets.
    pub findings: Vec<Finding>,
    /// The curves; none when there is nothing to draw.
    pub charts: Vec<Chart>,
}
