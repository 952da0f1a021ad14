//! Slots of children that were killed, or ended by `_exit` or exec.

use super::fork_tests::{Gate, check, dup, ended, is_alive, me, start};
use super::*;

/// Used slots of the first file, without slot 0.
fn used(s: &Store) -> u64 {
    s.areas.get(1).unwrap().used() - 1
}

/// As the reclaimer does about once a second.
fn release_dead(s: &Store) -> bool {
    s.release_dead(me(), &mut is_alive)
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

fn taken_over(s: &Store) -> bool {
    // SAFETY: first call in a single-threaded child; no call was in flight.
    unsafe { s.fork_child(me(), &mut |_, fd| dup(fd)) }.is_ok()
}

fn replace(s: &Store, i: usize, es: &mut [Entry], pages: &mut [Page], seed: u64) {
    s.free(es[i]);
    pages[i] = noise(seed);
    es[i] = put_one(s, pages[i]).unwrap();
}

#[test]
fn what_a_killed_child_had_is_dropped_wherever_it_was() {
    for let_go in [None, Some(0), Some(70), Some(300)] {
        let s = store(0, file(4 * MIB));
        let mut pages: Vec<Page> = (0..300).map(noise).collect();
        let mut es = entries(&put(&s, &pages));
        let (gate, never) = (Gate::new(), Gate::new());
        let pid = start(&s, || {
            let Some(n) = let_go else {
                gate.open();
                never.wait();
                return 1;
            };
            if !taken_over(&s) {
                return 2;
            }
            es[..n].iter().for_each(|e| s.free(*e));
            gate.open();
            never.wait();
            1
        });
        gate.wait();
        (0..300).for_each(|i| replace(&s, i, &mut es, &mut pages, 1000 + i as u64));
        release_dead(&s);
        assert_eq!(used(&s), 600 - let_go.unwrap_or(0) as u64, "what a live child has is not dropped");
        kill(pid);
        assert_eq!(ended(pid), 9);
        if let_go.is_none() {
            // The pager sees that its address space is gone.
            s.fork_child_died();
        }
        assert!(release_dead(&s), "there is something to do");
        assert_eq!(used(&s), 300, "killed after {let_go:?}");
        assert!(check(&s, &es, &pages, &mut Scratch::new().unwrap()));
        assert!(!release_dead(&s), "once");
        s.areas.get(1).unwrap().validate().unwrap();
    }
}

#[test]
fn a_hundred_children_that_end_under_churn_leave_no_slot_used() {
    let s = store(0, file(8 * MIB));
    let mut pages: Vec<Page> = (0..400).map(noise).collect();
    let mut es = entries(&put(&s, &pages));
    let mut scratch = Scratch::new().unwrap();
    for round in 0..100 {
        let churned = Gate::new();
        let pid = start(&s, || {
            let there = taken_over(&s);
            churned.wait();
            i32::from(!there || !check(&s, &es, &pages, &mut scratch))
        });
        for i in 0..300 {
            replace(&s, (i + 7 * round) % 400, &mut es, &mut pages, (1000 * (round + 1) + i) as u64);
        }
        churned.open();
        assert_eq!(ended(pid), 0, "the child has what there was at the fork");
        release_dead(&s);
    }
    assert_eq!(used(&s), 400, "as without children");
    assert_eq!(s.stats().stuck_references, 0);
    assert!(check(&s, &es, &pages, &mut scratch));
}

#[test]
fn a_grandchild_keeps_what_it_has_when_its_parent_dies() {
    let s = store(0, file(2 * MIB));
    let mut pages: Vec<Page> = (0..150).map(noise).collect();
    let mut es = entries(&put(&s, &pages));
    let (there, churned, right) = (Gate::new(), Gate::new(), Gate::new());
    let mut scratch = Scratch::new().unwrap();
    let child = start(&s, || {
        if !taken_over(&s) {
            return 1;
        }
        start(&s, || {
            let taken = taken_over(&s);
            there.open();
            churned.wait();
            if taken && check(&s, &es, &pages, &mut scratch) {
                right.open();
            }
            0
        });
        // The child must not drop the grandchild's references.
        es.iter().for_each(|e| s.free(*e));
        0
    });
    assert_eq!(ended(child), 0);
    there.wait();
    for round in 1..4 {
        (0..150).for_each(|i| replace(&s, i, &mut es, &mut pages, (1000 * round + i) as u64));
        release_dead(&s);
        assert_eq!(used(&s), 300);
    }
    churned.open();
    right.wait();
    while !release_dead(&s) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(used(&s), 150);
    assert!(check(&s, &es, &pages, &mut Scratch::new().unwrap()));
}

#[test]
fn children_for_which_there_is_no_holder_keep_what_they_have() {
    let s = store(0, file(2 * MIB));
    let held = put_one(&s, noise(0)).unwrap();
    // As many as can have a name.
    let mut children = 0;
    while s.areas.get(1).unwrap().has_holder() {
        s.fork_add_references(me(), &mut is_alive);
        assert!(s.areas.get(1).unwrap().take_references(me()));
        children += 1;
    }
    assert!(children >= 64 && s.stats().stuck_references == 0);
    let mut pages: Vec<Page> = (0..100).map(noise).collect();
    let mut es = entries(&put(&s, &pages));
    let (there, churned) = (Gate::new(), Gate::new());
    let mut scratch = Scratch::new().unwrap();
    let pid = start(&s, || {
        if !taken_over(&s) {
            return 1;
        }
        es[..40].iter().for_each(|e| s.free(*e));
        there.open();
        churned.wait();
        i32::from(!check(&s, &es[40..], &pages[40..], &mut scratch))
    });
    assert_eq!(s.stats().stuck_references, 101, "and the page that all have");
    there.wait();
    for round in 1..4 {
        (0..100).for_each(|i| replace(&s, i, &mut es, &mut pages, (1000 * round + i) as u64));
        release_dead(&s);
    }
    assert_eq!(used(&s), 1 + 100 + 60);
    churned.open();
    assert_eq!(ended(pid), 0);
    release_dead(&s);
    assert_eq!(used(&s), 1 + 100 + 60, "nobody knows whose these are");
    s.free(held);
    assert!(check(&s, &es, &pages, &mut scratch));
}

#[test]
fn a_table_full_of_dead_holders_is_emptied_by_the_next_fork() {
    let s = store(0, file(2 * MIB));
    let es = entries(&put(&s, &(0..10).map(noise).collect::<Vec<_>>()));
    let dead = Image::new(u64::from(u32::MAX));
    for _ in 0..2000 {
        s.fork_add_references(me(), &mut is_alive);
        assert!(s.areas.get(1).unwrap().take_references(dead));
    }
    assert_eq!(s.stats().stuck_references, 0);
    es.iter().for_each(|e| s.free(*e));
    assert!(release_dead(&s));
    assert_eq!(used(&s), 0);
}

#[test]
fn a_fork_that_fails_leaves_nothing_behind() {
    let s = store(0, file(2 * MIB));
    let es = entries(&put(&s, &(0..100).map(noise).collect::<Vec<_>>()));
    for _ in 0..1000 {
        s.fork_add_references(me(), &mut is_alive);
        s.fork_undo_references();
    }
    es.iter().for_each(|e| s.free(*e));
    assert_eq!(used(&s), 0);
}
