//! Finds out when calls that change memory are over that were let go on before their process began
//! to refuse them. A thread has left its call once it sleeps elsewhere, or has been held: it stops
//! on its way back to its own code.

use std::time::Duration;

use linux_raw_sys::general as sys;
use lowtide_config::proc::{self, Stat, as_pid};
use lowtide_wire::segment::Segment;
use rustix::fd::OwnedFd;
use rustix::process::Pid;

use super::ancestry;
use super::enter::{Call, CallsUnderWay, current_call, hold_thread, is_executing, is_there, may_be_traced};
use super::hold::pid_of;
use super::holder::{Leaving, let_all_run};

/// The period of looking, at first; then it doubles.
const FIRST: Duration = Duration::from_micros(100);
const LAST: Duration = Duration::from_millis(5);
/// Those that a filter tells of.
const CALLS: [u32; 4] = [sys::__NR_mremap, sys::__NR_madvise, sys::__NR_shmat, sys::__NR_process_madvise];

/// The looks at processes that wait.
#[derive(Default)]
pub struct Outlasting {
    pause: Duration,
    /// Threads that were held and not seen to stop.
    held: Vec<Pid>,
}

impl Outlasting {
    /// A process may have begun to wait.
    pub fn begin(&mut self) {
        self.pause = FIRST;
    }

    /// Answers processes of which no call is under way, and holds threads that run. None: no
    /// process waits; else the time until the next look.
    pub fn look(&mut self, segment: &Segment, under_way: &CallsUnderWay, leaving: &mut Leaving) -> Option<Duration> {
        let is_leaving = |thread: &Pid| leaving.iter().any(|(_, leaving)| leaving == thread);
        let stopped: Vec<Pid> = self.held.extract_if(.., |thread| !is_leaving(thread)).collect();
        let mut waits = false;
        for proc in segment.used_procs().iter().filter(|proc| proc.waits_for_calls()) {
            let process = pid_of(proc);
            // A number from another PID namespace is not known here.
            let mut notes = if proc.is_elsewhere() { vec![] } else { under_way.of(process) };
            let mut member = None;
            notes.retain(|note| {
                let is_in_call = as_pid(note.thread).is_some_and(|thread| {
                    !stopped.contains(&thread) && self.may_be_in_call(process, thread, &mut member, leaving)
                });
                if !is_in_call {
                    under_way.is_over(*note);
                }
                is_in_call
            });
            if notes.is_empty() {
                proc.waits_no_longer();
            }
            waits |= !notes.is_empty();
        }
        let pause = self.pause;
        self.pause = LAST.min(pause * 2);
        waits.then_some(pause)
    }

    /// `member`: the process, once it was looked at.
    fn may_be_in_call(&mut self, process: u32, thread: Pid, member: &mut Option<Member>, leaving: &mut Leaving) -> bool {
        let id = thread.as_raw_pid() as u32;
        if self.held.contains(&thread) {
            return true;
        }
        if !is_there(process, id) {
            return false;
        }
        match current_call(id) {
            Some(Call::None) => false,
            Some(Call::Sleeps(number)) => {
                let is_stopped = || Stat::of_thread(process, id).is_some_and(|stat| matches!(stat.state, 'T' | 't'));
                CALLS.contains(&number) && !is_stopped()
            }
            Some(Call::Runs) => {
                // A thread that can't be traced is looked at again.
                if member.get_or_insert_with(|| Member::of(process)).hold(thread) {
                    leaving.push((as_pid(process).unwrap_or(thread), thread));
                    self.held.push(thread);
                    let_all_run(leaving);
                }
                true
            }
            None => true,
        }
    }
}

/// A process of the run, looked at once.
struct Member {
    process: u32,
    /// None: its threads can't be held now.
    pidfd: Option<OwnedFd>,
}

impl Member {
    fn of(process: u32) -> Member {
        // A seize would wait for an exec's end.
        let may_be_held = || {
            may_be_traced(process) == Some(process) && !proc::threads(process).unwrap_or_default().into_iter().any(is_executing)
        };
        // The slot's data may be false.
        Member { process, pidfd: ancestry::member(process).filter(|_| may_be_held()) }
    }

    fn hold(&self, thread: Pid) -> bool {
        // The process lives, so the number is its thread's.
        let is_its = || is_there(self.process, thread.as_raw_pid() as u32);
        self.pidfd.as_ref().is_some_and(|pidfd| is_its() && ancestry::is_alive(pidfd) && hold_thread(thread).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::shared_memory::tests::segment;
    use lowtide_wire::segment::Proc;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    /// A process whose first thread is noted, in a run.
    struct Process {
        child: Child,
        run: Box<Segment>,
        under_way: CallsUnderWay,
    }

    impl Process {
        fn new(program: &str, words: &[&str]) -> Process {
            let mut command = Command::new(program);
            // SAFETY: a system call that touches no memory. An ordinary user may then trace it.
            unsafe { command.args(words).pre_exec(|| Ok(rustix::thread::set_no_new_privs(true)?)) };
            let this = Process { child: command.spawn().unwrap(), run: segment(), under_way: CallsUnderWay::default() };
            this.proc().lets_calls_go_on();
            this.under_way.note(this.child.id(), this.child.id());
            assert!(!this.run.refuse_calls(this.proc()));
            this
        }

        fn proc(&self) -> &Proc {
            self.run.used_procs().first().unwrap_or_else(|| self.run.claim(self.child.id()).unwrap())
        }

        /// Whether it still waits.
        fn waits(&self, outlasting: &mut Outlasting, leaving: &mut Leaving) -> bool {
            outlasting.look(&self.run, &self.under_way, leaving).is_some()
        }
    }

    impl Drop for Process {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    #[test]
    fn a_thread_that_runs_has_left_once_it_has_stopped() {
        let busy = Process::new("sh", &["-c", "while :; do :; done"]);
        // It may sleep as it begins.
        while Stat::of(busy.child.id()).unwrap().user_ticks < 3 {
            std::thread::yield_now();
        }
        let (mut outlasting, mut leaving) = (Outlasting::default(), Leaving::new());
        assert!(busy.waits(&mut outlasting, &mut leaving), "it might be about to make its call");
        assert_eq!(outlasting.held.len(), 1);
        while !leaving.is_empty() {
            let_all_run(&mut leaving);
        }
        assert!(!busy.waits(&mut outlasting, &mut leaving) && leaving.is_empty());
        assert!(busy.run.refuse_calls(busy.proc()));
    }

    #[test]
    fn a_thread_that_sleeps_elsewhere_or_has_ended_has_left() {
        for ends in [false, true] {
            let mut sleeper = Process::new("sleep", &["60"]);
            let id = sleeper.child.id();
            while current_call(id) != Some(Call::Sleeps(sys::__NR_clock_nanosleep)) {
                std::thread::yield_now();
            }
            if ends {
                sleeper.child.kill().unwrap();
                sleeper.child.wait().unwrap();
            }
            let (mut outlasting, mut leaving) = (Outlasting::default(), Leaving::new());
            assert!(!sleeper.waits(&mut outlasting, &mut leaving) && leaving.is_empty());
            assert!(sleeper.run.refuse_calls(sleeper.proc()) && sleeper.under_way.of(id).is_empty());
        }
    }
}
