//! Wakes the reclaimer: safe in signal handlers.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::thread::{Timespec, futex};

pub struct Bell {
    rung: AtomicU32,
    asleep: AtomicBool,
}

impl Bell {
    pub const fn new() -> Bell {
        Bell { rung: AtomicU32::new(0), asleep: AtomicBool::new(false) }
    }

    /// To be read before a check for work.
    pub fn seen(&self) -> u32 {
        self.rung.load(Ordering::Acquire)
    }

    /// Sleeps `us` microseconds or until it rings; not at all if it rang since `seen`. `lightly`:
    /// [`Bell::wake_sleeper`] ends it.
    pub fn sleep(&self, seen: u32, us: u64, lightly: bool) {
        self.asleep.store(lightly, Ordering::Release);
        let time = Timespec { tv_sec: (us / 1_000_000) as i64, tv_nsec: (us % 1_000_000 * 1000) as i64 };
        let _ = futex::wait(&self.rung, futex::Flags::PRIVATE, seen, Some(&time));
        self.asleep.store(false, Ordering::Release);
    }

    pub fn wake_sleeper(&self) {
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel) {
            self.ring();
        }
    }

    pub fn ring(&self) {
        self.rung.fetch_add(1, Ordering::AcqRel);
        let _ = futex::wake(&self.rung, futex::Flags::PRIVATE, 1);
    }
}
