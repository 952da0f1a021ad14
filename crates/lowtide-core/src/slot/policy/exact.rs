//! Clusters are indexed by their largest aligned free run, which each cluster keeps as slots come and go: a search opens only
//! clusters that surely have what it looks for, whatever order they served so far, and finds nothing exactly when there is
//! nothing. The index (`index.rs`) takes no lock, so that neither a search nor a free waits for others.
//!
//! The clusters that CPUs are filling at the moment are let be: the index says of them what was true when a CPU took them, and
//! is put right when that CPU leaves or a search opens them in vain. So a search opens in vain at most as many clusters as
//! there are CPUs times orders, and never misses a run.

use super::{Search, Trier};
use crate::percpu::Zone;
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

    fn search_first(&self, order: u32, trier: &mut dyn Trier) -> Option<u64> {
        // A free cluster is worth more than a bit of a search for a folio, less than one for each page.
        let levels = Level::sufficient(order).filter(|level| order > 0 || level.has_much_room());
        // This CPU's zone only: where others allocate and free, cache lines go back and forth.
        let zone = Zone::own();
        levels.into_iter().find_map(|level| trier.try_level(level, zone))
    }

    fn search(&self, order: u32, _used: u64, _total: u64, trier: &mut dyn Trier) -> Option<u64> {
        Level::sufficient(order).find_map(|level| trier.try_level(level, Zone::ALL))
    }

    fn steal(&self, _order: u32, _trier: &mut dyn Trier) -> Option<u64> {
        // The search was of all clusters.
        None
    }

    fn mixes(&self) -> bool {
        true
    }
}
