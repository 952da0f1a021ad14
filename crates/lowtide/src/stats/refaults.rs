//! The distances of refaults: evictions since the page's own.

use lowtide_wire::segment::{Counters, EPOCHS_A_LIMIT, REFAULT_AGES};
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

/// Kinds of `refaults`.
pub const KINDS: usize = IN_FOUR.len() + 1;
/// Upper age of each kind but the last.
const IN_FOUR: [usize; 3] = [1, EPOCHS_A_LIMIT / 4, EPOCHS_A_LIMIT];

/// Refaults from the pool and from devices: entry `i` counts those after about `i` times
/// `step_bytes` of evictions.
#[derive(Debug, Clone, Serialize)]
pub struct Refaults {
    /// A 16th of the limit.
    pub step_bytes: u64,
    pub pool: Vec<u64>,
    pub device: Vec<u64>,
}

impl Refaults {
    /// `limit`: bytes.
    pub fn new(counters: &Counters, limit: u64) -> Refaults {
        let all = |ages: &[AtomicU64; REFAULT_AGES]| ages.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let step_bytes = limit / EPOCHS_A_LIMIT as u64;
        Refaults { step_bytes, pool: all(&counters.refaults_pool), device: all(&counters.refaults_device) }
    }

    /// Up to an 8th of the limit, up to a quarter, all of it, more.
    pub fn in_four(&self) -> [u64; KINDS] {
        let mut four = [0; KINDS];
        for (age, count) in self.pool.iter().zip(&self.device).map(|(pool, device)| pool + device).enumerate() {
            four[IN_FOUR.iter().position(|most| age <= *most).unwrap_or(IN_FOUR.len())] += count;
        }
        four
    }
}
