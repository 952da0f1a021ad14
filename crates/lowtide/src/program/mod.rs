//! The program to run: [`find`](find()) looks it up as a shell would and refuses those that can't
//! get the agent, judged from the file by `elf.rs`.

pub mod elf;
mod find;

pub use find::{Entry, Program, find};
