//! A signal is handled while its thread waits for a page: the handler may wait for other pages, and afterwards the thread
//! faults again, so that the pager hears of the same fault twice.

use std::ffi::c_int;
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use lowtide_pager::fault::Served;
use lowtide_pager::pages::{Rights, Worker};
use lowtide_sys::uffd::Access;
use rustix::mm::MapFlags;

use crate::house::{Config, House, MIB, PAGE, map, verify, within, word, write};

/// So many that the last of them are in staging when as many as fit there are not.
const PAGES: usize = 4096;
const SIGUSR2: c_int = 12;

unsafe extern "C" {
    fn signal(number: c_int, handler: extern "C" fn(c_int)) -> usize;
    fn pthread_kill(thread: std::os::unix::thread::RawPthread, number: c_int) -> c_int;
}

/// What the handler reads, and what it found there.
static ADDRESS: AtomicUsize = AtomicUsize::new(0);
static FOUND: AtomicU64 = AtomicU64::new(0);

extern "C" fn handler(_: c_int) {
    let at = ADDRESS.load(Ordering::SeqCst) as *const u64;
    // SAFETY: a page of the test's, which waits for the handler.
    FOUND.store(unsafe { at.read_volatile() }, Ordering::SeqCst);
}

/// Waits for the next fault, and returns its page, unserved.
fn next_fault(house: &House, worker: &mut Worker) -> usize {
    assert!(house.pager.uffd().wait_readable(60_000), "nobody faults");
    let read = house.pager.read(1, worker);
    assert_eq!((read.faults.len(), read.event), (1, false));
    read.faults[0].addr & !(PAGE - 1)
}

/// A thread that reads `page`, is interrupted while it waits for that, waits for `other` in its handler, and then again for
/// `page`. Both messages about `page` are served, which the pager can't tell from each other.
fn interrupted(house: &House, page: (usize, u64), other: (usize, u64)) {
    let mut worker = Worker::new(Rights::Serve).unwrap();
    let mut serve = |house: &House, at, what| {
        assert_eq!(house.pager.serve_any(at, Access::Read, &mut worker), Served::Done, "{what}");
        worker.wake(house.pager.uffd());
    };
    let mut reader = Worker::new(Rights::Serve).unwrap();
    let program = thread::spawn(move || verify(page.0 as *const u8, page.1, "interrupted"));
    assert_eq!(next_fault(house, &mut reader), page.0);
    ADDRESS.store(other.0, Ordering::SeqCst);
    // SAFETY: the thread has not been joined, and its handler keeps to a handler's means.
    assert_eq!(unsafe { pthread_kill(program.as_pthread_t(), SIGUSR2) }, 0);
    assert_eq!(next_fault(house, &mut reader), other.0, "the handler runs while its thread waits");
    serve(house, other.0, "the handler's fault");
    assert_eq!(next_fault(house, &mut reader), page.0, "it faults again");
    serve(house, page.0, "the fault that was interrupted");
    serve(house, page.0, "the same fault again");
    within("the thread that was interrupted", move || program.join().unwrap());
    assert_eq!(FOUND.load(Ordering::SeqCst), word(other.1, 0), "what the handler read");
}

#[test]
fn a_thread_that_was_interrupted_faults_again() {
    let Some(house) = House::new(Config { pool: 64 * MIB, file: 0, handlers: 0 }) else { return };
    let at = map(std::ptr::null_mut(), PAGES, MapFlags::empty()) as usize;
    let seed = |i: usize| if i < PAGES / 2 { i as u64 * 3 + 1 } else { 0 };
    (0..PAGES / 2).for_each(|i| write((at + i * PAGE) as *mut u8, seed(i)));
    house.register(at as *mut u8, PAGES);
    house.evict_all();
    // SAFETY: the handler keeps to a handler's means.
    unsafe { signal(SIGUSR2, handler) };
    let page = |i: usize| (at + i * PAGE, seed(i));
    // From the store, from staging, and untouched; each with a handler that waits for a page of another kind.
    let (stored, staged, untouched) = (page(100), page(PAGES / 2 - 10), page(PAGES * 3 / 4));
    interrupted(&house, stored, page(PAGES / 2 - 100));
    interrupted(&house, staged, page(PAGES * 5 / 8));
    interrupted(&house, untouched, page(1000));
}
