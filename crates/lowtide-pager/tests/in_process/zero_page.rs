//! Zeros that are read often are the kernel's one zero page, and what is written there is the program's.

use std::sync::atomic::Ordering;
use std::thread;

use lowtide_pager::reclaim::Evicted;

use crate::house::{Config, House, MIB, PAGE, get, mix, verify, write};

const PAGES: usize = 16384;

/// A region of zeros that are out, of which so many have been read that writes are watched.
fn read_often(house: &House) -> *mut u8 {
    let at = house.region(PAGES);
    // SAFETY: inside the region.
    let page = |i: usize| unsafe { at.add(i * PAGE) };
    (0..PAGES).for_each(|i| write(page(i), 0));
    assert_eq!(house.evict_all(), Evicted::Nothing);
    // Far apart, so that each is a fault.
    (0..2048).for_each(|i| verify(page(i * 8), 0, "read"));
    house.pager.watch_writes();
    assert_eq!(house.evict_all(), Evicted::Nothing);
    at
}

/// In an order in which nothing is a stream.
fn shuffled(i: usize) -> usize {
    (i * 7919 + 13) % PAGES
}

#[test]
fn zeros_that_are_read_take_no_memory() {
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 2 }) else { return };
    let at = read_often(&house);
    // SAFETY: inside the region.
    let page = |i: usize| unsafe { at.add(i * PAGE) };
    let (faults, out) = (get(&house.pager.counters().faults_total), house.evictions());
    for _ in 0..3 {
        (0..PAGES).for_each(|i| verify(page(shuffled(i)), 0, "read"));
    }
    let faults = get(&house.pager.counters().faults_total) - faults;
    assert!((PAGES / 64..=PAGES as u64 as usize).contains(&(faults as usize)), "{faults} faults for {PAGES} pages");
    let held = house.pager.registered_in_memory().unwrap();
    assert!(held < MIB as u64, "{held} bytes for zeros");
    assert_eq!(house.evict_all(), Evicted::Nothing);
    assert_eq!(house.evictions(), out + held / PAGE as u64);
}

#[test]
fn what_is_written_there_is_seen_counted_and_kept() {
    let Some(house) = House::new(Config { pool: 256 * MIB, file: 0, handlers: 2 }) else { return };
    let at = read_often(&house) as usize;
    let page = |i: usize| (at + i * PAGE) as *mut u8;
    (0..PAGES).for_each(|i| verify(page(shuffled(i)), 0, "read"));
    house.pager.budget().measured(0);
    let faults = get(&house.pager.counters().faults_first_touch);
    thread::scope(|scope| {
        for part in 0..4 {
            scope.spawn(move || {
                for i in (part..PAGES).step_by(4) {
                    let i = shuffled(i);
                    // Others read and write at the same time.
                    verify(page(i), 0, "before it is written");
                    write(page(i), i as u64 + 1);
                    verify(page(i), i as u64 + 1, "written");
                }
            });
        }
    });
    let faults = get(&house.pager.counters().faults_first_touch) - faults;
    assert!(faults >= PAGES as u64 / 64, "{faults} writes were seen of {PAGES} pages");
    let counted = house.pager.budget().now();
    assert!(counted >= (PAGES * PAGE / 2) as u64, "{counted} bytes were counted");
    for round in 0..2 {
        house.evict_all();
        (0..PAGES).for_each(|i| verify(page(i), i as u64 + 1, if round == 0 { "came back" } else { "again" }));
    }
}

/// What was let through and not written is no way past the limit.
#[test]
fn who_writes_much_comes_to_a_protected_page_soon() {
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 2 }) else { return };
    let at = read_often(&house) as usize;
    let word = |i: usize| (at + i * PAGE) as *mut u64;
    let read = |i: usize| {
        // SAFETY: inside the region.
        unsafe { word(i).read_volatile() }
    };
    (0..PAGES).for_each(|i| assert_eq!(read(shuffled(i)), 0));
    let write = |i: usize| {
        // SAFETY: as above.
        unsafe { word(i).write_volatile(i as u64 + 1) }
    };
    // As a stream with steps, and then all of it.
    (0..PAGES).step_by(19).for_each(write);
    house.pager.budget().measured(0);
    let seen = || get(&house.pager.counters().faults_first_touch);
    let (mut unseen, mut most, mut last) = (0, 0, seen());
    for i in (0..PAGES).filter(|i| i % 19 != 0) {
        write(i);
        unseen = if core::mem::replace(&mut last, seen()) == last { unseen + 1 } else { 0 };
        most = most.max(unseen);
    }
    assert!(most <= 130, "{most} pages in a row were written and not seen");
    (0..PAGES).for_each(|i| assert_eq!(read(i), i as u64 + 1));
}

/// Reads, writes, evictions and removals at the same time, against what each page must hold.
#[test]
fn reads_writes_and_evictions_of_zeros_at_the_same_time() {
    let Some(house) = House::new(Config { pool: 256 * MIB, file: 0, handlers: 2 }) else { return };
    let at = read_often(&house) as usize;
    let page = |i: usize| (at + i * PAGE) as *mut u8;
    let done = std::sync::atomic::AtomicUsize::new(0);
    thread::scope(|scope| {
        for part in 0..3usize {
            let (done, house) = (&done, &house);
            scope.spawn(move || {
                // Of each thread's own pages: which seed a page has, 0 for zeros.
                let mut seeds = vec![0u64; PAGES / 3];
                for step in 0..60_000u64 {
                    let random = mix(step * 3 + part as u64);
                    let own = random as usize % seeds.len();
                    let i = own * 3 + part;
                    verify(page(i), seeds[own], "own page");
                    if random >> 32 & 63 == 1 {
                        // SAFETY: the test's own page.
                        unsafe { rustix::mm::madvise(page(i).cast(), PAGE, rustix::mm::Advice::LinuxDontNeed).unwrap() };
                        house.pager.removed(page(i) as usize, PAGE);
                        seeds[own] = 0;
                    } else if random >> 32 & 15 == 0 {
                        seeds[own] = if random >> 40 & 3 == 0 { random | 1 } else { 0 };
                        write(page(i), seeds[own]);
                    }
                }
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        while done.load(Ordering::Relaxed) < 3 {
            house.evict_all();
            thread::sleep(std::time::Duration::from_millis(3));
        }
    });
}
