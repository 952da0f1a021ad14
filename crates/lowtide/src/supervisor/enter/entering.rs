//! Processes that are traced until the agent is in them: those that are about to execute a program that can't preload it, as they
//! say themselves or a filter says (`following.rs`), and copies of such programs (`copies.rs`).
//!
//! All by the thread that serves the broker and waits for children: who traces is one thread, and what it traces is among what
//! it waits for. So while a process is held nobody else is answered; for what it does in that time it needs no answer, because
//! only those are held that find the files of the run by themselves.

use super::executed::{self, Executed};
use super::tracee::{self, Tracee, Untraced};
use super::{Agent, Following, bring, bring_to_copy};
use linux_raw_sys::general as sys;
use lowtide_config::proc::Stat;
use rustix::io::Errno;
use rustix::process::{Pid, WaitStatus};
use std::time::{Duration, Instant};

/// Processes that are traced at a time.
const MOST: usize = 64;
/// How long an exec may take before somebody looks whether it goes on.
const PATIENCE: Duration = Duration::from_millis(100);
/// What the status of a stop is about: PTRACE_EVENT_EXEC.
const EXEC: i32 = 4;
/// The same: PTRACE_EVENT_STOP.
pub const EVENT_STOP: i32 = 128;

/// Those that are traced.
#[derive(Default)]
pub struct Entering(Vec<Traced>);

struct Traced {
    process: Pid,
    /// Which of its threads executes.
    thread: Pid,
    why: Why,
    /// Of a copy, when it was started, and whose copy it is.
    start: u64,
    parent: u32,
    since: Instant,
    is_interrupted: bool,
}

/// Who has said that it is about to execute a program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// Itself: it says so too if it could not.
    Asked,
    /// The filter that it has. If it could not, it is stopped, after a while: until then it may be told of it again.
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
        self.seize(process, thread, Why::Asked, (0, 0))
    }

    /// Traces a thread of which a filter tells, and which waits in the call, until it executes a program, or has not for a while.
    ///
    /// # Errors
    /// As [`Entering::trace`]. `AGAIN`, too: another thread of the process is traced. That one may be executing a program: then
    /// it waits for the ends of all others, which this process has to see, and who begins to trace one waits for it.
    pub fn follow(&mut self, process: u32, thread: u32) -> Result<(), Errno> {
        match self.0.iter_mut().find(|traced| traced.process.as_raw_pid() as u32 == process) {
            // Its last one failed.
            Some(traced) if traced.thread.as_raw_pid() as u32 == thread && !traced.is_interrupted => {
                traced.since = Instant::now();
                Ok(())
            }
            Some(_) => Err(Errno::AGAIN),
            None => self.seize(process, thread, Why::Told, (0, 0)),
        }
    }

    /// Traces a copy of its parent, which is entered where it stops. `start`: when it was started. `parent`: whose copy it is.
    ///
    /// # Errors
    /// As [`Entering::follow`].
    pub fn copy(&mut self, process: u32, start: u64, parent: u32) -> Result<(), Errno> {
        self.seize(process, process, Why::Copied, (start, parent))?;
        self.interrupt(process)
    }

    /// Whether a thread of this process is traced.
    pub fn traces(&self, process: u32) -> bool {
        self.0.iter().any(|traced| traced.process.as_raw_pid() as u32 == process)
    }

    /// Stops a thread, which is let go where it has executed nothing.
    ///
    /// # Errors
    /// `SRCH`: it died.
    pub fn interrupt(&mut self, thread: u32) -> Result<(), Errno> {
        let traced = self.0.iter_mut().find(|traced| traced.thread.as_raw_pid() as u32 == thread).ok_or(Errno::SRCH)?;
        traced.is_interrupted = true;
        tracee::interrupt(traced.thread).map_err(|why| why.errno())
    }

    /// Stops those that have not executed what a filter has told of.
    pub fn look(&mut self) {
        for traced in self.0.iter_mut().filter(|traced| traced.why == Why::Told && !traced.is_interrupted) {
            if traced.since.elapsed() > PATIENCE && !is_executing(traced.thread.as_raw_pid() as u32) {
                traced.is_interrupted = true;
                let _ = tracee::interrupt(traced.thread);
            }
        }
    }

    fn seize(&mut self, process: u32, thread: u32, why: Why, (start, parent): (u64, u32)) -> Result<(), Errno> {
        if self.traces(process) || !self.has_room() {
            return Err(Errno::AGAIN);
        }
        let (process_id, thread_id) = (number(process)?, number(thread)?);
        let since = Instant::now();
        let traced = Traced { process: process_id, thread: thread_id, why, start, parent, since, is_interrupted: false };
        // Whoever has died since is seen to have by `saw`.
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
            EVENT_STOP if signal == libc::SIGTRAP && self.0[at].why == Why::Copied => {
                let Traced { start, parent, .. } = self.0.swap_remove(at);
                // It may be another process by now, or another program.
                let is_it =
                    Stat::of(pid.as_raw_pid() as u32).is_some_and(|stat| stat.start == start && stat.is_copy_of_its_parent());
                if !is_it || !executed::leads_to(pid, agent) {
                    tracee::detach(pid);
                    let found = if is_it { Err(executed::NOT_FOUND) } else { Ok(()) };
                    return Some(Seen::entered("a forked child without an agent", found));
                }
                let entered =
                    Tracee::in_the_middle(pid).and_then(|tracee| bring_to_copy(tracee, agent, parent, following.is_told()));
                return Some(Seen::entered("a forked child without an agent", entered));
            }
            // Nothing was executed. (Where the kernel begins the call anew, the filter tells of it anew.)
            EVENT_STOP if signal == libc::SIGTRAP && self.0[at].why == Why::Told => {
                self.0.swap_remove(at);
                tracee::detach(pid);
            }
            // It stays stopped.
            EVENT_STOP if signal != libc::SIGTRAP && self.0[at].why != Why::Asked => {
                self.0.swap_remove(at);
                tracee::detach(pid);
                return Some(Seen::Stopped);
            }
            EVENT_STOP if signal != libc::SIGTRAP => {
                tracee::pass_on(pid, 0, true);
                return Some(Seen::Stopped);
            }
            // Its process goes on again.
            EVENT_STOP => tracee::pass_on(pid, 0, false),
            _ => tracee::pass_on(pid, signal, false),
        }
        Some(Seen::GoesOn)
    }
}

/// Whether a thread is in an exec. (Who begins to trace it waits until that is over.)
pub fn is_executing(thread: u32) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{thread}/syscall")).unwrap_or_default();
    let number = text.split_ascii_whitespace().next().and_then(|number| number.parse().ok());
    number.is_some_and(|number: u32| [sys::__NR_execve, sys::__NR_execveat].contains(&number))
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
    if !executed::leads_to(pid, agent) {
        tracee::detach(pid);
        return Err(executed::NOT_FOUND);
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
