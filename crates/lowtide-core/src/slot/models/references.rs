//! References to areas: no thread uses a freed area.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use std::boxed::Box;
use std::sync::Arc;

use super::{area, explore};
use crate::slot::{AreaConfig, Areas, CLUSTER_SLOTS, NoCache, Quota};

/// Counts in `alive` until freed.
fn one_area(alive: &'static AtomicU64) -> Arc<Areas> {
    alive.store(0, Ordering::Relaxed);
    let areas = Areas::new();
    let quota = Some(Quota { used: alive, mine: None, limit: u64::MAX });
    let id = areas.add(area(AreaConfig { slots: CLUSTER_SLOTS as u64, quota, ..AreaConfig::default() }), true).unwrap();
    let (area, slot) = areas.alloc(0, &NoCache).unwrap();
    area.release(slot);
    drop(area);
    assert!(id == 0 && alive.load(Ordering::Relaxed) > 0);
    Arc::new(areas)
}

fn use_area(areas: &Areas, alive: &AtomicU64) {
    if let Some(area) = areas.get(0) {
        for _ in 0..2 {
            if alive.load(Ordering::Relaxed) == 0 {
                core::mem::forget(area);
                panic!("a freed area is in use");
            }
            thread::yield_now();
        }
    }
}

fn remove_meanwhile(alive: &'static AtomicU64, remove: fn(&Areas)) {
    explore(move || {
        let areas = one_area(alive);
        let user = areas.clone();
        let user = thread::spawn(move || use_area(&user, alive));
        areas.close(0).unwrap();
        remove(&areas);
        assert_eq!(alive.load(Ordering::Relaxed), 0);
        assert!(areas.get(0).is_none());
        user.join().unwrap();
    });
}

#[test]
fn removal_waits_for_users() {
    static ALIVE: AtomicU64 = AtomicU64::new(0);
    remove_meanwhile(&ALIVE, |areas| areas.remove(0).unwrap());
}

#[test]
#[should_panic(expected = "a freed area is in use")]
fn removal_that_does_not_wait_is_found() {
    static ALIVE: AtomicU64 = AtomicU64::new(0);
    remove_meanwhile(&ALIVE, |areas| {
        let area = areas.cells[0].area.swap(null_mut(), Ordering::SeqCst);
        // SAFETY: from a Box; a remaining user is the bug, and the thread that finds it does not
        // touch the area.
        drop(unsafe { Box::from_raw(area) });
    });
}

#[test]
fn nothing_is_given_out_once_an_area_is_closed() {
    explore(|| {
        let areas = Arc::new(Areas::new());
        areas.add(area(AreaConfig { slots: CLUSTER_SLOTS as u64, ..AreaConfig::default() }), true).unwrap();
        let other = areas.clone();
        let other = thread::spawn(move || other.alloc(0, &NoCache).map(|(_, slot)| slot));
        areas.close(0).unwrap();
        assert!(areas.listed().is_empty());
        let used = areas.get(0).unwrap().used();
        let given = other.join().unwrap();
        assert_eq!(areas.get(0).unwrap().used(), used, "after the close");
        assert_eq!(areas.remove(0).is_ok(), given.is_none());
    });
}

#[test]
fn nobody_removes_what_another_thread_has_not_closed_yet() {
    explore(|| {
        let areas = Arc::new(Areas::new());
        areas.add(area(AreaConfig { slots: CLUSTER_SLOTS as u64, ..AreaConfig::default() }), true).unwrap();
        let (user, closer) = (areas.clone(), areas.clone());
        let user = thread::spawn(move || user.alloc(0, &NoCache).map(|(_, slot)| slot));
        let closer = thread::spawn(move || closer.close(0).unwrap());
        let removed = areas.remove(0).is_ok();
        let given = user.join().unwrap();
        closer.join().unwrap();
        assert!(!removed || given.is_none(), "removed with a slot in use");
        assert_eq!(areas.get(0).is_none(), removed);
    });
}
