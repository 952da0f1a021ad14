//! Stops with the program: after ^Z the shell waits until this process has stopped as well. The
//! shell's SIGCONT continues both.
//!
//! The kernel reports the program's stop when its last thread has stopped. A thread does not stop
//! in a call that lowtide's threads of the same process must end, as they have stopped before: a
//! change of mappings whose event no thread reads, a system call on a missing page. So after a
//! terminal's stop signal, one thread stopped for a while suffices. The others wait until the
//! continue.

use std::time::{Duration, Instant};

use lowtide_config::proc::{self, Stat};
use rustix::process::{Pid, Signal, WaitStatus};

use super::enter::EVENT_STOP;

/// A thread stopped for this long suffices.
const PATIENCE: Duration = Duration::from_millis(200);
/// Window after a signal for the first thread's stop: the program may handle or ignore the signal.
const TERM: Duration = Duration::from_secs(2);
const EVERY: Duration = Duration::from_millis(20);

#[derive(Default)]
pub struct TerminalStop {
    /// When the signal came, until the program stops.
    asked: Option<Instant>,
    /// Since when some thread has been stopped.
    partly: Option<Instant>,
    /// This process stopped before the kernel reported the program's stop; the report may still
    /// come after the continue.
    is_untold: bool,
}

impl TerminalStop {
    /// This process, at least, got a stop signal.
    pub fn signal(&mut self, signal: Signal) {
        if is_of_terminal(signal.as_raw()) {
            *self = TerminalStop { asked: Some(Instant::now()), ..TerminalStop::default() };
        }
    }

    /// The time until [`TerminalStop::look`] is due.
    pub fn pause(&self) -> Duration {
        if self.asked.is_some() { EVERY } else { Duration::MAX }
    }

    /// Stops this process if the program has stopped as far as it can.
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

    pub fn was_told(&mut self, program: Pid, status: WaitStatus) {
        // While `holder.rs` holds the program, a signal under delivery looks the same, and the
        // program may handle it.
        let is_stopped =
            status.as_raw() >> 16 == EVENT_STOP || Stat::of(program.as_raw_pid() as u32).is_some_and(|stat| stat.state == 'T');
        if !is_stopped || !status.stopping_signal().is_some_and(is_of_terminal) {
            return;
        }
        if self.is_untold {
            // Perhaps the report of the past stop: only a stop that lasts counts.
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

/// Whether some thread is stopped. (The kernel does not count a traced thread's stop.)
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

    /// A running program, killed when dropped.
    struct Program(std::process::Child);

    impl Program {
        fn start() -> (Program, Pid) {
            // A group of its own: the terminal's stop signals have no effect in an orphaned group.
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

    /// The number of looks until the stop, at most `most`.
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

    /// The kernel reports a stop at its last thread's, perhaps when all goes on.
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
