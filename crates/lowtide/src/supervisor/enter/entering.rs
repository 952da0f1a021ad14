//! Processes of the run that are about to execute a program that can't preload the agent: they ask to be traced until
//! then, and the agent is brought in.
//!
//! All by the thread that serves the broker and waits for children: who traces is one thread, and what it traces is among what
//! it waits for. So while a process is held nobody else is answered; for what it does in that time it needs no answer, because
//! only those are held that find the files of the run by themselves.

use super::tracee::{self, Tracee, Untraced};
use super::{Agent, bring};
use rustix::io::Errno;
use rustix::process::{Pid, WaitStatus};

/// Processes that are traced at a time.
const MOST: usize = 64;
/// What the status of a stop is about (PTRACE_EVENT_EXEC, PTRACE_EVENT_STOP).
const EXEC: i32 = 4;
const STOP: i32 = 128;

/// Those that are traced.
#[derive(Default)]
pub struct Entering(Vec<Traced>);

struct Traced {
    process: Pid,
    /// Which of its threads executes.
    thread: Pid,
}

impl Entering {
    /// Traces a thread of a process of the run until it executes a program.
    ///
    /// # Errors
    /// `AGAIN`: there are too many; those of tracing.
    pub fn trace(&mut self, process: u32, thread: u32) -> Result<(), Errno> {
        let pid = |number: u32| Pid::from_raw(number as i32).ok_or(Errno::SRCH);
        let traced = Traced { process: pid(process)?, thread: pid(thread)? };
        // Whoever has died since is seen to have by `saw`.
        if self.0.len() == MOST || self.0.iter().any(|other| other.process == traced.process) {
            return Err(Errno::AGAIN);
        }
        if !std::fs::exists(format!("/proc/{process}/task/{thread}")).unwrap_or(false) {
            return Err(Errno::SRCH);
        }
        tracee::seize(traced.thread).map_err(|why| why.errno())?;
        self.0.push(traced);
        Ok(())
    }

    /// Nothing was executed.
    ///
    /// # Errors
    /// `SRCH`: it is not traced.
    pub fn let_go(&mut self, process: u32) -> Result<(), Errno> {
        let is_it = |traced: &Traced| traced.process.as_raw_pid() as u32 == process;
        let at = self.0.iter().position(is_it).ok_or(Errno::SRCH)?;
        tracee::let_go(self.0[at].thread).map_err(|why| why.errno())?;
        self.0.swap_remove(at);
        Ok(())
    }

    /// What was waited for: `None` if that is nothing that is traced. `agent`: what is brought in.
    pub fn saw(&mut self, pid: Pid, status: WaitStatus, agent: &Agent<'_>) -> Option<Seen> {
        let event = status.as_raw() >> 16;
        let ends_or_executes = !status.stopped() || event == EXEC;
        // Who executes comes to be the first thread of its process.
        let is_it = |traced: &Traced| traced.thread == pid || ends_or_executes && traced.process == pid;
        let at = self.0.iter().position(is_it)?;
        let Some(signal) = status.stopping_signal() else {
            self.0.swap_remove(at);
            return Some(Seen::Ended);
        };
        match event {
            EXEC => {
                self.0.swap_remove(at);
                if let Err(Untraced::Failed(what, errno)) = Tracee::seized(pid).and_then(|tracee| bring(tracee, agent, None)) {
                    let why = lowtide_config::reason(std::io::Error::from(errno));
                    let text = format!("a static program of the run is not limited: it can't be entered ({what}: {why})");
                    return Some(Seen::NotEntered(text));
                }
            }
            STOP if signal != libc::SIGTRAP => {
                tracee::pass_on(pid, 0, true);
                return Some(Seen::Stopped);
            }
            // Its process goes on again.
            STOP => tracee::pass_on(pid, 0, false),
            _ => tracee::pass_on(pid, signal, false),
        }
        Some(Seen::GoesOn)
    }
}

/// What has become of a process that is, or was, traced.
pub enum Seen {
    /// It has ended, and is no child of this process, perhaps.
    Ended,
    /// It was stopped, as by ^Z.
    Stopped,
    GoesOn,
    /// It has executed a program and goes on without the agent: a warning.
    NotEntered(String),
}
