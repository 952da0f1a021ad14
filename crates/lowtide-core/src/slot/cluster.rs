//! A cluster: 512 slots with their own lock.

use super::bitmap::Bitmap;
pub use super::bitmap::{CLUSTER_SLOTS, MAX_ORDER, ORDERS};
use super::lab::History;
use crate::lock::rank;
use crate::sync::Lock;

/// Changes under the cluster's lock; matches its list except between isolation and relocation, when
/// it is on none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(super) enum ListState {
    /// Never used, or isolated by a search.
    None = 0,
    Free,
    /// Some slots in use.
    Frag,
    Full,
    /// No slot in use, but to be punched out before allocation.
    Discard,
}

/// All zeros: never used.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Inner {
    pub count: u16,
    /// Latest `count` added to the area's.
    pub told: u16,
    /// Slots with only a cache mark (`swap_cache.rs`).
    pub caches: u16,
    /// Slots freed by this process, but not by a forked child.
    pub zombies: u16,
    /// Orders by which the largest aligned free run is below a whole cluster, at least; [`ORDERS`]
    /// if full. Allocations leave it; a search that finds less corrects it.
    below: u8,
    pub history: History,
    pub state: ListState,
    /// Number of its place (`lists.rs`); 0: none.
    pub place: u8,
    /// Counted against the quota.
    pub charged: bool,
    /// Second level (`index.rs`): largest order of free slots and clean copies, at most, plus one.
    /// 0: none.
    pub copies: u8,
    used: Bitmap,
}

pub(super) const EMPTY: Inner = Inner {
    used: Bitmap::EMPTY,
    count: 0,
    told: 0,
    caches: 0,
    zombies: 0,
    below: 0,
    history: History::NONE,
    state: ListState::None,
    place: 0,
    charged: false,
    copies: 0,
};

/// On its own cache lines: CPUs use neighbours. All zeros: never used.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Cluster(pub Lock<Inner, { rank::CLUSTER }>);

impl Default for Cluster {
    fn default() -> Cluster {
        Cluster(Lock::new(EMPTY))
    }
}

#[cfg(not(any(feature = "loom", feature = "shuttle")))]
// SAFETY: a free lock, empty bitmaps, ListState::None (0), false and zero counts are zeros; no drop
// glue.
unsafe impl crate::table::Zeroed for Cluster {}

impl Inner {
    pub(super) fn usable(&self) -> bool {
        self.state <= ListState::Frag
    }

    /// Order of the largest aligned free run, at most.
    pub(super) fn best(&self) -> Option<u32> {
        MAX_ORDER.checked_sub(self.below as u32)
    }

    /// The exact order; corrects [`Inner::best`].
    pub(super) fn find_best(&mut self) -> Option<u32> {
        let best = self.used.largest_clear(self.best()?);
        self.below = best.map_or(ORDERS as u8, |best| (MAX_ORDER - best) as u8);
        best
    }

    /// Takes the first aligned free run from `from` on, or else from the start.
    #[inline]
    pub(super) fn take(&mut self, order: u32, from: usize) -> Option<usize> {
        if self.best()? < order {
            return None;
        }
        let Some(first) = self.used.find_clear(order, from).or_else(|| self.used.find_clear(order, 0)) else {
            self.find_best();
            return None;
        };
        if self.count == 0 {
            self.history.begin(order);
        }
        self.occupy(first, 1 << order);
        Some(first)
    }

    /// Only from `from` on, and only if the cluster is partly used and stays so: its place then
    /// stays right.
    #[inline]
    pub(super) fn take_behind(&mut self, order: u32, from: usize) -> Option<usize> {
        let n = 1usize << order;
        if self.state != ListState::Frag || self.count as usize + n >= CLUSTER_SLOTS || self.best()? < order {
            return None;
        }
        let first = self.used.find_clear(order, from)?;
        self.used.set(first, n);
        self.count += n as u16;
        debug_assert!(self.below > 0, "no whole cluster, because it was partly used");
        self.history.allocated();
        Some(first)
    }

    /// Frees slots of a partly used cluster without clean copies, if its largest run stays the
    /// same. False: nothing has changed; use [`Inner::give`].
    #[inline]
    pub(super) fn give_some(&mut self, first: usize, n: usize) -> bool {
        let Some(best) = self.best() else { return false };
        let plain = self.state == ListState::Frag && self.caches == 0 && self.copies == 0;
        if !plain || !self.used.clear_if_small(first, n, best) {
            return false;
        }
        self.count -= n as u16;
        self.history.freed();
        true
    }

    pub(super) fn has_run_from(&self, order: u32, from: usize) -> bool {
        self.used.find_clear(order, from).is_some()
    }

    #[inline]
    pub(super) fn occupy(&mut self, first: usize, n: usize) {
        debug_assert!(self.used.is_clear(first, n));
        self.used.set(first, n);
        self.count += n as u16;
        self.below = if self.is_full() { ORDERS as u8 } else { self.below.max(1) };
        self.history.allocated();
    }

    #[inline]
    pub(super) fn give(&mut self, first: usize, n: usize) {
        debug_assert!(self.used.count(first, n) == n);
        self.used.clear(first, n);
        self.count -= n as u16;
        // Only aligned runs around the freed slots can have grown; an aligned freed run is one.
        let own = if n.is_power_of_two() && first & (n - 1) == 0 { n.ilog2() } else { 0 };
        if let Some(best) = self.used.largest_clear_around(first, n, self.best().max(Some(own))) {
            self.below = (MAX_ORDER - best) as u8;
        }
        self.history.freed();
    }

    pub(super) fn is_full(&self) -> bool {
        self.count as usize == CLUSTER_SLOTS
    }

    pub(super) fn is_used(&self, slot: usize) -> bool {
        self.used.is_set(slot)
    }

    pub(super) fn all_free(&self, first: usize, n: usize) -> bool {
        self.used.is_clear(first, n)
    }

    #[inline]
    pub(super) fn all_used(&self, first: usize, n: usize) -> bool {
        self.used.is_set_all(first, n)
    }

    pub(super) fn used_without(&self, cached: &Bitmap) -> Bitmap {
        self.used.without(cached)
    }

    /// Whether counts and maps agree. `cached`: the slots with only a cache mark.
    pub(super) fn is_consistent(&self, cached: &Bitmap) -> bool {
        self.count as usize == self.used.count(0, CLUSTER_SLOTS)
            && self.caches as usize == cached.count(0, CLUSTER_SLOTS)
            && cached.without(&self.used) == Bitmap::EMPTY
            && self.best() >= self.used.largest_clear(MAX_ORDER)
            && self.is_full() == self.best().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[cfg(not(any(feature = "loom", feature = "shuttle")))]
    #[test]
    fn small_enough_for_the_metadata_budget() {
        assert!(size_of::<Cluster>() == 128, "{} bytes: a quarter of a byte per slot", size_of::<Cluster>());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn the_largest_run_is_never_said_smaller_than_it_is(ops in prop::collection::vec((0u32..=MAX_ORDER, 0usize..CLUSTER_SLOTS, any::<bool>()), 1..80)) {
            let mut c = EMPTY;
            for (order, at, take) in ops {
                // As the area sets it, for the fast paths.
                c.state = if c.is_full() { ListState::Full } else if c.count > 0 { ListState::Frag } else { ListState::Free };
                if take && let Some(first) = c.take_behind(order, at) {
                    prop_assert!(first >= at && first.is_multiple_of(1 << order) && c.all_used(first, 1 << order));
                    prop_assert!(!c.is_full());
                } else if take {
                    if let Some(first) = c.take(order, at) {
                        prop_assert!(first.is_multiple_of(1 << order) && c.all_used(first, 1 << order));
                    } else {
                        prop_assert!(c.best().is_none_or(|b| b < order));
                    }
                } else {
                    let n = (1usize << order).min(CLUSTER_SLOTS - at);
                    let (all_used, before) = (c.all_used(at, n), (c.count, c.best()));
                    if c.give_some(at, n) {
                        prop_assert!(all_used && c.all_free(at, n));
                        prop_assert_eq!((before.0 - c.count, before.1), (n as u16, c.best()));
                    } else if all_used {
                        c.give(at, n);
                    }
                }
                prop_assert!(c.is_consistent(&Bitmap::EMPTY));
            }
        }
    }
}
