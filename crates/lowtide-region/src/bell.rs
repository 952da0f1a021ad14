//! Waking the reclaimer: safe in signal handlers.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::thread::{Timespec, futex};

/// What the reclaimer sleeps by.
pub struct Bell {
    rung: AtomicU32,
    asleep: AtomicBool,
}

impl Bell {
    /// Nobody sleeps.
    pub const fn new() -> Bell {
        Bell { rung: AtomicU32::new(0), asleep: AtomicBool::new(false) }
    }

    /// To be asked before one looks whether there is something to do.
    pub fn seen(&self) -> u32 {
        self.rung.load(Ordering::Acquire)
    }

    /// Sleeps for this many microseconds, or until it rings; not at all if it rang since `seen`. `lightly`:
    /// [`Bell::wake_sleeper`] ends it.
    pub fn sleep(&self, seen: u32, us: u64, lightly: bool) {
        self.asleep.store(lightly, Ordering::Release);
        let time = Timespec { tv_sec: (us / 1_000_000) as i64, tv_nsec: (us % 1_000_000 * 1000) as i64 };
        let _ = futex::wait(&self.rung, futex::Flags::PRIVATE, seen, Some(&time));
        self.asleep.store(false, Ordering::Release);
    }

    /// Rings for who sleeps lightly.
    pub fn wake_sleeper(&self) {
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel) {
            self.ring();
        }
    }

    /// Rings.
    pub fn ring(&self) {
        self.rung.fetch_add(1, Ordering::AcqRel);
        let _ = futex::wake(&self.rung, futex::Flags::PRIVATE, 1);
    }
}
