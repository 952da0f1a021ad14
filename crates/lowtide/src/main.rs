//! `lowtide`: swap in user space, for one program.
//!
//! `run` reads its options into a [`plan`] (with the [`program`] and the [`swap`] areas), probes
//! the kernel ([`host`]), starts the program under a [`supervisor`] and stays with it, answering
//! requests ([`control`], [`live`]); at the end come the figures ([`stats`], [`report`]). The other
//! commands send requests to a run ([`client`], [`top`]), or examine the machine
//! ([`host::doctor`]).

mod args;
mod client;
mod control;
mod error;
mod host;
mod live;
mod man_pages;
mod metrics;
mod output_file;
mod plan;
mod program;
mod remote;
mod report;
mod run;
mod signal_fd;
mod stats;
mod supervisor;
mod swap;
mod top;

use crate::args::{Command, RemoteCommand};
use crate::error::say;
use crate::host::{doctor, privilege};
use std::process::ExitCode;

/// The main thread overflows a smaller stack (`ulimit -s`).
const LEAST_STACK: u64 = 128 << 10;

fn main() -> ExitCode {
    match rustix::process::getrlimit(rustix::process::Resource::Stack).current {
        Some(stack) if stack < LEAST_STACK => {
            say(&format!("the stack is limited to {} KiB: lowtide needs 128 at least (ulimit -s 128)", stack >> 10));
            ExitCode::from(error::USAGE)
        }
        _ => command(),
    }
}

/// Keeps `main`'s frame small.
#[inline(never)]
fn command() -> ExitCode {
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
            Command::Remote { what: RemoteCommand::Clean { server } } => remote::clean(&server),
            Command::Doctor { server: None } => Ok(doctor::doctor()),
            Command::Doctor { server: Some(server) } => remote::doctor(&server),
            Command::Man { all: Some(dir), .. } => man_pages::man_pages(&dir),
            Command::Man { command, all: None } => man_pages::man(command.as_deref()),
            Command::Completions { shell } => Ok(man_pages::completions(shell)),
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
