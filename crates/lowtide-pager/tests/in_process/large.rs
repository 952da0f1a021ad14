//! Large removals are done in parts. To the program they are done when its call returns.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lowtide_pager::fault::{Handler, Served};
use lowtide_pager::pages::{Rights, Worker};
use lowtide_pager::reclaim::Evicted;
use lowtide_sys::uffd::Access;
use rustix::mm::{Advice, MapFlags, MremapFlags};

use crate::house::{Config, House, MIB, PAGE, map, verify, write};

/// More than is done in one part.
const PAGES: usize = 3 << 15;
/// Four parts.
const MANY: usize = 4 << 16;
/// So many that the evictor looks again.
const LAST: usize = 2048;

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
            let mut worker = Worker::new(Rights::All).unwrap();
            for _ in 0..200 {
                if !house.pager.evict(&mut worker).is_progress() {
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
    House::new(Config { pool: 512 * MIB, file: 0, handlers: 2 })
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
    house.register(at, PAGES);
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

/// In one call what was there is unmapped, and other memory comes there: as much of both is out as can be.
#[test]
fn what_is_moved_to_a_large_place_is_there_at_once() {
    let Some(house) = house() else { return };
    let (place, from) = (house.region(PAGES), house.region(PAGES));
    filled(&house, place);
    (0..PAGES).for_each(|i| write(page(from, i), new(i)));
    house.evict_all();
    // SAFETY: the test's own memory, both.
    unsafe { rustix::mm::mremap_fixed(from.cast(), PAGES * PAGE, PAGES * PAGE, MremapFlags::MAYMOVE, place.cast()).unwrap() };
    for i in (0..PAGES).rev() {
        verify(page(place, i), new(i), "moved there");
    }
    house.evict_all();
    (0..PAGES).for_each(|i| verify(page(place, i), new(i), "after it was evicted"));
    assert!(!house.pager.has_removals_left());
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
            let call = pager.removal_begins(at, pages * PAGE, 5);
            // SAFETY: the test's own memory.
            unsafe { rustix::mm::madvise(at as *mut _, pages * PAGE, Advice::LinuxDontNeed).unwrap() };
            pager.removal_ends(&call, true);
        };
        thread::scope(|scope| {
            scope.spawn(move || part(0, PAGES / 3 * 2));
            scope.spawn(move || part(PAGES / 3, PAGES / 3 * 2));
        });
        is_new(&house, at);
    }
    // New pages end the rest that a try in vain, above, may have begun.
    (0..PAGES).for_each(|i| write(page(at, i), new(i)));
    let before = house.evictions();
    let end = house.evict_all();
    let evicted = house.evictions() - before;
    assert!(evicted as usize > PAGES * 9 / 10, "{evicted} of {PAGES} pages can be evicted again: {end:?}");
    drop_pages(at);
    house.pager.removed(at as usize, PAGES * PAGE);
    is_new(&house, at);
}

/// Runs `f` beside a handler, which serves what it wants.
fn served(house: &House, handler: &mut Handler, f: impl FnOnce() + Send) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let program = scope.spawn(|| {
            f();
            over.store(true, Ordering::SeqCst);
        });
        while !over.load(Ordering::SeqCst) && !program.is_finished() {
            if !handler.turn(house.pager).read {
                handler.wait(house.pager, 1);
            }
        }
        program.join().unwrap();
    });
}

/// The same without chance: of what was unmapped two parts are gone, and nobody reads what would do another. Its last pages are
/// there again, and new.
fn half_dropped() -> Option<(House, Handler, usize)> {
    const STEP: usize = 1 << 14;
    let house = House::new(Config { pool: 64 * MIB, file: 0, handlers: 0 })?;
    let (mut handler, mut worker) = (Handler::new().unwrap(), Worker::new(Rights::All).unwrap());
    let at = house.region(MANY) as usize;
    for first in (0..MANY).step_by(STEP) {
        served(&house, &mut handler, || {
            // SAFETY: the test's own memory. Zeros take no room when they are evicted.
            (first..first + STEP).for_each(|i| unsafe { page(at as *mut u8, i).write_volatile(0) });
            (MANY - LAST..MANY).filter(|i| *i < first + STEP).for_each(|i| write(page(at as *mut u8, i), old(i)));
        });
        house.evict_all();
    }
    let pager = house.pager;
    let dropper = thread::spawn(move || map(at as *mut u8, MANY, MapFlags::FIXED) as usize);
    assert!(pager.uffd().wait_readable(60_000), "nobody removes anything");
    let read = pager.read(1, &mut worker);
    assert!(read.event && read.goes_on, "it takes several parts");
    dropper.join().unwrap();
    house.register(at as *mut u8, MANY);
    for i in MANY - LAST..MANY {
        let at = page(at as *mut u8, i);
        assert_eq!(pager.serve_any(at as usize, Access::Write, &mut worker), Served::Done);
        verify(at, 0, "dropped");
        write(at, new(i));
    }
    Some((house, handler, at))
}

fn all_is_new(house: &House, handler: &mut Handler, at: usize) {
    while handler.turn(house.pager).read {}
    house.evict_all();
    served(house, handler, || {
        (MANY - LAST..MANY).for_each(|i| verify(page(at as *mut u8, i), new(i), "written after it was dropped"));
        (0..MANY - LAST).for_each(|i| verify(page(at as *mut u8, i), 0, "dropped"));
    });
}

#[test]
fn what_is_left_of_a_removal_is_neither_brought_in_nor_evicted() {
    let Some((house, mut handler, at)) = half_dropped() else { return };
    let (mut worker, before) = (Worker::new(Rights::All).unwrap(), house.evictions());
    assert_eq!(house.pager.evict(&mut worker), Evicted::LetGo, "there will be something to evict");
    assert!(house.pager.has_removals_left());
    assert_eq!(house.evictions(), before);
    house.evict_all();
    assert!(house.evictions() - before >= LAST as u64);
    all_is_new(&house, &mut handler, at);
}

/// At the limit, with nothing in memory but what is new.
#[test]
fn what_is_left_of_a_removal_is_done_where_there_is_no_room() {
    let Some((house, mut handler, at)) = half_dropped() else { return };
    let (mut worker, before) = (Worker::new(Rights::Serve).unwrap(), house.evictions());
    house.pager.budget().set_limit(MIB as u64);
    assert!(house.pager.budget().lacks_room() && house.pager.has_removals_left());
    assert_eq!(house.pager.serve_within_limit(at, Access::Write, 0, &mut worker), Served::Done);
    assert!(house.evictions() > before, "the limit was passed");
    house.pager.budget().set_limit(1 << 40);
    all_is_new(&house, &mut handler, at);
}
