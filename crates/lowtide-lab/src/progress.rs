//! How far the lab is: one line on a terminal, nothing where standard error is none.
//!
//! It is drawn when something begins or ends, and never in between: what is measured is not to be disturbed.

use indicatif::{ProgressBar, ProgressStyle};

/// The line. Clones are the same line.
#[derive(Debug, Clone)]
pub struct Progress(ProgressBar);

impl Progress {
    /// This many steps are to be done.
    pub fn new(steps: usize) -> Progress {
        let style = ProgressStyle::with_template("{pos} of {len} done: {wide_msg}");
        Progress(ProgressBar::new(steps as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
    }

    /// This is done now.
    pub fn doing(&self, what: impl Into<String>) {
        self.0.set_message(what.into());
        self.0.tick();
    }

    /// This many more steps are to be done than was thought.
    pub fn more(&self, steps: usize) {
        self.0.inc_length(steps as u64);
    }

    /// A step is done.
    pub fn done(&self) {
        self.0.inc(1);
    }

    /// Prints meanwhile.
    pub fn above<T>(&self, print: impl FnOnce() -> T) -> T {
        self.0.suspend(print)
    }

    /// Nothing is left of it.
    pub fn end(&self) {
        self.0.finish_and_clear();
    }
}
