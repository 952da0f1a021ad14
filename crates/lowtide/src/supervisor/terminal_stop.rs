//! Stops with the program: after ^Z the shell waits until this process has stopped as well. Its SIGCONT continues both.
//!
//! The kernel says that a program has stopped when the last of its threads has. One in a call that lowtide's threads of the same
//! process are to end does not stop before that, and they have: a move that the agent makes (`enter/moves.rs`), a change of
//! mappings of which nobody reads the event, a system call into a page that is out. So where a signal has come by which a
//! terminal stops, and some thread of the program has been stopped for a while, that is enough. The others wait until all goes on.

use std::time::{Duration, Instant};

use lowtide_config::proc::{self, Stat};
use rustix::process::{Pid, Signal, WaitStatus};

use super::enter::EVENT_STOP;

/// For how long a thread is stopped before the others are not waited for.
const PATIENCE: Duration = Duration::from_millis(200);
/// For how long after a signal the first thread may stop: the program may handle it, or ignore it.
const TERM: Duration = Duration::from_secs(2);
/// How often that is looked at.
const EVERY: Duration = Duration::from_millis(20);

/// What is known of a stop of the program.
#[derive(Default)]
pub struct TerminalStop {
    /// When the signal came, if the program has not been seen to stop since.
    asked: Option<Instant>,
    /// Since when a thread has been seen stopped.
    partly: Option<Instant>,
    /// This process has stopped before it was told that the program has: that may still be told, when it is over.
    is_untold: bool,
}

impl TerminalStop {
    /// A signal has come, to this process at least.
    pub fn signal(&mut self, signal: Signal) {
        if is_of_terminal(signal.as_raw()) {
            *self = TerminalStop { asked: Some(Instant::now()), ..TerminalStop::default() };
        }
    }

    /// How long one may sleep before [`TerminalStop::look`] has something to do.
    pub fn pause(&self) -> Duration {
        if self.asked.is_some() { EVERY } else { Duration::MAX }
    }

    /// Looks whether the program has stopped as far as it can, and stops then.
    pub fn look(&mut self, program: Pid) {
        if self.has_stopped_as_far_as_it_can(program) {
            *self = TerminalStop { is_untold: true, ..TerminalStop::default() };
            stop();
        }
    }

    fn has_stopped_as_far_as_it_can(&mut self, program: Pid) -> bool {
        if self.asked.is_none() {
            return false;
        }
        if is_partly_stopped(program) {
            return self.partly.get_or_insert_with(Instant::now).elapsed() >= PATIENCE;
        }
        self.partly = None;
        self.asked = self.asked.filter(|asked| asked.elapsed() < TERM);
        false
    }

    /// A stop of the program was told.
    pub fn was_told(&mut self, program: Pid, status: WaitStatus) {
        // While it is held (`hold.rs`) a signal that is about to come to it looks the same, and may be one that it handles.
        let is_stopped =
            status.as_raw() >> 16 == EVENT_STOP || Stat::of(program.as_raw_pid() as u32).is_some_and(|stat| stat.state == 'T');
        if !is_stopped || !status.stopping_signal().is_some_and(is_of_terminal) {
            return;
        }
        if self.is_untold {
            // Of the stop that is over, perhaps: if it is none, it lasts.
            *self = TerminalStop { asked: Some(Instant::now()), ..TerminalStop::default() };
        } else {
            *self = TerminalStop::default();
            stop();
        }
    }
}

fn is_of_terminal(signal: i32) -> bool {
    [Signal::TSTP, Signal::TTIN, Signal::TTOU].map(Signal::as_raw).contains(&signal)
}

/// Whether some thread of the program is stopped. (One that is traced is not, to the kernel.)
fn is_partly_stopped(program: Pid) -> bool {
    let pid = program.as_raw_pid() as u32;
    let threads = proc::threads(pid).unwrap_or_default();
    threads.into_iter().any(|thread| Stat::of_thread(pid, thread).is_some_and(|stat| stat.state == 'T'))
}

fn stop() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    /// A program that runs, until it is dropped.
    struct Program(std::process::Child);

    impl Program {
        fn start() -> (Program, Pid) {
            // In a group of its own: signals of the terminal do not stop one that nobody of its session has an eye on.
            let child = Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
            let pid = Pid::from_raw(child.id() as i32).unwrap();
            (Program(child), pid)
        }
    }

    impl Drop for Program {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// How many looks it takes, of `most`.
    fn looks(stop: &mut TerminalStop, program: Pid, most: usize) -> Option<usize> {
        (0..most).find(|_| {
            std::thread::sleep(EVERY);
            stop.has_stopped_as_far_as_it_can(program)
        })
    }

    #[test]
    fn what_stays_stopped_after_a_signal_of_the_terminal_has_stopped() {
        let (_program, pid) = Program::start();
        rustix::process::kill_process(pid, Signal::STOP).unwrap();
        let mut stop = TerminalStop::default();
        stop.signal(Signal::INT);
        assert_eq!((looks(&mut stop, pid, 30), stop.pause()), (None, Duration::MAX), "nobody has asked for it");
        stop.signal(Signal::TSTP);
        assert_eq!(stop.pause(), EVERY);
        assert!(looks(&mut stop, pid, 1000) >= Some(1), "not at once");
    }

    #[test]
    fn a_program_that_does_not_stop_is_not_waited_for_for_ever() {
        let (_program, pid) = Program::start();
        let mut stop = TerminalStop::default();
        stop.signal(Signal::TSTP);
        assert_eq!(looks(&mut stop, pid, 3), None);
        stop.asked = Instant::now().checked_sub(TERM);
        assert_eq!((looks(&mut stop, pid, 1), stop.pause()), (None, Duration::MAX));
    }

    /// The kernel tells of it when the last thread has come home, and that may be when all goes on.
    #[test]
    fn a_stop_that_is_told_late_has_to_last() {
        let (_program, pid) = Program::start();
        let mut stop = TerminalStop { is_untold: true, ..TerminalStop::default() };
        rustix::process::kill_process(pid, Signal::TSTP).unwrap();
        let options = rustix::process::WaitOptions::UNTRACED;
        let (_, status) = rustix::process::waitpid(Some(pid), options).unwrap().unwrap();
        stop.was_told(pid, status);
        assert_eq!((stop.is_untold, stop.pause()), (false, EVERY));
        rustix::process::kill_process(pid, Signal::CONT).unwrap();
        assert_eq!(looks(&mut stop, pid, 30), None);
    }
}
