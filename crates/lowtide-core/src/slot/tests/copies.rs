//! Reclaim of clean copies.

use super::*;

struct GiveUp(std::sync::Mutex<Vec<u64>>);

impl SwapCache for GiveUp {
    fn give_up(&self, _area: &Area, slot: u64) -> bool {
        self.0.lock().unwrap().push(slot);
        true
    }
}

pub(super) struct Copies(pub std::sync::Mutex<BTreeSet<u64>>);

impl SwapCache for Copies {
    fn give_up(&self, _area: &Area, slot: u64) -> bool {
        self.0.lock().unwrap().remove(&slot)
    }
}

#[test]
fn clean_copies_in_partly_used_clusters_are_room() {
    for discard in [false, true] {
        let a = make(AreaConfig { slots: 4096, discard, ..AreaConfig::default() });
        let copies = Copies(std::sync::Mutex::default());
        let slots = all(&a, 0);
        // One slot of each run of 16 is free, the others are copies, except one in every second
        // run.
        for slot in slots.iter().filter(|slot| *slot % 16 != 1) {
            match slot % 32 {
                0 => a.release(*slot),
                16 | 20 => {}
                _ => {
                    a.mark_cached(*slot, true);
                    copies.0.lock().unwrap().insert(*slot);
                }
            }
        }
        slots.iter().filter(|slot| *slot % 32 == 1).for_each(|slot| a.release(*slot));
        a.validate().unwrap();
        assert!(!a.has_free_run(2), "without the copies");
        assert_eq!(a.alloc_reclaiming(5, &copies), None, "a slot in use in each");
        for i in 0..4096 / 32 - 1 {
            let got = a.alloc_reclaiming(4, &copies);
            assert!(got.is_some_and(|slot| slot % 32 == 0), "{i}: {got:?}");
        }
        assert_eq!(a.alloc_reclaiming(4, &copies), None);
        a.validate().unwrap();
    }
}

/// The cluster is unlocked when called. Refuses all but the first slots.
struct Looks(AtomicU64, u64);

impl SwapCache for Looks {
    fn give_up(&self, area: &Area, slot: u64) -> bool {
        drop(area.clusters().try_lock(slot as usize / CLUSTER_SLOTS).expect("the cluster is locked"));
        self.0.fetch_add(1, Ordering::Relaxed) < self.1
    }
}

#[test]
fn a_range_is_reclaimed_with_one_lock_and_no_further_than_it_can_be() {
    stay_on_cpu_1();
    for (given_up, asked, slot) in [(512, 256, Some(256)), (100, 101, None)] {
        let a = area(1024, false);
        assert_eq!(all(&a, 8).len(), 3);
        (256..512).for_each(|slot| a.mark_cached(slot, true));
        let cache = Looks(AtomicU64::new(0), given_up);
        let before = a.lock_acquisitions();
        // The cache's tries of the lock count, too.
        let got = a.alloc_from_copies(8, &cache);
        let after = a.lock_acquisitions();
        assert_eq!((got, cache.0.load(Ordering::Relaxed)), (slot, asked));
        // To find the run, and to free it.
        assert_eq!(after.0 - before.0 - asked, 2, "{before:?} {after:?}");
        a.validate().unwrap();
    }
}

#[test]
fn clean_copies_are_taken_back_only_over_half_full() {
    for policy in Policy::ALL {
        let a = make(AreaConfig { slots: 4096, allocator: policy.into(), ..AreaConfig::default() });
        let cache = GiveUp(std::sync::Mutex::default());
        let runs = all(&a, 4);
        for r in runs.iter().skip(1).step_by(2) {
            (*r..*r + 16).for_each(|s| a.mark_cached(s, true));
        }
        let got = a.alloc_reclaiming(4, &cache).unwrap_or_else(|| panic!("{}", policy.name()));
        let asked = cache.0.lock().unwrap().clone();
        assert!(runs.iter().skip(1).step_by(2).any(|r| *r == got) && asked.contains(&got));
        a.validate().unwrap();
        let freed = a.reclaim_full(100, &cache);
        // In the first cluster, slot 0, and the 15 behind it as an order-4 folio, are never
        // allocated.
        let of_full = asked.len() as u64 - if got < 512 { 16 } else { 0 } + freed;
        assert_eq!(of_full, (runs.len() / 2 - 15) as u64 * 16, "the worker takes those of full clusters");
        a.validate().unwrap();
    }
    let a = area(512 * 20, false);
    let cache = GiveUp(std::sync::Mutex::default());
    let r = a.alloc(9).unwrap();
    (r..r + 512).for_each(|s| a.mark_cached(s, true));
    for _ in 0..512 * 9 {
        assert!(a.alloc_reclaiming(0, &cache).is_some());
    }
    assert!(cache.0.lock().unwrap().is_empty(), "below half, clean copies are kept");
}

#[test]
fn a_cluster_that_gives_up_all_its_copies_serves_any_order_at_once() {
    for policy in Policy::ALL {
        for discard in [false, true] {
            let a = make(AreaConfig { slots: 1024, allocator: policy.into(), discard, ..AreaConfig::default() });
            let first = a.alloc(9).unwrap();
            (first..first + 512).for_each(|s| a.mark_cached(s, true));
            assert_eq!(a.alloc_reclaiming(9, &GiveUp(std::sync::Mutex::default())), Some(first), "{}", policy.name());
            a.validate().unwrap();
        }
    }
}
