//! Availability: after all threads are done the list agrees, and one of two threads that remove or
//! open a closed area succeeds.

use loom::thread;
use std::sync::Arc;
use std::vec::Vec;

use super::explore;
use crate::slot::availability::Availability;
use crate::sync::Lock;

const TOTAL: u64 = 2;

/// Counts the list's entries for one area.
struct Listed {
    availability: Availability,
    entries: Lock<i32>,
}

type Update = fn(&Availability, &mut i32);

fn update(availability: &Availability, entries: &mut i32) {
    if availability.try_delist() {
        *entries -= 1;
    } else if availability.try_relist() {
        *entries += 1;
    }
}

/// Bug: the count may change in between.
fn update_without_compare_and_swap(availability: &Availability, entries: &mut i32) {
    if availability.full_clusters() == TOTAL && availability.close() == Some(true) {
        availability.quiesced();
        availability.open();
        *entries -= 1;
    } else if availability.try_relist() {
        *entries += 1;
    }
}

impl Listed {
    fn new(full: u64) -> Arc<Listed> {
        let new = Listed { availability: Availability::new(TOTAL), entries: Lock::new(0) };
        (0..full).for_each(|_| new.availability.cluster_filled());
        new.open();
        Arc::new(new)
    }

    fn open(&self) -> bool {
        let mut entries = self.entries.lock();
        let open = self.availability.open();
        if open && self.availability.try_relist() {
            *entries += 1;
        }
        open
    }

    fn close(&self) {
        let mut entries = self.entries.lock();
        if self.availability.close() == Some(true) {
            *entries -= 1;
        }
    }

    fn close_and_wait(&self) {
        self.close();
        self.availability.quiesced();
    }

    fn update_if_needed(&self, update: Update) {
        if self.availability.may_change_list() {
            update(&self.availability, &mut self.entries.lock());
        }
    }

    fn fill(&self, update: Update) {
        self.availability.cluster_filled();
        self.update_if_needed(update);
    }

    fn make_room(&self, update: Update) {
        self.availability.cluster_has_room();
        self.update_if_needed(update);
    }

    fn assert_listed(&self, listed: bool) {
        assert_eq!(*self.entries.lock(), listed.into(), "how often the area is on the list");
        assert!(!self.availability.may_change_list());
    }
}

fn together(area: &Arc<Listed>, threads: &[fn(&Listed)]) {
    let spawn = |f: &fn(&Listed)| {
        let (area, f) = (area.clone(), *f);
        thread::spawn(move || f(&area))
    };
    let threads: Vec<_> = threads.iter().map(spawn).collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}

#[test]
fn full_and_not_full_again() {
    explore(|| {
        let area = Listed::new(TOTAL - 1);
        together(&area, &[|a| a.fill(update), |a| a.make_room(update)]);
        area.assert_listed(true);
        together(&area, &[|a| a.fill(update)]);
        area.assert_listed(false);
    });
}

#[test]
fn several_threads_cross_the_line() {
    explore(|| {
        let area = Listed::new(TOTAL);
        area.update_if_needed(update);
        together(&area, &[|a| a.make_room(update), |a| a.make_room(update), |a| a.fill(update)]);
        area.assert_listed(true);
    });
    explore(|| {
        let area = Listed::new(TOTAL - 2);
        together(&area, &[|a| a.fill(update), |a| a.fill(update)]);
        area.assert_listed(false);
    });
}

#[test]
fn a_closed_area_stays_off() {
    explore(|| {
        let area = Listed::new(TOTAL);
        together(&area, &[|a| a.make_room(update), Listed::close]);
        area.assert_listed(false);
    });
    explore(|| {
        let area = Listed::new(TOTAL);
        area.close_and_wait();
        together(&area, &[|a| a.make_room(update), |a| assert!(a.open())]);
        area.assert_listed(true);
    });
}

#[test]
fn a_closed_area_is_opened_or_removed_and_not_both() {
    explore(|| {
        let area = Listed::new(TOTAL - 1);
        area.close_and_wait();
        let opener = area.clone();
        let opener = thread::spawn(move || opener.open());
        let removed = area.availability.begin_removal();
        let opened = opener.join().unwrap();
        assert!(opened != removed, "opened: {opened}, removed: {removed}");
        area.assert_listed(opened);
        assert_eq!(area.availability.is_open(), opened);
    });
}

#[test]
fn what_is_being_closed_is_neither_opened_nor_removed_before_it_is_quiet() {
    explore(|| {
        let area = Listed::new(TOTAL - 1);
        area.close();
        let closer = area.clone();
        let closer = thread::spawn(move || closer.availability.quiesced());
        let (removed, opened) = (area.availability.begin_removal(), area.open());
        closer.join().unwrap();
        assert!(!(removed && opened));
        area.assert_listed(opened);
        assert_eq!(area.availability.begin_removal(), !removed && !opened, "it is quiet, and somebody's to remove");
    });
}

#[test]
#[should_panic(expected = "how often the area is on the list")]
fn to_look_and_then_act_is_found() {
    explore(|| {
        let area = Listed::new(TOTAL - 1);
        together(&area, &[|a| a.fill(update_without_compare_and_swap), |a| a.make_room(update_without_compare_and_swap)]);
        area.assert_listed(true);
    });
}
