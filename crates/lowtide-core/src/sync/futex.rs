//! A word for whose change threads sleep.

use core::ops::Deref;
use core::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{Timespec, futex};

/// A word of this process's own (a private futex).
#[derive(Debug)]
#[repr(transparent)]
pub struct Futex(AtomicU32);

impl Futex {
    /// A word nobody waits for.
    pub const fn new(value: u32) -> Futex {
        Futex(AtomicU32::new(value))
    }

    /// Sleeps while the word says `value`. What happened before another value was stored (with Release) has happened.
    pub fn wait_while(&self, value: u32) {
        while self.0.load(Ordering::Acquire) == value {
            // Interrupted, or changed already: the caller looks again.
            let _ = futex::wait(&self.0, futex::Flags::PRIVATE, value, None);
        }
    }

    /// As [`Futex::wait_while`], for some milliseconds at most: whether the word says something else then.
    pub fn changes_within(&self, value: u32, ms: u32) -> bool {
        let time = Timespec { tv_sec: 0, tv_nsec: i64::from(ms) * 1_000_000 };
        // Interrupted, it is shorter.
        let _ = futex::wait(&self.0, futex::Flags::PRIVATE, value, Some(&time));
        self.0.load(Ordering::Acquire) != value
    }

    /// Wakes one that sleeps. After the word was changed.
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
