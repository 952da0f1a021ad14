//! Pauses between attempts.

use std::time::Duration;

/// The first and the longest pause.
const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(500);

/// The pause before the next attempt: doubles up to half a second.
#[derive(Debug)]
pub struct Pause(Duration);

impl Default for Pause {
    fn default() -> Pause {
        Pause(FIRST)
    }
}

impl Pause {
    /// Its length.
    pub fn length(&self) -> Duration {
        self.0
    }

    /// Waits.
    pub fn wait(&mut self) {
        std::thread::sleep(self.0);
        self.0 = (2 * self.0).min(LONGEST);
    }
}
