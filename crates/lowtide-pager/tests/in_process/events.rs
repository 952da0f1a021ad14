//! While an event waits, nothing can be installed or taken away, and whoever caused it waits for a handler to read it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use lowtide_pager::fault::Handler;
use lowtide_pager::pages::{Rights, Worker};
use rustix::mm::{Advice, MapFlags};

use crate::house::{Config, House, MIB, PAGE, get, map, verify, within, write};
use crate::one_cpu;

const PAGES: usize = 4096;

/// Memory that is out, but for some pages at its end, and nobody who reads what the kernel says.
fn out() -> Option<(House, usize)> {
    let house = House::new(Config { pool: 64 * MIB, file: 0, handlers: 0 })?;
    let at = map(std::ptr::null_mut(), PAGES, MapFlags::empty());
    // SAFETY: inside the mapping.
    (0..PAGES).for_each(|i| write(unsafe { at.add(i * PAGE) }, i as u64 + 1));
    house.register(at, PAGES);
    within("nobody is needed to evict", {
        let pager = house.pager;
        move || {
            let mut worker = Worker::new(Rights::All).unwrap();
            while pager.counters().evictions_pages.load(Ordering::Relaxed) < PAGES as u64 / 2 {
                let _ = pager.evict(&mut worker);
            }
        }
    });
    Some((house, at as usize))
}

/// Staging is emptied by a MADV_DONTNEED, for which the thread that empties it must not have to wait: it may be the one that
/// reads events.
#[test]
fn to_empty_staging_is_no_event() {
    let Some((house, _)) = out() else { return };
    within("nobody is needed to empty staging", {
        let pager = house.pager;
        move || {
            let mut worker = Worker::new(Rights::All).unwrap();
            while pager.empty_staging(&mut worker) {}
        }
    });
    assert!(!house.pager.uffd().is_readable(), "an event of lowtide's own");
}

/// One thread waits for a page, and then another for its event to be read; one handler serves both. Returns after that: how long
/// the handler meant to wait, in nanoseconds, each time that it had put the fault aside.
fn a_fault_and_an_event(house: &House, at: usize, page: usize, dropped: usize) -> Vec<i64> {
    let done = Arc::new(AtomicUsize::new(0));
    let threads = [0, 1].map(|which| {
        let done = done.clone();
        let thread = thread::spawn(move || {
            if which == 0 {
                verify((at + page * PAGE) as *const u8, page as u64 + 1, "before a removal");
            } else {
                one_cpu::interrupt_nobody();
                // SAFETY: memory that nobody looks at any more.
                unsafe { rustix::mm::madvise((at + PAGES / 2 * PAGE) as *mut _, dropped * PAGE, Advice::LinuxDontNeed) }
                    .unwrap();
            }
            done.fetch_add(1, Ordering::SeqCst);
        });
        // The kernel tells of faults first, whenever they came.
        while !house.pager.uffd().is_readable() {
            thread::yield_now();
        }
        thread
    });
    // The second thread's event is on its way, or there.
    thread::sleep(std::time::Duration::from_millis(20));
    let pager = house.pager;
    let naps = Arc::new(Mutex::new(Vec::new()));
    let taken = naps.clone();
    within("a handler puts a fault aside, and reads the event", move || {
        let mut handler = Handler::new().unwrap();
        while done.load(Ordering::SeqCst) < 2 {
            if !handler.turn(pager).read {
                let is_aside = handler.has_deferred();
                handler.wait_by(pager, 1, |time| {
                    let time = time.expect("a wait with an end");
                    if is_aside {
                        taken.lock().unwrap().push(time.tv_sec * 1_000_000_000 + time.tv_nsec);
                    }
                    pager.uffd().wait_readable_for(Some(time))
                });
            }
        }
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    naps.lock().unwrap().clone()
}

#[test]
fn a_fault_waits_until_an_event_is_read() {
    let Some((house, at)) = out() else { return };
    a_fault_and_an_event(&house, at, 0, PAGES / 2);
}

/// The kernel goes on refusing when the event has been read, until the thread that caused it has run again. Nothing tells when
/// that is so, and nothing else comes here that would end a wait. In each round the fault is read before the event, and that
/// thread has its CPU again only when the handler waits.
#[test]
fn a_fault_that_meets_the_end_of_an_event_is_served_soon() {
    const ROUNDS: usize = 50;
    let Some((house, at)) = out() else { return };
    one_cpu::stay();
    let before = get(&house.pager.counters().faults_total);
    // Pages far apart: none comes with another one.
    let naps: Vec<_> = (0..ROUNDS).map(|i| a_fault_and_an_event(&house, at, i * (PAGES / 2 / ROUNDS), 16)).collect();
    // However often each was tried.
    assert_eq!(get(&house.pager.counters().faults_total) - before, ROUNDS as u64);
    // The thread needs some 50 us, where the CPU is free.
    assert!(naps.iter().flat_map(|naps| naps.iter().take(10)).all(|ns| *ns <= 100_000), "{naps:?}");
    assert!(naps.iter().any(|naps| !naps.is_empty()), "no fault was put aside");
}

/// At the limit, too, where room has to be made first: whoever makes it can't before the event is read.
#[test]
fn a_handler_that_holds_threads_back_goes_on_reading() {
    let Some((house, at)) = out() else { return };
    house.pager.budget().set_limit(1 << 20);
    house.pager.budget().measured((PAGES * PAGE) as u64);
    assert!(house.pager.budget().at_limit());
    let stop = Arc::new(AtomicBool::new(false));
    let reclaimer = {
        let (pager, stop) = (house.pager, stop.clone());
        thread::spawn(move || {
            let mut worker = Worker::new(Rights::Serve).unwrap();
            while !stop.load(Ordering::SeqCst) {
                let _ = pager.evict(&mut worker);
                thread::yield_now();
            }
        })
    };
    a_fault_and_an_event(&house, at, 0, PAGES / 2);
    stop.store(true, Ordering::SeqCst);
    reclaimer.join().unwrap();
}
