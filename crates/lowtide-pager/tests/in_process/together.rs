//! Threads that wait for pages at the same time are served in one turn, unless one of them takes long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lowtide_pager::fault::Handler;
use rustix::mm::MapFlags;

use crate::house::{Config, House, MIB, PAGE, get, map, verify, write};

/// So far from each other that none is brought in with another.
const APART: usize = 1024;
const THREADS: usize = 4;

/// Memory that is out, and no handler but the test's own.
struct Waiting {
    house: House,
    handler: Handler,
    at: usize,
    seed: fn(usize) -> u64,
}

impl Waiting {
    fn new(config: Config, seed: fn(usize) -> u64) -> Option<Waiting> {
        let house = House::new(config)?;
        let pages = 2 * THREADS * APART;
        let at = map(std::ptr::null_mut(), pages, MapFlags::empty());
        // SAFETY: inside the mapping.
        (0..pages).for_each(|i| write(unsafe { at.add(i * PAGE) }, seed(i)));
        house.register(at, pages);
        house.evict_all();
        Some(Waiting { house, handler: Handler::new().unwrap(), at: at as usize, seed })
    }

    /// A thread that waits for a page, and then says so.
    fn wait_for(&self, page: usize, done: &Arc<AtomicUsize>) -> JoinHandle<()> {
        let (at, seed, done) = (self.at + page * PAGE, (self.seed)(page), done.clone());
        let id = Arc::new(AtomicU32::new(0));
        let thread = {
            let id = id.clone();
            thread::spawn(move || {
                id.store(rustix::thread::gettid().as_raw_nonzero().get() as u32, Ordering::SeqCst);
                verify(at as *const u8, seed, "what a thread waited for");
                done.fetch_add(1, Ordering::SeqCst);
            })
        };
        while !sleeps(id.load(Ordering::SeqCst)) {
            thread::sleep(Duration::from_millis(1));
        }
        thread
    }

    /// Turns in which something was read until all these pages have come, whose threads wait at the same time.
    fn turns_for(&mut self, pages: &[usize]) -> usize {
        let done = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = pages.iter().map(|page| self.wait_for(*page, &done)).collect();
        let mut turns = 0;
        while done.load(Ordering::SeqCst) < pages.len() {
            turns += usize::from(self.handler.turn(self.house.pager).read);
            // What was sent back comes again, when its thread has run.
            self.handler.wait(self.house.pager, 1);
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        turns
    }
}

/// Whether a thread that does nothing else that it could wait for waits for a page.
fn sleeps(thread: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'))
}

#[test]
fn threads_that_wait_together_run_together() {
    let Some(mut waiting) = Waiting::new(Config { pool: 64 * MIB, file: 0, handlers: 0 }, |i| i as u64 * 3 + 1) else { return };
    let pages: [usize; THREADS] = std::array::from_fn(|i| (THREADS + i) * APART);
    let before = get(&waiting.house.pager.counters().faults_total);
    assert!(waiting.turns_for(&pages) < THREADS, "each was served in a turn of its own");
    assert_eq!(get(&waiting.house.pager.counters().faults_total) - before, THREADS as u64, "some were served in vain");
}

#[test]
fn nobody_waits_for_what_another_thread_reads_from_a_device() {
    // Noise, which goes to the device.
    let noise = |i| (i as u64 + 1) * 3;
    let Some(mut waiting) = Waiting::new(Config { pool: MIB, file: 64 * MIB, handlers: 0 }, noise) else { return };
    let pages: [usize; THREADS] = std::array::from_fn(|i| (THREADS + i) * APART);
    assert_eq!(waiting.turns_for(&[0]), 1);
    let from_device = |waiting: &Waiting| get(&waiting.house.pager.counters().faults_device);
    let before = from_device(&waiting);
    assert_eq!(waiting.turns_for(&pages), THREADS, "a handler keeps faults that others could serve");
    assert_eq!(from_device(&waiting) - before, THREADS as u64, "the pages were not on the device");
}
