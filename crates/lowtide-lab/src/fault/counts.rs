//! A fault's costs in counts, which do not depend on the machine's speed and load.

use std::ops::AddAssign;

#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    pub served: u64,
    /// Of these, by another thread than the faulting one.
    pub by_others: u64,
    /// System calls for serving, a return from a signal included; the fault itself is none.
    pub calls: u64,
    /// Voluntary context switches of faulting and serving threads, each ended by a wake-up.
    pub waits: u64,
    /// These plus the involuntary ones.
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
    pub fn each(&self, count: impl Fn(&Counts) -> u64) -> f64 {
        count(self) as f64 / self.served as f64
    }
}

/// The calling thread's context switches since a moment.
pub struct Switches {
    before: [u64; 2],
}

impl Switches {
    pub fn begin() -> Switches {
        Switches { before: so_far() }
    }

    pub fn end(&self) -> Counts {
        let [waits, others] = so_far();
        let waits = waits - self.before[0];
        Counts { waits, switches: waits + others - self.before[1], ..Counts::default() }
    }
}

/// This thread's voluntary and involuntary context switches.
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
