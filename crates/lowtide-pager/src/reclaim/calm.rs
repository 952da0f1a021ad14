//! Calm times: memory grows by faults only, which are counted and stop where they are to stop. Then less has to be kept free
//! below the limit for what grows otherwise (`watermarks.rs`): new mappings, and copies of what forks share. (The library's
//! regions grow by faults only, always.)

/// Growth that nobody counted, in bytes: there must be mappings that are not registered.
pub const UNACCOUNTED: u64 = 1 << 20;
/// For this long nothing else must have been seen.
const CALM_US: u64 = 300_000;

/// What was seen of late.
pub struct Calm {
    /// When something else was last seen, in microseconds.
    disturbed: u64,
    /// Growth that nobody counted, in bytes (negative: memory went that nobody counted), and since when.
    uncounted: i64,
    since: u64,
    /// How much of it is no mistake of measuring.
    unaccounted: i64,
}

impl Calm {
    /// Not calm at first. Measurements may differ by less than `unaccounted` bytes from what is so.
    pub fn new(now: u64, unaccounted: u64) -> Calm {
        Calm { disturbed: now, uncounted: 0, since: now, unaccounted: unaccounted as i64 }
    }

    /// A look at the memory, which differs from what was expected by `uncounted` bytes. `alone`: no other process of the run
    /// has memory, none shares some with this one, and no mapping is known to have changed. Whether times are calm.
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
