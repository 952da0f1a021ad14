//! The gate before the calls that change mappings. It keeps two promises that the kernel does not give:
//!
//! - Events arrive in the order of what they report. The kernel queues an event after it has let go of its locks, so with two threads
//!   at work the news that a range was unmapped may come after the news that another mapping has moved there. So, once memory is
//!   adopted, one thread at a time maps, unmaps and moves.
//! - No event is on its way while memory is cloned: a fork waits until nobody is inside, and others wait for the fork.
//!
//! Waiting is bounded throughout: a thread that left a call by longjmp from a signal handler never comes out of the gate. And calls
//! that wait for memory to come in stay outside: under a limit they may take minutes.

use core::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{Timespec, futex};

use crate::agent;

static INSIDE: AtomicU32 = AtomicU32::new(0);
/// Thread id of the thread that forks, or of the keeper while it changes what a fork must not see half done; 0: open.
static CLOSED_BY: AtomicU32 = AtomicU32::new(0);

/// Thread id of the thread that maps, unmaps or moves; 0: none.
static CHANGING: AtomicU32 = AtomicU32::new(0);

/// How long a fork waits for others to come out.
const PATIENCE_MS: u32 = 50;
/// How long the keeper does, which has other things to do: it comes back.
const KEEPERS_PATIENCE_MS: u32 = 2;
/// How long a thread waits for its turn to change mappings. Much longer than any such call takes.
const TURN_MS: u32 = 2000;

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

/// Its turn to map, unmap or move; over when dropped.
pub struct Changing {
    _inside: Inside,
    tid: u32,
}

impl Drop for Changing {
    fn drop(&mut self) {
        if self.tid != 0 && CHANGING.compare_exchange(self.tid, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            let _ = futex::wake(&CHANGING, futex::Flags::PRIVATE, 1);
        }
    }
}

/// Enters a call that maps, unmaps or moves: one thread at a time, once memory is adopted.
pub fn change() -> Changing {
    let inside = enter();
    if agent::active().is_none() {
        return Changing { _inside: inside, tid: 0 };
    }
    let tid = tid();
    for _ in 0..TURN_MS {
        match CHANGING.compare_exchange(0, tid, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => return Changing { _inside: inside, tid },
            // A signal handler in the middle of such a call: its outer call keeps the turn.
            Err(by) if by == tid => break,
            Err(by) => drop(futex::wait(&CHANGING, futex::Flags::PRIVATE, by, Some(&ms(1)))),
        }
    }
    Changing { _inside: inside, tid: 0 }
}

/// Closes the gate: the keeper sets nothing up meanwhile, and, once memory is adopted, nobody is inside.
pub fn close() {
    let me = tid();
    while CLOSED_BY.compare_exchange(0, me, Ordering::SeqCst, Ordering::Relaxed).is_err() {
        let by = CLOSED_BY.load(Ordering::Relaxed);
        // A signal handler that forks in the middle of a fork.
        if by == me {
            return;
        }
        if by != 0 {
            let _ = futex::wait(&CLOSED_BY, futex::Flags::PRIVATE, by, Some(&ms(1)));
        }
    }
    if agent::active().is_some() {
        wait_for_those_inside(PATIENCE_MS);
    }
}

/// Closes the gate and waits until nobody is inside, unless another thread has closed it or somebody does not come out soon. For
/// the keeper, which a forking thread waits for, and so may threads that fault: false means later, not at once again.
pub fn try_close() -> bool {
    if !keep_forks_away() {
        return false;
    }
    let alone = wait_for_those_inside(KEEPERS_PATIENCE_MS);
    if !alone {
        open();
    }
    alone
}

/// Keeps forks away until [`open`], and nobody else; false: one is under way. A child gets a copy of lowtide's heap and tables,
/// which must not be half changed.
pub fn keep_forks_away() -> bool {
    CLOSED_BY.compare_exchange(0, tid(), Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

/// Waits for so long at most until nobody is inside.
fn wait_for_those_inside(ms: u32) -> bool {
    for _ in 0..ms * 10 {
        if INSIDE.load(Ordering::SeqCst) == 0 {
            return true;
        }
        let _ = rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: 100_000 });
    }
    false
}

/// Whether the calling thread closed the gate.
pub fn is_closed_by_caller() -> bool {
    CLOSED_BY.load(Ordering::SeqCst) == tid()
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
    CHANGING.store(0, Ordering::SeqCst);
}
