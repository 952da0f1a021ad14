//! Moves that are made for threads that map and unmap by themselves.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_pager::mappings::{Changes, Move};
use lowtide_pager::pages::{Rights, Worker};
use lowtide_pager::reclaim::Evicted;
use lowtide_pager::sys::Range;
use rustix::mm::{MapFlags, MremapFlags};

use crate::house::{Config, House, MIB, PAGE, map, mix};

const THREADS: usize = 4;
const BLOCKS: usize = 8;
const SECONDS: u64 = 5;
/// Pages of a block: a few sizes, so that what one leaves fits the next.
const SIZES: [usize; 4] = [16, 24, 32, 40];

/// What moves just now: its start, its end, and its length afterwards.
static TURN: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
/// Who may move; nothing is registered meanwhile.
static GATE: Mutex<()> = Mutex::new(());
/// What may be registered: where it begins, and how many pages it has.
static MAPPED: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn turn() -> Changes {
    let [start, end, len] = TURN.each_ref().map(|at| at.load(Ordering::SeqCst));
    Changes { len, ..Changes::of(Range { start, end }) }
}

fn set_turn(Changes { from, len, .. }: Changes) {
    TURN[1].store(0, Ordering::SeqCst);
    TURN[2].store(len, Ordering::SeqCst);
    TURN[0].store(from.start, Ordering::SeqCst);
    TURN[1].store(from.end, Ordering::SeqCst);
}

struct Block {
    at: usize,
    pages: usize,
    seed: u64,
}

impl Block {
    fn new(random: &mut fastrand::Rng) -> Block {
        let pages = SIZES[random.usize(..SIZES.len())];
        let block = Block { at: map(std::ptr::null_mut(), pages, MapFlags::empty()) as usize, pages, seed: random.u64(..) };
        block.fill(0);
        lock(&MAPPED).push((block.at, pages));
        block
    }

    fn seed_of(&self, page: usize) -> u64 {
        // Some are never written.
        if page % 5 == 3 { 0 } else { mix(self.seed ^ page as u64) | 1 }
    }

    /// A word of a page: to write and compare all of them would leave little time for calls.
    fn word(&self, page: usize) -> *mut u64 {
        (self.at + page * PAGE) as *mut u64
    }

    fn fill(&self, from: usize) {
        for page in (from..self.pages).filter(|page| self.seed_of(*page) != 0) {
            // SAFETY: the block's own memory.
            unsafe { self.word(page).write_volatile(self.seed_of(page)) };
        }
    }

    fn check(&self, pages: usize, what: &str) {
        for page in 0..pages {
            // SAFETY: the block's own memory.
            let found = unsafe { self.word(page).read_volatile() };
            assert!(
                found == self.seed_of(page),
                "{what}: page {page} of {:#x}: {found:#x}, not {:#x}",
                self.at,
                self.seed_of(page)
            );
        }
    }

    fn forget(&self) {
        lock(&MAPPED).retain(|(at, _)| *at != self.at);
    }

    fn unmap(self) {
        self.check(self.pages, "before it goes");
        self.forget();
        // SAFETY: the block's own memory.
        unsafe { rustix::mm::munmap(self.at as *mut _, self.pages * PAGE).unwrap() };
    }

    fn resize(&mut self, house: &House, random: &mut fastrand::Rng) {
        let (old, pages) = (self.pages, SIZES[random.usize(..SIZES.len())]);
        self.forget();
        let from = Range { start: self.at, end: self.at + old * PAGE };
        let call = || {
            // SAFETY: the block's own memory.
            let moved = unsafe { rustix::mm::mremap(self.at as *mut _, old * PAGE, pages * PAGE, MremapFlags::MAYMOVE) };
            moved.map_or_else(|error| -(error.raw_os_error() as isize), |at| at as isize)
        };
        let moved = if pages > old {
            let _gate = lock(&GATE);
            let len = pages * PAGE;
            set_turn(Changes { len, ..Changes::of(from) });
            let moved = house.pager.make_move(Move { from, to: None, leaves: false, len }, call);
            house.pager.outlast_reading();
            set_turn(Changes::NONE);
            moved
        } else {
            call()
        };
        assert!(moved > 0, "error {}", -moved);
        (self.at, self.pages) = (moved as usize, pages);
        self.check(old.min(pages), "after it has moved");
        self.fill(old);
        lock(&MAPPED).push((self.at, self.pages));
    }
}

/// Registers and evicts, as the reclaimer does.
fn reclaim(house: &House, over: &AtomicBool) {
    let mut worker = Worker::new(Rights::All).unwrap();
    while !over.load(Ordering::SeqCst) {
        {
            let _gate = lock(&GATE);
            let mapped = lock(&MAPPED);
            for (at, pages) in mapped.iter() {
                // (While mappings change it may not be possible.)
                let _ = house.pager.register_used(Range { start: *at, end: at + pages * PAGE });
            }
        }
        for _ in 0..20 {
            if house.pager.evict(&mut worker) == Evicted::Nothing {
                break;
            }
        }
        thread::sleep(Duration::from_micros(500));
    }
}

/// The kernel reports what several threads do in any order.
#[test]
fn threads_that_map_and_unmap_meet_moves() {
    let Some(house) = House::with_turn(Config { pool: 64 * MIB, file: 0, handlers: 2 }, turn) else { return };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| reclaim(&house, &over));
        let work = |seed: usize| {
            let (started, house) = (Instant::now(), &house);
            move || {
                let mut random = fastrand::Rng::with_seed(seed as u64);
                let mut blocks: [Option<Block>; BLOCKS] = [const { None }; BLOCKS];
                while started.elapsed() < Duration::from_secs(SECONDS) {
                    let place = &mut blocks[random.usize(..BLOCKS)];
                    match place.take() {
                        None => *place = Some(Block::new(&mut random)),
                        Some(block) if random.u32(..4) == 0 => block.unmap(),
                        Some(mut block) => {
                            block.resize(house, &mut random);
                            *place = Some(block);
                        }
                    }
                }
                blocks.into_iter().flatten().for_each(Block::unmap);
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|seed| scope.spawn(work(seed))).collect();
        let ends: Vec<_> = threads.into_iter().map(thread::ScopedJoinHandle::join).collect();
        over.store(true, Ordering::SeqCst);
        assert!(ends.iter().all(Result::is_ok), "see above");
    });
    assert!(house.evictions() > 1000, "{} evictions", house.evictions());
}
