//! What a thread does to its mappings is applied before its call returns.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_pager::fault::Handler;
use lowtide_pager::pager::Pager;
use lowtide_pager::pages::{Rights, Worker};
use rustix::mm::{Advice, MapFlags, MremapFlags};

use crate::house::{Config, House, MIB, PAGE, map, mix, verify, write};
use crate::one_cpu;

/// What is moved there and back: more comes in than the evictor wants to see before it looks again.
const MOVED: usize = 1024;
const SECONDS: u64 = 3;

/// Evicts until it is told to stop.
fn press(house: &House, stop: &AtomicBool) {
    let mut worker = Worker::new(Rights::All).unwrap();
    while !stop.load(Ordering::SeqCst) {
        if house.pager.evict(&mut worker) == lowtide_pager::reclaim::Evicted::Nothing {
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

fn under_pressure(program: impl Fn(&House) + Sync) {
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 2 }) else { return };
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| press(&house, &stop));
        let end = scope.spawn(|| program(&house)).join();
        stop.store(true, Ordering::SeqCst);
        assert!(end.is_ok(), "see above");
    });
    assert!(house.evictions() > 1000, "{} evictions", house.evictions());
}

/// Memory that has moved is at its new place as soon as the call returns.
#[test]
fn what_has_moved_is_there_at_once() {
    let program = |house: &House| {
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
    under_pressure(program);
}

/// Runs `f` beside a handler that leaves no CPU to those who give way.
fn beside_a_handler(pager: &Pager, f: impl FnOnce() + Send) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut handler = Handler::new().unwrap();
            while !over.load(Ordering::SeqCst) {
                handler.turn(pager);
            }
        });
        let end = scope.spawn(f).join();
        over.store(true, Ordering::SeqCst);
        assert!(end.is_ok(), "see above");
    });
}

/// An event is applied in the moment in which it is read, for all that others can see. Here who reads it gives way to the
/// thread that it wakes by that, whose next pages are written and evicted before the reader runs again, unless they have to
/// wait for it.
#[test]
fn nothing_is_evicted_between_reading_an_event_and_applying_it() {
    const PAGES: usize = 512;
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 0 }) else { return };
    one_cpu::stay();
    let at = map(std::ptr::null_mut(), PAGES, MapFlags::empty()) as usize;
    let page = |i: usize| (at + i * PAGE) as *mut u8;
    (0..PAGES).for_each(|i| write(page(i), 7));
    house.register(at as *mut u8, PAGES);
    let pager = house.pager;
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            one_cpu::give_way();
            let mut worker = Worker::new(Rights::Serve).unwrap();
            assert!(pager.uffd().wait_readable(60_000), "nobody removes anything");
            assert!(pager.read(1, &mut worker).event);
        });
        // SAFETY: the test's own memory.
        unsafe { rustix::mm::madvise(at as *mut _, PAGES * PAGE, Advice::LinuxDontNeed).unwrap() };
        beside_a_handler(pager, || {
            pager.removed(at, PAGES * PAGE);
            (0..PAGES).for_each(|i| write(page(i), i as u64 + 1));
            house.evict_all();
        });
        reader.join().unwrap();
        beside_a_handler(pager, || (0..PAGES).for_each(|i| verify(page(i), i as u64 + 1, "written after a removal")));
    });
    assert!(house.evictions() > PAGES as u64 / 2, "{} evictions", house.evictions());
}
