//! The reclaimer is there for others between its steps, of which each may wait for a device.

use lowtide_pager::fault::Worker;
use lowtide_pager::pager::Pager;
use lowtide_pager::reclaim::{Host, Reclaimer, Seen};

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
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, monitors: 1 }) else { return };
    let at = house.region(PAGES);
    // SAFETY: inside the region.
    (0..PAGES).for_each(|i| write(unsafe { at.add(i * PAGE) }, 3 * i as u64 + 1));
    house.pager.budget.set_limit(8 << 20);
    let total = (PAGES * PAGE) as u64;
    let seen = Seen { total, mine: total, gives_way: false, grows_unseen: false, may_reap: false, touch_rate: 1, now_us: 1 };
    let mut reclaimer = Reclaimer::new(Worker::new(true).unwrap());
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
