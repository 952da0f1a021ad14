//! `lowtide`: swap in user space, for one program.
//!
//! `run` reads its options into a [`plan`], asks the kernel what it can do ([`probe`]), makes the memory that all processes of
//! the run share ([`shared`]), starts the program with the agent preloaded ([`launch`]) and stays with it ([`supervise`]), also
//! to be asked and told things ([`control`], [`live`]). The other commands do that ([`client`], [`top`]).

mod ancestry;
mod args;
mod broker;
mod client;
mod confinement;
mod control;
mod doctor;
mod elf;
mod error;
mod launch;
mod live;
mod machine;
mod metrics;
mod output_file;
mod own_threads;
mod pages;
mod peer;
mod plan;
mod privilege;
mod probe;
mod program;
mod report;
mod run;
mod series;
mod shared;
mod signals;
mod slot_setting;
mod stats;
mod supervise;
mod swap_file;
mod swap_name;
mod swap_place;
mod swap_spec;
mod top;
mod tree;

use crate::args::Command;
use crate::error::say;
use lowtide::size;
use std::process::ExitCode;

fn main() -> ExitCode {
    privilege::keep();
    let args: Vec<_> = std::env::args_os().collect();
    let done = match args::parse(&args) {
        Err(None) => Ok(0),
        Err(Some(failure)) => Err(failure),
        Ok(cli) => match cli.command {
            Command::Run(args) => run::run(*args),
            Command::Ps => client::ps(),
            Command::Stat(args) => client::stat(&args),
            Command::Top { pid } => top::top(pid),
            Command::Metrics { pid } => client::metrics(pid),
            Command::Limit { pid, size, no_wait } => client::change::limit(pid, &size, !no_wait),
            Command::Reclaim { pid, size } => client::change::reclaim(pid, &size),
            Command::Swapon { pid, spec } => client::change::swapon(pid, &spec),
            Command::Swapoff { pid, spec } => client::swapoff::swapoff(pid, &spec),
            Command::Doctor => Ok(doctor::doctor()),
            Command::Man { all: Some(dir), .. } => pages::man_pages(&dir),
            Command::Man { command, all: None } => pages::man(command.as_deref()),
            Command::Completions { shell } => Ok(pages::completions(shell)),
        },
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            say(&failure.line);
            ExitCode::from(failure.code)
        }
    }
}
