//! Slots that forked children refer to.

use super::*;
use crate::slot::sharing::each_bit;

const PARENT: Image = Image::new(1);
const CHILD: Image = Image::new(2);

fn those(asked: &dyn Fn(u64, u64) -> bool) -> Refers<'_> {
    Refers { all: false, asked }
}

fn share(a: &Area, slots: &[u64]) {
    assert_eq!(a.add_references(PARENT, those(&|slot, _| slots.contains(&slot))), 0);
    assert!(a.take_references(CHILD));
}

#[test]
fn a_slot_that_a_child_refers_to_stays_until_the_child_lets_go() {
    let a = area(512, true);
    let slots = all(&a, 0);
    share(&a, &slots);
    a.free_run(1, 511).unwrap();
    assert_eq!(a.alloc(0), None, "all zombies");
    // As an inherited area's release does in the child.
    slots[10..30].iter().for_each(|slot| a.sharing().unwrap().drop_one(*slot as usize));
    let again: HashSet<u64> = all(&a, 0).into_iter().collect();
    assert_eq!(again, slots[10..30].iter().copied().collect());
    a.validate().unwrap();
}

#[test]
fn a_run_of_which_a_child_holds_some_is_freed_but_for_those() {
    let a = area(1024, true);
    let first = a.alloc(9).unwrap();
    share(&a, &[first + 3, first + 100, first + 511]);
    let before = a.used();
    a.free_run(first, 512).unwrap();
    assert_eq!(a.used(), before - 509);
    a.validate().unwrap();
    assert!(!a.release_dead(PARENT, &mut |_| true, true) && !a.reap(), "it lives");
    assert!(a.release_dead(PARENT, &mut |image| image != CHILD, true) && a.reap());
    assert_eq!(a.used(), before - 512);
    a.validate().unwrap();
}

#[test]
fn a_parent_that_died_while_it_forked_is_waited_for_a_while() {
    let a = area(512, true);
    let slots = all(&a, 0);
    assert_eq!(a.add_references(PARENT, those(&|slot, _| slot == slots[7])), 0);
    let look = |counts| a.release_dead(Image::new(3), &mut |_| false, counts);
    let waited = (0..20).filter(|_| !look(false)).count() + (0..99).take_while(|_| !look(true)).count();
    assert_eq!(waited, 20 + 30);
    assert!(!a.take_references(CHILD), "too late");
    assert!(!look(true), "once");
}

#[test]
fn without_a_holder_references_are_counted_and_a_count_at_its_maximum_stays() {
    let a = area(512, true);
    let (held, s) = (a.alloc(0).unwrap(), a.alloc(0).unwrap());
    let mut children = 0;
    while a.has_holder() {
        share(&a, &[held]);
        children += 1;
    }
    let refers = |slot, _| slot == s;
    assert!(children >= 64 && a.add_references(PARENT, those(&refers)) == 1);
    a.undo_references(Some(those(&refers)));
    let used = a.used();
    a.release(s);
    assert_eq!(a.used(), used - 1, "what was taken back is not held");
    let s = a.alloc(0).unwrap();
    let refers = |slot, _| slot == s;
    for _ in 0..70_000 {
        assert_eq!(a.add_references(PARENT, those(&refers)), 1);
    }
    for _ in 0..70_000 {
        assert_eq!(a.add_references(PARENT, those(&refers)), 1);
        a.undo_references(Some(those(&refers)));
        a.sharing().unwrap().drop_one(s as usize);
    }
    a.release(s);
    assert!(!a.release_dead(PARENT, &mut |image| image == PARENT, true) || a.has_holder());
    assert!(all(&a, 0).iter().all(|other| *other != s), "never given out twice");
}

/// A slot that the device could not write stays used, but no child's.
#[test]
fn a_child_gets_no_reference_to_a_bad_slot() {
    let a = area(1024, true);
    let slots = all(&a, 0);
    let refers = Refers { all: true, asked: &|slot, _| slot != 7 };
    assert!(!a.refers_to_all(refers.asked), "that is to be said");
    a.has_bad_slot();
    assert!(a.refers_to_all(refers.asked));
    assert!(a.add_references(PARENT, refers) == 0 && a.take_references(CHILD));
    slots.iter().for_each(|slot| a.release(*slot));
    assert_eq!(all(&a, 0), [7], "all others are the child's");
}

/// Reading each table word of TiBs would make a fork take a second.
#[test]
fn a_child_gets_references_to_all_slots_by_64_at_a_time() {
    const SLOTS: u64 = 1 << 16;
    let a = area(SLOTS - 100, true);
    let slots = all(&a, 0);
    a.free_run(600, 24).unwrap();
    share(&a, &[1]);
    a.release(1);
    let looks = core::cell::Cell::new(0);
    let asked = |_, _| {
        looks.set(looks.get() + 1);
        true
    };
    let refers = Refers { all: true, asked: &asked };
    let (mut words, mut found) = (0, HashSet::new());
    a.find_reference(refers, |w, bits| {
        words += 1;
        found.extend(each_bit(bits).map(|bit| (w * 64 + bit) as u64));
        false
    });
    let used: HashSet<u64> = slots.iter().copied().filter(|slot| !(600..624).contains(slot) && *slot != 1).collect();
    assert_eq!(found, used, "neither what is free nor what only another child refers to");
    assert!(looks.get() == 0 && words <= SLOTS / 64, "{} slots and {words} words were looked at", looks.get());
    // It passes them on without reading any cluster or word.
    assert!(a.add_references(PARENT, refers) == 0 && a.take_references(CHILD) && looks.get() == 0);
    used.iter().for_each(|slot| a.release(*slot));
    assert_eq!(a.alloc(0).into_iter().chain(all(&a, 0)).filter(|slot| used.contains(slot)).count(), 0, "they are held");
    // SAFETY: this is the only thread; the area is as a child's copy would be.
    unsafe { a.after_fork() };
    let mut passed_on = 0;
    a.find_reference(refers, |_, bits| {
        passed_on += bits.count_ones() as usize;
        false
    });
    assert!(passed_on == used.len() && looks.get() == 0);
    a.release(*used.iter().next().unwrap());
    assert!(a.has_references(refers));
    used.iter().for_each(|slot| a.release(*slot));
    assert!(!a.has_references(refers));
}
