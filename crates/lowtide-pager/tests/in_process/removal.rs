//! MADV_DONTNEED marks what is in memory, and nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lowtide_pager::fault::Handler;
use lowtide_pager::pages::{Rights, Worker};
use rustix::mm::{Advice, MapFlags};

use crate::house::{Config, House, MIB, PAGE, map, verify, write};
use crate::one_cpu;

#[test]
fn a_removal_of_address_space_costs_by_what_is_in_memory() {
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 1 }) else { return };
    let pages = (64 << 30) / PAGE;
    let at = house.region(pages);
    // SAFETY: inside the region.
    let page = |i: usize| unsafe { at.add(i * (pages / 100) * PAGE) };
    (0..100).for_each(|i| write(page(i), i as u64 + 1));
    house.evict_all();
    (0..50).for_each(|i| verify(page(i), i as u64 + 1, "came back"));
    let before = house.pager.page_map_bytes();
    // SAFETY: the test's own memory.
    unsafe { rustix::mm::madvise(at.cast(), pages * PAGE, Advice::LinuxDontNeed).unwrap() };
    house.pager.removed(at as usize, pages * PAGE);
    (0..100).for_each(|i| verify(page(i), 0, "removed"));
    let took = house.pager.page_map_bytes() - before;
    assert!(took < MIB, "{took} bytes of words for a hundred pages");
}

/// What is written after the call is the program's, and can be evicted again.
#[test]
fn removed_pages_can_be_evicted_again() {
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 1 }) else { return };
    let at = house.region(1024);
    // SAFETY: inside the region.
    let page = |i: usize| unsafe { at.add(i * PAGE) };
    (0..1024).for_each(|i| write(page(i), 7));
    // SAFETY: the test's own memory.
    unsafe { rustix::mm::madvise(at.cast(), 1024 * PAGE, Advice::LinuxDontNeed).unwrap() };
    house.pager.removed(at as usize, 1024 * PAGE);
    (0..1024).for_each(|i| write(page(i), i as u64 + 1));
    let out = house.evictions();
    house.evict_all();
    // But for those that a CPU of the kernel's is about to put on its lists: these can't be moved for a while.
    let evicted = house.evictions() - out;
    assert!((960..=1024).contains(&evicted), "{evicted} of 1024");
    (0..1024).for_each(|i| verify(page(i), i as u64 + 1, "after all"));
}

/// The kernel tells of a removal before it takes the pages away, which takes a while. Here it takes very long, because the
/// thread that removes gives way to the one that evicts. What is evicted just then would come back with its old bytes.
#[test]
fn pages_that_are_about_to_go_are_not_evicted() {
    const PAGES: usize = 16384;
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 0 }) else { return };
    one_cpu::stay();
    let at = map(std::ptr::null_mut(), PAGES, MapFlags::empty());
    // SAFETY: the test's own memory, where huge pages would go too fast.
    unsafe { rustix::mm::madvise(at.cast(), PAGES * PAGE, Advice::LinuxNoHugepage).unwrap() };
    // SAFETY: inside the mapping.
    (0..PAGES).for_each(|i| write(unsafe { at.add(i * PAGE) }, i as u64 * 3 + 1));
    house.register(at, PAGES);
    let (pager, at, removed) = (house.pager, at as usize, Arc::new(AtomicBool::new(false)));
    let program = {
        let removed = removed.clone();
        thread::spawn(move || {
            one_cpu::give_way();
            // SAFETY: the test's own memory.
            unsafe { rustix::mm::madvise(at as *mut _, PAGES * PAGE, Advice::LinuxDontNeed).unwrap() };
            removed.store(true, Ordering::SeqCst);
            (0..PAGES).for_each(|i| verify((at + i * PAGE) as *const u8, 0, "removed"));
        })
    };
    let (mut handler, mut worker) = (Handler::new().unwrap(), Worker::new(Rights::All).unwrap());
    handler.wait(pager, -1);
    assert!(handler.turn(pager).read, "the removal was told of");
    while !removed.load(Ordering::SeqCst) {
        if !pager.evict(&mut worker).is_progress() {
            // The kernel goes on, until this thread wants to run again.
            thread::sleep(Duration::from_micros(50));
        }
    }
    while !program.is_finished() {
        if !handler.turn(pager).read {
            handler.wait(pager, 1);
        }
    }
    program.join().unwrap();
}

/// Pages that left together have slots in a row, and these are let go of together.
#[test]
fn stored_pages_go_with_a_cluster_lock_for_many() {
    const PAGES: usize = 8192;
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 1 }) else { return };
    let at = house.region(PAGES);
    // SAFETY: inside the region.
    (0..PAGES).for_each(|i| write(unsafe { at.add(i * PAGE) }, i as u64 * 3 + 1));
    house.evict_all();
    let locks = || house.pager.enter().unwrap().store().cluster_locks();
    let stored = || house.pager.enter().unwrap().store().stats().stored_now as usize;
    let (before, there) = (locks(), stored());
    assert!(there > PAGES * 9 / 10, "{there} of {PAGES} are out");
    // SAFETY: the test's own memory.
    unsafe { rustix::mm::madvise(at.cast(), PAGES / 2 * PAGE, Advice::LinuxDontNeed).unwrap() };
    house.pager.removed(at as usize, PAGES / 2 * PAGE);
    let (removed, half) = (locks() - before, stored());
    // SAFETY: the test's own memory, which nobody uses any more.
    unsafe { rustix::mm::munmap(at.add(PAGES / 2 * PAGE).cast(), PAGES / 2 * PAGE).unwrap() };
    house.pager.outlast_reading();
    let unmapped = locks() - before - removed;
    assert!(half < there * 6 / 10 && stored() == 0, "{there}, {half}, {} stored", stored());
    let most = PAGES as u64 / 2 / 16;
    assert!(removed < most && unmapped < most, "{removed} and {unmapped} locks for {} pages each", PAGES / 2);
}
