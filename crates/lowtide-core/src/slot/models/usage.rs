//! The use count with its bit for "not on the list": the list agrees with it once all threads are done.

use loom::thread;
use std::sync::Arc;
use std::vec::Vec;

use super::explore;
use crate::slot::usage::Usage;
use crate::sync::Lock;

const TOTAL: u64 = 2;

/// A list of one area: how often the area is on it.
struct Listed {
    usage: Usage,
    entries: Lock<i32>,
}

/// Puts the area on the list or takes it off.
type Settle = fn(&Usage, &mut i32);

/// What `Areas` does.
fn settle(usage: &Usage, entries: &mut i32) {
    if usage.try_delist() {
        *entries -= 1;
    } else if usage.try_relist() {
        *entries += 1;
    }
}

/// Looks and then acts: the count may change between the two.
fn settle_without_compare_and_swap(usage: &Usage, entries: &mut i32) {
    if usage.count() == TOTAL && usage.keep_off() {
        usage.keep_off_no_more();
        *entries -= 1;
    } else if usage.try_relist() {
        *entries += 1;
    }
}

impl Listed {
    /// An open area with `used` slots in use.
    fn new(used: u64) -> Arc<Listed> {
        let new = Listed { usage: Usage::new(TOTAL), entries: Lock::new(0) };
        new.usage.add(used);
        new.open();
        Arc::new(new)
    }

    fn open(&self) {
        let mut entries = self.entries.lock();
        self.usage.keep_off_no_more();
        if self.usage.try_relist() {
            *entries += 1;
        }
    }

    fn close(&self) {
        let mut entries = self.entries.lock();
        if self.usage.keep_off() {
            *entries -= 1;
        }
    }

    fn settle_if_needed(&self, settle: Settle) {
        if self.usage.is_unsettled() {
            settle(&self.usage, &mut self.entries.lock());
        }
    }

    fn add(&self, settle: Settle) {
        self.usage.add(1);
        self.settle_if_needed(settle);
    }

    fn sub(&self, settle: Settle) {
        self.usage.sub(1);
        self.settle_if_needed(settle);
    }

    fn assert_listed(&self, listed: bool) {
        assert_eq!(*self.entries.lock(), listed.into(), "how often the area is on the list");
        assert!(!self.usage.is_unsettled());
    }
}

/// Runs some threads on an area and waits for them.
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
        together(&area, &[|a| a.add(settle), |a| a.sub(settle)]);
        area.assert_listed(true);
        together(&area, &[|a| a.add(settle)]);
        area.assert_listed(false);
    });
}

#[test]
fn several_threads_cross_the_line() {
    explore(|| {
        let area = Listed::new(TOTAL);
        area.settle_if_needed(settle);
        together(&area, &[|a| a.sub(settle), |a| a.sub(settle), |a| a.add(settle)]);
        area.assert_listed(true);
    });
    explore(|| {
        let area = Listed::new(TOTAL - 2);
        together(&area, &[|a| a.add(settle), |a| a.add(settle)]);
        area.assert_listed(false);
    });
}

#[test]
fn a_closed_area_stays_off() {
    explore(|| {
        let area = Listed::new(TOTAL);
        together(&area, &[|a| a.sub(settle), Listed::close]);
        area.assert_listed(false);
    });
    explore(|| {
        let area = Listed::new(TOTAL);
        area.close();
        together(&area, &[|a| a.sub(settle), Listed::open]);
        area.assert_listed(true);
    });
}

#[test]
#[should_panic(expected = "how often the area is on the list")]
fn to_look_and_then_act_is_found() {
    explore(|| {
        let area = Listed::new(TOTAL - 1);
        together(&area, &[|a| a.add(settle_without_compare_and_swap), |a| a.sub(settle_without_compare_and_swap)]);
        area.assert_listed(true);
    });
}
