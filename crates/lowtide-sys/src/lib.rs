//! The kernel's interfaces that lowtide is built on: userfaultfd, page maps, mappings, clocks.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod clock;
pub mod cpus;
mod line;
pub mod maps;
pub mod present;
mod range;
pub mod release;
pub mod rss;
#[cfg(test)]
#[path = "../../../tests/skipped.rs"]
mod skipped;
pub mod stack;
pub mod stat;
pub mod uffd;

pub use line::Line;
pub use range::Range;
