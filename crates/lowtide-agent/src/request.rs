//! What a thread of the program asks of the reclaimer, and how it waits for the answer.
//!
//! Nothing here is on the asking thread's stack (it may be swapped out), and no lock is taken: a request is one of a few slots,
//! claimed by compare-and-swap.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use lowtide_pager::mappings::Range;
use rustix::thread::{Timespec, futex};

use crate::long_nap;

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Adopt this new mapping before the program touches it.
    Adopt(Range),
    /// Give this memory back to the program: it wants to do with it what nobody can do twice.
    Release(Range),
    /// Something else was mapped where this begins, and no event told that what was there was unmapped.
    Replaced(Range),
    /// This thread is about to end: hold what the kernel will use.
    Ends(u32),
    /// The program is about to fork.
    Fork,
    /// The fork is over: in the parent, whether it came to a child or not.
    ForkIsOver,
}

const ADOPT: u32 = 0;
const RELEASE: u32 = 1;
const FORK: u32 = 2;
const FORK_IS_OVER: u32 = 3;
const ENDS: u32 = 4;
const REPLACED: u32 = 5;

const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const POSTED: u32 = 2;
const DONE: u32 = 3;

struct Slot {
    state: AtomicU32,
    kind: AtomicU32,
    start: AtomicUsize,
    end: AtomicUsize,
}

static SLOTS: [Slot; 64] = [const {
    Slot { state: AtomicU32::new(FREE), kind: AtomicU32::new(ADOPT), start: AtomicUsize::new(0), end: AtomicUsize::new(0) }
}; 64];
static BELL: AtomicU32 = AtomicU32::new(0);
/// How often a slot has become free; wraps. Threads wait for it where there is none.
static FREED: AtomicU32 = AtomicU32::new(0);
static WAITING: AtomicU32 = AtomicU32::new(0);

/// Asks the reclaimer and waits until it has done it. Only when this process has a reclaimer.
pub fn ask(request: Request) {
    let slot = claim();
    let (kind, range) = match request {
        Request::Adopt(range) => (ADOPT, range),
        Request::Release(range) => (RELEASE, range),
        Request::Replaced(range) => (REPLACED, range),
        Request::Ends(thread) => (ENDS, Range { start: thread as usize, end: 0 }),
        Request::Fork => (FORK, Range { start: 0, end: 0 }),
        Request::ForkIsOver => (FORK_IS_OVER, Range { start: 0, end: 0 }),
    };
    slot.kind.store(kind, Ordering::Relaxed);
    slot.start.store(range.start, Ordering::Relaxed);
    slot.end.store(range.end, Ordering::Relaxed);
    // Release: pairs with the Acquire in `answer`.
    slot.state.store(POSTED, Ordering::Release);
    ring();
    // Acquire: pairs with the Release of DONE in `answer`. What was asked has been done.
    while slot.state.load(Ordering::Acquire) == POSTED {
        let _ = futex::wait(&slot.state, futex::Flags::PRIVATE, POSTED, None);
    }
    // Release: pairs with the Acquire in `claim`.
    slot.state.store(FREE, Ordering::Release);
    // SeqCst, of both: pairs with the two in `claim`. Either the thread that found no slot finds that one has become free, or
    // this one finds that it waits.
    FREED.fetch_add(1, Ordering::SeqCst);
    if WAITING.load(Ordering::SeqCst) > 0 {
        let _ = futex::wake(&FREED, futex::Flags::PRIVATE, 1);
    }
}

/// Claims a slot; sleeps where there is none. (To yield would keep the reclaimer from running, if it has this CPU and this
/// thread the higher priority.)
fn claim() -> &'static Slot {
    loop {
        // SeqCst: pairs with the count in `ask`. What became free before is found below.
        let freed = FREED.load(Ordering::SeqCst);
        // Acquire: pairs with the Release that frees a slot.
        let free = |s: &&Slot| s.state.compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if let Some(slot) = SLOTS.iter().find(free) {
            return slot;
        }
        // SeqCst: pairs with the look in `ask`.
        WAITING.fetch_add(1, Ordering::SeqCst);
        let _ = futex::wait(&FREED, futex::Flags::PRIVATE, freed, None);
        WAITING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Wakes the reclaimer.
pub fn ring() {
    // SeqCst: pairs with the load in `bell`.
    BELL.fetch_add(1, Ordering::SeqCst);
    let _ = futex::wake(&BELL, futex::Flags::PRIVATE, 1);
    long_nap::wake();
}

/// By the reclaimer: the bell's count; pass it to [`sleep`] to sleep unless it has rung since.
pub fn bell() -> u32 {
    // SeqCst: pairs with the count in `ring`. What was posted before a ring that is counted here is seen by `answer`.
    BELL.load(Ordering::SeqCst)
}

/// By the reclaimer: sleeps for `us` microseconds at most, or until the bell rings.
pub fn sleep(bell: u32, us: u64) {
    let time = Timespec { tv_sec: (us / 1_000_000) as i64, tv_nsec: (us % 1_000_000 * 1000) as i64 };
    let _ = futex::wait(&BELL, futex::Flags::PRIVATE, bell, Some(&time));
}

/// By the reclaimer: does all that is asked.
pub fn answer(mut f: impl FnMut(Request)) {
    for slot in &SLOTS {
        // Acquire: pairs with the Release in `ask`, before which the request was written.
        if slot.state.load(Ordering::Acquire) != POSTED {
            continue;
        }
        let range = Range { start: slot.start.load(Ordering::Relaxed), end: slot.end.load(Ordering::Relaxed) };
        f(match slot.kind.load(Ordering::Relaxed) {
            ADOPT => Request::Adopt(range),
            RELEASE => Request::Release(range),
            REPLACED => Request::Replaced(range),
            ENDS => Request::Ends(range.start as u32),
            FORK => Request::Fork,
            _ => Request::ForkIsOver,
        });
        // Release: pairs with the Acquire in `ask`.
        slot.state.store(DONE, Ordering::Release);
        let _ = futex::wake(&slot.state, futex::Flags::PRIVATE, 1);
    }
}

/// In a forked child: nothing is asked.
pub fn reset_after_fork() {
    for slot in &SLOTS {
        slot.state.store(FREE, Ordering::Relaxed);
    }
    WAITING.store(0, Ordering::Relaxed);
}
