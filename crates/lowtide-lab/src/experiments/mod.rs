//! The experiments, one a file.

mod disk;
mod frames;
mod frames_drain;
mod pool;
mod slots_fragmentation;
mod slots_locks;
mod thp_model;

use crate::experiment::Experiment;

const EXPERIMENTS: &[Experiment] = &[
    slots_locks::EXPERIMENT,
    slots_fragmentation::EXPERIMENT,
    thp_model::EXPERIMENT,
    frames::EXPERIMENT,
    frames_drain::EXPERIMENT,
    pool::EXPERIMENT,
    disk::EXPERIMENT,
];

/// Runs them all.
const ALL: &str = "all";

/// What can be asked for.
pub fn choices() -> impl Iterator<Item = &'static str> {
    EXPERIMENTS.iter().map(|e| e.name).chain([ALL])
}

/// The experiments behind one of the [`choices`].
pub fn named(name: &str) -> Vec<&'static Experiment> {
    EXPERIMENTS.iter().filter(|e| name == ALL || e.name == name).collect()
}
