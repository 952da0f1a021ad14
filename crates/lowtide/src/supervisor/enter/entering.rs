//! Processes of the run that are about to execute a program that can't preload the agent: they ask to be traced until
//! then, and the agent is brought in.
//!
//! All by the thread that serves the broker and waits for children: who traces is one thread, and what it traces is among what
//! it waits for. So while a process is held nobody else is answered; for what it does in that time it needs no answer, because
//! only those are held that find the files of the run by themselves.

use super::executed::{self, Executed};
use super::tracee::{self, Tracee, Untraced};
use super::{Agent, Following, bring, bring_to_copy};
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
    why: Why,
}

/// Who has said that it is about to execute a program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// Itself: it says so too if it could not.
    Asked,
    /// The filter that it has: it stops if it could not.
    Told,
    /// Nobody: it is a copy of its parent without an agent, and stops at once.
    Copied,
}

impl Entering {
    /// Traces a thread of a process of the run until it executes a program.
    ///
    /// # Errors
    /// `AGAIN`: there are too many; those of tracing.
    pub fn trace(&mut self, process: u32, thread: u32) -> Result<(), Errno> {
        if self.0.iter().any(|other| other.process.as_raw_pid() as u32 == process) {
            return Err(Errno::AGAIN);
        }
        self.seize(process, thread, Why::Asked)
    }

    /// Traces a thread of which a filter tells, and which waits in the call, until it executes a program or could not.
    ///
    /// # Errors
    /// As [`Entering::trace`].
    pub fn follow(&mut self, process: u32, thread: u32) -> Result<(), Errno> {
        self.seize(process, thread, Why::Told)?;
        // Should the call fail, it stops.
        tracee::interrupt(number(thread)?).map_err(|why| why.errno())
    }

    /// Traces a copy of its parent, which is entered where it stops.
    ///
    /// # Errors
    /// As [`Entering::trace`].
    pub fn copy(&mut self, process: u32) -> Result<(), Errno> {
        self.seize(process, process, Why::Copied)?;
        tracee::interrupt(number(process)?).map_err(|why| why.errno())
    }

    fn seize(&mut self, process: u32, thread: u32, why: Why) -> Result<(), Errno> {
        let traced = Traced { process: number(process)?, thread: number(thread)?, why };
        // Whoever has died since is seen to have by `saw`.
        if !self.has_room() {
            return Err(Errno::AGAIN);
        }
        if !std::fs::exists(format!("/proc/{process}/task/{thread}")).unwrap_or(false) {
            return Err(Errno::SRCH);
        }
        tracee::seize(traced.thread).map_err(|why| why.errno())?;
        self.0.push(traced);
        Ok(())
    }

    /// Whether one more can be traced.
    pub fn has_room(&self) -> bool {
        self.0.len() < MOST
    }

    /// Nothing was executed.
    ///
    /// # Errors
    /// `SRCH`: it is not traced.
    pub fn let_go(&mut self, process: u32) -> Result<(), Errno> {
        let is_it = |traced: &Traced| traced.process.as_raw_pid() as u32 == process && traced.why == Why::Asked;
        let at = self.0.iter().position(is_it).ok_or(Errno::SRCH)?;
        tracee::let_go(self.0[at].thread).map_err(|why| why.errno())?;
        self.0.swap_remove(at);
        Ok(())
    }

    /// What was waited for: `None` if that is nothing that is traced. `agent`: what is brought in. `following`: where it is told
    /// what that executes.
    pub fn saw(&mut self, pid: Pid, status: WaitStatus, agent: &Agent<'_>, following: &mut Following) -> Option<Seen> {
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
                let executing = self.0[at].why;
                // Other threads of it that were executing something are no more.
                self.0.retain(|traced| traced.process != pid);
                let entered = match executing {
                    Why::Asked => Tracee::seized(pid).and_then(|tracee| bring(tracee, agent, None, Some(following))),
                    Why::Told | Why::Copied => arrived(pid, agent),
                };
                return Some(Seen::entered("a program of the run", entered));
            }
            STOP if signal == libc::SIGTRAP && self.0[at].why == Why::Copied => {
                self.0.swap_remove(at);
                let entered = Tracee::in_the_middle(pid).and_then(|tracee| bring_to_copy(tracee, agent));
                return Some(Seen::entered("a forked child of a program without hooks", entered));
            }
            // Nothing was executed. (Where the kernel begins the call anew, the filter tells of it anew.)
            STOP if signal == libc::SIGTRAP && self.0[at].why == Why::Told => {
                self.0.swap_remove(at);
                tracee::detach(pid);
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

fn number(pid: u32) -> Result<Pid, Errno> {
    Pid::from_raw(pid as i32).ok_or(Errno::SRCH)
}

/// Sees to a process of whose exec a filter has told, and which is held in the middle of it.
fn arrived(pid: Pid, agent: &Agent<'_>) -> Result<(), Untraced> {
    let to_do = Executed::of(pid).filter(|executed| executed.is_static || !executed.is_right(agent));
    let Some(executed) = to_do else {
        tracee::detach(pid);
        return Ok(());
    };
    let is_right = executed.is_right(agent);
    if !executed.leads_to(agent) {
        tracee::detach(pid);
        return Err(Untraced::Failed("the agent's file is not found from there", Errno::NOENT));
    }
    let mut tracee = Tracee::seized(pid)?;
    if !is_right {
        executed::mend(&mut tracee, agent)?;
    }
    if executed.is_static {
        return bring(tracee, agent, None, None);
    }
    let mask = tracee.block_signals()?;
    tracee.go_on(mask)
}

/// What has become of a process that is, or was, traced.
pub enum Seen {
    /// It has ended, and is no child of this process, perhaps.
    Ended,
    /// It was stopped, as by ^Z.
    Stopped,
    GoesOn,
    /// It goes on without the agent: a warning.
    NotEntered(String),
}

impl Seen {
    fn entered(who: &str, result: Result<(), Untraced>) -> Seen {
        match result {
            Ok(()) | Err(Untraced::Died) => Seen::GoesOn,
            Err(Untraced::Failed(what, errno)) => {
                let why = lowtide_config::reason(std::io::Error::from(errno));
                Seen::NotEntered(format!("{who} is not limited: it can't be entered ({what}: {why})"))
            }
        }
    }
}
