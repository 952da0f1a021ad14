//! MADV_FREE: the kernel drops what the program has freed and not written since, when it likes, from staging too. To the
//! program these are zeros; nobody waits for them for ever.

use lowtide_core::vm;
use lowtide_pager::pages::{Rights, Worker};
use lowtide_pager::reclaim::Evicted;
use rustix::mm::Advice;

use crate::house::{Config, House, MIB, PAGE, verify, write};

const PAGES: usize = 384;

/// Makes the kernel drop what it may drop of lowtide's own memory, as it would if memory were short.
fn drop_freed_pages() {
    vm::own_ranges(|start, end, _| {
        // SAFETY: what is paged out comes back when it is touched; only pages that were freed are dropped.
        let _ = unsafe { rustix::mm::madvise(start as *mut _, end - start, Advice::LinuxPageOut) };
    });
}

/// Pages that were freed, and are in staging, and that the kernel has dropped there, if it does that. Every fourth was written
/// again before.
fn freed_in_staging(house: &House) -> *mut u8 {
    let at = house.region(PAGES);
    // SAFETY: inside the region.
    let page = |i: usize| unsafe { at.add(i * PAGE) };
    (0..PAGES).for_each(|i| write(page(i), 4));
    // SAFETY: the test's own memory.
    unsafe { rustix::mm::madvise(at.cast(), PAGES * PAGE, Advice::LinuxFree).unwrap() };
    house.pager.removed(at as usize, PAGES * PAGE);
    (0..PAGES).step_by(4).for_each(|i| write(page(i), i as u64 + 1));
    let mut worker = Worker::new(Rights::All).unwrap();
    // As many batches as staging has, so that nothing is drained yet.
    (0..PAGES / 128).for_each(|_| assert_eq!(house.pager.evict(&mut worker), Evicted::Progress));
    assert_eq!(house.evictions(), PAGES as u64);
    drop_freed_pages();
    at
}

fn check(at: *mut u8) {
    for i in 0..PAGES {
        // SAFETY: inside the region.
        let page = unsafe { at.add(i * PAGE) };
        // SAFETY: as above.
        let is_dropped = unsafe { page.cast::<u64>().read_volatile() } == 0;
        let seed = if i % 4 == 0 { i as u64 + 1 } else { 4 * u64::from(!is_dropped) };
        verify(page, seed, if i % 4 == 0 { "written after it was freed" } else { "freed" });
    }
}

#[test]
fn what_was_dropped_from_staging_comes_back_as_zeros() {
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 1 }) else { return };
    check(freed_in_staging(&house));
}

#[test]
fn what_was_dropped_from_staging_is_stored_as_zeros() {
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 1 }) else { return };
    let at = freed_in_staging(&house);
    house.evict_all();
    check(at);
}
