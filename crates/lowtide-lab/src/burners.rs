//! CPU-bound processes beside an experiment, until it drops them, or ends in whatever way.
//!
//! They run in the session of the disturbed process, as if started from one terminal: the kernel
//! may divide the CPUs among sessions first (autogroup), and then a SCHED_IDLE thread of another
//! session would run beside them all the same.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

use crate::programs::Started;

/// First argument of the burning program.
const BURN: &str = "burn";
/// First argument of the program that runs another one beside burning ones.
const BESIDE: &str = "beside";

pub struct Burners {
    _programs: Vec<Started>,
}

impl Burners {
    /// Starts this many in this process's session, from a thread that outlives them: they end with
    /// it.
    ///
    /// # Errors
    /// A line: one can't be started.
    pub fn start(programs: usize) -> Result<Burners, String> {
        let own = own()?;
        let start = |_| {
            let mut command = Command::new(&own);
            command.arg(BURN).stdin(Stdio::null()).stdout(Stdio::null());
            ends_with_us(&mut command);
            command.spawn().map(Started).map_err(|e| format!("a program that burns CPU can't be started: {e}"))
        };
        Ok(Burners { _programs: (0..programs).map(start).collect::<Result<_, _>>()? })
    }
}

/// The words in front of a command that run it beside this many burning programs, in its session;
/// none for none.
///
/// # Errors
/// A line.
pub fn words(programs: usize) -> Result<Vec<OsString>, String> {
    if programs == 0 {
        return Ok(Vec::new());
    }
    Ok(vec![own()?, BESIDE.into(), programs.to_string().into()])
}

fn own() -> Result<OsString, String> {
    std::env::current_exe().map(OsString::from).map_err(|e| format!("can't find this program: {e}"))
}

fn ends_with_us(command: &mut Command) {
    let us = getpid();
    let ask = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have ended before that.
        if getppid() == Some(us) { Ok(()) } else { Err(std::io::ErrorKind::NotFound.into()) }
    };
    // SAFETY: system calls that touch no memory.
    unsafe { command.pre_exec(ask) };
}

/// Runs the helper if the arguments name one.
pub fn helper() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    match args.next()?.to_str()? {
        BURN => Some(burn()),
        BESIDE => Some(beside(&args.collect::<Vec<_>>()).unwrap_or_else(|line| {
            eprintln!("lowtide-lab: {line}");
            ExitCode::from(2)
        })),
        _ => None,
    }
}

fn burn() -> ExitCode {
    // Started by hand it would burn for ever.
    if getppid().is_none_or(|parent| !is_the_lab(parent.as_raw_nonzero().get())) {
        eprintln!("lowtide-lab: {BURN} is started by experiments only");
        return ExitCode::from(2);
    }
    loop {
        std::hint::spin_loop();
    }
}

fn is_the_lab(pid: i32) -> bool {
    let program = |of: &str| std::fs::read_link(format!("/proc/{of}/exe")).ok();
    program("self").is_some_and(|own| program(&pid.to_string()) == Some(own))
}

/// `PROGRAMS COMMAND...`
fn beside(args: &[OsString]) -> Result<ExitCode, String> {
    let programs = args.first().and_then(|n| n.to_str()?.parse().ok());
    let (Some(programs), Some(program)) = (programs, args.get(1)) else {
        return Err(format!("{BESIDE} is started by experiments only"));
    };
    let burners = Burners::start(programs)?;
    let mut command = Command::new(program);
    ends_with_us(command.args(&args[2..]));
    let status = command.status().map_err(|e| format!("{}: {e}", program.display()))?;
    drop(burners);
    // A death by signal has no exit code.
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(125)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_put_in_front_of_a_command_that_runs_alone() {
        assert!(words(0).unwrap().is_empty());
        assert_eq!(words(3).unwrap()[1..], ["beside", "3"].map(OsString::from));
    }
}
