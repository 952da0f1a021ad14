//! Starts the program with the process group, terminal, signal mask, dispositions and environment
//! that it would have without lowtide, but for three variables.

use crate::error::Failure;
use crate::host::privilege;
use crate::plan::Plan;
use crate::program::Entry;
use crate::supervisor::enter::{self, Agent, Following};
use crate::supervisor::shared_memory::Shared;
use crate::supervisor::signals::Inherited;
use lowtide_config::reason;
use lowtide_remote::server::PASSWORD;
use lowtide_wire::segment::ENV_SEGMENT;
use rustix::fd::AsRawFd;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

fn no_descriptor(error: Errno) -> Failure {
    Failure::failed(format!("no descriptor can be made ({}); see `ulimit -n`", reason(error)))
}

/// Starts the program; returns its pid. `following`: the receiver of its execs if it has no hooks.
pub fn launch(plan: &Plan, shared: &Shared, inherited: Inherited, following: &mut Following) -> Result<Pid, Failure> {
    let enters = plan.entry == Entry::Exec;
    // Left open for a program that can't follow the path; its agent closes it.
    let library = if privilege::is_above_program() { Some(shared.open_library().map_err(no_descriptor)?) } else { None };
    let mut preload = OsString::from(library.as_ref().map_or(&shared.preload, |(_, entry)| entry));
    let hidden = privilege::hidden_variables();
    let old = hidden.iter().find(|(name, _)| name == "LD_PRELOAD").map(|(_, value)| value.clone());
    if let Some(old) = std::env::var_os("LD_PRELOAD").or(old).filter(|old| !old.is_empty()) {
        preload.push(":");
        preload.push(old);
    }
    let mut command = Command::new(&plan.path);
    command.arg0(&plan.argv[0]).args(&plan.argv[1..]);
    command.envs(hidden).env("LD_PRELOAD", preload).env(ENV_SEGMENT, &shared.origin);
    // The server's password must not reach the program.
    command.env_remove(PASSWORD);
    // With AddressSanitizer a child refuses to start unless its library is first, and lowtide's has
    // to be.
    let mut asan = std::env::var_os("ASAN_OPTIONS").unwrap_or_default();
    if !asan.is_empty() {
        asan.push(":");
    }
    asan.push("verify_asan_link_order=0");
    command.env("ASAN_OPTIONS", asan);
    // The agent closes these, too.
    let open = if enters && library.is_some() { Some(shared.open_files().map_err(no_descriptor)?) } else { None };
    let supervisor = getpid();
    let prepare = move || {
        // The program can't outlive the segment's owner: it dies with this process, even after
        // SIGKILL.
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != Some(supervisor) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        inherited.restore();
        if enters { enter::prepare() } else { Ok(()) }
    };
    // SAFETY: `prepare` makes async-signal-safe calls only and allocates nothing.
    unsafe { command.pre_exec(prepare) };
    let child = command.spawn().map_err(|error| {
        let line = format!("{}: can't be executed ({})", plan.path.display(), reason(&error));
        match error.kind() {
            _ if error.raw_os_error() == Some(enter::MAY_NOT.raw_os_error()) => Failure::not_executable(format!(
                "{} is statically linked, so it has to be traced while it is executed, which is not allowed here (by another \
                 tracer, such as strace, or a system call filter): use a dynamically linked build of it",
                plan.path.display()
            )),
            io::ErrorKind::NotFound => Failure::not_found(line),
            io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock => {
                Failure::failed(format!("{line}: no memory or process left; see `ulimit -u`"))
            }
            _ => Failure::not_executable(line),
        }
    })?;
    let child = Pid::from_child(&child);
    if enters {
        let path = library.as_ref().map_or(&shared.preload, |(_, entry)| entry);
        let files = open.as_ref().map(|files| files.each_ref().map(AsRawFd::as_raw_fd));
        enter::enter(child, &Agent { run: shared, path, files }, inherited.mask(), following)?;
    }
    Ok(child)
}
