//! The program to run: [`find`](find()) looks it up as a shell would and refuses what the agent can't be preloaded into, which
//! `elf.rs` tells from the file.

pub mod elf;
mod find;

pub use find::{Entry, Program, find};
