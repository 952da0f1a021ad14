mod copies;
mod sharing;

use super::*;
use crate::device::{Device, FileDevice, WriteRun};
use crate::percpu::{self, Zone, stay_on_cpu_1};
use copies::Copies;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::vec::Vec;

fn make(cfg: AreaConfig) -> Area {
    Area::new(None, cfg).unwrap()
}

fn area(slots: u64, shared: bool) -> Area {
    make(AreaConfig { slots, shared, ..AreaConfig::default() })
}

fn all(a: &Area, order: u32) -> Vec<u64> {
    core::iter::from_fn(|| a.alloc(order)).collect()
}

#[test]
fn impossible_areas() {
    let new = |slots| Area::new(None, AreaConfig { slots, ..AreaConfig::default() }).map(|a| a.slots());
    assert_eq!(new(0), Err(SlotError::Empty));
    assert_eq!(new(511), Err(SlotError::SmallerThanCluster));
    assert_eq!(new(MAX_SLOTS + 1), Err(SlotError::TooLarge));
    assert_eq!(new(1 << 50), Err(SlotError::TooLarge));
    assert_eq!(new(512), Ok(512));
}

#[test]
fn every_slot_but_the_first_is_given_out_once() {
    for policy in Policy::ALL {
        for slots in [512, 600, 1300] {
            let a = make(AreaConfig { slots, allocator: policy.into(), shared: true, ..AreaConfig::default() });
            let got: HashSet<u64> = all(&a, 0).into_iter().collect();
            assert_eq!(got, (1..slots).collect(), "{slots} slots, {}", policy.name());
            a.validate().unwrap();
            got.iter().for_each(|s| a.release(*s));
            a.validate().unwrap();
            assert_eq!(all(&a, 0).len() as u64, slots - 1, "and again");
        }
    }
}

#[test]
fn a_question_about_all_words_ends_with_the_first_yes() {
    let a = area(4096, true);
    assert_eq!(all(&a, 0).len(), 4095);
    a.word(7).unwrap().store(5, Ordering::Relaxed);
    let looks = |wanted| {
        let mut looks = 0;
        let found = a.any_word(|word| {
            looks += 1;
            word == wanted
        });
        (found, looks)
    };
    assert_eq!((looks(5), looks(6)), ((true, 8), (false, 4096)));
}

#[test]
fn single_slots_use_what_folios_leave() {
    for policy in Policy::ALL {
        let a = make(AreaConfig { slots: 2048, allocator: policy.into(), ..AreaConfig::default() });
        let runs = all(&a, 4);
        assert_eq!(runs.len(), 4 * 32 - 1, "all but the run with slot 0");
        for r in &runs {
            a.release(r + 3);
        }
        assert_eq!(a.alloc(4), None);
        assert_eq!(all(&a, 0).len(), runs.len() + 15, "{}", policy.name());
        a.validate().unwrap();
    }
}

#[test]
fn a_freed_cluster_serves_any_order_again() {
    let a = area(1024, false);
    let singles = all(&a, 0);
    assert_eq!((a.alloc(9), a.alloc(10)), (None, None));
    a.free_run(512, 512).unwrap();
    assert_eq!(a.alloc(9), Some(512));
    assert_eq!(singles.len(), 1023);
}

#[test]
fn what_may_not_be_freed_changes_nothing() {
    stay_on_cpu_1();
    for shared in [false, true] {
        let a = area(2048, shared);
        let first = a.alloc(9).unwrap();
        assert_eq!(first, 512);
        a.free_run(600, 3).unwrap();
        let before = a.used();
        for (slot, n, error) in [
            (0, 1, SlotError::NoSuchSlot),
            (601, 1, SlotError::NotInUse),
            (598, 3, SlotError::NotInUse),
            (1000, 100, SlotError::NoSuchSlot),
            (1020, 8, SlotError::NoSuchSlot),
            (1900, 1, SlotError::NoSuchSlot),
            (700, 0, SlotError::AcrossClusters),
            (u64::MAX, 2, SlotError::NoSuchSlot),
        ] {
            assert_eq!(a.free_run(slot, n), Err(error), "{slot}+{n}");
        }
        let second = a.alloc(9).unwrap();
        assert_eq!(a.free_run(second - 4, 8), Err(SlotError::AcrossClusters));
        assert_eq!(a.used(), before + 512);
        a.validate().unwrap();
    }
}

#[test]
fn a_cpu_begins_at_the_first_slot_of_its_cluster_once_that_is_free_again() {
    stay_on_cpu_1();
    for rotating in [false, true] {
        let a = make(AreaConfig { slots: 2048, rotating, ..AreaConfig::default() });
        let first = core::iter::from_fn(|| a.alloc(0)).find(|slot| slot.is_multiple_of(512)).unwrap();
        (1..100).for_each(|n| assert_eq!(a.alloc(0), Some(first + n)));
        a.free_run(first, 100).unwrap();
        assert_eq!(a.alloc(0), Some(first), "rotating: {rotating}");
        a.validate().unwrap();
    }
}

/// A used slot on the free list.
#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "is free, and has no run"))]
fn a_cluster_that_is_wrongly_on_the_list_of_free_ones_is_found_and_not_lost() {
    let a = area(1024, false);
    assert_eq!(a.alloc(9), Some(512));
    a.free_run(512, 512).unwrap();
    a.clusters().lock(1).occupy(0, 1);
    assert_eq!(a.alloc(9), None);
    a.validate().unwrap();
    assert_eq!(all(&a, 0).len(), 511 + 511, "it is where it belongs");
}

#[test]
fn one_slot_is_had_though_others_have_every_cluster_in_hand() {
    // A partly used one; a free one; only full ones.
    for (runs, freed, there) in [(2, (512, 1), true), (2, (512, 512), true), (2, (0, 0), false)] {
        let a = area(1024, false);
        assert_eq!(all(&a, 0).len() as u64, 512 * runs - 1);
        if freed.1 > 0 {
            a.free_run(freed.0, freed.1).unwrap();
        }
        let held: Vec<_> = (0..2).map(|i| a.clusters().try_lock(i).unwrap()).collect();
        std::thread::scope(|s| {
            let other = s.spawn(|| {
                // Past this CPU's latest cluster, for which all threads wait.
                (0..percpu::count()).for_each(|_| a.next().hint(0).set_own(0));
                a.alloc(0)
            });
            // A search that gives up, or finds all full, ends.
            while !other.is_finished() && !(0..2).any(|i| a.clusters().is_awaited(i)) {
                std::thread::yield_now();
            }
            drop(held);
            assert_eq!(other.join().unwrap().is_some(), there);
        });
        a.validate().unwrap();
    }
}

#[test]
fn a_cpu_goes_on_behind_the_cluster_that_it_has_filled() {
    stay_on_cpu_1();
    // Zones of an area of that size.
    let zones = 1 << Zone::shares(0);
    // Of this CPU's zone.
    let [before, own, behind] = [1, 2, 3].map(|n| ((1 + n * zones) * CLUSTER_SLOTS) as u64);
    let a = area((CLUSTER_SLOTS * (4 * zones + 2)) as u64, false);
    all(&a, 0);
    a.free_run(own + 511, 1).unwrap();
    assert_eq!(a.alloc(0), Some(own + 511), "the last slot");
    for other in [before, behind] {
        a.free_run(other, 100).unwrap();
    }
    assert_eq!(a.alloc(0), Some(behind));
}

#[test]
fn the_quota_is_shared_and_counts_clusters() {
    static USED: AtomicU64 = AtomicU64::new(1 << 20);
    static MINE: AtomicU64 = AtomicU64::new(0);
    let quota = Some(Quota { used: &USED, mine: Some(&MINE), limit: 6 << 20 });
    let a = make(AreaConfig { slots: 1 << 20, shared: true, quota, ..AreaConfig::default() });
    assert_eq!(all(&a, 0).len(), 2 * 512 - 1);
    let now = || (USED.load(Ordering::Relaxed), MINE.load(Ordering::Relaxed));
    assert_eq!((now(), a.opened_bytes()), ((5 << 20, 4 << 20), 4 << 20));
    drop(a);
    assert_eq!(now(), (1 << 20, 0), "what an area took goes with it");
}

#[test]
fn a_file_does_not_grow_while_it_has_holes() {
    let a = area(512 * 100, false);
    let held: Vec<u64> = (0..512 * 20).map(|_| a.alloc(0).unwrap()).collect();
    let opened = a.opened_bytes();
    for s in held.iter().filter(|s| *s % 4 != 0) {
        a.release(*s);
    }
    for _ in 0..512 * 5 {
        a.alloc(0).unwrap();
    }
    assert_eq!(a.opened_bytes(), opened);
}

#[test]
fn free_clusters_are_punched_out_before_they_are_given_out_again() {
    stay_on_cpu_1();
    let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let fd = rustix::fs::open(std::env::temp_dir(), flags, mode).unwrap();
    let same = rustix::io::dup(&fd).unwrap();
    static USED: AtomicU64 = AtomicU64::new(0);
    static MINE: AtomicU64 = AtomicU64::new(0);
    let quota = Some(Quota { used: &USED, mine: Some(&MINE), limit: 1 << 40 });
    let cfg = AreaConfig { slots: 1024, discard: true, quota, ..AreaConfig::default() };
    let a = Area::new(Some(file(fd)), cfg).unwrap();
    let first = a.alloc(9).unwrap();
    let all_blocks = || rustix::fs::fstat(&same).unwrap().st_blocks;
    let before = all_blocks();
    let blocks = || all_blocks() - before;
    let mut run = [WriteRun { slot: first, pages: &[&[7; 4096]], tags: &mut [0], result: Ok(()) }];
    a.device.as_ref().unwrap().write_runs(&mut run);
    run[0].result.unwrap();
    assert_eq!((blocks(), a.has_discards()), (8, false));
    a.free_run(first, 512).unwrap();
    assert!(a.has_discards());
    assert_eq!(USED.load(Ordering::Relaxed), 4 << 20);
    a.validate().unwrap();
    assert_eq!(a.alloc(9), Some(first), "allocation finishes the discard itself");
    assert_eq!((blocks(), a.has_discards()), (0, false));
    a.free_run(first, 512).unwrap();
    assert_eq!(a.discard_some(10), 1);
    assert_eq!([&USED, &MINE].map(|n| n.load(Ordering::Relaxed)), [2 << 20; 2], "the space is the quota's again");
    a.validate().unwrap();
    assert_eq!(a.alloc(9), Some(first));
    assert_eq!(USED.load(Ordering::Relaxed), 4 << 20);
}

#[test]
fn a_rotating_device_is_written_in_sequence_by_all_threads() {
    let a = make(AreaConfig { slots: 512 * 8, rotating: true, ..AreaConfig::default() });
    let mut got = Vec::new();
    for _ in 0..300 {
        got.push(std::thread::scope(|s| s.spawn(|| a.alloc(0).unwrap()).join().unwrap()));
    }
    assert!(got.is_sorted() && got[299] - got[0] == 299, "{got:?}");
}

#[test]
fn on_a_rotating_device_all_sizes_and_the_next_clusters_are_one_sequence() {
    let a = make(AreaConfig { slots: 512 * 16, rotating: true, ..AreaConfig::default() });
    let clusters: Vec<u64> = (0..15).map(|_| a.alloc(9).unwrap()).collect();
    assert!(clusters.iter().enumerate().all(|(i, first)| *first == 512 * (i as u64 + 1)), "{clusters:?}");
    // Free clusters come by number, not in the order of their frees.
    for i in [9, 3, 11, 5, 4, 10] {
        a.free_run(clusters[i], 512).unwrap();
    }
    let free = [3, 4, 5, 9, 10, 11].map(|i| clusters[i]);
    assert_eq!(a.alloc(9), Some(free[0]));
    let mut end = free[0] + 512;
    for i in 0..200 {
        let order = [0, 4, 2, 0, 3][i % 5];
        let got = std::thread::scope(|s| s.spawn(|| a.alloc(order).unwrap()).join().unwrap());
        let skipped = got - end;
        assert!(skipped < 1 << order || free.contains(&got), "{end} to {got}");
        end = got + (1 << order);
    }
    let behind = [5, 3].map(|n| a.alloc_behind(1, n));
    assert_eq!(behind, [Some(end), Some(end + 5)], "whoever asks goes on behind all");
    a.validate().unwrap();
}

/// A device on an open file.
fn file(fd: rustix::fd::OwnedFd) -> Device {
    Device::File(FileDevice::new(fd, Default::default()).unwrap())
}

struct HoldsNone;

impl SwapCache for HoldsNone {
    fn give_up(&self, area: &Area, _slot: u64) -> bool {
        crate::lock::assert_holds_none();
        // Would deadlock: an allocation takes the "next" lock first.
        area.next().hint(0).get() > 0
    }
}

#[test]
fn nothing_of_a_rotating_area_is_held_while_copies_are_given_up_and_holes_are_punched() {
    let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
    let fd = rustix::fs::open(std::env::temp_dir(), flags, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    let device = Some(file(fd));
    let cfg = AreaConfig { slots: 1536, rotating: true, discard: true, ..AreaConfig::default() };
    let a = Area::new(device, cfg).unwrap();
    let (first, second) = (a.alloc(9).unwrap(), a.alloc(9).unwrap());
    (first..first + 512).for_each(|s| a.mark_cached(s, true));
    assert_eq!(a.alloc_reclaiming(9, &HoldsNone), Some(first), "taken back and punched out on the way");
    a.free_run(second, 512).unwrap();
    assert_eq!(a.alloc_reclaiming(9, &HoldsNone), Some(second), "punched out on the way");
    a.validate().unwrap();
}

#[test]
fn higher_priorities_first_and_equals_in_turn() {
    let areas = Areas::new();
    let add = |priority| areas.add(make(AreaConfig { slots: 1024, priority, ..AreaConfig::default() }), true).unwrap();
    let (low, a, b) = (add(-1), add(5), add(5));
    let mut clusters = Vec::new();
    while let Some((area, _)) = areas.alloc(9, &NoCache) {
        clusters.push(area.id());
    }
    assert_eq!(clusters.len(), 3);
    assert_eq!(clusters[2], low);
    assert_ne!(clusters[0], clusters[1], "in turn");
    for _ in 0..2 * 511 {
        assert_ne!(areas.alloc(0, &NoCache).unwrap().0.id(), low);
    }
    assert_eq!(areas.listed(), [low], "full areas leave the list");
    assert_eq!(areas.alloc(0, &NoCache).unwrap().0.id(), low);
    areas.get(a).unwrap().release(1);
    assert_eq!(areas.listed(), [a, low]);
    // This CPU uses up the cluster of the low one.
    for _ in 0..510 {
        areas.alloc(0, &NoCache).unwrap();
    }
    assert_eq!(areas.alloc(0, &NoCache).unwrap().0.id(), a);
    assert!(areas.alloc(0, &NoCache).is_none() && areas.listed().is_empty());
    areas.get(b).unwrap().release(7);
    assert_eq!(areas.listed(), [b]);
}

#[test]
fn swapoff_closes_waits_and_removes() {
    let areas = Areas::new();
    let id = areas.add(area(1024, false), true).unwrap();
    let (_, slot) = areas.alloc(0, &NoCache).unwrap();
    assert_eq!(areas.remove(id), Err(SlotError::StillInUse), "not closed");
    areas.close(id).unwrap();
    assert_eq!(areas.close(id), Err(SlotError::Closed));
    assert!(areas.alloc(0, &NoCache).is_none() && areas.get(id).unwrap().alloc(0).is_none());
    assert_eq!(areas.remove(id), Err(SlotError::StillInUse));
    areas.reopen(id);
    let (_, other) = areas.alloc(0, &NoCache).expect("cancelled: in use again, and whole");
    areas.close(id).unwrap();
    areas.get(id).unwrap().release(slot);
    areas.get(id).unwrap().release(other);
    assert!(areas.listed().is_empty(), "frees don't open it");
    areas.remove(id).unwrap();
    assert!(areas.get(id).is_none());
    assert_eq!(areas.add(area(512, false), true), Ok(id), "the number is free again");
    for n in 1..256 {
        assert_eq!(areas.add(area(512, false), false).map(usize::from), Ok(n));
    }
    assert_eq!(areas.add(area(512, false), false), Err(SlotError::TooManyAreas));
}

#[test]
fn threads_never_share_a_slot() {
    for policy in Policy::ALL {
        let a = make(AreaConfig {
            slots: 3000,
            allocator: policy.into(),
            shared: policy == Policy::ScanAll,
            ..AreaConfig::default()
        });
        let held: Vec<AtomicU64> = (0..3000).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|s| {
            for t in 0..3u64 {
                let (a, held) = (&a, &held);
                s.spawn(move || {
                    let mut mine: Vec<(u64, u32)> = Vec::new();
                    let mut seed = t + 1;
                    let free = |(first, order): (u64, u32)| {
                        (first..first + (1 << order))
                            .for_each(|s| assert_eq!(held[s as usize].swap(0, Ordering::SeqCst), t + 1));
                        a.free_run(first, 1 << order).unwrap();
                    };
                    for _ in 0..6000 {
                        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        let order = ((seed >> 33) % 6) as u32;
                        if seed >> 60 > 5
                            && let Some(first) = a.alloc(order)
                        {
                            assert!(first.is_multiple_of(1 << order) && first + (1 << order) <= 3000);
                            (first..first + (1 << order))
                                .for_each(|s| assert_eq!(held[s as usize].swap(t + 1, Ordering::SeqCst), 0));
                            mine.push((first, order));
                        } else if !mine.is_empty() {
                            free(mine.swap_remove(seed as usize % mine.len()));
                        }
                    }
                    mine.into_iter().for_each(free);
                });
            }
        });
        a.validate().unwrap();
        assert_eq!(all(&a, 0).len(), 2999);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    /// Against a plain set: allocations are free (or clean copies), aligned and inside; exact fails
    /// only if a plain search does.
    #[test]
    fn agrees_with_a_set_of_slots(
        slots in 600u64..4000,
        policy in prop::sample::select(&Policy::ALL[..]),
        (discard, shared, rotating) in any::<(bool, bool, bool)>(),
        ops in prop::collection::vec((0u32..=9, any::<prop::sample::Index>(), 0u8..6), 1..400),
    ) {
        let a = make(AreaConfig { slots, allocator: policy.into(), discard, shared, rotating, ..AreaConfig::default() });
        let mut held: BTreeMap<u64, u64> = BTreeMap::new();
        let copies = Copies(std::sync::Mutex::default());
        let is_free = |held: &BTreeMap<u64, u64>, first: u64, n: u64| {
            first > 0 && first + n <= slots && held.range(..first + n).next_back().is_none_or(|(s, len)| s + len <= first)
        };
        for (order, which, what) in ops {
            let n = 1u64 << order;
            if what < 3 {
                let before = copies.0.lock().unwrap().clone();
                match a.alloc_reclaiming(order, &copies) {
                    Some(first) => {
                        prop_assert!(first.is_multiple_of(n) && is_free(&held, first, n));
                        prop_assert!(copies.0.lock().unwrap().range(first..first + n).next().is_none());
                        held.insert(first, n);
                    }
                    None => {
                        let exists = (0..slots).step_by(n as usize).any(|s| is_free(&held, s, n));
                        prop_assert!(!exists || (policy != Policy::Exact && order > 0), "{} gave up on order {order}", policy.name());
                        // Exact reclaims nothing that it can't use.
                        prop_assert!(policy != Policy::Exact || before == *copies.0.lock().unwrap());
                    }
                }
            } else if !held.is_empty() {
                let (&first, &n) = held.iter().nth(which.index(held.len())).unwrap();
                held.remove(&first);
                // All of it, or but for its first page.
                let rest = if what == 3 || n == 1 { 0 } else { 1 };
                if what == 5 {
                    for slot in first + rest..first + n {
                        a.mark_cached(slot, true);
                        copies.0.lock().unwrap().insert(slot);
                    }
                } else {
                    a.free_run(first + rest, n - rest).unwrap();
                }
                if rest > 0 {
                    held.insert(first, rest);
                }
            }
            prop_assert!(a.validate().is_ok(), "{:?}", a.validate());
        }
        let used: u64 = held.values().sum();
        let got = core::iter::from_fn(|| a.alloc_reclaiming(0, &copies)).count();
        prop_assert_eq!(got as u64, slots - 1 - used);
        prop_assert!(a.validate().is_ok() && copies.0.lock().unwrap().is_empty());
    }
}
