//! Memory that is given back to the program is whole, and lowtide's no more.

use lowtide_pager::mappings::Range;
use lowtide_pager::sys::uffd::{NEEDED_FEATURES, Uffd, Watched};

use crate::house::{Config, House, MIB, PAGE, verify, write};

#[test]
fn released_memory_is_whole_and_can_be_registered_by_others() {
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, monitors: 1 }) else { return };
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
    assert!(unsafe { other.register(from, to - from, Watched::Missing) }.is_err(), "it is adopted");
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
