//! A window is detached with its holes. What is no page of the program, and is there all the same (the shared zero page, a guard), is no
//! hole: it stays where it is.

use lowtide_pager::evict::Evicted;
use rustix::mm::MapFlags;

use crate::house::{Config, House, MIB, PAGE, map, verify, write};

/// So many that what comes back is worth another look.
const PAGES: usize = 4096;

#[test]
fn only_what_is_missing_is_a_hole() {
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, monitors: 2 }) else { return };
    let at = map(std::ptr::null_mut(), PAGES, MapFlags::empty());
    // SAFETY: the test's own memory, where a huge page would be nobody's hole.
    unsafe { rustix::mm::madvise(at.cast(), PAGES * PAGE, rustix::mm::Advice::LinuxNoHugepage).unwrap() };
    // SAFETY: inside the mapping.
    let page = |i: usize| unsafe { at.add(i * PAGE) };
    // Of five pages in a row one is written, one only read, which maps the shared zero page, and three are never touched.
    for i in (0..PAGES).step_by(5) {
        write(page(i), i as u64 + 1);
        if i + 1 < PAGES {
            // SAFETY: as above.
            assert_eq!(unsafe { page(i + 1).read_volatile() }, 0);
        }
    }
    house.adopt(at, PAGES);
    let written = PAGES.div_ceil(5) as u64;
    for round in 1..=4 {
        assert_eq!(house.evict_all(), Evicted::Nothing);
        assert_eq!(house.evictions(), written * round, "every page of the program, and nothing else");
        for i in (0..PAGES).step_by(5) {
            verify(page(i), i as u64 + 1, "came back");
            if i + 1 < PAGES {
                verify(page(i + 1), 0, "read only");
            }
        }
    }
}
