//! A cluster: 512 slots with their own lock.

use super::bitmap::Bitmap;
pub use super::bitmap::{CLUSTER_SLOTS, MAX_ORDER, ORDERS};
use crate::lock::rank;
use crate::sync::Lock;

/// What a cluster is, one thing at a time. Changes with the cluster's lock held; it agrees with the list that the cluster is on
/// except between isolation and relocation, when the cluster is on none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(super) enum ListState {
    /// Off every list: never used, or isolated by a thread that searches it.
    None = 0,
    /// No slot in use.
    Free,
    /// Some slots in use; with a rival (`lab/`): the latest change was a free.
    #[cfg(feature = "lab")]
    NonFull,
    /// Some slots in use; with a rival: the latest change was an allocation.
    Frag,
    /// All slots in use.
    Full,
    /// No slot in use, and the device still holds the bytes of old ones: not to be allocated from until they are punched out.
    Discard,
}

/// What a cluster's lock protects. All zeros: never used.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Inner {
    /// Bits set in `used`.
    pub count: u16,
    /// `count` when the area was last told of it.
    pub told: u16,
    /// Used slots that hold only a cache mark (`swap_cache.rs`).
    pub caches: u16,
    /// Slots in use that this process has freed while a forked child still refers to them.
    pub zombies: u16,
    /// How many orders the largest aligned free run is below a whole cluster, at least; [`ORDERS`] if no slot is free.
    /// Allocations leave it as it is: the search that finds less than it promises corrects it.
    below: u8,
    /// The order that the cluster serves, from its first slot until it is empty again.
    #[cfg(feature = "lab")]
    pub order: u8,
    /// The latest change was a free.
    #[cfg(feature = "lab")]
    pub freed: bool,
    pub state: ListState,
    /// Number of the place where it is (`lists.rs`); 0: none.
    pub place: u8,
    /// Its bytes count against the run's quota.
    pub charged: bool,
    /// Where the index has it for its clean copies (`index.rs`): one more than the order of the largest aligned run of slots
    /// that are free or such copies, at least. 0: nowhere.
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
    #[cfg(feature = "lab")]
    order: 0,
    #[cfg(feature = "lab")]
    freed: false,
    state: ListState::None,
    place: 0,
    charged: false,
    copies: 0,
};

/// A cluster. All zeros: never used. On cache lines of its own: CPUs work on neighbours.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Cluster(pub Lock<Inner, { rank::CLUSTER }>);

impl Default for Cluster {
    fn default() -> Cluster {
        Cluster(Lock::new(EMPTY))
    }
}

#[cfg(not(any(feature = "loom", feature = "shuttle")))]
// SAFETY: a free lock, empty bitmaps, ListState::None (0), false and zero counts are all zeros; nothing in it needs dropping.
unsafe impl crate::table::Zeroed for Cluster {}

impl Inner {
    /// Whether allocations may be tried here.
    pub(super) fn usable(&self) -> bool {
        self.state <= ListState::Frag
    }

    /// Whether the cluster serves an order, where each serves one.
    #[cfg(feature = "lab")]
    pub(super) fn serves(&self, order: u32) -> bool {
        order == 0 || self.count == 0 || u32::from(self.order) == order
    }

    /// The order of the largest aligned free run, or more: what was true before the latest allocations.
    pub(super) fn best(&self) -> Option<u32> {
        MAX_ORDER.checked_sub(self.below as u32)
    }

    /// The order of the largest aligned free run; [`Inner::best`] says so too from here on.
    pub(super) fn find_best(&mut self) -> Option<u32> {
        let best = self.used.largest_clear(self.best()?);
        self.below = best.map_or(ORDERS as u8, |best| (MAX_ORDER - best) as u8);
        best
    }

    /// Takes the first 2^`order` free slots at a multiple of that, from index `from` on or else from the beginning, and returns
    /// the index of the first.
    #[inline]
    pub(super) fn take(&mut self, order: u32, from: usize) -> Option<usize> {
        if self.best()? < order {
            return None;
        }
        let Some(first) = self.used.find_clear(order, from).or_else(|| self.used.find_clear(order, 0)) else {
            self.find_best();
            return None;
        };
        #[cfg(feature = "lab")]
        if self.count == 0 {
            self.order = order as u8;
        }
        self.occupy(first, 1 << order);
        Some(first)
    }

    /// Whether 2^`order` slots at a multiple of that are free from index `from` on.
    pub(super) fn has_run_from(&self, order: u32, from: usize) -> bool {
        self.used.find_clear(order, from).is_some()
    }

    /// Marks free slots as in use.
    #[inline]
    pub(super) fn occupy(&mut self, first: usize, n: usize) {
        debug_assert!(self.used.is_clear(first, n));
        self.used.set(first, n);
        self.count += n as u16;
        // No longer a whole cluster, at least.
        self.below = if self.is_full() { ORDERS as u8 } else { self.below.max(1) };
        #[cfg(feature = "lab")]
        {
            self.freed = false;
        }
    }

    /// Frees `n` slots from index `first` on.
    #[inline]
    pub(super) fn give(&mut self, first: usize, n: usize) {
        debug_assert!(self.used.count(first, n) == n);
        self.used.clear(first, n);
        self.count -= n as u16;
        // Only the aligned runs around the freed slots can have grown.
        if let Some(best) = self.used.largest_clear_around(first, n, self.best()) {
            self.below = (MAX_ORDER - best) as u8;
        }
        #[cfg(feature = "lab")]
        {
            self.freed = true;
        }
    }

    /// Whether all slots are in use.
    pub(super) fn is_full(&self) -> bool {
        self.count as usize == CLUSTER_SLOTS
    }

    pub(super) fn is_used(&self, slot: usize) -> bool {
        self.used.is_set(slot)
    }

    /// Whether all of the `n` slots from index `first` on are free.
    pub(super) fn all_free(&self, first: usize, n: usize) -> bool {
        self.used.is_clear(first, n)
    }

    /// Whether all of the `n` slots from index `first` on are in use.
    pub(super) fn all_used(&self, first: usize, n: usize) -> bool {
        self.used.is_set_all(first, n)
    }

    /// The slots that are in use and not in `cached`.
    pub(super) fn used_without(&self, cached: &Bitmap) -> Bitmap {
        self.used.without(cached)
    }

    /// Whether the counts agree with the maps. `cached`: the slots that hold only a cache mark.
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
                if take {
                    if let Some(first) = c.take(order, at) {
                        prop_assert!(first.is_multiple_of(1 << order) && c.all_used(first, 1 << order));
                    } else {
                        prop_assert!(c.best().is_none_or(|b| b < order));
                    }
                } else {
                    let n = (1usize << order).min(CLUSTER_SLOTS - at);
                    if c.all_used(at, n) {
                        c.give(at, n);
                    }
                }
                prop_assert!(c.is_consistent(&Bitmap::EMPTY));
            }
        }
    }
}
