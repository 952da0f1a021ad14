//! A real parallel build under `lowtide run`: the project that is built (`project.rs`), and one build of it (`run.rs`).

mod project;
mod run;

pub use project::Project;
pub use run::{Builder, Built, Variant};
