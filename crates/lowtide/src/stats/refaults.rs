//! How far away pages were that came back: how many others had been evicted since they had.

use lowtide_pager::segment::{Counters, EPOCHS_A_LIMIT, REFAULT_AGES};
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

/// Kinds of `refaults`.
pub const KINDS: usize = IN_FOUR.len() + 1;
/// Ages up to which a refault is of each of them but the last.
const IN_FOUR: [usize; 3] = [1, EPOCHS_A_LIMIT / 4, EPOCHS_A_LIMIT];

/// Faults on pages in the pool and on devices, by how much had been evicted since the page had: entry `i` counts those
/// with about `i` times `step_bytes`.
#[derive(Debug, Clone, Serialize)]
pub struct Refaults {
    /// A 16th of the limit.
    pub step_bytes: u64,
    /// On pages in the pool.
    pub pool: Vec<u64>,
    /// On pages on devices.
    pub device: Vec<u64>,
}

impl Refaults {
    /// Of a run with this limit in bytes.
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
