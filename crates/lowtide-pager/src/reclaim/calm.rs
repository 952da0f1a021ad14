//! Calm times: memory grows by counted faults only, so less must be kept free (`watermarks.rs`).
//! (The library's regions are always calm.)

/// Uncounted bytes that prove unregistered mappings.
pub const UNACCOUNTED: u64 = 1 << 20;
/// Undisturbed time required.
const CALM_US: u64 = 300_000;

/// Recent observations.
pub struct Calm {
    /// In microseconds.
    disturbed: u64,
    /// Uncounted bytes (negative: lost), and since when.
    uncounted: i64,
    since: u64,
    unaccounted: i64,
}

impl Calm {
    /// Measurements may err by `unaccounted` bytes.
    pub fn new(now: u64, unaccounted: u64) -> Calm {
        Calm { disturbed: now, uncounted: 0, since: now, unaccounted: unaccounted as i64 }
    }

    /// `alone`: no other process has or shares memory, and no mapping has changed. Whether times
    /// are calm.
    pub fn look(&mut self, now: u64, uncounted: i64, alone: bool) -> bool {
        self.uncounted = self.uncounted.saturating_add(uncounted);
        if !alone || self.uncounted > self.unaccounted {
            self.disturbed = now;
        }
        if self.disturbed == now || now.saturating_sub(self.since) > CALM_US {
            (self.uncounted, self.since) = (0, now);
        }
        now.saturating_sub(self.disturbed) > CALM_US
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_a_while_without_growth_that_nobody_counted() {
        let mut calm = Calm::new(0, UNACCOUNTED);
        assert!(!calm.look(CALM_US, 0, true), "not yet");
        assert!(calm.look(CALM_US + 1, 0, true));
        assert!(calm.look(CALM_US + 2, UNACCOUNTED as i64, true), "that little may be a mistake of measuring");
        assert!(!calm.look(CALM_US + 3, 1, true), "it adds up");
        assert!(calm.look(2 * CALM_US + 4, 0, true));
        assert!(!calm.look(2 * CALM_US + 5, 0, false), "others may grow");
    }
}
