//! The experiments, one a file.

mod build;
mod database;
mod density;
mod disk;
mod fault;
mod frames;
mod frames_drain;
mod hysteresis;
mod pool;
mod race;
mod recompress;
mod region;
mod remote;
mod same_filled;
mod scale;
mod slots_copies;
mod slots_fragmentation;
mod slots_locks;
mod slots_seeks;
mod swapoff;
mod thp_model;
mod zero;

pub use build::names as builds;
pub use slots_locks::names as allocators;

use crate::experiment::Experiment;

const EXPERIMENTS: &[Experiment] = &[
    slots_locks::EXPERIMENT,
    slots_fragmentation::EXPERIMENT,
    slots_copies::EXPERIMENT,
    slots_seeks::EXPERIMENT,
    thp_model::EXPERIMENT,
    frames::EXPERIMENT,
    frames_drain::EXPERIMENT,
    pool::EXPERIMENT,
    recompress::EXPERIMENT,
    zero::EXPERIMENT,
    same_filled::EXPERIMENT,
    hysteresis::EXPERIMENT,
    disk::EXPERIMENT,
    swapoff::EXPERIMENT,
];

/// Only by name: they need root, and mostly the whole machine, or a server.
const ALONE: &[Experiment] = &[
    build::EXPERIMENT,
    database::EXPERIMENT,
    density::EXPERIMENT,
    fault::EXPERIMENT,
    race::EXPERIMENT,
    region::EXPERIMENT,
    remote::EXPERIMENT,
    scale::EXPERIMENT,
];
/// The experiments that have options of their own.
pub const BUILD: &str = build::EXPERIMENT.name;
pub const DENSITY: &str = density::EXPERIMENT.name;
pub const FAULT: &str = fault::EXPERIMENT.name;
pub const COUNTS: &str = fault::COUNTS;
pub const LOCKS: &str = slots_locks::EXPERIMENT.name;
pub const RACE: &str = race::EXPERIMENT.name;
pub const REGION: &str = region::EXPERIMENT.name;

/// Runs all but [`ALONE`].
const ALL: &str = "all";

pub fn choices() -> impl Iterator<Item = &'static str> {
    EXPERIMENTS.iter().chain(ALONE).map(|e| e.name).chain([ALL])
}

pub fn named(name: &str) -> Vec<&'static Experiment> {
    match name {
        ALL => EXPERIMENTS.iter().collect(),
        _ => EXPERIMENTS.iter().chain(ALONE).filter(|e| e.name == name).collect(),
    }
}
