//! Pages that the kernel refers to without a pin: they stay, as the same page of memory, for as long as it does. vmsplice refers
//! to pages so, and it can be seen that a pipe has the program's page: what the program writes there later comes out of it.

use lowtide_pager::pager::Pager;
use lowtide_pager::pages::{Rights, Worker};
use lowtide_sys::present::Present;
use rustix::fd::OwnedFd;
use rustix::pipe::{IoSliceRaw, SpliceFlags};

use crate::house::{Config, House, MIB, PAGE, verify, within, write};

const PAGES: usize = 700;
/// Pages that are referred to: alone, side by side, at the ends.
const REFERRED: [usize; 6] = [0, 7, 130, 131, 400, PAGES - 1];

/// Memory that was written, and pipes that refer to some of its pages.
fn referred_to(house: &House) -> (*mut u8, Vec<(OwnedFd, OwnedFd)>) {
    let at = house.region(PAGES);
    // SAFETY: inside the region.
    (0..PAGES).for_each(|i| write(unsafe { at.add(i * PAGE) }, i as u64 + 1));
    let refer = |i: usize| {
        let (reads, writes) = rustix::pipe::pipe().unwrap();
        // SAFETY: as above; the page stays mapped until the end of the process.
        let page = unsafe { std::slice::from_raw_parts_mut(at.add(i * PAGE), PAGE) };
        // SAFETY: a pipe may have the bytes of this page at any time.
        let n = unsafe { rustix::pipe::vmsplice(&writes, &[IoSliceRaw::from_slice_mut(page)], SpliceFlags::empty()) };
        assert_eq!(n, Ok(PAGE));
        (reads, writes)
    };
    (at, REFERRED.map(refer).into())
}

fn evict_a_lot(pager: &Pager) {
    let mut worker = Worker::new(Rights::All).unwrap();
    (0..60).for_each(|_| _ = pager.evict(&mut worker));
}

fn pages_in_memory(at: *mut u8) -> Vec<usize> {
    let present = Present::open().unwrap();
    (0..PAGES).filter(|i| present.holds_page(at as usize + i * PAGE)).collect()
}

#[test]
fn what_is_referred_to_stays_the_same_page() {
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 16 * MIB, handlers: 1 }) else { return };
    house.pager.always_heed_references();
    let (at, pipes) = referred_to(&house);
    evict_a_lot(house.pager);
    let there = pages_in_memory(at);
    assert!(there.len() < PAGES / 2, "{} of {PAGES} pages are still in memory", there.len());
    for (i, (reads, _)) in REFERRED.into_iter().zip(&pipes) {
        // SAFETY: inside the region.
        write(unsafe { at.add(i * PAGE) }, 3 * i as u64 + 1_000_000);
        let mut bytes = Box::new([0u8; PAGE]);
        assert_eq!(rustix::io::read(reads, &mut bytes[..]), Ok(PAGE));
        verify(bytes.as_ptr(), 3 * i as u64 + 1_000_000, "what the pipe has is not the program's page any more");
        // SAFETY: as above.
        write(unsafe { at.add(i * PAGE) }, i as u64 + 1);
    }
    // Nobody refers to them now.
    drop(pipes);
    let (pager, at) = (house.pager, at as usize);
    within("pages stay to which nobody refers", move || {
        while REFERRED.iter().all(|i| pages_in_memory(at as *mut u8).contains(i)) {
            // What was in vain is not tried again at once: some of these look at nothing.
            evict_a_lot(pager);
        }
    });
    let at = at as *mut u8;
    // SAFETY: inside the region.
    (0..PAGES).for_each(|i| verify(unsafe { at.add(i * PAGE) }, i as u64 + 1, "after all that"));
}
