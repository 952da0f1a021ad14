//! What threads do to mappings at the same time is applied as it was done: the kernel tells of it in any order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_pager::worker::Worker;
use rustix::mm::{MapFlags, MremapFlags};

use crate::house::{Config, House, MIB, PAGE, map, mix, verify, write};

const THREADS: usize = 4;
/// All are of the same size, so that what one thread unmaps is where another's memory goes next.
const PAGES: usize = 64;
/// What is moved there and back: more comes in than the evictor wants to see before it looks again.
const MOVED: usize = 1024;
const SECONDS: u64 = 3;

/// Evicts until it is told to stop.
fn press(house: &House, stop: &AtomicBool) {
    let mut worker = Worker::new(true).unwrap();
    while !stop.load(Ordering::SeqCst) {
        if house.pager.evict(&mut worker) == lowtide_pager::evict::Evicted::Nothing {
            thread::sleep(Duration::from_micros(100));
        }
    }
}

fn until_time_is_over(mut step: impl FnMut(u64)) {
    let started = Instant::now();
    for round in 1.. {
        step(round);
        if started.elapsed() >= Duration::from_secs(SECONDS) {
            break;
        }
    }
}

fn under_pressure(program: impl Fn(&House, usize) + Sync, threads: usize) {
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, monitors: 2 }) else { return };
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| press(&house, &stop));
        let (house, program) = (&house, &program);
        let programs: Vec<_> = (0..threads).map(|thread| scope.spawn(move || program(house, thread))).collect();
        let ends: Vec<_> = programs.into_iter().map(|program| program.join()).collect();
        stop.store(true, Ordering::SeqCst);
        assert!(ends.iter().all(Result::is_ok), "see above");
    });
    assert!(house.evictions() > 1000, "{} evictions", house.evictions());
}

/// Nobody sees to it that they do one after the other what they do.
#[test]
fn threads_move_and_unmap_as_they_like() {
    let program = |house: &House, thread: usize| {
        until_time_is_over(|round| {
            let seed = mix((thread as u64) << 32 | round);
            let at = map(std::ptr::null_mut(), PAGES, MapFlags::empty());
            let page = |at: *mut u8, i: usize| at.wrapping_add(i * PAGE);
            (0..PAGES).for_each(|i| write(page(at, i), seed ^ i as u64));
            house.adopt(at, PAGES);
            thread::sleep(Duration::from_micros(seed % 2000));
            // Behind it is something else, so it goes where there is room.
            let wanted = MremapFlags::MAYMOVE;
            // SAFETY: memory of this thread's own, by a mapping of its own; and again below.
            let to = unsafe { rustix::mm::mremap(at.cast(), PAGES * PAGE, PAGES * PAGE * 2, wanted).unwrap() }.cast::<u8>();
            for i in 0..PAGES {
                verify(page(to, i), seed ^ i as u64, "moved");
                verify(page(to, PAGES + i), 0, "grown");
            }
            // SAFETY: as above.
            unsafe { rustix::mm::munmap(to.cast(), 2 * PAGES * PAGE).unwrap() };
        });
    };
    under_pressure(program, THREADS);
}

/// Memory that has moved is at its new place as soon as the call returns.
#[test]
fn what_has_moved_is_there_at_once() {
    let program = |house: &House, _: usize| {
        let (mut at, mut there) = (house.region(MOVED), map(std::ptr::null_mut(), MOVED, MapFlags::empty()));
        // SAFETY: inside the mappings.
        let page = |at: *mut u8, i: usize| unsafe { at.add(i * PAGE) };
        until_time_is_over(|round| {
            (0..MOVED).for_each(|i| write(page(at, i), mix(round) ^ i as u64));
            thread::sleep(Duration::from_micros(round % 1000));
            // SAFETY: memory of this thread's own, and so is what it goes to.
            let moved = unsafe {
                let fixed = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
                rustix::mm::mremap_fixed(at.cast(), MOVED * PAGE, MOVED * PAGE, fixed, there.cast())
            };
            if moved.is_ok() {
                (at, there) = (there, at);
            }
            (0..MOVED).for_each(|i| verify(page(at, i), mix(round) ^ i as u64, "moved"));
        });
    };
    under_pressure(program, 1);
}
