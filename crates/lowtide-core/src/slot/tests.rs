use super::*;
use crate::device::{Device, NoDevice};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::vec::Vec;

fn area(slots: u64, shared: bool) -> Area {
    Area::new(slots, Device::None(NoDevice), shared, None).unwrap()
}

#[test]
fn every_slot_but_the_first_is_given_out_once() {
    for slots in [1, 2, 300, 512, 1300] {
        let a = area(slots, true);
        let got: HashSet<u64> = core::iter::from_fn(|| a.alloc(0)).collect();
        assert_eq!(got, (1..slots).collect(), "{slots} slots");
        for s in &got {
            a.release(*s);
        }
        assert_eq!(core::iter::from_fn(|| a.alloc(0)).count() as u64, slots - 1, "and again");
    }
}

#[test]
fn single_slots_use_what_runs_leave() {
    let a = area(2048, false);
    let runs: Vec<_> = core::iter::from_fn(|| a.alloc(4)).collect();
    assert_eq!(runs.len(), 4 * 32 - 1, "all but the run with slot 0");
    for r in &runs {
        a.release(r + 3);
    }
    assert_eq!(a.alloc(1), None);
    assert_eq!(core::iter::from_fn(|| a.alloc(0)).count(), runs.len() + 15);
}

#[test]
fn runs_of_any_length_are_dense() {
    let a = area(10 * 512, true);
    let mut next = 1;
    for n in [1, 13, 128, 3, 300] {
        assert_eq!(a.alloc_run(n), Some((next, n)));
        next += n as u64;
    }
    assert_eq!(a.alloc_run(100), Some((512, 100)), "not across clusters");
    assert_eq!(a.alloc_run(9999), Some((1024, 512)));
    let singles: Vec<_> = core::iter::from_fn(|| a.alloc(0)).collect();
    for s in &singles {
        if s % 8 != 0 {
            a.release(*s);
        }
    }
    assert_eq!(a.alloc_run(40).unwrap().1, 5, "as many as there are in one piece (40, 20, 10, 5)");
}

#[test]
fn a_freed_cluster_serves_any_order_again() {
    let a = area(1024, false);
    let singles: Vec<_> = core::iter::from_fn(|| a.alloc(0)).collect();
    assert_eq!((a.alloc(9), a.alloc(10)), (None, None));
    for s in singles.iter().filter(|s| **s >= 512) {
        a.release(*s);
    }
    assert_eq!(a.alloc(9), Some(512));
}

#[test]
fn the_budget_is_shared_and_counts_clusters() {
    static USED: AtomicU64 = AtomicU64::new(1 << 20);
    let budget = Some(Budget { used: &USED, limit: 6 << 20 });
    let a = Area::new(1 << 20, Device::None(NoDevice), true, budget).unwrap();
    assert_eq!(core::iter::from_fn(|| a.alloc(0)).count(), 2 * 512 - 1);
    assert_eq!((USED.load(Ordering::Relaxed), a.opened_bytes()), (5 << 20, 4 << 20));
}

#[test]
fn a_slot_that_a_child_refers_to_stays_until_the_child_lets_go() {
    let a = area(512, true);
    let slots: Vec<_> = core::iter::from_fn(|| a.alloc(0)).collect();
    for s in &slots {
        a.add_reference(*s);
        a.release(*s);
    }
    assert_eq!(a.alloc(0), None, "all zombies");
    // What an inherited area's release does in the child.
    for s in &slots[10..30] {
        a.undo_reference(*s);
    }
    let again: HashSet<u64> = core::iter::from_fn(|| a.alloc(0)).collect();
    assert_eq!(again, slots[10..30].iter().copied().collect());
}

#[test]
fn counts_stick_at_their_maximum() {
    let a = area(512, true);
    let s = a.alloc(0).unwrap();
    for _ in 0..70_000 {
        a.add_reference(s);
    }
    for _ in 0..70_000 {
        a.undo_reference(s);
    }
    a.release(s);
    assert!(core::iter::from_fn(|| a.alloc(0)).all(|other| other != s), "never given out twice");
}

#[test]
fn threads_never_share_a_slot() {
    let a = area(3000, true);
    let held = std::sync::Mutex::new(HashSet::new());
    std::thread::scope(|s| {
        for t in 0..3u64 {
            let (a, held) = (&a, &held);
            s.spawn(move || {
                let mut mine: Vec<(u64, u32)> = Vec::new();
                let mut seed = t + 1;
                for _ in 0..6000 {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let order = ((seed >> 33) % 6) as u32;
                    if seed >> 60 > 5
                        && let Some(first) = a.alloc(order)
                    {
                        assert!(first.is_multiple_of(1 << order) && first + (1 << order) <= 3000);
                        let mut all = held.lock().unwrap();
                        assert!((first..first + (1 << order)).all(|slot| all.insert(slot)));
                        mine.push((first, order));
                    } else if !mine.is_empty() {
                        let (first, order) = mine.swap_remove(seed as usize % mine.len());
                        for slot in first..first + (1 << order) {
                            held.lock().unwrap().remove(&slot);
                            a.release(slot);
                        }
                    }
                }
                for (first, order) in mine {
                    for slot in first..first + (1 << order) {
                        held.lock().unwrap().remove(&slot);
                        a.release(slot);
                    }
                }
            });
        }
    });
    assert_eq!(core::iter::from_fn(|| a.alloc(0)).count(), 2999);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn runs_never_overlap_and_single_slots_never_run_out_early(
        slots in 600u64..4000,
        ops in prop::collection::vec((0u32..=9, any::<prop::sample::Index>(), any::<bool>()), 1..400),
    ) {
        let a = area(slots, false);
        let mut held: BTreeMap<u64, u32> = BTreeMap::new();
        for (order, which, alloc) in ops {
            if alloc {
                if let Some(first) = a.alloc(order) {
                    prop_assert!(first != 0 && first.is_multiple_of(1 << order) && first + (1 << order) <= slots);
                    let before = held.range(..first + (1 << order)).next_back();
                    prop_assert!(before.is_none_or(|(s, o)| s + (1 << o) <= first));
                    held.insert(first, order);
                }
            } else if !held.is_empty() {
                let (&first, &order) = held.iter().nth(which.index(held.len())).unwrap();
                held.remove(&first);
                (first..first + (1 << order)).for_each(|s| a.release(s));
            }
        }
        let used: u64 = held.values().map(|o| 1u64 << o).sum();
        prop_assert_eq!(core::iter::from_fn(|| a.alloc(0)).count() as u64, slots - 1 - used);
    }
}
