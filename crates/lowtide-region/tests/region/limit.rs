//! The limit is kept, and the accounts are right.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lowtide_region::{Region, Stats, Swap};

use crate::content::{MIB, PAGE, check_all, deliveries, fill, resident_bytes};

/// What may be counted more for a moment: pages that are on their way.
const UNDER_WAY: u64 = 1 << 20;

fn pages_in_memory(region: &Region) -> usize {
    resident_bytes(region.as_ptr() as usize, region.len())
}

#[test]
fn more_than_the_limit_fits_and_stays_what_it_was() {
    for delivery in deliveries() {
        for swap in [Swap::Auto, Swap::Ram] {
            let ram = if swap == Swap::Ram { 48 } else { 16 };
            let mut region = Region::builder(64 * MIB).ram(ram << 20).swap(swap).delivery(delivery).build().unwrap();
            fill(&mut region, 0);
            for _ in 0..2 {
                check_all(&region, 0);
                let (stats, in_memory) = (region.stats().unwrap(), pages_in_memory(&region) as u64);
                assert!(stats.pages_out > 0 && stats.pages_in > 0, "{stats:?}");
                assert!(stats.ram_now <= stats.ram_limit + UNDER_WAY, "{stats:?}");
                assert!(in_memory + stats.own_bytes <= stats.ram_limit + UNDER_WAY, "{in_memory} {stats:?}");
            }
        }
    }
}

/// Pages of which half stays in the pool, touched here and there: what goes out makes little room, and the tables grow.
#[test]
fn the_limit_is_kept_at_each_moment() {
    let mut region = Region::builder(64 * MIB).ram(16 << 20).swap(Swap::Auto).build().unwrap();
    let (group, is_done) = (region.group().clone(), AtomicBool::new(false));
    let worst = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut worst = group.stats().unwrap();
            while !is_done.load(Ordering::Relaxed) {
                let stats = group.stats().unwrap();
                worst = if stats.ram_now > worst.ram_now { stats } else { worst };
                std::thread::sleep(Duration::from_micros(200));
            }
            worst
        });
        let bytes = region.as_mut_slice();
        let mut random = 88_172_645_463_325_252_u64;
        for word in bytes.chunks_exact_mut(8) {
            random = (random ^ random << 13) ^ (random ^ random << 13) >> 7;
            random ^= random << 17;
            word[..3].copy_from_slice(&random.to_le_bytes()[..3]);
        }
        for start in [0, PAGE * 3, PAGE * 5] {
            bytes[start..].iter_mut().step_by(7 * PAGE / 2 + 56).for_each(|byte| *byte ^= 1);
            bytes[start..].iter_mut().step_by(56).for_each(|byte| *byte ^= 1);
        }
        is_done.store(true, Ordering::Relaxed);
        watcher.join().unwrap()
    });
    assert!(worst.pages_out > 0 && worst.ram_now <= worst.ram_limit + UNDER_WAY, "{worst:?}");
}

#[test]
fn what_is_counted_is_what_there_is() {
    for delivery in deliveries() {
        let mut region = Region::builder(64 * MIB).ram(32 << 20).swap(Swap::Auto).delivery(delivery).build().unwrap();
        fill(&mut region, 0);
        region.drop_range(3 * MIB + 5..20 * MIB + 77).unwrap();
        region.evict(30 * MIB..40 * MIB).unwrap();
        region.prefetch(20 * MIB..35 * MIB).unwrap();
        // The reclaimer may be at work.
        let differs = |stats: &Stats| {
            let counted = (stats.ram_now - stats.own_bytes) as usize;
            counted.abs_diff(pages_in_memory(&region)) > MIB
        };
        let tries = (0..1000).take_while(|_| differs(&region.stats().unwrap())).inspect(|_| std::thread::yield_now()).count();
        assert!(tries < 1000, "{:?}, in memory {}", region.stats(), pages_in_memory(&region));
    }
}

#[test]
fn a_limit_that_is_lowered_is_reached_and_one_that_is_raised_is_used() {
    let mut region = Region::builder(64 * MIB).ram(96 << 20).swap(Swap::Auto).build().unwrap();
    fill(&mut region, 0);
    assert_eq!(pages_in_memory(&region), 64 * MIB);
    region.set_ram(24 << 20).unwrap();
    while region.stats().unwrap().ram_now > 24 << 20 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(pages_in_memory(&region) < 24 * MIB);
    check_all(&region, 0);
    region.set_ram(96 << 20).unwrap();
    check_all(&region, 0);
    assert_eq!(pages_in_memory(&region), 64 * MIB);
    assert_eq!(region.group().ram(), 96 << 20);
}

#[test]
fn a_length_that_is_no_multiple_of_a_page() {
    let mut region = Region::builder(3 * PAGE + 5).ram(16 << 20).swap(Swap::Ram).build().unwrap();
    region.as_mut_slice().fill(9);
    region.evict(..).unwrap();
    assert_eq!(pages_in_memory(&region), 0);
    assert!(region.as_slice().iter().all(|byte| *byte == 9) && region.as_slice().len() == 3 * PAGE + 5);
    region.drop_range(PAGE - 1..).unwrap();
    assert!(region.as_slice()[..PAGE - 1].iter().all(|byte| *byte == 9));
    assert!(region.as_slice()[PAGE - 1..].iter().all(|byte| *byte == 0));
}
