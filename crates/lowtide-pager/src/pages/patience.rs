//! A bounded wait for another thread or the kernel: spins, yields, then sleeps.
//!
//! It counts naps, not time: while the process is stopped (a debugger, SIGSTOP, a suspended
//! machine) nobody makes progress.

use rustix::thread::{Timespec, nanosleep, sched_yield};

const SPINS: u32 = 20;
const YIELDS: u32 = 200;
/// Nanoseconds.
const SHORT_NAP: i64 = 100_000;
const LONG_NAP: i64 = 2_000_000;
const SHORT_NAPS: u32 = 100;

/// The waits so far.
#[derive(Debug, Default)]
pub struct Patience(u32);

impl Patience {
    /// Before the first wait.
    pub fn new() -> Patience {
        Patience(0)
    }

    /// Spins at first, sleeps 2 ms later. False: this has gone on for about `seconds`.
    #[must_use]
    pub fn wait(&mut self, seconds: u32) -> bool {
        self.0 = self.0.saturating_add(1);
        let nap = |nsec| drop(nanosleep(&Timespec { tv_sec: 0, tv_nsec: nsec }));
        match self.0 {
            0..SPINS => core::hint::spin_loop(),
            SPINS..YIELDS => sched_yield(),
            n if n < YIELDS + SHORT_NAPS => nap(SHORT_NAP),
            _ => nap(LONG_NAP),
        }
        self.0 < YIELDS + SHORT_NAPS + seconds * (1_000_000_000 / LONG_NAP) as u32
    }
}

/// How long calls are retried that the kernel refuses for want of memory.
pub const NO_MEMORY_SECONDS: u32 = 10;
/// How long another thread may be at work on a page: it may wait for a device.
pub const IN_HAND_SECONDS: u32 = 600;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends() {
        let mut patience = Patience::new();
        let mut looked = 0;
        while patience.wait(1) {
            looked += 1;
        }
        assert!((300..2000).contains(&looked), "{looked}");
        assert!(!patience.wait(1));
        assert!(patience.wait(2), "some have more");
    }
}
