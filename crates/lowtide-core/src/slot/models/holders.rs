//! A slot with references is never allocated. Threads stand for processes.

use loom::thread;
use std::sync::Arc;

use super::explore;
use crate::slot::holders::{Claim, HOLDERS, Holders, Image};

const OWNER: Image = Image::new(1);
const CHILD: Image = Image::new(2);
const OTHER: Image = Image::new(3);

/// Holders, of which the first is `child`, with slot 0.
fn with_child(child: Image) -> (Holders, Claim) {
    let holders = Holders::new(1).unwrap();
    let claim = holders.claim(OWNER).unwrap();
    holders.add(claim, 0, 1);
    holders.filled();
    assert!(holders.take(claim, child));
    (holders, claim)
}

fn held(holders: &Holders) -> u64 {
    holders.held(0, || 0)
}

/// A child forks and drops its slot while the owner checks it.
fn hand_on_meanwhile(filled: fn(&Holders)) {
    explore(move || {
        let (holders, child) = with_child(CHILD);
        let holders = Arc::new(holders);
        let forking = holders.clone();
        let forking = thread::spawn(move || {
            let grandchild = forking.claim(CHILD).unwrap();
            forking.add(grandchild, 0, 1);
            filled(&forking);
            forking.drop_one(child.holder, 0);
        });
        assert!(held(&holders) & 1 == 1, "given out while a grandchild refers to it");
        forking.join().unwrap();
        assert!(held(&holders) == 1);
    });
}

#[test]
fn a_slot_that_is_handed_on_is_held_all_the_time() {
    hand_on_meanwhile(Holders::filled);
}

#[test]
#[should_panic(expected = "given out while a grandchild refers to it")]
fn a_parent_that_does_not_say_that_it_has_filled_a_map_is_found() {
    hand_on_meanwhile(|_| {});
}

/// Two processes find a child dead; then one forks another child, into the freed record.
fn release_twice(release: fn(&Holders, usize, Image)) {
    explore(move || {
        let (holders, dead) = with_child(CHILD);
        (1..HOLDERS).for_each(|_| _ = holders.claim(OWNER).unwrap());
        let holders = Arc::new(holders);
        let other = holders.clone();
        let other = thread::spawn(move || release(&other, dead.holder, OTHER));
        release(&holders, dead.holder, OWNER);
        let claim = holders.claim(OWNER);
        if let Some(claim) = claim {
            holders.add(claim, 0, 1);
            holders.filled();
        }
        other.join().unwrap();
        assert!((held(&holders) == 1) == claim.is_some(), "the dead one's references are gone, and only they");
        assert!(claim.is_some() || holders.claim(OWNER).is_some(), "so is its place");
    });
}

fn is_dead(image: Image) -> bool {
    image == CHILD
}

#[test]
fn two_that_release_a_dead_child_leave_the_next_one_alone() {
    release_twice(|holders, holder, me| {
        if let Some(record) = holders.record(holder).filter(|record| is_dead(record.image())) {
            holders.release(holder, record, me, 1);
        }
    });
}

#[test]
#[should_panic(expected = "and only they")]
fn a_release_that_does_not_take_the_record_first_is_found() {
    release_twice(|holders, holder, _| {
        if holders.record(holder).is_some_and(|record| is_dead(record.image())) {
            holders.clear(holder, 1);
        }
    });
}

/// A child takes its references and drops one of two, while the owner, which found the parent dead,
/// drops all.
fn take_meanwhile(take: fn(&Holders, Claim) -> bool) {
    explore(move || {
        let holders = Holders::new(1).unwrap();
        let claim = holders.claim(CHILD).unwrap();
        holders.add(claim, 0, 0b11);
        holders.filled();
        let holders = Arc::new(holders);
        let grandchild = holders.clone();
        let grandchild = thread::spawn(move || {
            let taken = take(&grandchild, claim);
            if taken {
                grandchild.drop_one(claim.holder, 1);
            }
            taken
        });
        let record = holders.record(claim.holder).filter(|record| is_dead(record.image()));
        let released = record.is_some_and(|record| holders.release(claim.holder, record, OWNER, 1));
        let taken = grandchild.join().unwrap();
        assert!(taken != released, "either of them has it");
        assert_eq!(held(&holders), u64::from(taken));
    });
}

#[test]
fn a_child_whose_parent_died_has_all_that_it_was_given_or_nothing() {
    take_meanwhile(|holders, claim| holders.take(claim, OTHER));
}

#[test]
#[should_panic(expected = "either of them has it")]
fn a_child_that_does_not_ask_whether_it_still_has_its_record_is_found() {
    take_meanwhile(|holders, claim| {
        holders.take(claim, OTHER);
        true
    });
}
