//! The reclaimer is there for others between its steps, of which each may wait for a device.

use std::thread;
use std::time::{Duration, Instant};

use lowtide_pager::fault::Handler;
use lowtide_pager::pager::Pager;
use lowtide_pager::pages::{Rights, Worker};
use lowtide_pager::reclaim::{Host, Reclaimer, Seen};
use rustix::mm::Advice;

use crate::house::{Config, House, MIB, PAGE, write};

/// How often it was there, and how many pages had been evicted then.
#[derive(Default)]
struct Asked(Vec<u64>);

impl Host for Asked {
    fn may_recompress(&mut self, _: u64) -> bool {
        false
    }

    fn between_steps(&mut self, pager: &Pager) {
        self.0.push(crate::house::get(&pager.counters().evictions_pages));
    }

    fn reap(&mut self, _: &Pager) -> bool {
        false
    }

    fn give_up(&mut self) {}

    fn exhausted(&mut self, _: &Pager, _: u64, _: u64) {}

    fn full(&mut self, _: &Pager, _: u64) {}
}

#[test]
fn what_is_asked_is_answered_between_two_batches() {
    const PAGES: usize = 8192;
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 1 }) else { return };
    let at = house.region(PAGES);
    // SAFETY: inside the region.
    (0..PAGES).for_each(|i| write(unsafe { at.add(i * PAGE) }, 3 * i as u64 + 1));
    house.pager.budget().set_limit(8 << 20);
    let total = (PAGES * PAGE) as u64;
    let seen = Seen {
        total,
        mine: total,
        gives_way: false,
        grows_unseen: false,
        is_woken: false,
        may_reap: false,
        touch_rate: 1,
        now_us: 1,
    };
    let mut reclaimer = Reclaimer::new(Worker::new(Rights::All).unwrap());
    let mut asked = Asked::default();
    // Nobody faults any more after the first.
    for _ in 0..2 {
        asked.0.clear();
        let look = reclaimer.look(house.pager, &seen);
        reclaimer.turn(house.pager, look, 1, &mut asked);
    }
    let steps = asked.0.windows(2).filter(|pair| pair[0] < pair[1]).count();
    assert!(steps > 0, "asked when {:?} pages were out", asked.0);
}

/// What no fault handler thread goes on with, because it waits for something, the reclaimer does.
#[test]
fn what_is_left_of_a_removal_is_done_by_the_reclaimer() {
    const PAGES: usize = 5 << 15;
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 0 }) else { return };
    let (mut handler, mut worker) = (Handler::new().unwrap(), Worker::new(Rights::All).unwrap());
    let at = house.region(PAGES) as usize;
    let runs = |f: &(dyn Fn() + Sync), handler: &mut Handler| {
        thread::scope(|scope| {
            let program = scope.spawn(f);
            while !program.is_finished() {
                if !handler.turn(house.pager).read {
                    handler.wait(house.pager, 1);
                }
            }
        });
    };
    for first in (0..PAGES).step_by(1 << 14) {
        // SAFETY: inside the region.
        let touch = || (first..first + (1 << 14)).for_each(|i| unsafe { ((at + i * PAGE) as *mut u8).write_volatile(0) });
        runs(&touch, &mut handler);
        house.evict_all();
    }
    let pager = house.pager;
    // (Not waited for: where lowtide is at fault it stays.)
    let dropper = thread::spawn(move || {
        let call = pager.removal_begins(at, PAGES * PAGE, 5);
        // SAFETY: the test's own memory.
        unsafe { rustix::mm::madvise(at as *mut _, PAGES * PAGE, Advice::LinuxDontNeed).unwrap() };
        pager.removal_ends(&call, true);
    });
    assert!(pager.uffd().wait_readable(60_000), "nobody removes anything");
    assert!(pager.read(1, &mut worker).goes_on, "it takes several parts");
    let mut reclaimer = Reclaimer::new(Worker::new(Rights::All).unwrap());
    let seen = Seen {
        total: 1,
        mine: 1,
        gives_way: false,
        grows_unseen: false,
        is_woken: false,
        may_reap: false,
        touch_rate: 1,
        now_us: 1,
    };
    let started = Instant::now();
    while !dropper.is_finished() && started.elapsed() < Duration::from_secs(60) {
        let look = reclaimer.look(pager, &seen);
        reclaimer.turn(pager, look, 1, &mut Asked::default());
    }
    assert!(dropper.is_finished(), "the call never ends");
    dropper.join().unwrap();
}
