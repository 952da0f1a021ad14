//! Large removals are done in parts. To the program they are done when its call returns.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lowtide_pager::fault::{Monitor, Worker};
use lowtide_pager::reclaim::Evicted;
use rustix::mm::{Advice, MapFlags, MremapFlags};

use crate::house::{Config, House, MIB, PAGE, map, verify, write};

/// More than is done in one part.
const PAGES: usize = 3 << 15;

/// What a page held before, and what is written there after.
fn old(i: usize) -> u64 {
    i as u64 * 3 + 1
}

fn new(i: usize) -> u64 {
    i as u64 * 3 + 2
}

fn page(at: *mut u8, i: usize) -> *mut u8 {
    // SAFETY: inside the caller's memory.
    unsafe { at.add(i * PAGE) }
}

/// All of a region is out, but for some.
fn filled(house: &House, at: *mut u8) {
    (0..PAGES).for_each(|i| write(page(at, i), old(i)));
    house.evict_all();
}

/// From the end, which is done last, what was dropped is zeros; and what is written there then stays, though all that can be is
/// evicted meanwhile.
fn is_new(house: &House, at: *mut u8) {
    thread::scope(|scope| {
        let evictor = scope.spawn(|| {
            let mut worker = Worker::new(true).unwrap();
            for _ in 0..200 {
                if house.pager.evict(&mut worker) != Evicted::Progress {
                    thread::sleep(Duration::from_micros(100));
                }
            }
        });
        for i in (0..PAGES).rev().step_by(61) {
            verify(page(at, i), 0, "dropped");
            write(page(at, i), new(i));
        }
        evictor.join().unwrap();
    });
    for i in 0..PAGES {
        verify(page(at, i), if (PAGES - 1 - i).is_multiple_of(61) { new(i) } else { 0 }, "after it was dropped");
    }
}

fn drop_pages(at: *mut u8) {
    // SAFETY: the test's own memory.
    unsafe { rustix::mm::madvise(at.cast(), PAGES * PAGE, Advice::LinuxDontNeed).unwrap() };
}

fn house() -> Option<House> {
    House::new(Config { pool: 512 * MIB, file: 0, monitors: 2 })
}

/// By a raw call, of whose end nobody tells.
#[test]
fn what_is_dropped_reads_as_zeros_at_once() {
    let Some(house) = house() else { return };
    let at = house.region(PAGES);
    filled(&house, at);
    drop_pages(at);
    is_new(&house, at);
}

#[test]
fn what_is_mapped_where_something_was_unmapped_is_new() {
    let Some(house) = house() else { return };
    let at = house.region(PAGES);
    filled(&house, at);
    map(at, PAGES, MapFlags::FIXED);
    house.adopt(at, PAGES);
    is_new(&house, at);
}

#[test]
fn what_was_dropped_does_not_move() {
    let Some(house) = house() else { return };
    let at = house.region(PAGES);
    let there = map(std::ptr::null_mut(), PAGES, MapFlags::empty());
    filled(&house, at);
    drop_pages(at);
    // SAFETY: the test's own memory, both.
    let moved =
        unsafe { rustix::mm::mremap_fixed(at.cast(), PAGES * PAGE, PAGES * PAGE, MremapFlags::MAYMOVE, there.cast()).unwrap() };
    is_new(&house, moved.cast());
}

/// Two that overlap, by two threads, again and again. The last page of each is the last that is done.
#[test]
fn removals_that_overlap_both_have_an_end() {
    let Some(house) = house() else { return };
    let at = house.region(PAGES);
    for _ in 0..2 {
        filled(&house, at);
        let (pager, at_addr) = (house.pager, at as usize);
        let part = move |first: usize, pages: usize| {
            let at = at_addr + first * PAGE;
            let call = pager.removal_begins(at, pages * PAGE);
            // SAFETY: the test's own memory.
            unsafe { rustix::mm::madvise(at as *mut _, pages * PAGE, Advice::LinuxDontNeed).unwrap() };
            pager.removal_ends(&call);
        };
        thread::scope(|scope| {
            scope.spawn(move || part(0, PAGES / 3 * 2));
            scope.spawn(move || part(PAGES / 3, PAGES / 3 * 2));
        });
        is_new(&house, at);
    }
    let before = house.evictions();
    house.evict_all();
    let evicted = house.evictions() - before;
    assert!(evicted as usize > PAGES * 9 / 10, "{evicted} of {PAGES} pages can be evicted again");
    drop_pages(at);
    house.pager.removed(at as usize, PAGES * PAGE);
    is_new(&house, at);
}

/// Runs `f` beside a monitor, which serves what it wants.
fn served(house: &House, monitor: &mut Monitor, f: impl FnOnce() + Send) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let program = scope.spawn(|| {
            f();
            over.store(true, Ordering::SeqCst);
        });
        while !over.load(Ordering::SeqCst) && !program.is_finished() {
            if !monitor.turn(house.pager).read {
                monitor.wait(house.pager, 1);
            }
        }
        program.join().unwrap();
    });
}

/// The same without chance: of four parts one is done when the program goes on, and by far not all when pages are evicted.
#[test]
fn what_is_left_of_a_removal_is_neither_brought_in_nor_evicted() {
    const MANY: usize = 4 << 16;
    const STEP: usize = 1 << 14;
    // So many that the evictor looks again.
    const LAST: usize = 2048;
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, monitors: 0 }) else { return };
    let (mut monitor, mut worker) = (Monitor::new().unwrap(), Worker::new(true).unwrap());
    let at = house.region(MANY) as usize;
    let page = |i: usize| (at + i * PAGE) as *mut u8;
    for first in (0..MANY).step_by(STEP) {
        served(&house, &mut monitor, || {
            // SAFETY: the test's own memory. Zeros take no room when they are evicted.
            (first..first + STEP).for_each(|i| unsafe { page(i).write_volatile(0) });
            (MANY - LAST..MANY).filter(|i| *i < first + STEP).for_each(|i| write(page(i), old(i)));
        });
        house.evict_all();
    }
    thread::scope(|scope| {
        // SAFETY: the test's own memory.
        scope.spawn(|| unsafe { rustix::mm::madvise(at as *mut _, MANY * PAGE, Advice::LinuxDontNeed).unwrap() });
        assert!(house.pager.uffd().wait_readable(60_000), "nobody removes anything");
        let read = house.pager.read(1, &mut worker);
        assert!(read.event && read.goes_on, "it takes several parts");
    });
    served(&house, &mut monitor, || {
        for i in MANY - LAST..MANY {
            verify(page(i), 0, "dropped");
            write(page(i), new(i));
        }
    });
    for _ in 0..2 {
        house.pager.evict(&mut worker);
    }
    while monitor.turn(house.pager).read {}
    house.evict_all();
    served(&house, &mut monitor, || {
        (MANY - LAST..MANY).for_each(|i| verify(page(i), new(i), "written after it was dropped"));
        (0..MANY - LAST).for_each(|i| verify(page(i), 0, "dropped"));
    });
}
