//! Nothing is detached that no tier would take, and nobody looks for pages again and again where there are none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lowtide_pager::pages::{Rights, Worker};
use lowtide_pager::reclaim::Evicted;

use crate::house::{Config, House, MIB, PAGE, get, verify, write};

/// A seed of noise, which does not compress.
fn noise(i: usize) -> u64 {
    (i as u64 + 1) * 3
}

#[test]
fn a_full_pool_is_not_a_thrash_loop() {
    let Some(house) = House::new(Config { pool: 2 * MIB, file: 0, handlers: 1 }) else { return };
    let pages = 4000;
    let at = house.region(pages);
    // SAFETY: inside the region.
    let page = |i: usize| unsafe { at.add(i * PAGE) };
    (0..pages).for_each(|i| write(page(i), noise(i)));
    assert_eq!(house.evict_all(), Evicted::Full);
    let (out, started) = (house.evictions(), Instant::now());
    let mut worker = Worker::new(Rights::All).unwrap();
    while started.elapsed() < Duration::from_secs(1) {
        assert_eq!(house.pager.evict(&mut worker), Evicted::Full);
    }
    assert_eq!(house.evictions(), out, "pages went out that nobody takes");
    (0..pages).for_each(|i| verify(page(i), noise(i), "after all"));
    // 512 pages in the pool, and what was in staging when it was full.
    assert!(out < 512 + 3 * 512, "{out} pages out and back again for the 512 that there is room for");
}

/// A house that is full of noise, then has one page of zeros among so many, and more than the run may take.
fn over_the_limit(pages: usize, one_in: usize, staging: usize) -> Option<(House, *mut u8, impl Fn(usize) -> u64)> {
    let house = House::with_staging(Config { pool: 2 * MIB, file: 0, handlers: 1 }, staging)?;
    let at = house.region(pages);
    let seed = move |i: usize| if i.is_multiple_of(one_in) { 0 } else { noise(i) };
    // SAFETY: inside the region.
    let page = |i: usize| unsafe { at.add(i * PAGE) };
    (0..pages).for_each(|i| write(page(i), noise(i)));
    assert_eq!(house.evict_all(), Evicted::Full);
    (0..pages).for_each(|i| write(page(i), seed(i)));
    house.pager.budget().set_limit(8 * MIB as u64);
    house.pager.budget().measured(1 << 30);
    Some((house, at, seed))
}

/// Of the calling thread.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn zeros_leave(pages: usize, one_in: usize, staging: usize) {
    let Some((house, at, seed)) = over_the_limit(pages, one_in, staging) else { return };
    // In the pool are 512 pages at most.
    let (there, zeros) = ((pages - 512) / one_in, || get(&house.pager.counters().zero_pages) as usize);
    let (mut worker, started) = (Worker::new(Rights::All).unwrap(), Instant::now());
    while zeros() < there && started.elapsed() < Duration::from_secs(10) {
        house.pager.evict(&mut worker);
    }
    assert!(zeros() >= there, "{} of {there} pages of zeros are out", zeros());
    // Where none are left, nothing else goes out to find them, and the search rests most of the time. (Its own time is the CPU's:
    // other programs may keep it from running.)
    let (out, started, began, mut rests) = (house.evictions(), Instant::now(), cpu_time(), Duration::ZERO);
    while started.elapsed() < Duration::from_secs(1) {
        if house.pager.evict(&mut worker) == Evicted::Searching {
            let rest = Duration::from_micros(house.pager.search_rests_us());
            std::thread::sleep(rest);
            rests += rest;
        }
    }
    let worked = cpu_time() - began;
    assert!(rests > Duration::from_millis(200), "it rests for {rests:?} of a second");
    assert!(worked * 3 < rests * 2, "it rests for {rests:?} and works for {worked:?}");
    // But for what is tried now and then because the pool has become a little less full.
    let (more, batch) = ((house.evictions() - out) as usize, house.pager.batch_bytes() / PAGE);
    assert!(more <= pages / one_in - there + 20 * batch, "{more} pages went out that are no zeros");
    // SAFETY: inside the region.
    (0..pages).for_each(|i| verify(unsafe { at.add(i * PAGE) }, seed(i), "after all"));
}

#[test]
fn zeros_leave_where_nothing_else_can() {
    zeros_leave(4000, 4, 2 * MIB);
}

#[test]
fn zeros_among_other_pages_leave_more_at_a_time_than_ranges_are_remembered() {
    zeros_leave(6000, 2, 16 * MIB);
}

#[test]
fn zeros_are_found_below_where_the_search_has_been() {
    let Some((house, at, _)) = over_the_limit(6000, usize::MAX, 2 * MIB) else { return };
    let mut worker = Worker::new(Rights::All).unwrap();
    // Two steps, which find nothing, once all is full.
    let mut steps = 0;
    while steps < 2 {
        if house.pager.evict(&mut worker) == Evicted::Searching {
            std::thread::sleep(Duration::from_micros(house.pager.search_rests_us()));
            steps += 1;
        }
    }
    // SAFETY: inside the region.
    (0..2000).for_each(|i| write(unsafe { at.add(i * PAGE) }, 0));
    let (zeros, started) = (|| get(&house.pager.counters().zero_pages), Instant::now());
    let before = zeros();
    while zeros() < before + 2000 {
        house.pager.evict(&mut worker);
        assert!(started.elapsed() < Duration::from_secs(10), "{} pages of zeros are out", zeros() - before);
    }
}

#[test]
fn budget_after_a_drain_is_what_the_kernel_says() {
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 1 }) else { return };
    let pages = 4096;
    let at = house.region(pages);
    // SAFETY: inside the region.
    (0..pages).for_each(|i| write(unsafe { at.add(i * PAGE) }, noise(i)));
    house.pager.measure_rest();
    house.pager.publish();
    let budget = house.pager.budget();
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
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 1 }) else { return };
    let at = house.region(64);
    // SAFETY: inside the region.
    (0..64).for_each(|i| write(unsafe { at.add(i * PAGE) }, noise(i)));
    assert_eq!(house.evict_all(), Evicted::Nothing);
    // A fault may ask as often as it likes: it costs it nothing.
    let (mut worker, began, mut asked) = (Worker::new(Rights::Serve).unwrap(), cpu_time(), 0u64);
    while cpu_time() - began < Duration::from_millis(200) {
        (0..100).for_each(|_| assert_eq!(house.pager.evict(&mut worker), Evicted::Nothing));
        asked += 100;
    }
    assert!(asked > 100_000, "{asked} questions in 200 ms of the CPU: each was a search");
    // Until there is something to find.
    let more = house.region(1024);
    // SAFETY: inside the region.
    (0..1024).for_each(|i| write(unsafe { more.add(i * PAGE) }, noise(i)));
    let out = house.evictions();
    house.evict_all();
    assert!(house.evictions() >= out + 1024);
}

/// That others have all that waits in hand does not mean that there is nothing: the reclaimer would take the limit for one that
/// can't be held.
#[test]
fn who_finds_nothing_to_drain_does_not_say_that_there_is_nothing() {
    let Some(house) = House::with_staging(Config { pool: 64 * MIB, file: 0, handlers: 1 }, 512 << 10) else { return };
    let pages = 2048;
    let at = house.region(pages);
    // SAFETY: inside the region.
    let page = |i: usize| unsafe { at.add(i * PAGE) };
    let pager = house.pager;
    let over = Arc::new(AtomicBool::new(false));
    let is_over = over.clone();
    let drains = std::thread::spawn(move || {
        let mut worker = Worker::new(Rights::All).unwrap();
        let mut said = 0;
        while !is_over.load(Ordering::Relaxed) {
            said += usize::from(pager.drain_staged(&mut worker) == Evicted::Nothing);
        }
        said
    });
    for round in 0..20 {
        (0..pages).for_each(|i| write(page(i), (round * pages + i) as u64 + 1));
        house.evict_all();
    }
    over.store(true, Ordering::Relaxed);
    assert_eq!(drains.join().unwrap(), 0);
}
