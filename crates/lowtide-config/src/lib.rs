//! How limits, swap places and codecs are written, and what they default to: the same for `lowtide run`, for regions, and for C
//! and Python. Beside that, what [`proc`] and a [`sampler`] see of processes from outside, for the command, the lab and the
//! tests.
//!
//! Errors are texts that say what is wrong and what to do; the caller puts the option's name before them.

pub mod codec;
pub mod place;
pub mod proc;
pub mod ram;
pub mod sampler;
pub mod server;
pub mod size;
pub mod spec;

/// An error of the system in words, without its number: `no such file or directory`.
pub fn reason(error: impl std::fmt::Display) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}
