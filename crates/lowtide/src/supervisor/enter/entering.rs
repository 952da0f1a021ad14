//! Processes of the run that are about to execute a program that can't preload the agent: they ask for being held there, and
//! the agent is brought in.
//!
//! All by the thread that serves the broker and waits for children: who traces is one thread, and what it traces is among what
//! it waits for. So while a process is held nobody else is answered; for what it does in that time it needs no answer, because
//! only those are held that find the files of the run by themselves.

use super::tracee::{self, Tracee, Untraced};
use super::{Agent, bring};
use rustix::io::Errno;
use rustix::process::{Pid, WaitStatus};

/// Processes that are held at a time.
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
    /// Holds a process of the run when its thread executes a program.
    ///
    /// # Errors
    /// `AGAIN`: there are too many; those of tracing.
    pub fn hold(&mut self, process: u32, thread: u32) -> Result<(), Errno> {
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
        let at = self.0.iter().position(|traced| traced.process.as_raw_pid() as u32 == process).ok_or(Errno::SRCH)?;
        tracee::let_go(self.0.swap_remove(at).thread).map_err(|why| why.errno())
    }

    /// Whether a process is traced.
    pub fn traces(&self, pid: Pid) -> bool {
        self.0.iter().any(|traced| traced.process == pid || traced.thread == pid)
    }

    /// What has become of a process that was waited for. A warning, if a program goes on
    /// without the agent.
    pub fn saw(&mut self, pid: Pid, status: WaitStatus, agent: &Agent<'_>) -> Option<String> {
        let at = self.0.iter().position(|traced| traced.process == pid || traced.thread == pid)?;
        let Some(signal) = status.stopping_signal() else {
            self.0.swap_remove(at);
            return None;
        };
        match status.as_raw() >> 16 {
            EXEC => {
                self.0.swap_remove(at);
                match Tracee::seized(pid).and_then(|tracee| bring(tracee, agent, None)) {
                    Ok(()) | Err(Untraced::Died) => return None,
                    Err(Untraced::Failed(what, errno)) => {
                        let why = lowtide_config::reason(std::io::Error::from(errno));
                        return Some(format!(
                            "a static program of the run is not limited: it can't be entered ({what}: {why})"
                        ));
                    }
                }
            }
            // Its process was stopped, or goes on again.
            STOP => tracee::pass_on(pid, 0, signal != libc::SIGTRAP),
            _ => tracee::pass_on(pid, signal, false),
        }
        None
    }
}
