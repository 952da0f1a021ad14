//! Clusters are indexed by their largest aligned free run, which each cluster keeps as slots come and go: a search opens only
//! clusters that surely have what it looks for, whatever order they served so far, and finds nothing exactly when there is
//! nothing. The index (`index.rs`) takes no lock, so that neither a search nor a free waits for others.

use super::{Search, Trier};
use crate::slot::cluster::Inner;
use crate::slot::index::Level;
use crate::slot::lists::Place;

#[derive(Debug)]
pub(in crate::slot) struct Exact;

impl Search for Exact {
    #[inline]
    fn place(&self, inner: &Inner, _freed: bool) -> Place {
        Place::Index(Level::of(inner))
    }

    fn search(&self, order: u32, _used: u64, _total: u64, trier: &mut dyn Trier) -> Option<u64> {
        Level::sufficient(order).find_map(|level| trier.try_level(level))
    }

    fn steal(&self, _order: u32, _trier: &mut dyn Trier) -> Option<u64> {
        // The search was of all clusters.
        None
    }

    fn mixes(&self) -> bool {
        true
    }
}
