//! The depth of refaults: how much more memory would have kept the page.
//!
//! A page that came back after R other evictions would have stayed if memory had also held those of
//! the R pages that were still out at that moment. So `depth(R)` is the sum, over the R evictions,
//! of the share of pages still out after that many evictions. The counts give that share. It is
//! exact for random and for cyclic access.

use crate::segment::{EPOCHS_A_LIMIT, REFAULT_AGES};

/// Volume evicted, in limits, during a page's absence. Age 0 means a third of an epoch on average.
fn limits_away(age: usize) -> f64 {
    let epochs = if age == 0 { 1.0 / 3.0 } else { age as f64 };
    epochs / EPOCHS_A_LIMIT as f64
}

/// What an observation has counted, in pages.
#[derive(Debug, Clone, Copy)]
pub struct Counted<'a> {
    /// All that left.
    pub evicted: f64,
    /// Of these, taken back before they were stored.
    pub taken_back: f64,
    /// Of these, come back from pool and devices, read-ahead included.
    pub loaded: f64,
    /// Faults by age, see [`crate::segment::Counters::refaults_pool`].
    pub refaults: &'a [f64; REFAULT_AGES],
}

impl Counted<'_> {
    /// Of the refaults of each age, in units of the limit, beyond the resident memory.
    pub fn depths(&self) -> [f64; REFAULT_AGES] {
        let missed = self.refaults.iter().sum::<f64>().max(1.0);
        let (mut before, mut back) = (self.taken_back, self.taken_back);
        let (mut depth, mut depths) = (0.0, [0.0; REFAULT_AGES]);
        for (age, count) in self.refaults.iter().enumerate() {
            let returned = self.loaded * count / missed;
            // On average, half of the pages of an age are back.
            let back_there = back + returned / 2.0;
            let out = (1.0 - before.midpoint(back_there) / self.evicted.max(1.0)).max(0.0);
            // Limits evicted between the mean of the age before and that of this one.
            let width = limits_away(age) - age.checked_sub(1).map_or(0.0, limits_away);
            depth += width * out;
            depths[age] = depth;
            (before, back) = (back_there, back + returned);
        }
        depths
    }
}
