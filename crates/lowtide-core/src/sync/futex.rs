//! A word that threads sleep on.

use core::ops::Deref;
use core::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{Timespec, futex};

/// A private futex.
#[derive(Debug)]
#[repr(transparent)]
pub struct Futex(AtomicU32);

impl Futex {
    /// A word without waiters.
    pub const fn new(value: u32) -> Futex {
        Futex(AtomicU32::new(value))
    }

    /// Sleeps while the word is `value`. Acquire: pairs with a Release store of another value.
    pub fn wait_while(&self, value: u32) {
        while self.0.load(Ordering::Acquire) == value {
            // Interrupted or changed: the loop checks again.
            let _ = futex::wait(&self.0, futex::Flags::PRIVATE, value, None);
        }
    }

    /// Whether the word changes within `ms` milliseconds.
    pub fn changes_within(&self, value: u32, ms: u32) -> bool {
        let time = Timespec { tv_sec: 0, tv_nsec: i64::from(ms) * 1_000_000 };
        // An interruption shortens the wait.
        let _ = futex::wait(&self.0, futex::Flags::PRIVATE, value, Some(&time));
        self.0.load(Ordering::Acquire) != value
    }

    /// Wakes one sleeper. To be called after a change of the word.
    pub fn wake_one(&self) {
        let _ = futex::wake(&self.0, futex::Flags::PRIVATE, 1);
    }
}

impl Deref for Futex {
    type Target = AtomicU32;
    fn deref(&self) -> &AtomicU32 {
        &self.0
    }
}
