//! Regions that share a limit, and groups that come and go.

use lowtide_region::{Codec, Group, Region, Swap};

use crate::child;
use crate::content::{MIB, check_all, deliveries, fill, resident_bytes};

#[test]
fn regions_of_a_group_share_its_limit() {
    for delivery in deliveries() {
        let group = Group::builder().ram(16 << 20).swap(Swap::Auto).delivery(delivery).build().unwrap();
        let mut regions: Vec<_> = (0..4).map(|_| Region::builder(12 * MIB).group(&group).build().unwrap()).collect();
        for (salt, region) in (0..).zip(&mut regions) {
            fill(region, salt * 1_000_000);
        }
        for _ in 0..2 {
            for (salt, region) in (0..).zip(&regions) {
                check_all(region, salt * 1_000_000);
            }
            let in_memory: usize = regions.iter().map(|region| resident_bytes(region.as_ptr() as usize, region.len())).sum();
            let stats = group.stats().unwrap();
            assert!(in_memory < 16 * MIB && stats.ram_now <= 17 << 20, "{in_memory} {stats:?}");
        }
        // One goes, the others stay what they are.
        let gone = regions.remove(1);
        drop(gone);
        check_all(&regions[1], 2_000_000);
        // What is evicted between the two looks makes them differ, so they are compared more than once.
        let same = || regions[0].stats().unwrap().stored_pages == group.stats().unwrap().stored_pages;
        assert!((0..100).any(|_| same()), "a region tells of its group");
    }
}

#[test]
fn groups_have_limits_of_their_own() {
    let make = |ram| Region::builder(40 * MIB).ram(ram).swap(Swap::Auto).codec(Codec::Zstd(1)).build().unwrap();
    let (mut small, mut large) = (make(16 << 20), make(64 << 20));
    fill(&mut small, 0);
    fill(&mut large, 9);
    assert_eq!(large.stats().unwrap().pages_out, 0, "it has room");
    assert!(small.stats().unwrap().pages_out > 0);
    assert!(small.stats().unwrap().ram_now <= 17 << 20);
    check_all(&small, 0);
    check_all(&large, 9);
}

/// Bytes of anonymous memory of this process, and how many mappings it has.
fn process() -> (usize, usize) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    let kib: usize = line.trim().trim_end_matches(" kB").parse().unwrap();
    (kib << 10, std::fs::read_to_string("/proc/self/maps").unwrap().lines().count())
}

/// In a process of its own, where nothing else takes memory.
#[test]
fn what_a_group_had_is_given_back_or_used_by_the_next() {
    if !child::is_child() {
        return child::passes(&mut child::command("groups::what_a_group_had_is_given_back_or_used_by_the_next"));
    }
    let round = |i: u64| {
        for delivery in deliveries() {
            let mut region = Region::builder(24 * MIB).ram(16 << 20).swap(Swap::Auto).delivery(delivery).build().unwrap();
            fill(&mut region, i * 1000);
            check_all(&region, i * 1000);
            let stats = region.stats().unwrap();
            assert!(stats.faults < 100_000 && stats.stored_pages <= 24 * 256, "those of this group: {stats:?}");
        }
    };
    round(0);
    round(1);
    let before = process();
    (2..12).for_each(round);
    let after = process();
    assert!(after.0 < before.0 + 4 * MIB && after.1 < before.1 + 20, "{before:?} {after:?}");
}

#[test]
fn a_group_outlives_its_regions_and_they_their_handle() {
    let group = Group::builder().ram(16 << 20).swap(Swap::Ram).build().unwrap();
    drop(Region::builder(MIB).group(&group).build().unwrap());
    let mut region = Region::builder(MIB).group(&group).build().unwrap();
    drop(group);
    fill(&mut region, 0);
    region.evict(..).unwrap();
    check_all(&region, 0);
    assert_eq!(region.group().stats().unwrap().ram_limit, 16 << 20);
}
