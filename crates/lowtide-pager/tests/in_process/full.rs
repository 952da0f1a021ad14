//! Nothing is detached that no tier would take, and nobody looks for pages again and again where there are none.

use std::time::{Duration, Instant};

use lowtide_pager::evict::Evicted;
use lowtide_pager::worker::Worker;

use crate::house::{Config, House, MIB, PAGE, get, verify, write};

/// A seed of noise, which does not compress.
fn noise(i: usize) -> u64 {
    (i as u64 + 1) * 3
}

#[test]
fn a_full_pool_is_not_a_thrash_loop() {
    let Some(house) = House::new(Config { pool: 2 * MIB, file: 0, monitors: 1 }) else { return };
    let pages = 4000;
    let at = house.region(pages);
    // SAFETY: inside the region.
    let page = |i: usize| unsafe { at.add(i * PAGE) };
    (0..pages).for_each(|i| write(page(i), noise(i)));
    assert_eq!(house.evict_all(), Evicted::Full);
    let (out, started) = (house.evictions(), Instant::now());
    let mut worker = Worker::new(true).unwrap();
    while started.elapsed() < Duration::from_secs(1) {
        assert_eq!(house.pager.evict(&mut worker), Evicted::Full);
    }
    assert_eq!(house.evictions(), out, "pages went out that nobody takes");
    (0..pages).for_each(|i| verify(page(i), noise(i), "after all"));
    // 512 pages in the pool, and what was in staging when it was full.
    assert!(out < 512 + 3 * 512, "{out} pages out and back again for the 512 that there is room for");
}

#[test]
fn budget_after_a_drain_is_what_the_kernel_says() {
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, monitors: 1 }) else { return };
    let pages = 4096;
    let at = house.region(pages);
    // SAFETY: inside the region.
    (0..pages).for_each(|i| write(unsafe { at.add(i * PAGE) }, noise(i)));
    house.pager.measure_rest();
    house.pager.publish();
    let budget = &house.pager.budget;
    budget.measured(1 << 30);
    assert_eq!(house.evict_all(), Evicted::Nothing);
    // All of it is in the pool, where noise takes as much as before.
    let now = budget.now() as i64 - (1i64 << 30);
    let own = get(&house.pager.proc().own_bytes);
    assert!(own as usize > pages * PAGE, "{own} bytes are lowtide's own");
    assert!(now.abs() < MIB as i64, "{} KiB were freed or came from nowhere", now / 1024);
}

#[test]
fn an_empty_house_is_not_searched_all_the_time() {
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, monitors: 1 }) else { return };
    let at = house.region(64);
    // SAFETY: inside the region.
    (0..64).for_each(|i| write(unsafe { at.add(i * PAGE) }, noise(i)));
    assert_eq!(house.evict_all(), Evicted::Nothing);
    // A fault may ask as often as it likes: it costs it nothing.
    let (mut worker, started, mut asked) = (Worker::new(false).unwrap(), Instant::now(), 0u64);
    while started.elapsed() < Duration::from_millis(200) {
        assert_eq!(house.pager.evict(&mut worker), Evicted::Nothing);
        asked += 1;
    }
    assert!(asked > 100_000, "{asked} questions in 200 ms: each was a search");
    // Until there is something to find.
    let more = house.region(1024);
    // SAFETY: inside the region.
    (0..1024).for_each(|i| write(unsafe { more.add(i * PAGE) }, noise(i)));
    let out = house.evictions();
    house.evict_all();
    assert!(house.evictions() >= out + 1024);
}
