//! lowtide against the kernel's swap: the loads of both, and the kernel's side, which is taken down
//! again whatever happens.

mod balance;
mod content;
mod dump;
mod fnv;
mod kernel;
mod loads;
mod lowtide;
mod match_up;
mod real;
mod redis;
mod region_load;
mod regions;
mod restore;
mod run;
mod site;
mod synthetic;
mod tails;
mod zipf;

pub use content::{Content, RECORDS, WORDS};
pub use dump::dump;
pub use kernel::Swap;
pub use loads::{chosen, missing, names};
pub use lowtide::program as lowtide_program;
pub use match_up::{Course, Match, Race, Shown};
pub use real::{MARIADB, MARIADB_NEEDS};
pub use region_load::Order;
pub use regions::{SIDES, Touched};
pub use run::{Task, own_seconds, run};
pub use site::Site;
pub use tails::SHARES;

use std::process::ExitCode;

/// Runs the helper if the arguments name one.
pub fn helper() -> Option<ExitCode> {
    let args: Vec<String> = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    match args.first()?.as_str() {
        synthetic::NAME => Some(synthetic::main(&args[1..])),
        region_load::NAME => Some(region_load::main(&args[1..])),
        restore::NAME => Some(restore::main(&args[1..])),
        _ => None,
    }
}
