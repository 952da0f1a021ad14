//! A swap area is emptied: where its pages go, and what stays when they can't.

use rustix::fd::AsRawFd;

use lowtide_pager::pages::{Rights, Worker};
use lowtide_pager::reclaim::Evicted;
use lowtide_pager::reclaim::swapoff::{Obstacles, Step, Swapoff};

use crate::house::{Config, House, MIB, PAGE, file, get, verify, write};

/// A seed of noise, which does not compress.
fn noise(i: usize) -> u64 {
    (i as u64 + 1) * 3
}

/// Memory of noise, all of it out.
struct Out {
    house: House,
    at: *mut u8,
    pages: usize,
}

impl Out {
    fn new(config: Config, pages: usize) -> Option<Out> {
        let house = House::new(config)?;
        let this = Out { at: house.region(pages), house, pages };
        (0..pages).for_each(|i| write(this.page(i), noise(i)));
        assert_eq!(this.house.evict_all(), Evicted::Nothing);
        let mut worker = Worker::new(Rights::All).unwrap();
        while this.house.pager.empty_staging(&mut worker) {}
        Some(this)
    }

    fn page(&self, i: usize) -> *mut u8 {
        // SAFETY: inside the region.
        unsafe { self.at.add(i * PAGE) }
    }

    fn add(&self, number: u8, bytes: usize) {
        self.house.pager.enter().unwrap().store().add_file(file(number, bytes)).unwrap();
    }

    /// Steps until the area is gone or nothing moves any more.
    fn off(&self, number: u8) -> (Step, Obstacles) {
        let mut worker = Worker::new(Rights::All).unwrap();
        let mut off = Swapoff::begin(self.house.pager, number).unwrap().unwrap();
        loop {
            match off.step(self.house.pager, &mut worker) {
                Step::More | Step::Later => {}
                end => return (end, off.obstacles()),
            }
        }
    }

    fn left(&self, number: u8) -> usize {
        self.house.pager.left_in_area(number) as usize / PAGE
    }

    fn resident(&self) -> usize {
        self.house.pager.registered_in_memory().unwrap() as usize / PAGE
    }

    fn verify(&self) {
        (0..self.pages).for_each(|i| verify(self.page(i), noise(i), "after all"));
    }
}

#[test]
fn its_pages_go_to_another_area_and_none_comes_in() {
    let Some(out) = Out::new(Config { pool: MIB, file: 64 * MIB, handlers: 2 }, 4000) else { return };
    let before = out.house.pager.area_stats()[0];
    assert!(before.used > 3000 << 12 && out.left(0) > 3000);
    out.add(1, 64 * MIB);
    assert_eq!(out.off(0), (Step::Done, Obstacles::default()));
    let stats = out.house.pager.area_stats();
    assert_eq!((out.left(0), out.resident()), (0, 0));
    assert_eq!(out.left(1), 4000);
    // 128 pages with each read, and what was done there is not forgotten.
    let reads = stats[0].reads - before.reads;
    assert!(reads < 100 && stats[0].writes == before.writes, "{reads} reads of 4000 pages");
    out.verify();
}

#[test]
fn its_pages_come_in_as_far_as_the_limit_allows_and_the_rest_stays() {
    let Some(out) = Out::new(Config { pool: 0, file: 64 * MIB, handlers: 2 }, 4000) else { return };
    let budget = out.house.pager.budget();
    budget.set_limit(64 * MIB as u64);
    budget.measured(budget.watermarks().low() - 1000 * PAGE as u64);
    let (step, obstacles) = out.off(0);
    assert_eq!(step, Step::Stuck);
    assert!((3000..3010).contains(&obstacles.homeless) && obstacles.unreadable == 0, "{obstacles:?}");
    assert_eq!((out.left(0), out.resident()), (obstacles.homeless as usize, 4000 - obstacles.homeless as usize));
    // Given up, it takes pages as before.
    assert_eq!(out.house.pager.reopen_area(0), Some(true));
    assert_eq!(out.house.evict_all(), Evicted::Nothing);
    // With room for all, all come in.
    budget.measured(0);
    assert_eq!(out.off(0), (Step::Done, Obstacles::default()));
    assert_eq!((out.left(0), out.house.pager.reopen_area(0)), (0, Some(false)));
    out.verify();
}

#[test]
fn what_is_in_the_pool_gets_other_slots_without_a_transfer() {
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 64 * MIB, handlers: 2 }) else { return };
    let at = house.region(4000);
    // SAFETY: inside the region.
    let page = |i: usize| unsafe { at.add(i * PAGE) };
    let seed = |i: usize| 3 * i as u64 + 1;
    (0..4000).for_each(|i| write(page(i), seed(i)));
    assert_eq!(house.evict_all(), Evicted::Nothing);
    let out = Out { house, at, pages: 0 };
    assert!(out.left(0) > 3000);
    let before = get(&out.house.pager.proc().pool_bytes);
    assert_eq!(out.off(0), (Step::Done, Obstacles::default()));
    out.house.pager.publish();
    let stats = out.house.pager.area_stats()[0];
    assert_eq!((stats.reads, stats.writes, out.left(0)), (0, 0, 0));
    assert!(get(&out.house.pager.proc().pool_bytes) < before + before / 10 + MIB as u64);
    (0..4000).for_each(|i| verify(page(i), seed(i), "after all"));
}

/// Each gigabyte more that is out does not cost a pass more: a window has as many slots as the limit allows, and 100,000 pages
/// are three windows of the least size.
#[test]
fn the_page_map_is_not_gone_through_for_each_window_of_the_least_size() {
    const PAGES: usize = 100_000;
    for (limit, passes) in [(1 << 40, 1), (64 * MIB as u64, 4)] {
        let Some(house) = House::new(Config { pool: 256 * MIB, file: 512 * MIB, handlers: 2 }) else { return };
        let at = house.region(PAGES);
        // SAFETY: inside the region.
        let page = |i: usize| unsafe { at.add(i * PAGE) };
        (0..PAGES).for_each(|i| write(page(i), 3 * i as u64 + 1));
        assert_eq!(house.evict_all(), Evicted::Nothing);
        let mut worker = Worker::new(Rights::All).unwrap();
        while house.pager.empty_staging(&mut worker) {}
        house.pager.budget().set_limit(limit);
        let mut off = Swapoff::begin(house.pager, 0).unwrap().unwrap();
        let end = loop {
            match off.step(house.pager, &mut worker) {
                Step::More | Step::Later => {}
                end => break end,
            }
        };
        assert_eq!(end, Step::Done);
        assert_eq!(off.passes(), passes, "with a limit of {limit}");
        (0..PAGES).step_by(97).for_each(|i| verify(page(i), 3 * i as u64 + 1, "after all"));
    }
}

#[test]
fn a_page_that_can_not_be_read_is_named_and_the_rest_goes() {
    let Some(house) = House::new(Config { pool: 0, file: 0, handlers: 2 }) else { return };
    // A file that gets shorter when its pages are out.
    let config = file(0, 64 * MIB);
    let again = std::fs::File::options().write(true).open(format!("/proc/self/fd/{}", config.fd.as_raw_fd())).unwrap();
    house.pager.enter().unwrap().store().add_file(config).unwrap();
    let out = Out { at: house.region(4000), house, pages: 4000 };
    (0..4000).for_each(|i| write(out.page(i), noise(i)));
    assert_eq!(out.house.evict_all(), Evicted::Nothing);
    let mut worker = Worker::new(Rights::All).unwrap();
    while out.house.pager.empty_staging(&mut worker) {}
    out.add(1, 64 * MIB);
    again.set_len(3000 << 12).unwrap();
    let (step, obstacles) = out.off(0);
    assert_eq!(step, Step::Stuck);
    assert!((900..3900).contains(&obstacles.unreadable) && obstacles.homeless == 0, "{obstacles:?}");
    assert!((out.at as usize..out.at as usize + (4000 << 12)).contains(&obstacles.unreadable_at));
    assert_eq!((out.left(0), out.left(1)), (obstacles.unreadable as usize, 4000 - obstacles.unreadable as usize));
    assert_eq!(out.house.pager.reopen_area(0), Some(true));
}
