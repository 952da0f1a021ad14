//! Takes the terminal, and restores it however this program ends.

use crate::client;
use crate::error::Failure;
use crate::signal_fd::{SignalFd, SignalSet};
use ratatui::DefaultTerminal;
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use std::io::{self, IsTerminal};

/// Further handled signals: they change the terminal, or need it restored first.
const OTHERS: [Signal; 4] = [Signal::QUIT, Signal::TSTP, Signal::CONT, Signal::WINCH];

/// The alternate screen, until dropped. A panic restores the terminal, too.
pub struct Screen {
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

/// Blocks the signals. Call it before other threads exist.
pub fn signals() -> Result<SignalFd, Failure> {
    client::hold_back(&[&client::ENDS[..], &OTHERS].concat())
}

impl Screen {
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

    /// Restores the terminal, stops as ^Z does, and takes it again when continued.
    pub fn suspend(self) -> Result<Screen, Failure> {
        drop(self);
        // Unblocked, the signal stops this process and its group, as the terminal would have done;
        // without a shell that could continue it nothing happens.
        let stop = SignalSet::of(&[Signal::TSTP]);
        stop.unblock();
        let _ = rustix::process::kill_current_process_group(Signal::TSTP);
        stop.block();
        Screen::take()
    }
}

/// Makes reads of the keyboard non-blocking: the reader of keys waits for the rest of a key of
/// several bytes, and a part may be all there is. Opens the terminal anew, as the shell shares the
/// old one's flags. If that fails (another user's terminal) the reader waits.
fn read_without_waiting() {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    if let Ok(own) = rustix::fs::open("/proc/self/fd/0", flags, Mode::empty()) {
        let _ = rustix::stdio::dup2_stdin(own);
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.terminal.show_cursor();
        let _ = ratatui::try_restore();
    }
}
