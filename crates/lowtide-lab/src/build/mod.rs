//! Whole runs by allocators (`run.rs`): a build of a project (`project.rs`), or any command.

mod project;
mod run;

pub use project::Project;
pub use run::{Ran, Runner, Variant};
