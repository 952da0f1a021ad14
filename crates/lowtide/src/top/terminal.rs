//! The terminal: taken, and given back as it was, whatever ends this program.

use crate::client;
use crate::error::Failure;
use crate::signal_fd::{SignalFd, SignalSet};
use ratatui::DefaultTerminal;
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use std::io::{self, IsTerminal};

/// Signals that are waited for, besides those that end: they change the terminal under us, or are to give it back first.
const OTHERS: [Signal; 4] = [Signal::QUIT, Signal::TSTP, Signal::CONT, Signal::WINCH];

/// A screen of our own, until this is dropped. A panic gives it back, too.
pub struct Screen {
    /// What is drawn on.
    pub terminal: DefaultTerminal,
}

/// Refuses to draw on what is no terminal.
pub fn check() -> Result<(), Failure> {
    let instead = "`lowtide stat` is for files and pipes";
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        let which = if io::stdout().is_terminal() { "input" } else { "output" };
        return Err(Failure::usage(format!("top: standard {which} is not a terminal: {instead}")));
    }
    match std::env::var("TERM").as_deref() {
        Ok("dumb") => Err(Failure::usage(format!("top: a terminal of TERM=dumb can't be drawn on: {instead}"))),
        _ => Ok(()),
    }
}

/// The signals, from now on: to be taken before there is another thread.
pub fn signals() -> Result<SignalFd, Failure> {
    client::hold_back(&[&client::ENDS[..], &OTHERS].concat())
}

impl Screen {
    /// Takes the terminal.
    pub fn take() -> Result<Screen, Failure> {
        read_without_waiting();
        let failed = |error: io::Error| Failure::failed(format!("top: the terminal can't be drawn on ({error})"));
        match ratatui::try_init() {
            Ok(terminal) => Ok(Screen { terminal }),
            Err(error) => {
                let _ = ratatui::try_restore();
                Err(failed(error))
            }
        }
    }

    /// Gives it back, stops as ^Z does, and takes it again when it is our turn.
    pub fn suspend(self) -> Result<Screen, Failure> {
        drop(self);
        // While the signal is let through, it stops this process with all of its group, as its terminal would have done;
        // without a shell that could go on with it nothing happens.
        let stop = SignalSet::of(&[Signal::TSTP]);
        stop.unblock();
        let _ = rustix::process::kill_current_process_group(Signal::TSTP);
        stop.block();
        Screen::take()
    }
}

/// The reader of keys waits for the rest of a key of several bytes, and a part may be all that there is: it is to find that
/// there is nothing more. The terminal is opened anew for that, as its flags are those of the shell, too. Where that can't be
/// (another user's terminal) the reader waits.
fn read_without_waiting() {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    if let Ok(own) = rustix::fs::open("/proc/self/fd/0", flags, Mode::empty()) {
        let _ = rustix::stdio::dup2_stdin(own);
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The terminal may be gone, and then there is nothing to give back.
        let _ = self.terminal.show_cursor();
        let _ = ratatui::try_restore();
    }
}
