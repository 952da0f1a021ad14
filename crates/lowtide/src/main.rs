//! `lowtide`: swap in user space, for one program.
//!
//! `run` reads its options into a [`plan`], asks the kernel what it can do ([`probe`]), makes the memory that all processes of
//! the run share ([`shared`]), starts the program with the agent preloaded ([`launch`]) and stays with it ([`supervise`]), also to be
//! asked and told things ([`control`], [`live`]). The other commands do that ([`client`], [`top`]).

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
mod own_threads;
mod peer;
mod plan;
mod privilege;
mod probe;
mod program;
mod run;
mod shared;
mod signals;
mod stats;
mod stats_file;
mod supervise;
mod swap_file;
mod swap_name;
mod swap_place;
mod swap_spec;
mod top;
mod tree;

use crate::args::Command;
use crate::error::{Failure, say};
use clap::CommandFactory;
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
            Command::Limit { pid, size, no_wait } => client::change::limit(pid, &size, !no_wait),
            Command::Reclaim { pid, size } => client::change::reclaim(pid, &size),
            Command::Swapon { pid, spec } => client::change::swapon(pid, &spec),
            Command::Swapoff { pid, spec } => client::swapoff::swapoff(pid, &spec),
            Command::Doctor => Ok(doctor::doctor()),
            Command::Man { command } => man(command.as_deref()),
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

/// Prints the manual page of lowtide, or of one of its commands.
fn man(command: Option<&str>) -> Result<u8, Failure> {
    let mut cli = args::Cli::command();
    cli.build();
    let page = match command {
        None => cli,
        Some(name) => match cli.find_subcommand(name) {
            Some(found) => found.clone(),
            None => return Err(Failure::usage(format!("`{name}` is not a command of lowtide; see `lowtide --help`"))),
        },
    };
    let _ = clap_mangen::Man::new(page).render(&mut std::io::stdout());
    Ok(0)
}
