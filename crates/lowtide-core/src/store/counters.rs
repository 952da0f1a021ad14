//! A store's counters.

use super::fill_words::{FILL_WORDS, FillWord, FillWords};
use crate::count::Counter;
use crate::slot::ORDERS;

/// See [`crate::store::StoreStats`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub stored_now: Counter,
    pub cached_now: Counter,
    pub folios: [Counter; ORDERS],
    pub folios_split: [Counter; ORDERS],
    pub stuck_references: Counter,
    pub zero_seen: Counter,
    pub same_filled: Counter,
    pub same_filled_words: FillWords,
    pub incompressible: Counter,
    pub in_vain: Counter,
    pub refused: Counter,
    pub written_back: Counter,
    pub shuffled: Counter,
    pub recompressed: Counter,
    pub recompressed_bytes: Counter,
    pub pool_refused: Counter,
    pub broken_clusters: Counter,
    pub corrupt: Counter,
    pub bad_slots: Counter,
    pub bad_frees: Counter,
}

impl Counters {
    /// In a forked child: resets counts of past events, not of the present.
    pub fn after_fork(&self) {
        for counter in [
            &self.stuck_references,
            &self.zero_seen,
            &self.same_filled,
            &self.incompressible,
            &self.in_vain,
            &self.refused,
            &self.written_back,
            &self.shuffled,
            &self.recompressed,
            &self.recompressed_bytes,
            &self.pool_refused,
            &self.broken_clusters,
            &self.corrupt,
            &self.bad_slots,
            &self.bad_frees,
        ] {
            counter.reset();
        }
        self.folios.iter().chain(&self.folios_split).for_each(Counter::reset);
        self.same_filled_words.set(&[FillWord::default(); FILL_WORDS]);
    }
}
