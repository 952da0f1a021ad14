//! Memory that was read before it was registered, and never written.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use lowtide_pager::pages::{Rights, Worker};
use lowtide_pager::reclaim::Evicted;
use lowtide_sys::present::Present;
use rustix::mm::{Advice, MapFlags};

use crate::house::{Config, House, MIB, PAGE, map, verify, write};

const PAGES: usize = 32768;
/// Pages in a row that one may write to at most without coming to a sentinel.
const MOST_IN_A_ROW: usize = 64;

/// Memory that was read: pages of 4 KiB.
fn read_before() -> *mut u8 {
    let at = map(std::ptr::null_mut(), PAGES, MapFlags::empty());
    // SAFETY: the test's own memory.
    unsafe { rustix::mm::madvise(at.cast(), PAGES * PAGE, Advice::LinuxNoHugepage).unwrap() };
    // SAFETY: inside the mapping.
    (0..PAGES).for_each(|i| assert_eq!(unsafe { at.add(i * PAGE).read_volatile() }, 0));
    at
}

/// Sets all sentinels, as the reclaimer does.
fn set(house: &House) {
    let mut worker = Worker::new(Rights::All).unwrap();
    while house.pager.set_sentinels(&mut worker) != Evicted::Nothing {}
}

#[test]
fn what_was_only_read_gets_traps_and_nothing_else_does() {
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 2 }) else { return };
    let at = read_before();
    // SAFETY: inside the mapping.
    let page = |i: usize| unsafe { at.add(i * PAGE) };
    let is_written = |i: usize| i % 5 == 3 || (1000..3000).contains(&i);
    (0..PAGES).filter(|i| is_written(*i)).for_each(|i| write(page(i), i as u64 + 1));
    house.pager.budget().measured(100 << 20);
    house.register_used(at, PAGES);
    set(&house);
    let now = house.pager.budget().now();
    assert!((100 << 20..102 << 20).contains(&now), "no memory has gone, and next to none has come: {now}");
    let present = Present::open().unwrap();
    let (mut sentinels, mut in_a_row) = (0, 0);
    for i in 0..PAGES {
        match (present.holds_page(page(i) as usize), is_written(i)) {
            (true, true) => {}
            (true, false) => in_a_row += 1,
            (false, true) => panic!("page {i} was written, and has become a sentinel"),
            (false, false) => (sentinels, in_a_row) = (sentinels + 1, 0),
        }
        assert!(in_a_row <= MOST_IN_A_ROW, "no sentinel before page {i}");
    }
    assert!((PAGES / 128..PAGES / 16).contains(&sentinels), "{sentinels} sentinels");
    assert_eq!(house.evictions(), sentinels as u64);
    for i in 0..PAGES {
        verify(page(i), if is_written(i) { i as u64 + 1 } else { 0 }, "with sentinels");
    }
    // What is registered next has its own.
    let next = read_before();
    house.register_used(next, PAGES);
    set(&house);
    assert!(house.evictions() > sentinels as u64 + (PAGES / 128) as u64);
}

/// What is written to a page in the moment in which it becomes a sentinel is kept.
#[test]
fn no_write_is_lost_to_a_trap() {
    let Some(house) = House::new(Config { pool: 256 * MIB, file: 0, handlers: 2 }) else { return };
    let (mut out, mut sentinels) = (0, 0);
    for round in 0..12 {
        let at = read_before() as usize;
        let page = |i: usize| (at + i * PAGE) as *mut u8;
        let seed = |i: usize| ((round * PAGES + i) as u64) << 1 | 1;
        let begun = AtomicUsize::new(0);
        thread::scope(|scope| {
            for part in 0..2 {
                let (page, begun) = (&page, &begun);
                scope.spawn(move || {
                    begun.fetch_add(1, Ordering::Relaxed);
                    // Only a word: as fast as can be.
                    for i in (part..PAGES).step_by(2) {
                        // SAFETY: the test's own page.
                        unsafe { page(i).cast::<u64>().write_volatile(seed(i)) };
                    }
                });
            }
            while begun.load(Ordering::Relaxed) < 2 {
                thread::yield_now();
            }
            house.register_used(at as *mut u8, PAGES);
            set(&house);
        });
        sentinels += house.evictions() - out;
        house.evict_all();
        out = house.evictions();
        for i in 0..PAGES {
            // SAFETY: the test's own page.
            assert_eq!(unsafe { page(i).cast::<u64>().read_volatile() }, seed(i), "round {round}, page {i}");
        }
        // SAFETY: the test's own memory.
        unsafe { rustix::mm::munmap(at as *mut _, PAGES * PAGE).unwrap() };
    }
    assert!(sentinels > 0, "the writers were always faster");
}
