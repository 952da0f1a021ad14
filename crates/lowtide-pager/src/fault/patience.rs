//! Waiting for something that another thread, or the kernel, will soon have done: spinning, yielding, then sleeping; and not
//! for ever.
//!
//! Patience is counted in naps, not by the clock: while the process is stopped (a debugger, SIGSTOP, a machine that sleeps)
//! nobody gets on with anything, and that is nobody's fault.

use rustix::thread::{Timespec, nanosleep, sched_yield};

const SPINS: u32 = 20;
const YIELDS: u32 = 200;
/// Nanoseconds of the first naps and of later ones.
const SHORT_NAP: i64 = 100_000;
const LONG_NAP: i64 = 2_000_000;
const SHORT_NAPS: u32 = 100;

/// How often one has looked.
#[derive(Debug, Default)]
pub struct Patience(u32);

impl Patience {
    /// None used up yet.
    pub fn new() -> Patience {
        Patience(0)
    }

    /// Lets others run for a moment: nothing at first, later 2 ms. False: that has been going on for `seconds` about.
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

/// Seconds for which what the kernel refuses for want of memory is tried again.
pub const NO_MEMORY_SECONDS: u32 = 10;
/// Seconds for which a page may be in another thread's hands: it may wait for a device there.
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
