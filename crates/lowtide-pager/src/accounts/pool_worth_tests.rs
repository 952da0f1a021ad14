//! Programs in a simulated memory: a clock that sees no accesses, a pool whose oldest pages go to a device, a device. What the
//! share comes to is held against the best of all fixed sizes.

use super::super::misses::{BACKGROUND, COMPRESS, DETACH, WRITE, WRITE_BACK};
use super::*;
use crate::segment::REFAULT_AGES;
use std::collections::VecDeque;
use std::vec::Vec;

const LIMIT: usize = 4096;
const POOL_FAULT: f64 = 20.0;
const ACCESS: f64 = 0.2;

#[derive(Clone, Copy, PartialEq)]
enum Place {
    Nowhere,
    Memory,
    /// And when it left.
    Pool(u64),
    Device(u64),
}

/// What the machine and the data are like.
#[derive(Clone, Copy)]
struct World {
    /// Microseconds of a fault from the device.
    device: f64,
    /// Pages in a page of the pool.
    density: f64,
    /// Which part of the pages compresses.
    small: f64,
    /// Pages that come in with a fault.
    window: usize,
}

struct Machine {
    world: World,
    pages: Vec<Place>,
    memory: VecDeque<usize>,
    pool: VecDeque<(usize, u64)>,
    in_pool: usize,
    /// Pages of the pool.
    size: usize,
    seen: Misses,
    time: f64,
}

impl Machine {
    fn new(world: World, pages: usize, size: usize) -> Machine {
        Machine {
            world,
            pages: std::vec![Place::Nowhere; pages],
            memory: VecDeque::new(),
            pool: VecDeque::new(),
            in_pool: 0,
            size,
            seen: Misses::NONE,
            time: 0.0,
        }
    }

    fn holds(&self, size: usize) -> usize {
        (size as f64 * self.world.density) as usize
    }

    fn taken(&self) -> usize {
        (self.in_pool as f64 / self.world.density) as usize
    }

    fn access(&mut self, page: usize) {
        self.time += ACCESS;
        let epoch = (LIMIT / EPOCHS_A_LIMIT) as u64;
        let now = self.seen.evicted as u64;
        let age = |left: u64| (now / epoch - left / epoch) as usize % REFAULT_AGES;
        match self.pages[page] {
            Place::Memory => return,
            Place::Nowhere => {}
            Place::Pool(left) => {
                self.time += POOL_FAULT;
                self.seen.faults[1] += 1.0;
                self.seen.service[1] += POOL_FAULT - 10.0;
                self.seen.pool_ages[age(left)] += 1.0;
            }
            Place::Device(left) => {
                self.time += self.world.device;
                self.seen.faults[2] += 1.0;
                self.seen.service[2] += self.world.device - 10.0;
                self.seen.device_ages[age(left)] += 1.0;
            }
        }
        for page in page..(page + self.world.window).min(self.pages.len()) {
            match self.pages[page] {
                Place::Memory => continue,
                Place::Pool(_) => self.in_pool -= 1,
                _ => {}
            }
            self.seen.loaded += f64::from(u8::from(self.pages[page] != Place::Nowhere));
            self.pages[page] = Place::Memory;
            self.memory.push_back(page);
        }
        while self.memory.len() + self.taken() > LIMIT {
            self.evict();
        }
    }

    fn evict(&mut self) {
        let Some(page) = self.memory.pop_front() else { return };
        let now = self.seen.evicted as u64;
        self.seen.evicted += 1.0;
        self.works(DETACH);
        if self.size == 0 {
            self.works(WRITE);
            self.pages[page] = Place::Device(now);
            self.seen.sampled += 1.0 / 64.0;
            self.seen.sampled_small += self.world.small / 64.0;
            self.seen.sampled_bytes += self.world.small / 64.0 * PAGE_SIZE as f64 / self.world.density;
            return;
        }
        self.seen.offered += 1.0;
        self.works(COMPRESS);
        if page as f64 * 0.618_034 % 1.0 >= self.world.small {
            self.seen.unworthy += 1.0;
            self.works(WRITE);
            self.pages[page] = Place::Device(now);
        } else {
            self.pages[page] = Place::Pool(now);
            self.pool.push_back((page, now));
            self.in_pool += 1;
        }
        while self.in_pool > self.holds(self.size) {
            let Some((page, left)) = self.pool.pop_front() else { return };
            if self.pages[page] == Place::Pool(left) {
                self.pages[page] = Place::Device(left);
                self.in_pool -= 1;
                self.works(WRITE + WRITE_BACK);
            }
        }
    }

    /// lowtide does, in the background.
    fn works(&mut self, us: f64) {
        self.time += BACKGROUND * us;
    }

    fn places(&self) -> Places {
        let out = |place: &&Place| matches!(place, Place::Device(_));
        Places {
            limit: LIMIT as f64,
            compresses: self.size > 0,
            resident: self.memory.len() as f64,
            pool: self.taken() as f64,
            objects: self.taken() as f64,
            in_pool: self.in_pool as f64,
            on_device: self.pages.iter().filter(out).count() as f64,
        }
    }
}

/// A program's own: where it is.
struct State {
    seed: u64,
    touched: usize,
    touches: usize,
}

/// A program: which of `pages` pages it touches next.
type Program = fn(&mut State, pages: usize) -> usize;

impl State {
    fn random(&mut self, n: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.seed >> 33) as usize % n
    }
}

fn random(state: &mut State, pages: usize) -> usize {
    state.random(pages)
}

/// Three of four touches are of a quarter of the pages, and so on; neighbours of hot pages need not be hot.
fn skewed(state: &mut State, pages: usize) -> usize {
    let mut part = pages;
    while part > 64 && state.random(4) > 0 {
        part /= 4;
    }
    state.random(part).wrapping_mul(7919) % pages
}

fn round(state: &mut State, pages: usize) -> usize {
    state.touched % pages
}

/// Grows for half of its time.
fn grows(state: &mut State, pages: usize) -> usize {
    let now = (pages * state.touched * 2 / state.touches).clamp(1, pages);
    if state.random(10) == 0 { now - 1 } else { skewed(state, now) }
}

/// What it goes through in order is far more than what it touches at random before and after.
fn phases(state: &mut State, pages: usize) -> usize {
    if (state.touched * 5 / state.touches).is_multiple_of(2) { state.random(pages * 2 / 3) } else { round(state, pages) }
}

/// Runs `program` for `touches`; its pool has `size` pages, or finds out. The time without its first quarter, and the share.
fn run(world: World, pages: usize, program: Program, touches: usize, size: Option<usize>) -> (f64, usize) {
    let asked = LIMIT * 7 / 8;
    let mut machine = Machine::new(world, pages, size.unwrap_or(asked));
    let mut worth = PoolWorth::default();
    let mut state = State { seed: 1, touched: 0, touches };
    let (mut begun, mut looked) = (0.0, 0.0);
    while state.touched < touches {
        if state.touched == touches / 4 {
            begun = machine.time;
        }
        machine.access(program(&mut state, pages));
        state.touched += 1;
        if size.is_none() && machine.time - looked >= EVERY_US as f64 {
            looked = machine.time;
            if worth.have_seen(machine.seen.clone()) {
                worth.decide((asked * PAGE_SIZE) as u64, &machine.places());
                machine.size = worth.share.map_or(asked, |bytes| bytes as usize / PAGE_SIZE);
            }
        }
    }
    (machine.time - begun, machine.size)
}

/// How much longer it takes with the share that is found than with the best fixed size; that size, and the share.
fn against_best(world: World, pages: usize, program: Program, touches: usize) -> (f64, usize, usize) {
    let sizes = (0..=7).map(|eighths| LIMIT * eighths / 8);
    let fixed = sizes.map(|size| (run(world, pages, program, touches, Some(size)).0, size));
    let (least, best) = fixed.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    let (time, share) = run(world, pages, program, touches, None);
    (time / least, best, share)
}

const QUICK: World = World { device: 90.0, density: 3.0, small: 1.0, window: 1 };

#[test]
fn the_share_comes_near_the_best_fixed_size() {
    let streams = World { window: 64, ..QUICK };
    let worlds: [(&str, World, usize, Program); 15] = [
        ("random, 3:1", QUICK, 6000, random),
        ("random, 3:1, twice what fits", QUICK, 9000, random),
        ("random, 1.4:1", World { density: 1.4, ..QUICK }, 6000, random),
        ("random, 1.4:1, slow device", World { density: 1.4, device: 2000.0, ..QUICK }, 6000, random),
        ("skewed, 3:1", QUICK, 8000, skewed),
        ("skewed, 2:1, a quick device", World { density: 2.0, device: 30.0, ..QUICK }, 8000, skewed),
        ("random, 1.4:1, twice what fits", World { density: 1.4, ..QUICK }, 9000, random),
        ("skewed, half compresses", World { small: 0.5, ..QUICK }, 8000, skewed),
        ("grows, 3:1", QUICK, 8000, grows),
        ("grows, 3:1, slow device", World { device: 400.0, ..QUICK }, 8000, grows),
        ("grows, 2:1", World { density: 2.0, ..QUICK }, 8000, grows),
        ("phases, 3:1", QUICK, 9000, phases),
        ("in order, all fits compressed", World { device: 900.0, ..streams }, 8000, round),
        ("in order, nothing fits", World { device: 900.0, density: 1.4, ..streams }, 8000, round),
        ("in order, a fifth compresses", World { device: 900.0, small: 0.2, ..streams }, 8000, round),
    ];
    let mut wrong = Vec::new();
    for (name, world, pages, program) in worlds {
        let (longer, best, share) = against_best(world, pages, program, 400_000);
        std::println!("{name}: {longer:.3} times the best ({best} pages), share {share}");
        if longer > 1.15 {
            wrong.push((name, longer, best, share));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
