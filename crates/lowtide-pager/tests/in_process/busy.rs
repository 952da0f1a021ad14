//! Pages that can't be moved, or may not: they stay, and nothing waits behind them.

use lowtide_pager::mappings::Hold;
use lowtide_pager::reclaim::Evicted;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io_uring::{IoringRegisterOp, io_uring_params, io_uring_register, io_uring_setup, iovec};
use rustix::mm::{MprotectFlags, mprotect};

use crate::house::{Config, House, MIB, PAGE, knows_mappings, verify, write};

/// Pins memory for good, as programs do that give fixed buffers to io_uring.
fn pin(at: *mut u8, len: usize) -> OwnedFd {
    let buffer = iovec { iov_base: at.cast(), iov_len: len };
    // SAFETY: valid parameters, one buffer of the caller's.
    unsafe {
        let ring = io_uring_setup(4, &mut io_uring_params::default()).unwrap();
        io_uring_register(ring.as_fd(), IoringRegisterOp::RegisterBuffers, (&raw const buffer).cast(), 1).unwrap();
        ring
    }
}

#[test]
fn what_lies_behind_pinned_pages_is_evicted() {
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 1 }) else { return };
    let pages = 4096;
    let at = house.region(pages);
    // SAFETY: inside the region.
    let page = |i: usize| unsafe { at.add(i * PAGE) };
    (0..pages).for_each(|i| write(page(i), i as u64 + 1));
    let (first, pinned) = (pages / 2, 256);
    let ring = pin(page(first), pinned * PAGE);
    assert_eq!(house.evict_all(), Evicted::Nothing);
    let left = house.pager.registered_in_memory().unwrap() as usize / PAGE;
    // A page here and there beside them may be passed by with them.
    assert!((pinned..pinned + 64).contains(&left), "{left} pages are still in memory, {pinned} of them pinned");
    (0..pages).for_each(|i| verify(page(i), i as u64 + 1, "after all"));
    drop(ring);
}

/// A window of pages that leave together may begin in a mapping that can't be moved, and end in one that can.
#[test]
fn what_lies_behind_pages_that_may_not_be_written_is_evicted() {
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 1 }) else { return };
    // Less than a window, and no part of one.
    const STRETCH: usize = 50;
    let pages = 4000;
    let at = house.region(pages);
    // SAFETY: inside the region.
    let page = |i: usize| unsafe { at.add(i * PAGE) };
    (0..pages).for_each(|i| write(page(i), i as u64 + 1));
    for first in (0..pages).step_by(2 * STRETCH) {
        // SAFETY: the test's own memory.
        unsafe { mprotect(page(first).cast(), STRETCH * PAGE, MprotectFlags::READ).unwrap() };
    }
    assert_eq!(house.evict_all(), Evicted::Nothing);
    let left = house.pager.registered_in_memory().unwrap() as usize / PAGE;
    if knows_mappings() {
        assert_eq!(left, pages / 2, "of two, one may not be written");
    }
    (0..pages).for_each(|i| verify(page(i), i as u64 + 1, "after all"));
}

#[test]
fn held_pages_stay_while_their_thread_lives() {
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 1 }) else { return };
    let pages = 1024;
    let at = house.region(pages);
    // SAFETY: inside the region.
    let page = |i: usize| unsafe { at.add(i * PAGE) };
    (0..pages).for_each(|i| write(page(i), i as u64 + 1));
    // In this house the threads of odd numbers live.
    for (i, thread) in [(0, 1), (500, 3), (501, 2), (1023, 5)] {
        assert_eq!(house.pager.hold(page(i) as usize + 8, thread), Hold::Begun);
    }
    assert_eq!(house.evict_all(), Evicted::Nothing);
    let left = house.pager.registered_in_memory().unwrap() as usize / PAGE;
    assert_eq!(left, 3, "three of four are held");
    (0..pages).for_each(|i| verify(page(i), i as u64 + 1, "after all"));
}
