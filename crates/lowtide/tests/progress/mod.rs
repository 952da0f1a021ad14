//! How far a test that takes minutes is: one line on a terminal, nothing where standard error is none.

use indicatif::{ProgressBar, ProgressStyle};

/// The line. Gone when it is dropped.
pub struct Progress(ProgressBar);

impl Progress {
    /// So many rounds, or seconds, are to come.
    pub fn new(name: &'static str, length: u64) -> Progress {
        let style = ProgressStyle::with_template("{prefix} [{bar:24}] {pos} of {len} {wide_msg}").expect("a template");
        Progress(ProgressBar::new(length).with_style(style.progress_chars("=> ")).with_prefix(name))
    }

    /// So many of them are over.
    pub fn at(&self, position: u64, doing: impl Into<String>) {
        self.0.set_message(doing.into());
        self.0.set_position(position);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
