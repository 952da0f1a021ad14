//! What a fault costs in counts: they are the same on a machine that is slow, busy or emulated.

use std::ops::AddAssign;

/// Of some faults.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    /// Faults that were served.
    pub served: u64,
    /// Of these, by another thread than the one that faulted.
    pub by_others: u64,
    /// System calls of who served, a return from a signal included; the fault itself is none.
    pub calls: u64,
    /// How often a thread that faulted or served gave up its CPU to wait, which a wake-up ended.
    pub waits: u64,
    /// These, and how often one was taken off its CPU.
    pub switches: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.served += other.served;
        self.by_others += other.by_others;
        self.calls += other.calls;
        self.waits += other.waits;
        self.switches += other.switches;
    }
}

impl Counts {
    /// So much of `count` for each fault.
    pub fn each(&self, count: impl Fn(&Counts) -> u64) -> f64 {
        count(self) as f64 / self.served as f64
    }
}

/// The switches of the calling thread, from a moment on.
pub struct Switches {
    before: [u64; 2],
}

impl Switches {
    /// From now on.
    pub fn begin() -> Switches {
        Switches { before: so_far() }
    }

    /// Until now.
    pub fn end(&self) -> Counts {
        let [waits, others] = so_far();
        let waits = waits - self.before[0];
        Counts { waits, switches: waits + others - self.before[1], ..Counts::default() }
    }
}

/// How often this thread gave up its CPU, and how often it was taken off.
fn so_far() -> [u64; 2] {
    // SAFETY: all zeros are a valid rusage, and the call only fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage
    };
    [usage.ru_nvcsw, usage.ru_nivcsw].map(i64::cast_unsigned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_waits() {
        let switches = Switches::begin();
        (0..5).for_each(|_| std::thread::sleep(std::time::Duration::from_millis(1)));
        let counts = switches.end();
        assert!(counts.waits >= 5 && counts.switches >= counts.waits, "{counts:?}");
    }
}
