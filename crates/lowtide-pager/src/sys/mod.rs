//! Wrappers of the kernel and of `lowtide run`, independent of paging.

pub mod broker;
pub mod call_filter;
pub mod clock;
pub mod cpus;
mod line;
pub mod maps;
pub mod present;
mod range;
pub mod release;
pub mod rss;
pub(crate) mod stack;
pub mod stat;
pub mod uffd;

pub use line::Line;
pub use range::Range;
