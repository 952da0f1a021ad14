//! The gate: threads of the program inside a call that changes mappings are counted, and a fork waits until there are none, so
//! that no event is on its way while memory is cloned. Other threads that come to such a call during a fork wait at the gate.

use core::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{Timespec, futex};

use crate::agent;

static INSIDE: AtomicU32 = AtomicU32::new(0);
/// Thread id of the thread that forks; 0: open.
static CLOSED_BY: AtomicU32 = AtomicU32::new(0);

/// Waiting is bounded: a thread that left a call by longjmp from a signal handler is counted for ever.
const PATIENCE_MS: u32 = 50;

fn tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

fn ms(n: i64) -> Timespec {
    Timespec { tv_sec: 0, tv_nsec: n * 1_000_000 }
}

/// Passed the gate; leaves when dropped.
pub struct Inside(());

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Enters a call that changes mappings.
pub fn enter() -> Inside {
    loop {
        INSIDE.fetch_add(1, Ordering::SeqCst);
        let by = CLOSED_BY.load(Ordering::SeqCst);
        // The forking thread itself passes, and so does a child that has not yet opened its copy of the gate.
        if by == 0 || by == tid() || agent::active().is_none() {
            return Inside(());
        }
        INSIDE.fetch_sub(1, Ordering::SeqCst);
        let _ = futex::wait(&CLOSED_BY, futex::Flags::PRIVATE, by, Some(&ms(1)));
    }
}

/// Closes the gate and waits until nobody is inside.
pub fn close() {
    let me = tid();
    while CLOSED_BY.compare_exchange(0, me, Ordering::SeqCst, Ordering::Relaxed).is_err() {
        let by = CLOSED_BY.load(Ordering::Relaxed);
        if by != 0 {
            let _ = futex::wait(&CLOSED_BY, futex::Flags::PRIVATE, by, Some(&ms(1)));
        }
    }
    for _ in 0..PATIENCE_MS * 10 {
        if INSIDE.load(Ordering::SeqCst) == 0 {
            return;
        }
        let _ = rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: 100_000 });
    }
}

/// Opens the gate.
pub fn open() {
    CLOSED_BY.store(0, Ordering::SeqCst);
    let _ = futex::wake(&CLOSED_BY, futex::Flags::PRIVATE, i32::MAX as u32);
}

/// In a forked child: open, nobody inside.
pub fn reset_after_fork() {
    INSIDE.store(0, Ordering::SeqCst);
    CLOSED_BY.store(0, Ordering::SeqCst);
}
