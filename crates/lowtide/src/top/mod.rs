//! `lowtide top`: the runs of this user on a terminal, and keys to change them.
//!
//! From the socket to the screen: [`watch`] queries each run once a second, [`sample`] parses the
//! answer, [`rates`] compares two samples, [`app`] is the state and the effect of keys, [`action`]
//! is a running request, [`view`] draws. [`terminal`] takes and restores the terminal.

mod action;
mod app;
#[cfg(test)]
mod fixture;
mod prompt;
mod rates;
mod sample;
mod terminal;
mod theme;
mod tree;
mod view;
mod watch;
mod words;

use crate::client::connection::wait;
use crate::error::Failure;
use crate::signal_fd::SignalFd;
use app::{App, Next};
use crossterm::event::{self, Event, KeyEventKind};
use rustix::event::{PollFd, PollFlags};
use rustix::process::Signal;
use std::io::Write;
use std::time::{Duration, Instant};
use terminal::Screen;
use theme::Theme;
use view::View;
use watch::Watch;

const ASKS: Duration = Duration::from_secs(1);
const LOOKS: Duration = Duration::from_secs(2);
/// Wait for the rest of a key of several bytes.
const KEY: Duration = Duration::from_millis(2);

enum End {
    Quit,
    Signal(u8),
    /// No run is left; the final message.
    NoRun(String),
}

/// Shows the run that a process belongs to, or all runs of this user, until the user quits or the
/// last of them is over.
pub fn top(pid: Option<u32>) -> Result<u8, Failure> {
    terminal::check()?;
    let watch = Watch::new(pid)?;
    let signals = terminal::signals()?;
    let mut screen = Some(Screen::take()?);
    let end = show(App::new(watch), &mut screen, &signals);
    drop(screen);
    match end? {
        End::Quit => Ok(0),
        End::Signal(signal) => Ok(128 + signal),
        End::NoRun(farewell) => {
            let _ = writeln!(std::io::stdout(), "{farewell}");
            Ok(0)
        }
    }
}

/// `screen` is None only while it is suspended.
fn show(mut app: App, screen: &mut Option<Screen>, signals: &SignalFd) -> Result<End, Failure> {
    let theme = Theme::new();
    let gone = |error: std::io::Error| Failure::failed(format!("top: the terminal is gone ({error})"));
    let (mut asked, mut looked) = (None::<Instant>, Instant::now());
    loop {
        if asked.is_none_or(|at| at.elapsed() >= ASKS) {
            app.watch.ask();
            asked = Some(Instant::now());
        }
        if let Some(screen) = screen {
            let view = View::new(&app, theme);
            screen.terminal.draw(|frame| view.draw(frame)).map_err(gone)?;
        }
        let next = asked.map_or(Duration::ZERO, |at| ASKS.saturating_sub(at.elapsed()));
        let keyboard = wait_for_something(&app, signals, next);
        if keyboard.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return Ok(End::Quit);
        }
        let mut suspend = false;
        while let Some(received) = signals.next() {
            match received.signal {
                // Each drawing reads the size.
                Signal::WINCH => {}
                // The screen and the terminal's mode are unknown now.
                Signal::CONT => *screen = Some(retake(screen)?),
                Signal::TSTP => suspend = true,
                signal => return Ok(End::Signal(signal.as_raw() as u8)),
            }
        }
        while keyboard.contains(PollFlags::IN) && event::poll(KEY).map_err(gone)? {
            let Event::Key(key) = event::read().map_err(gone)? else { continue };
            if key.kind == KeyEventKind::Release {
                continue;
            }
            match app.key(key) {
                Next::Stay => {}
                Next::Quit => return Ok(End::Quit),
                Next::Suspend => suspend = true,
                Next::Ask(wish) => app.ask(wish),
                Next::Cancel => app.cancel(),
            }
        }
        if suspend && let Some(shown) = screen.take() {
            *screen = Some(shown.suspend()?);
        }
        app.hear();
        if app.watch.hear() || looked.elapsed() >= LOOKS {
            looked = Instant::now();
            let over = app.watch.look();
            app.forget(&over);
            if app.watch.runs.is_empty() {
                return Ok(End::NoRun(over.last().map_or(String::new(), app::farewell)));
            }
        }
    }
}

fn retake(screen: &mut Option<Screen>) -> Result<Screen, Failure> {
    drop(screen.take());
    Screen::take()
}

/// Waits for a key, a signal, a run's message, or the time; returns the keyboard's events.
fn wait_for_something(app: &App, signals: &SignalFd, time: Duration) -> PollFlags {
    let stdin = std::io::stdin();
    let mut polled = vec![PollFd::new(&stdin, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
    let runs = app.watch.runs.iter().filter_map(|run| run.connection());
    polled.extend(runs.chain(app.action.iter().map(|action| action.connection())).map(|run| PollFd::new(run, PollFlags::IN)));
    wait(&mut polled, time);
    polled[0].revents()
}
