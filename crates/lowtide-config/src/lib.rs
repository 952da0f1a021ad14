//! Syntax and defaults of limits, swap places and codecs, for `lowtide run`, regions, C and Python;
//! and outside views of processes, [`proc`] and a [`sampler`], for the command, the lab and the
//! tests.
//!
//! Errors are texts that say what is wrong and what to do; the caller prepends the option's name.

pub mod codec;
pub mod place;
pub mod proc;
pub mod ram;
pub mod sampler;
pub mod server;
pub mod size;
pub mod spec;

/// A system error's text without its number: `no such file or directory`.
pub fn reason(error: impl std::fmt::Display) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}
