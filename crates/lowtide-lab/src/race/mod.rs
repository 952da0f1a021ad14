//! lowtide against the kernel's swap: what both of them run, and the kernel's side of it, which is taken down again whatever happens.

mod kernel;
mod load;
mod restore;

pub use kernel::{Kernel, Swap};
pub use load::{Load, Times};

use std::process::ExitCode;

/// What this program does when it is started by an experiment; `None` when a user started it.
pub fn helper() -> Option<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first()?.as_str() {
        load::NAME => Some(load::main(&args[1..])),
        restore::NAME => Some(restore::main(&args[1..])),
        _ => None,
    }
}
