//! Calm times: memory grows by faults only, which are counted and stop where they are to stop. Then less has to be kept free
//! below the limit for what grows otherwise (`RamBudget::set_calm`): new mappings, and copies of what forks share.

/// So long must nothing else have been seen.
const CALM_US: u64 = 300_000;

/// What was seen of late.
pub(super) struct Calm {
    /// When something else was last seen, in microseconds.
    disturbed: u64,
    /// Growth that nobody counted, in bytes (negative: memory went that nobody counted), and since when.
    uncounted: i64,
    since: u64,
}

impl Calm {
    /// Not calm at first.
    pub(super) fn new(now: u64) -> Calm {
        Calm { disturbed: now, uncounted: 0, since: now }
    }

    /// A look at the memory, which differs from what was expected by `uncounted` bytes. `alone`: no other process of the run
    /// has memory, none shares some with this one, and no mapping is known to have changed. Whether times are calm.
    pub(super) fn look(&mut self, now: u64, uncounted: i64, alone: bool) -> bool {
        self.uncounted = self.uncounted.saturating_add(uncounted);
        if !alone || self.uncounted > super::keep::UNACCOUNTED as i64 {
            self.disturbed = now;
        }
        if self.disturbed == now || now.saturating_sub(self.since) > CALM_US {
            (self.uncounted, self.since) = (0, now);
        }
        now.saturating_sub(self.disturbed) > CALM_US
    }
}
