//! Where the kernel tells which pages were accessed, others leave first.

use lowtide_pager::fault::Worker;
use lowtide_pager::mappings::Range;
use lowtide_pager::reclaim::Evicted;
use lowtide_pager::sys::present::Present;
use rustix::mm::{MprotectFlags, MremapFlags};

use crate::house::{Config, House, MIB, PAGE, map, verify, write};

const PAGES: usize = 8192;

fn house() -> Option<House> {
    House::with_accessed_bits(Config { pool: 64 * MIB, file: 0, monitors: 2 })
}

/// The content of page `i`.
fn seed(i: usize) -> u64 {
    i as u64 + 1
}

/// Reads a byte of each page.
fn touch(at: *mut u8, pages: impl Iterator<Item = usize>) {
    // SAFETY: inside the test's region.
    pages.for_each(|i| _ = unsafe { at.add(i * PAGE).read_volatile() });
}

fn pages_in_memory(at: *mut u8, pages: usize) -> usize {
    Present::open().unwrap().bytes(at as usize, at as usize + pages * PAGE).unwrap() / PAGE
}

fn verify_all(at: *mut u8, pages: usize) {
    // SAFETY: inside the test's region.
    (0..pages).for_each(|i| verify(unsafe { at.add(i * PAGE) }, seed(i), "came back"));
}

#[test]
fn what_is_accessed_all_the_time_stays() {
    // Among the others.
    let is_hot = |i: &usize| i % 4 == 1;
    let Some(house) = house() else { return };
    let at = house.region(PAGES);
    // SAFETY: inside the region.
    (0..PAGES).for_each(|i| write(unsafe { at.add(i * PAGE) }, seed(i)));
    let mut worker = Worker::new(true).unwrap();
    while house.evictions() < PAGES as u64 / 2 {
        touch(at, (0..PAGES).filter(is_hot));
        assert_eq!(house.pager.evict(&mut worker), Evicted::Progress);
    }
    let present = Present::open().unwrap();
    let stayed = (0..PAGES).filter(is_hot).filter(|i| present.holds_page(at as usize + i * PAGE)).count();
    // Before anything was known some had to leave.
    assert!(stayed > PAGES / 4 * 7 / 8, "{stayed} of {} pages stayed that were accessed before each batch", PAGES / 4);
    verify_all(at, PAGES);
}

#[test]
fn where_all_is_accessed_room_is_made_all_the_same() {
    let Some(house) = house() else { return };
    let at = house.region(PAGES);
    // SAFETY: inside the region.
    (0..PAGES).for_each(|i| write(unsafe { at.add(i * PAGE) }, seed(i)));
    let mut worker = Worker::new(true).unwrap();
    for _ in 0..8 {
        let before = house.evictions();
        touch(at, 0..PAGES);
        house.pager.evict(&mut worker);
        assert!(house.evictions() > before, "a step has only armed pages");
    }
    verify_all(at, PAGES);
}

/// As allocators do it: address space is reserved, and opened up bit by bit.
#[test]
fn what_is_opened_up_later_tells_too_and_is_one_mapping() {
    let Some(house) = house() else { return };
    let at = map(std::ptr::null_mut(), PAGES, rustix::mm::MapFlags::empty());
    let protect = |pages: std::ops::Range<usize>, flags| {
        // SAFETY: the test's own memory, which nobody touches while it is inaccessible.
        unsafe { rustix::mm::mprotect(at.add(pages.start * PAGE).cast(), pages.len() * PAGE, flags).unwrap() }
    };
    let (open, closed) = (MprotectFlags::READ | MprotectFlags::WRITE, MprotectFlags::empty());
    // Between two that are open, too.
    protect(1024..2048, closed);
    protect(4096..PAGES, closed);
    house.adopt_used(at, PAGES);
    for part in [1024..2048, 4096..6144, 6144..PAGES] {
        protect(part.clone(), open);
        let address = |page: usize| at as usize + page * PAGE;
        house.pager.made_accessible(Range { start: address(part.start), end: address(part.end) });
    }
    // SAFETY: inside the region.
    (0..PAGES).for_each(|i| write(unsafe { at.add(i * PAGE) }, seed(i)));
    let mut worker = Worker::new(true).unwrap();
    while house.evictions() < PAGES as u64 / 2 {
        touch(at, 4096..6144);
        assert_eq!(house.pager.evict(&mut worker), Evicted::Progress);
    }
    let stayed = pages_in_memory(at.wrapping_add(4096 * PAGE), 2048);
    assert!(stayed > 1536, "{stayed} of 2048 pages stayed that were accessed before each batch");
    // SAFETY: the test's own memory, whose old addresses nobody uses any more.
    let moved = unsafe { rustix::mm::mremap(at.cast(), PAGES * PAGE, 2 * PAGES * PAGE, MremapFlags::MAYMOVE) };
    let at = moved.expect("the kernel moves one mapping only").cast::<u8>();
    verify_all(at, PAGES);
    assert_eq!(house.evict_all(), Evicted::Nothing);
    verify_all(at, PAGES);
}
