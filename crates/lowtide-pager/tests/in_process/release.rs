//! Memory that is given back to the program is whole, and lowtide's no more.

use std::thread;

use lowtide_pager::fault::Handler;
use lowtide_pager::pages::{Rights, Worker};
use lowtide_sys::Range;
use lowtide_sys::uffd::{NEEDED_FEATURES, Uffd, Watched};

use rustix::mm::Advice;

use crate::house::{Config, House, MIB, PAGE, verify, within, write};

#[test]
fn released_memory_is_whole_and_can_be_registered_by_others() {
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 1 }) else { return };
    let pages = 2048;
    let at = house.region(pages);
    // SAFETY: inside the region.
    let page = |i: usize| unsafe { at.add(i * PAGE) };
    let seed = |i: usize| if i.is_multiple_of(7) { 0 } else { i as u64 + 1 };
    (0..pages).for_each(|i| write(page(i), seed(i)));
    house.evict_all();
    let (from, to) = (page(500) as usize, page(1500) as usize);
    let other = Uffd::open(NEEDED_FEATURES).unwrap();
    // SAFETY: nothing of it is touched before it is unregistered again.
    assert!(unsafe { other.register(from, to - from, Watched::Missing) }.is_err(), "it is registered");
    house.pager.release(Range { start: from, end: to }).unwrap();
    (500..1500).for_each(|i| verify(page(i), seed(i), "released"));
    // SAFETY: as above.
    unsafe {
        other.register(from, to - from, Watched::Missing).unwrap();
        other.unregister(from, to - from).unwrap();
    }
    let out = house.evictions();
    house.evict_all();
    assert!(house.evictions() - out < 1100, "only the rest is evicted");
    (0..pages).for_each(|i| verify(page(i), seed(i), "after all"));
}

/// What was dropped and is not done yet is not out: there is nothing to bring in.
#[test]
fn what_is_left_of_a_removal_does_not_keep_memory_from_being_released() {
    // One page each is used: more than one part, and little to evict.
    const BLOCKS: usize = 2048;
    const BLOCK: usize = 64;
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 0 }) else { return };
    let (mut handler, mut worker) = (Handler::new().unwrap(), Worker::new(Rights::All).unwrap());
    let (pager, at) = (house.pager, house.region(BLOCKS * BLOCK) as usize);
    let program = thread::spawn(move || (0..BLOCKS).for_each(|i| write((at + i * BLOCK * PAGE) as *mut u8, i as u64 + 1)));
    while !program.is_finished() {
        if !handler.turn(pager).read {
            handler.wait(pager, 1);
        }
    }
    house.evict_all();
    let range = Range { start: at, end: at + BLOCKS * BLOCK * PAGE };
    // SAFETY: the test's own memory.
    let dropped =
        thread::spawn(move || unsafe { rustix::mm::madvise(at as *mut _, range.end - at, Advice::LinuxDontNeed).unwrap() });
    assert!(pager.uffd().wait_readable(60_000), "nobody removes anything");
    assert!(pager.read(1, &mut worker).goes_on, "it takes several parts");
    dropped.join().unwrap();
    within("what was dropped is brought in, and nobody is there who would", move || pager.release(range).unwrap());
    assert!(pager.has_removals_left());
    (0..BLOCKS).for_each(|i| verify((at + i * BLOCK * PAGE) as *const u8, 0, "dropped"));
}
