//! Traces processes until the agent is in them: processes that are about to execute a program that
//! can't preload it, as they say themselves or a filter says (`following.rs`), and copies of such
//! programs (`copies.rs`).
//!
//! One thread does it all, the one that serves the broker and waits for children: the kernel binds
//! a tracer to its thread, and tracees appear among its children. While it holds a process it
//! answers no request. A held process needs no answer: lowtide holds only processes that find the
//! run's files themselves.

use super::executed::{self, Executed};
use super::tracee::{self, Tracee, Untraced};
use super::{Agent, Following, bring, bring_to_copy, is_there};
use linux_raw_sys::general as sys;
use lowtide_config::proc::{Stat, as_pid};
use rustix::io::Errno;
use rustix::process::{Pid, WaitStatus};
use std::time::{Duration, Instant};

const MOST: usize = 64;
/// Duration of an exec after which its progress is checked.
const PATIENCE: Duration = Duration::from_millis(100);
/// PTRACE_EVENT_EXEC in the status of a stop.
const EXEC: i32 = 4;
/// PTRACE_EVENT_STOP in the status of a stop.
pub const EVENT_STOP: i32 = 128;

#[derive(Default)]
pub struct Entering(Vec<Traced>);

struct Traced {
    process: Pid,
    thread: Pid,
    why: Why,
    /// Of a copy: its start time, and its parent.
    start: u64,
    parent: u32,
    since: Instant,
    is_interrupted: bool,
}

/// The source of the news that a process is about to execute a program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// The process itself. It also reports a failed exec.
    Asked,
    /// Its filter. After a while it is stopped if it has executed nothing; before that, the filter
    /// may tell of it again.
    Told,
    /// None: it is a copy of its parent without an agent, and stops at once.
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

    /// Traces a thread that waits in an exec that its filter told of, until it executes the program
    /// or has not for a while.
    ///
    /// # Errors
    /// As [`Entering::trace`]. `AGAIN` also if another thread of the process is traced. That one
    /// may be in an exec: it then waits for the ends of all others, which this process must see,
    /// and tracing one of those would block on the exec.
    pub fn follow(&mut self, process: u32, thread: u32) -> Result<(), Errno> {
        match self.0.iter_mut().find(|traced| traced.process.as_raw_pid() as u32 == process) {
            // Its last exec failed. Or it was interrupted on its way into this one: it stops only
            // once this is answered, at its end or (the kernel restarts the call) before it.
            Some(traced) if traced.thread.as_raw_pid() as u32 == thread => {
                traced.since = Instant::now();
                Ok(())
            }
            Some(_) => Err(Errno::AGAIN),
            None => self.seize(process, thread, Why::Told, (0, 0)),
        }
    }

    /// Traces a copy and enters it where it stops. `start`: its start time.
    ///
    /// # Errors
    /// As [`Entering::follow`].
    pub fn copy(&mut self, process: u32, start: u64, parent: u32) -> Result<(), Errno> {
        self.seize(process, process, Why::Copied, (start, parent))?;
        self.interrupt(process)
    }

    pub fn traces(&self, process: u32) -> bool {
        self.0.iter().any(|traced| traced.process.as_raw_pid() as u32 == process)
    }

    /// Stops a thread, to let go of it if it has executed nothing.
    ///
    /// # Errors
    /// `SRCH`: it died.
    pub fn interrupt(&mut self, thread: u32) -> Result<(), Errno> {
        let traced = self.0.iter_mut().find(|traced| traced.thread.as_raw_pid() as u32 == thread).ok_or(Errno::SRCH)?;
        traced.is_interrupted = true;
        tracee::interrupt(traced.thread).map_err(|why| why.errno())
    }

    /// Stops threads that have not executed what a filter told of.
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
        // `saw` reports a thread that dies after this.
        if !is_there(process, thread) {
            return Err(Errno::SRCH);
        }
        tracee::seize(traced.thread).map_err(|why| why.errno())?;
        self.0.push(traced);
        Ok(())
    }

    /// A traced thread needs no more room, and its trace may end only after the answer.
    pub fn has_room_for(&self, thread: u32) -> bool {
        self.has_room() || self.0.iter().any(|traced| traced.thread.as_raw_pid() as u32 == thread)
    }

    pub fn has_room(&self) -> bool {
        self.0.len() < MOST
    }

    /// Ends the trace of a process whose exec failed.
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

    /// Handles a wait status; `None` if `pid` is not traced. `agent`: the files to bring in.
    /// `following`: the receiver of its later execs.
    pub fn saw(&mut self, pid: Pid, status: WaitStatus, agent: &Agent<'_>, following: &mut Following) -> Option<Seen> {
        let event = status.as_raw() >> 16;
        let ends_or_executes = !status.stopped() || event == EXEC;
        // A thread that executes becomes the first thread of its process.
        let is_it = |traced: &Traced| traced.thread == pid || ends_or_executes && traced.process == pid;
        let at = self.0.iter().position(is_it)?;
        let Some(signal) = status.stopping_signal() else {
            self.0.swap_remove(at);
            return Some(Seen::Ended);
        };
        match event {
            EXEC => {
                let executing = self.0[at].why;
                self.0.retain(|traced| traced.process != pid);
                let entered = match executing {
                    Why::Asked => Tracee::seized(pid).and_then(|tracee| bring(tracee, agent, None, Some(following))),
                    Why::Told | Why::Copied => arrived(pid, agent),
                };
                return Some(Seen::entered("a program of the run", entered));
            }
            EVENT_STOP if signal == libc::SIGTRAP && self.0[at].why == Why::Copied => {
                let Traced { start, parent, .. } = self.0.swap_remove(at);
                // By now it may be another process or another program.
                let is_it =
                    Stat::of(pid.as_raw_pid() as u32).is_some_and(|stat| stat.start == start && stat.is_copy_of_its_parent());
                if !is_it || !executed::leads_to(pid, agent) {
                    tracee::detach(pid);
                    let found = if is_it { Err(executed::NOT_FOUND) } else { Ok(()) };
                    return Some(Seen::entered("a forked child without an agent", found));
                }
                let entered = Tracee::in_the_middle(pid).and_then(|tracee| bring_to_copy(tracee, agent, parent));
                return Some(Seen::entered("a forked child without an agent", entered));
            }
            // Nothing was executed. (If the kernel restarts the call, the filter tells of it
            // again.)
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
            EVENT_STOP => tracee::pass_on(pid, 0, false),
            _ => tracee::pass_on(pid, signal, false),
        }
        Some(Seen::GoesOn)
    }
}

/// Whether a thread is in an exec. (Attaching a tracer would block until the exec is over.)
pub fn is_executing(thread: u32) -> bool {
    matches!(current_call(thread), Some(Call::Sleeps(sys::__NR_execve | sys::__NR_execveat)))
}

/// Where a thread is.
#[derive(Debug, PartialEq, Eq)]
pub enum Call {
    /// It runs or waits for a CPU, in a system call or not.
    Runs,
    /// It sleeps in a system call.
    Sleeps(u32),
    /// It waits for a page or is stopped, in no system call, or has ended.
    None,
}

/// None: it can't be read.
pub fn current_call(thread: u32) -> Option<Call> {
    let text = std::fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
    match text.split_ascii_whitespace().next()? {
        "running" => Some(Call::Runs),
        "-1" => Some(Call::None),
        number => number.parse().ok().map(Call::Sleeps),
    }
}

fn number(pid: u32) -> Result<Pid, Errno> {
    as_pid(pid).ok_or(Errno::SRCH)
}

/// Enters a process that is held in the middle of the exec that its filter told of.
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

pub enum Seen {
    /// It has ended; it need not be a child of this process.
    Ended,
    /// A signal such as ^Z has stopped it.
    Stopped,
    GoesOn,
    /// It runs without the agent: a warning.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_is_interrupted_on_its_way_into_an_exec_goes_on() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (pid, mut entering) = (child.id(), Entering::default());
        entering.copy(pid, Stat::of(pid).unwrap().start, std::process::id()).unwrap();
        assert_eq!(entering.follow(pid, pid), Ok(()));
        assert!(entering.has_room_for(pid));
        assert_eq!(entering.follow(pid, pid + 1), Err(Errno::AGAIN), "another thread waits for the end of the trace");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
