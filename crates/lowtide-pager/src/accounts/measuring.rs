//! When the reclaimer measures lowtide's tables ([`crate::pager::Pager::measure_rest`]).

/// Microseconds between measurements.
const EVERY_US: u64 = 100_000;
/// Evictions in between; fewer at first, when tables grow.
const MOST_PAGES: u64 = 4096;

/// The latest measurement.
#[derive(Debug, Default)]
pub struct Measuring {
    at: u64,
    /// Pages evicted by then.
    evicted: u64,
}

impl Measuring {
    /// Whether due; then counts as done. `evicted`: pages so far.
    pub fn is_due(&mut self, now_us: u64, evicted: u64) -> bool {
        let pages = (self.evicted / 4).clamp(MOST_PAGES / 64, MOST_PAGES);
        let is_due = now_us.saturating_sub(self.at) >= EVERY_US || evicted.saturating_sub(self.evicted) >= pages;
        if is_due {
            *self = Measuring { at: now_us, evicted };
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sooner_while_few_pages_are_out() {
        let mut measuring = Measuring::default();
        assert!(measuring.is_due(EVERY_US, 0));
        assert!(!measuring.is_due(EVERY_US + 1, 63));
        assert!(measuring.is_due(EVERY_US + 1, 64));
        assert!(measuring.is_due(EVERY_US + 2, 40_000));
        assert!(!measuring.is_due(EVERY_US + 3, 44_095));
        assert!(measuring.is_due(EVERY_US + 3, 44_096));
        assert!(measuring.is_due(2 * EVERY_US + 3, 44_096), "time has passed");
    }
}
