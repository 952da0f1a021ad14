use super::super::tests::{digits, entries, file, get, noise, put, put_as, store, text};
use super::*;
use crate::store::{Entry, Loaded, Page, ROUND_US, Scratch, StoreError, Stored};
use std::vec::Vec;

const MIB: u64 = 1 << 20;
const A: Group = Group(3);
const B: Group = Group(15);

fn texts(from: u64, n: u64) -> Vec<Page> {
    (from..from + n).map(text).collect()
}

fn in_pool(s: &Store, es: &[Entry]) -> usize {
    es.iter().filter(|e| get(s, **e).unwrap().0 == Loaded::Pool).count()
}

fn held(s: &Store, group: Group) -> usize {
    s.group_stats(group).stored_bytes
}

#[test]
fn there_are_sixteen() {
    assert_eq!((Group::new(0), Group::new(16)), (Some(Group::RUN), None));
    assert_eq!(Group::new(15).unwrap().number(), 15);
}

#[test]
fn a_limit_of_0_keeps_nothing_in_the_pool_and_zero_pages_are_nothing() {
    let pages = [text(1), [0; 4096], noise(2)];
    let s = store(16 << 20, None);
    s.set_group_limit(A, 0);
    assert_eq!(put_as(&s, A, &pages), [Err(StoreError::Full), Ok(Stored::Zero), Err(StoreError::Full)]);
    assert_eq!((s.stats().pool_bytes, s.stats().stored_now), (0, 0));
    assert!(put_as(&s, B, &pages).iter().all(Result::is_ok) && put(&s, &pages).iter().all(Result::is_ok), "others may");
    let s = store(16 << 20, file(16 * MIB));
    s.set_group_limit(A, 0);
    let stored = put_as(&s, A, &pages);
    assert_eq!(stored[1], Ok(Stored::Zero));
    for i in [0, 2] {
        assert_eq!(get(&s, entries(&stored[i..=i])[0]), Ok((Loaded::Device, pages[i])));
    }
    assert_eq!((s.stats().pool_bytes, held(&s, A)), (0, 0));
}

#[test]
fn without_a_device_a_group_is_refused_at_its_limit_and_taken_again_below_the_threshold() {
    let s = store(16 << 20, None);
    s.set_group_limit(A, 100 << 10);
    let stored = put_as(&s, A, &texts(0, 200));
    let es = entries(&stored.iter().copied().filter(Result::is_ok).collect::<Vec<_>>());
    assert!(held(&s, A) >= 100 << 10 && held(&s, A) < (100 << 10) + 4096, "{}", held(&s, A));
    assert_eq!(s.group_stats(A).full_times, 1);
    assert_eq!(entries(&put(&s, &texts(500, 300))).len(), 300, "the others go on");
    let mut freed = 0;
    while put_as(&s, A, &texts(900, 1))[0].is_err() {
        s.free(es[freed]);
        freed += 1;
    }
    let one = held(&s, A) / (es.len() - freed + 1);
    assert!(freed * one > 10 << 10 && freed * one < (10 << 10) + 3 * one, "at 90 %: {freed}");
    let all = s.stats().pool_stored_bytes;
    assert_eq!(held(&s, Group::RUN) + held(&s, A), all);
}

#[test]
fn the_shrinker_takes_the_pages_of_the_group_that_is_over_and_no_others() {
    crate::percpu::stay_on_cpu_1();
    let s = store(64 << 20, file(64 * MIB));
    // Mixed within the clusters, and with clusters of others only before and after.
    let others = entries(&put(&s, &texts(0, 512)));
    let (mut mine, mut beside) = (Vec::new(), Vec::new());
    for i in 0..64 {
        mine.extend(entries(&put_as(&s, A, &texts(1000 + i * 8, 8))));
        beside.extend(entries(&put_as(&s, B, &texts(5000 + i * 8, 8))));
    }
    let before = held(&s, A);
    s.set_group_limit(A, before / 2);
    s.set_group_limit(B, 2 * before);
    let wanted = s.wants_shrinking();
    assert!(wanted > before / 2 && wanted < before, "to below its limit");
    let shrunk = s.shrink(wanted, &mut Scratch::new().unwrap());
    assert!(shrunk.bytes >= wanted && held(&s, A) == before - shrunk.bytes);
    assert_eq!((s.wants_shrinking(), in_pool(&s, &others), in_pool(&s, &beside)), (0, 512, 512));
    // A thread that stores makes room for its own group.
    let more = entries(&put_as(&s, A, &texts(9000, 600)));
    assert!(held(&s, A) <= before / 2 + 4096 && in_pool(&s, &more) > 0, "the newest stay");
    assert_eq!((in_pool(&s, &others), in_pool(&s, &beside)), (512, 512));
    // Those that are left in clusters from which a group's pages went can go as before.
    s.set_group_limit(Group::RUN, 0);
    s.shrink(usize::MAX, &mut Scratch::new().unwrap());
    // A pass of compaction may have begun when pages were stored: its spans go back when it ends.
    while s.wants_compaction() {
        s.compact(100);
    }
    assert_eq!((s.stats().pool_bytes, held(&s, A), held(&s, B), held(&s, Group::RUN)), (0, 0, 0, 0));
    for (es, from) in [(&others, 0), (&more, 9000)] {
        for (e, i) in es.iter().zip(from..) {
            assert_eq!(get(&s, *e), Ok((Loaded::Device, text(i))));
        }
    }
}

#[test]
fn pages_that_wait_for_a_long_write_count_too() {
    let s = store(64 << 20, file(16 * MIB));
    s.set_group_limit(A, 10 * 4096);
    let pages: Vec<Page> = (0..60).map(noise).collect();
    let es = entries(&put_as(&s, A, &pages));
    assert!(held(&s, A) <= 10 * 4096 && held(&s, A) == in_pool(&s, &es) * 4096, "those that are too many are written");
    for (e, page) in es.iter().zip(&pages) {
        assert_eq!(get(&s, *e).unwrap().1, *page);
        s.free(*e);
    }
    assert_eq!((held(&s, A), s.stats().pool_bytes), (0, 0));
}

#[test]
fn accounts_follow_objects_that_move_shrink_and_go() {
    let s = store(64 << 20, None);
    let es = entries(&put_as(&s, A, &(0..1000).map(digits).collect::<Vec<_>>()));
    assert_eq!(held(&s, A), s.stats().pool_stored_bytes);
    let mut scratch = Scratch::new().unwrap();
    for now_us in [ROUND_US, 2 * ROUND_US] {
        while s.wants_recompression(now_us) {
            s.recompress(100, now_us, &mut scratch);
        }
    }
    assert_eq!((s.stats().recompressed, held(&s, A)), (1000, s.stats().pool_stored_bytes));
    es.iter().enumerate().filter(|(i, _)| i % 5 > 0).for_each(|(_, e)| s.free(*e));
    while s.compact(50) {}
    assert_eq!((held(&s, A), held(&s, Group::RUN)), (s.stats().pool_stored_bytes, 0));
    es.iter().step_by(5).for_each(|e| s.free(*e));
    assert_eq!(held(&s, A), 0);
}
