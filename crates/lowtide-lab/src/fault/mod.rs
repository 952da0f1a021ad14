//! The cost of a page fault: by a plain userfaultfd with a stamp at each boundary, and to a program
//! under `lowtide run`.

pub mod by_bpf;
pub mod counts;
pub mod install;
pub mod plain;
pub mod program;
mod signal;
pub mod under_lowtide;

use std::process::ExitCode;

/// Runs the helper if the arguments name one.
pub fn helper() -> Option<ExitCode> {
    let args: Vec<String> = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    (args.first()? == program::NAME).then(|| program::main(&args[1..]))
}
