//! The frag list is split by emptiness, and searched from the emptiest bucket on, each as long as
//! it is likely to pay.
//!
//! If the c used slots of a cluster lie at random, an aligned run of 2^o is free with p = C(512 -
//! 2^o, c) / C(512, c), and one of the G = 512 >> o runs (taken as independent) with P(o, c) = 1 -
//! (1 - p)^G. A bucket gets about 1/P tries. Recent results correct P, since slots are not used at
//! random; a full area tries longer.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::search_lists::{Trial, Tried};
use super::{Rival, by_latest_change};
use crate::slot::cluster::{CLUSTER_SLOTS, Inner, ORDERS};
use crate::slot::lists::ListId;

const BUCKETS: usize = ListId::BUCKETS;

const ONE: u32 = 1 << 16;
/// Fewest and most clusters per bucket and search.
const TRIES: (u32, u32) = (1, 16);
/// Most clusters per other order, in a bucket where each has a run.
const STEALS: u32 = 4;
/// Weight of the latest try: 1/16.
const WEIGHT: u32 = 4;

#[derive(Debug)]
pub(super) struct Bucketed {
    /// Recent tries that found a run, by order and bucket.
    seen: [[AtomicU32; BUCKETS]; ORDERS],
}

/// 0 is the emptiest.
fn bucket(used: usize) -> usize {
    (used * BUCKETS / (CLUSTER_SLOTS + 1)).min(BUCKETS - 1)
}

fn middle(bucket: usize) -> usize {
    (2 * bucket + 1) * CLUSTER_SLOTS / (2 * BUCKETS)
}

/// P(o, c) in 65536ths.
fn chance(order: u32, used: usize) -> u32 {
    let run = 1usize << order;
    if used + run > CLUSTER_SLOTS {
        return 0;
    }
    let mut p = 1.0f64;
    for i in 0..run {
        p *= (CLUSTER_SLOTS - used - i) as f64 / (CLUSTER_SLOTS - i) as f64;
    }
    let mut none = 1.0f64;
    for _ in 0..CLUSTER_SLOTS >> order {
        none *= 1.0 - p;
    }
    ((1.0 - none) * f64::from(ONE)) as u32
}

impl Bucketed {
    pub(super) fn new() -> Bucketed {
        let first_guess = |o: usize| core::array::from_fn(|b| AtomicU32::new(chance(o as u32, middle(b))));
        Bucketed { seen: core::array::from_fn(first_guess) }
    }

    /// Most clusters to open.
    fn tries(&self, order: u32, bucket: usize, used: u64, total: u64) -> usize {
        let share = self.seen[order as usize][bucket].load(Relaxed).max(1);
        let worth = (ONE / share).clamp(TRIES.0, TRIES.1);
        // Up to twice as many in a full area.
        (worth + worth * (used * 8 / total.max(1)).min(8) as u32 / 8) as usize
    }

    fn learn(&self, order: u32, bucket: usize, tried: &Tried) {
        let seen = &self.seen[order as usize][bucket];
        for i in 1..=tried.opened {
            let before = seen.load(Relaxed);
            let latest = if i == tried.opened && tried.slot.is_some() { ONE } else { 0 };
            // Races may lose an update. Bounded below, so the bucket is tried again.
            seen.store((before - (before >> WEIGHT) + (latest >> WEIGHT)).max(ONE / 256), Relaxed);
        }
    }
}

impl Rival for Bucketed {
    fn list_of(&self, inner: &Inner) -> ListId {
        let order = inner.history.order();
        match by_latest_change(inner) {
            list if list == ListId::frag(order, 0) => ListId::frag(order, bucket(inner.count as usize)),
            other => other,
        }
    }

    fn search(&self, order: u32, used: u64, total: u64, trial: &mut Trial<'_, '_>) -> Option<u64> {
        let found = trial.try_list(ListId::nonfull(order), usize::MAX).slot;
        found.or_else(|| {
            (0..BUCKETS).find_map(|bucket| {
                let tried = trial.try_list(ListId::frag(order, bucket), self.tries(order, bucket, used, total));
                self.learn(order, bucket, &tried);
                tried.slot
            })
        })
    }

    fn steal(&self, order: u32, trial: &mut Trial<'_, '_>) -> Option<u64> {
        let others = || (0..ORDERS as u32).filter(|o| *o != order);
        // A few each: their recent results are unknown.
        (0..BUCKETS)
            .find_map(|bucket| {
                let tries = (chance(order, middle(bucket)) * STEALS / ONE) as usize;
                others().find_map(|o| trial.try_list(ListId::frag(o, bucket), tries.max(usize::from(order == 0))).slot)
            })
            .or_else(|| others().find_map(|o| trial.try_list(ListId::nonfull(o), 1).slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chance_of_a_run() {
        let one_left = chance(0, 511);
        assert!((41_000..42_000).contains(&one_left), "1 - (511/512)^512: runs are taken for independent; {one_left}");
        assert_eq!((chance(0, 512), chance(9, 1), chance(9, 0)), (0, 0, ONE));
        // C(496, 256) / C(512, 256) for each of 32 runs: a little less than 32 / 2^16.
        let half = chance(4, 256);
        assert!((20..=30).contains(&half), "{half}");
        assert!((0..ORDERS as u32).all(|o| (1..=512).all(|c| chance(o, c) <= chance(o, c - 1))), "fuller is never likelier");
        assert_eq!((bucket(1), bucket(512)), (0, BUCKETS - 1));
    }

    #[test]
    fn a_bucket_that_pays_is_tried_less_long() {
        let b = Bucketed::new();
        let before = b.tries(4, 5, 0, 100);
        for _ in 0..200 {
            b.learn(4, 5, &Tried { slot: Some(1), opened: 1 });
        }
        assert!(b.tries(4, 5, 0, 100) == 1 && before > 1);
        b.learn(4, 5, &Tried { slot: None, opened: 100 });
        assert_eq!(b.tries(4, 5, 0, 100), 16);
        assert_eq!(b.tries(4, 5, 100, 100), 32, "longer in a full area");
    }
}
