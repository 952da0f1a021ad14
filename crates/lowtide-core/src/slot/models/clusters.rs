//! Cluster locks and the list lock: each slot is allocated once, and each cluster is on the list of
//! its count.

use loom::thread;
use std::sync::Arc;

use super::{area, explore};
use crate::slot::lists::ListId;
use crate::slot::{Area, AreaConfig, CLUSTER_SLOTS, Policy};

fn two_clusters(policy: Policy) -> Arc<Area> {
    Arc::new(area(AreaConfig { slots: 2 * CLUSTER_SLOTS as u64, allocator: policy.into(), ..AreaConfig::default() }))
}

/// Runs two threads on an area, then validates it.
fn together<T: 'static>(
    area: &Arc<Area>,
    f: impl FnOnce(&Area) -> T + 'static,
    g: impl FnOnce(&Area) -> T + 'static,
) -> (T, T) {
    let other = area.clone();
    let other = thread::spawn(move || f(&other));
    let mine = g(area);
    let theirs = other.join().unwrap();
    area.validate().expect("lists and counts agree");
    (theirs, mine)
}

#[test]
fn single_slots_and_whole_clusters() {
    for policy in Policy::ALL {
        explore(move || {
            let area = two_clusters(policy);
            let (a, b) = together(&area, |a| a.alloc(0), |a| a.alloc(9));
            let (a, b) = (a.expect("there is room for both"), b);
            assert!(b.is_none_or(|b| b == 512 && a < b), "{a} {b:?}");
        });
    }
}

#[test]
fn a_cluster_becomes_free_while_others_look_for_room() {
    for policy in Policy::ALL {
        explore(move || {
            let area = two_clusters(policy);
            assert_eq!(area.alloc(9), Some(512));
            let (_, slot) = together(
                &area,
                |a| {
                    a.free_run(512, 512).unwrap();
                    a.alloc(9)
                },
                |a| a.alloc(0),
            );
            assert!(slot.is_some_and(|s| s < 1024));
        });
    }
}

#[test]
fn a_cluster_becomes_partly_used_and_full_at_once() {
    for policy in Policy::ALL {
        explore(move || {
            let area = two_clusters(policy);
            assert_eq!(area.alloc(9), Some(512));
            area.free_run(1023, 1).unwrap();
            let (_, slot) = together(
                &area,
                |a| {
                    a.free_run(600, 2).unwrap();
                    None
                },
                |a| a.alloc(1),
            );
            // Not in the run still in use: in the other cluster, if the policy mixes orders.
            assert!(slot.map_or(policy != Policy::Exact, |s| s != 512), "{slot:?}");
        });
    }
}

/// Bug: unlocks the cluster before it relocates it.
fn free_and_relocate_later(area: &Area, slot: usize) {
    let (i, index) = (slot / CLUSTER_SLOTS, slot % CLUSTER_SLOTS);
    let mut inner = area.clusters().lock(i);
    inner.give(index, 1);
    let to = area.clusters().place_of(&inner);
    drop(inner);
    area.clusters().move_to(i, &mut area.clusters().lock(i), to);
}

#[test]
#[should_panic(expected = "lists and counts agree")]
fn relocation_by_a_count_of_an_earlier_hold_is_found() {
    explore(|| {
        let area = two_clusters(Policy::Exact);
        assert_eq!(area.alloc(9), Some(512));
        area.free_run(514, 510).unwrap();
        together(&area, |a| free_and_relocate_later(a, 512), |a| free_and_relocate_later(a, 513));
    });
}

/// Bug: waits for the cluster instead of trying.
fn isolate_and_wait(area: &Area, list: ListId) {
    let lists = area.clusters().lock_lists();
    let first = lists.iter(list).next();
    if let Some(i) = first {
        drop(area.clusters().lock(i));
    }
}

#[test]
#[should_panic(expected = "deadlock")]
fn waiting_for_a_cluster_with_the_lists_locked_is_found() {
    explore(|| {
        let area = two_clusters(Policy::ScanAll);
        assert_eq!(area.alloc(9), Some(512));
        together(&area, |a| a.free_run(512, 512).unwrap(), |a| isolate_and_wait(a, ListId::FULL));
    });
}
