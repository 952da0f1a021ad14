//! Eviction, prefetching, dropping and guards do to a range what they say, and nothing to its neighbours.

use lowtide_region::{Error, Region, Swap};

use crate::content::{MIB, PAGE, check_all, deliveries, fill, resident_bytes};

fn in_memory(region: &Region, start: usize, end: usize) -> usize {
    resident_bytes(region.as_ptr() as usize + start, end - start)
}

fn regions() -> impl Iterator<Item = Region> {
    let make = |delivery| {
        let mut region = Region::builder(8 * MIB).ram(32 << 20).swap(Swap::Auto).delivery(delivery).build().unwrap();
        fill(&mut region, 0);
        region
    };
    deliveries().into_iter().map(make)
}

#[test]
fn evict_and_prefetch() {
    for region in regions() {
        region.evict(MIB..3 * MIB).unwrap();
        assert_eq!(in_memory(&region, MIB, 3 * MIB), 0);
        assert_eq!(in_memory(&region, 0, MIB) + in_memory(&region, 3 * MIB, 8 * MIB), 6 * MIB);
        assert_eq!(region.stats().unwrap().pages_out, (2 * MIB / PAGE) as u64);
        region.prefetch(MIB..2 * MIB).unwrap();
        assert_eq!(in_memory(&region, MIB, 2 * MIB), MIB);
        check_all(&region, 0);
    }
}

#[test]
fn evict_leaves_nothing_of_a_range_with_holes() {
    for delivery in deliveries() {
        let mut region = Region::builder(8 * MIB).ram(32 << 20).swap(Swap::Ram).delivery(delivery).build().unwrap();
        fill(&mut region, 0);
        for page in (0..8 * MIB / PAGE).step_by(2) {
            region.drop_range(page * PAGE..(page + 1) * PAGE).unwrap();
        }
        region.evict(..).unwrap();
        assert_eq!(in_memory(&region, 0, 8 * MIB), 0);
    }
}

#[test]
fn what_a_guard_holds_is_not_dropped() {
    let region = Region::builder(8 * MIB).ram(32 << 20).swap(Swap::Ram).build().unwrap();
    let guard = region.resident(MIB..2 * MIB).unwrap();
    // SAFETY: nobody relies on the bytes.
    let drop_shared = |start, end| unsafe { region.drop_shared(start, end) };
    assert!(matches!(drop_shared(2 * MIB - 1, 3 * MIB), Err(Error::Guarded)));
    assert_eq!(in_memory(&region, MIB, 2 * MIB), MIB);
    drop_shared(2 * MIB, 3 * MIB).unwrap();
    drop(guard);
    drop_shared(MIB, 2 * MIB).unwrap();
    assert_eq!(in_memory(&region, MIB, 2 * MIB), 0);
}

#[test]
fn prefetch_brings_in_nothing_that_was_never_there() {
    let region = Region::builder(8 * MIB).ram(32 << 20).swap(Swap::Ram).build().unwrap();
    region.prefetch(..).unwrap();
    assert_eq!(in_memory(&region, 0, 8 * MIB), 0);
}

#[test]
fn drop_gives_back_memory_and_room_wherever_the_pages_are() {
    for mut region in regions() {
        region.evict(2 * MIB..4 * MIB).unwrap();
        let stored = region.stats().unwrap().stored_pages;
        assert!(stored > 0);
        region.drop_range(MIB + 1..7 * MIB + 1).unwrap();
        assert_eq!(in_memory(&region, MIB + PAGE, 7 * MIB), 0);
        assert_eq!(region.stats().unwrap().stored_pages, 0, "of {stored}");
        let zeros = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        let bytes = region.as_slice();
        assert!(zeros(&bytes[MIB + 1..7 * MIB + 1]));
        assert!(!zeros(&bytes[MIB - 8..MIB + 1]) && !zeros(&bytes[7 * MIB + 1..7 * MIB + 17]));
    }
}

#[test]
fn what_a_guard_holds_stays_until_it_is_dropped() {
    for region in regions() {
        region.evict(..).unwrap();
        let guard = region.resident(MIB + 10..2 * MIB).unwrap();
        let overlapping = region.resident(MIB + 500_000..3 * MIB).unwrap();
        assert_eq!(in_memory(&region, MIB, 3 * MIB), 2 * MIB);
        region.evict(..).unwrap();
        assert_eq!(in_memory(&region, 0, 8 * MIB), 2 * MIB);
        drop(guard);
        region.evict(..).unwrap();
        let first = (MIB + 500_000) / PAGE * PAGE;
        assert_eq!(in_memory(&region, 0, 8 * MIB), 3 * MIB - first);
        assert_eq!(overlapping.as_slice(), &region.as_slice()[MIB + 500_000..3 * MIB]);
        drop(overlapping);
        region.evict(..).unwrap();
        assert_eq!(in_memory(&region, 0, 8 * MIB), 0);
        check_all(&region, 0);
    }
}

#[test]
fn a_guard_brings_in_what_was_never_touched() {
    let region = Region::builder(8 * MIB).ram(32 << 20).swap(Swap::Ram).build().unwrap();
    let guard = region.resident(..).unwrap();
    assert_eq!(in_memory(&region, 0, 8 * MIB), 8 * MIB);
    assert!(guard.as_slice().iter().all(|byte| *byte == 0));
}

#[test]
fn guards_hold_while_others_need_memory() {
    for delivery in deliveries() {
        let mut region = Region::builder(64 * MIB).ram(16 << 20).swap(Swap::Auto).delivery(delivery).build().unwrap();
        fill(&mut region, 0);
        let guard = region.resident(10 * MIB..14 * MIB).unwrap();
        check_all(&region, 0);
        assert_eq!(in_memory(&region, 10 * MIB, 14 * MIB), 4 * MIB);
        assert!(region.stats().unwrap().ram_now <= 17 << 20);
        drop(guard);
    }
}
