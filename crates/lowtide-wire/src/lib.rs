//! What `lowtide run` and the agents in its processes share: the segment and the settings, requests
//! to the broker, the system call filter, and the watermarks that both act on.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod broker;
pub mod call_filter;
pub mod refault_depth;
pub mod segment;
mod watermarks;

pub use watermarks::Watermarks;
