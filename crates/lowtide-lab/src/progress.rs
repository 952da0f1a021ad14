//! The lab's progress: one line on a terminal, if standard error is one.
//!
//! Drawn only when something begins or ends, so that it does not disturb a measurement.

use indicatif::{ProgressBar, ProgressStyle};

/// The line; clones share it.
#[derive(Debug, Clone)]
pub struct Progress(ProgressBar);

impl Progress {
    pub fn new(steps: usize) -> Progress {
        let style = ProgressStyle::with_template("{pos} of {len} done: {wide_msg}");
        Progress(ProgressBar::new(steps as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
    }

    pub fn doing(&self, what: impl Into<String>) {
        self.0.set_message(what.into());
        self.0.tick();
    }

    /// Adds unexpected steps.
    pub fn more(&self, steps: usize) {
        self.0.inc_length(steps as u64);
    }

    pub fn done(&self) {
        self.0.inc(1);
    }

    pub fn above<T>(&self, print: impl FnOnce() -> T) -> T {
        self.0.suspend(print)
    }

    pub fn end(&self) {
        self.0.finish_and_clear();
    }
}
