//! How far a test that takes minutes is: one line on a terminal, nothing where standard error is none.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Instant;

/// The line.
pub struct Progress {
    bar: ProgressBar,
    began: Instant,
}

impl Progress {
    /// So many rounds, or seconds, are to come.
    pub fn new(name: &'static str, length: u64) -> Progress {
        let style = ProgressStyle::with_template("{prefix} [{bar:24}] {pos} of {len} {wide_msg}").expect("a template");
        Progress {
            bar: ProgressBar::new(length).with_style(style.progress_chars("=> ")).with_prefix(name),
            began: Instant::now(),
        }
    }

    /// So many of them are over.
    pub fn at(&self, position: u64, doing: impl Into<String>) {
        self.bar.set_message(doing.into());
        self.bar.set_position(position);
    }

    /// As many seconds are over as have passed.
    #[allow(dead_code, reason = "of the tests that share this, some count rounds")]
    pub fn now(&self, doing: impl Into<String>) {
        self.at(self.began.elapsed().as_secs(), doing);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
