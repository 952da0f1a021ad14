//! Memory that may be written and executed is evicted as other memory is. A MOVE is between mappings of one protection, so such
//! pages have batches of their own; and what has been evicted comes back whatever may be done with its place by then.

use lowtide_pager::pages::{Rights, Worker};
use lowtide_pager::reclaim::Evicted;
use rustix::mm::{MprotectFlags, mprotect};

use crate::house::{Config, House, MIB, PAGE, knows_mappings, verify, write};

const PAGES: usize = 4000;
/// Pages from where the kind of memory changes to where it changes again: less than a batch, and no part of one.
const STRETCH: usize = 100;

const DATA: MprotectFlags = MprotectFlags::READ.union(MprotectFlags::WRITE);
const HEAP: MprotectFlags = DATA.union(MprotectFlags::EXEC);
const CODE: MprotectFlags = MprotectFlags::READ.union(MprotectFlags::EXEC);

struct Memory {
    at: *mut u8,
}

impl Memory {
    fn page(&self, i: usize) -> *mut u8 {
        // SAFETY: inside the region.
        unsafe { self.at.add(i * PAGE) }
    }

    /// Of two stretches one has this protection from now on, the first or the second.
    fn protect(&self, which: usize, protection: MprotectFlags) {
        for start in (which * STRETCH..PAGES).step_by(2 * STRETCH) {
            // SAFETY: the test's own memory.
            unsafe { mprotect(self.page(start).cast(), STRETCH * PAGE, protection).unwrap() };
        }
    }

    fn write_all(&self) {
        (0..PAGES).for_each(|i| write(self.page(i), i as u64 + 1));
    }

    fn verify_all(&self, what: &str) {
        (0..PAGES).for_each(|i| verify(self.page(i), i as u64 + 1, what));
    }
}

fn set_up(house: &House) -> Memory {
    let memory = Memory { at: house.region(PAGES) };
    memory.write_all();
    memory.protect(1, HEAP);
    house.pager.sees_code();
    memory
}

#[test]
fn code_and_data_are_evicted_side_by_side() {
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 2 }) else { return };
    let memory = set_up(&house);
    for round in 1..=3 {
        assert_eq!(house.evict_all(), Evicted::Nothing);
        assert_eq!(house.evictions(), (round * PAGES) as u64, "every page");
        memory.verify_all("came back");
    }
    // All of one kind, as the batches are of both now.
    memory.protect(0, HEAP);
    assert_eq!(house.evict_all(), Evicted::Nothing);
    memory.verify_all("came back to a heap");
    memory.protect(0, DATA);
    memory.protect(1, DATA);
    assert_eq!(house.evict_all(), Evicted::Nothing);
    memory.verify_all("came back to data");
    assert_eq!(house.evictions(), (5 * PAGES) as u64, "every page");
}

#[test]
fn code_that_may_not_be_written_comes_back_and_stays_until_it_may() {
    if !knows_mappings() {
        return;
    }
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 2 }) else { return };
    let memory = set_up(&house);
    assert_eq!(house.evict_all(), Evicted::Nothing);
    memory.protect(1, CODE);
    memory.verify_all("came back to code");
    assert_eq!(house.evict_all(), Evicted::Nothing);
    assert_eq!(house.evictions(), (PAGES + PAGES / 2) as u64, "code stays");
    memory.protect(1, HEAP);
    // So much comes in that it is worth another look.
    memory.verify_all("stayed, or came back to data");
    assert_eq!(house.evict_all(), Evicted::Nothing);
    assert_eq!(house.evictions(), (2 * PAGES + PAGES / 2) as u64, "it may be written again");
    memory.verify_all("came back to a heap");
}

/// What waits in staging can't be moved back to a place that may be used otherwise by now, and is copied.
#[test]
fn what_waits_comes_back_to_a_place_that_may_be_used_otherwise() {
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 2 }) else { return };
    let memory = set_up(&house);
    let mut worker = Worker::new(Rights::All).unwrap();
    for (first, second) in [(HEAP, DATA), (CODE, HEAP), (DATA, CODE), (HEAP, HEAP), (DATA, HEAP)] {
        let before = house.evictions();
        while house.evictions() < before + 3 * STRETCH as u64 {
            house.pager.evict(&mut worker);
        }
        memory.protect(0, first);
        memory.protect(1, second);
        memory.verify_all("came back from staging");
    }
}
