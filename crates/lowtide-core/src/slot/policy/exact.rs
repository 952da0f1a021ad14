//! Clusters are indexed by their largest aligned free run, which the cluster keeps as slots come and go: a search opens only
//! clusters that surely have what it looks for, and finds nothing exactly when there is nothing.
//!
//! Best fit: the smallest sufficient run first, in a cluster that serves the order, then in any other, so that large runs last.

use super::{Search, Trier};
use crate::slot::cluster::{Inner, MAX_ORDER};
use crate::slot::lists::ListId;

#[derive(Debug)]
pub(in crate::slot) struct Exact;

impl Search for Exact {
    fn list(&self, inner: &Inner, _freed: bool) -> ListId {
        // A cluster without a free slot is full, and on no list of this policy's.
        ListId::frag(inner.order.into(), inner.best().unwrap_or(0) as usize)
    }

    fn search(&self, order: u32, _used: u64, _total: u64, trier: &mut dyn Trier) -> Option<u64> {
        trier.try_first(&mut sufficient(order, order))
    }

    fn steal(&self, order: u32, trier: &mut dyn Trier) -> Option<u64> {
        let by_fit =
            |best| (0..=MAX_ORDER).filter(move |serves| *serves != order).map(move |serves| ListId::frag(serves, best));
        trier.try_first(&mut (order as usize..=MAX_ORDER as usize).flat_map(by_fit))
    }

    fn mixes(&self) -> bool {
        true
    }
}

/// The lists of clusters that serve an order and have a run of 2^`order`, the smallest runs first.
fn sufficient(order: u32, serves: u32) -> impl Iterator<Item = ListId> {
    (order as usize..=MAX_ORDER as usize).map(move |best| ListId::frag(serves, best))
}
