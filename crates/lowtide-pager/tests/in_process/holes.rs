//! A window is detached with its holes. What is no page of the program, and is there all the same (the shared zero page, a
//! guard), is no hole: it stays where it is.

use std::ffi::{c_int, c_void};
use std::io::Write;

use lowtide_pager::reclaim::Evicted;
use rustix::mm::MapFlags;

use crate::house::{Config, House, MIB, PAGE, map, verify, write};

/// So many that what comes back is worth another look.
const PAGES: usize = 4096;

#[test]
fn only_what_is_missing_is_a_hole() {
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 2 }) else { return };
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
    house.register(at, PAGES);
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

/// MADV_GUARD_INSTALL, of Linux 6.13 and newer than some C libraries.
const GUARD_INSTALL: i32 = 102;
const EFAULT: i32 = 14;

unsafe extern "C" {
    fn madvise(at: *mut c_void, length: usize, advice: c_int) -> c_int;
}

/// Zeros are brought in ahead of a thread that touches fresh memory, and a COPY of the kernel puts them in the place of guards,
/// too.
#[test]
fn a_guard_is_no_untouched_page() {
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 2 }) else { return };
    let at = house.region(PAGES);
    let guards: Vec<usize> = (0..PAGES).filter(|i| i % 97 == 40 || (2000..2300).contains(i) && i % 2 == 0).collect();
    // SAFETY: inside the region.
    let page = |i: usize| unsafe { at.add(i * PAGE) };
    for &i in &guards {
        // SAFETY: as above.
        if unsafe { madvise(page(i).cast(), PAGE, GUARD_INSTALL) } != 0 {
            assert_eq!(std::io::Error::last_os_error().kind(), std::io::ErrorKind::InvalidInput);
            crate::skipped::skipped("this kernel has no guard pages");
            return;
        }
    }
    let is_guard = |i: usize| guards.binary_search(&i).is_ok();
    let (_reader, mut writer) = std::io::pipe().unwrap();
    // First from the beginning, then from the end.
    for i in (0..PAGES / 2).chain((PAGES / 2..PAGES).rev()).filter(|&i| !is_guard(i)) {
        write(page(i), i as u64 + 1);
    }
    assert_eq!(house.evict_all(), Evicted::Nothing);
    for i in 0..PAGES {
        if is_guard(i) {
            // SAFETY: the kernel finds out whether it may read there.
            let bytes = unsafe { std::slice::from_raw_parts(page(i), 1) };
            assert_eq!(
                writer.write(bytes).err().and_then(|error| error.raw_os_error()),
                Some(EFAULT),
                "page {i} is a guard no more"
            );
        } else {
            verify(page(i), i as u64 + 1, "beside guards");
        }
    }
}

/// Guards made while other threads touch fresh memory around them stay.
#[test]
fn a_guard_that_meets_a_touch_stays() {
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 2 }) else { return };
    let (_reader, mut writer) = std::io::pipe().unwrap();
    for _ in 0..40 {
        let at = house.region(PAGES) as usize;
        let toucher =
            std::thread::spawn(move || (0..PAGES).filter(|i| i % 7 != 3).for_each(|i| write((at + i * PAGE) as *mut u8, 1)));
        let guards: Vec<_> = (0..PAGES).filter(|i| i % 7 == 3).rev().map(|i| (at + i * PAGE) as *mut u8).collect();
        for &page in &guards {
            loop {
                // SAFETY: the test's own memory.
                let (r, made) = house.pager.guards().make(1, || unsafe { madvise(page.cast(), PAGE, GUARD_INSTALL) });
                if r != 0 {
                    crate::skipped::skipped("this kernel has no guard pages");
                    toucher.join().unwrap();
                    return;
                }
                // SAFETY: as above.
                unsafe { rustix::mm::madvise(page.cast(), PAGE, rustix::mm::Advice::LinuxDontNeed).unwrap() };
                if !house.pager.guards().were_met(made) {
                    break;
                }
            }
        }
        toucher.join().unwrap();
        for page in guards {
            // SAFETY: the kernel finds out whether it may read there.
            let bytes = unsafe { std::slice::from_raw_parts(page, 1) };
            let error = writer.write(bytes).err().and_then(|error| error.raw_os_error());
            assert_eq!(error, Some(EFAULT), "{page:?} is a guard no more");
        }
    }
}
