//! Requests of the program's threads to the reclaimer.
//!
//! Nothing here is on the asking thread's stack, which may be swapped out, and no lock is taken: a
//! request is a slot, claimed by compare-and-swap. The reclaimer frees it, even if a signal handler
//! has ended or diverted the thread. From the claim to the post all signals are blocked, so no slot
//! is claimed in vain.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use lowtide_core::visits::Visit;
use lowtide_sys::Range;
use rustix::io::Errno;
use rustix::thread::{Timespec, futex};

use crate::hooks::mark::{self, Mark};
use crate::process::{agent, thread};
use crate::reclaimer::{long_nap, wake};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    Register(Range),
    /// Give this memory back to the program, whose next call on it can't be repeated.
    Release(Range),
    /// Which mapping is there, or follows: [`mapping`].
    Mapping(Range),
    /// Another mapping begins here without an unmap event for the old one.
    Replaced(Range),
    /// This thread is about to end: hold what the kernel will use.
    Ends(u32),
    Fork,
    /// In the parent, even if no child was made.
    ForkIsOver,
}

const REGISTER: u32 = 0;
const RELEASE: u32 = 1;
const FORK: u32 = 2;
const FORK_IS_OVER: u32 = 3;
const ENDS: u32 = 4;
const REPLACED: u32 = 5;
const MAPPING: u32 = 6;

/// The lowest bits of a slot's word; the rest counts its requests, and wraps.
const STATES: u32 = 3;
const QUIET: u32 = 0;
const POSTED: u32 = 1;
const TAKEN: u32 = 2;

struct Slot {
    visit: AtomicU64,
    word: AtomicU32,
    kind: AtomicU32,
    start: AtomicUsize,
    end: AtomicUsize,
}

static SLOTS: [Slot; 64] = [const {
    Slot {
        visit: AtomicU64::new(0),
        word: AtomicU32::new(QUIET),
        kind: AtomicU32::new(REGISTER),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
    }
}; 64];
static USED: AtomicU32 = AtomicU32::new(0);
static BELL: AtomicU32 = AtomicU32::new(0);
static FREED: AtomicU32 = AtomicU32::new(0);
static AWAITED: AtomicBool = AtomicBool::new(false);

/// A waiting thread checks this often that a reclaimer exists: a child of a raw fork has none.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

fn next(word: u32) -> u32 {
    (word | STATES).wrapping_add(1)
}

impl Slot {
    fn goes(&self, word: u32, to: u32) -> bool {
        // AcqRel: the taker of the request sees what the slot holds.
        self.word.compare_exchange(word, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// False: `word` is out of date.
    fn finish(&self, word: u32) -> bool {
        let visit = self.visit.load(Ordering::Relaxed);
        // AcqRel: pairs with the Acquire in `wait`.
        if !self.goes(word, next(word)) {
            return false;
        }
        let _ = futex::wake(&self.word, futex::Flags::PRIVATE, i32::MAX as u32);
        // SeqCst, both: pairs with the store and load in `claim`. Either the thread without a slot
        // finds this one, or this thread sees that it waits.
        if self.visit.compare_exchange(visit, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            USED.fetch_sub(1, Ordering::Relaxed);
        }
        if AWAITED.load(Ordering::SeqCst) {
            FREED.fetch_add(1, Ordering::SeqCst);
            if futex::wake(&FREED, futex::Flags::PRIVATE, 1) == Ok(0) {
                AWAITED.store(false, Ordering::SeqCst);
            }
        }
        true
    }

    fn wait(&self, word: u32) {
        loop {
            // Acquire: pairs with the AcqRel in `finish`.
            let now = self.word.load(Ordering::Acquire);
            if now | STATES != word | STATES {
                return;
            }
            if futex::wait(&self.word, futex::Flags::PRIVATE, now, Some(&LOOK)) == Err(Errno::TIMEDOUT) && !agent::has_threads()
            {
                return;
            }
        }
    }
}

pub fn ask(request: Request) {
    let mark = Mark::new();
    let visit = mark.visit(mark::who());
    take_back(visit);
    let (kind, range) = match request {
        Request::Register(range) => (REGISTER, range),
        Request::Release(range) => (RELEASE, range),
        Request::Mapping(range) => (MAPPING, range),
        Request::Replaced(range) => (REPLACED, range),
        Request::Ends(thread) => (ENDS, Range { start: thread as usize, end: 0 }),
        Request::Fork => (FORK, Range { start: 0, end: 0 }),
        Request::ForkIsOver => (FORK_IS_OVER, Range { start: 0, end: 0 }),
    };
    let mut posted = None;
    while posted.is_none() {
        let freed = FREED.load(Ordering::SeqCst);
        thread::without_signals(&mut || posted = post(visit, kind, range));
        if posted.is_none() {
            wait_for_slot(freed);
        }
    }
    if let Some((slot, word)) = posted {
        slot.wait(word);
    }
}

/// Also the word before the request; None: no slot. With all signals blocked.
fn post(visit: Visit, kind: u32, range: Range) -> Option<(&'static Slot, u32)> {
    let slot = claim(visit)?;
    let word = slot.word.load(Ordering::Relaxed);
    slot.kind.store(kind, Ordering::Relaxed);
    slot.start.store(range.start, Ordering::Relaxed);
    slot.end.store(range.end, Ordering::Relaxed);
    slot.goes(word, word | POSTED);
    ring();
    Some((slot, word))
}

/// The thread begins something new: earlier requests, abandoned by a longjmp, must not be done any
/// more, because memory may change.
pub fn take_back(now: Visit) {
    if USED.load(Ordering::Relaxed) > 0 {
        take_back_some(now);
    }
}

#[cold]
fn take_back_some(now: Visit) {
    for slot in &SLOTS {
        let asked = Visit::of_word(slot.visit.load(Ordering::Relaxed)).filter(|asked| asked.who() == now.who());
        let word = slot.word.load(Ordering::Relaxed);
        if asked.is_none_or(|asked| word & STATES == QUIET || !mark::is_over(asked, now)) {
            continue;
        }
        // A new mapping may still be there.
        wake::look_again();
        let mut is_back = false;
        thread::without_signals(&mut || is_back = slot.finish(word & !STATES | POSTED));
        if !is_back {
            slot.wait(word);
        }
    }
}

/// The second try after the store makes the freeing thread see that a slot is awaited.
fn claim(visit: Visit) -> Option<&'static Slot> {
    // SeqCst: pairs with the exchange in `finish`.
    let takes = |slot: &&Slot| slot.visit.compare_exchange(0, visit.word(), Ordering::SeqCst, Ordering::Relaxed).is_ok();
    let slot = SLOTS.iter().find(takes).or_else(|| {
        AWAITED.store(true, Ordering::SeqCst);
        SLOTS.iter().find(takes)
    })?;
    USED.fetch_add(1, Ordering::Relaxed);
    Some(slot)
}

/// A yield would keep the reclaimer off this CPU if this thread has the higher priority.
fn wait_for_slot(freed: u32) {
    let _ = futex::wait(&FREED, futex::Flags::PRIVATE, freed, Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 }));
}

pub fn ring() {
    // SeqCst: pairs with the load in `bell`.
    BELL.fetch_add(1, Ordering::SeqCst);
    let _ = futex::wake(&BELL, futex::Flags::PRIVATE, 1);
    long_nap::wake();
}

/// For the reclaimer: [`sleep`] returns at once if the bell has rung since.
pub fn bell() -> u32 {
    // SeqCst: pairs with the count in `ring`. `answer` sees what was posted before a ring counted
    // here.
    BELL.load(Ordering::SeqCst)
}

/// For the reclaimer: sleeps `us` microseconds, or until the bell rings.
pub fn sleep(bell: u32, us: u64) {
    let time = Timespec { tv_sec: (us / 1_000_000) as i64, tv_nsec: (us % 1_000_000 * 1000) as i64 };
    let _ = futex::wait(&BELL, futex::Flags::PRIVATE, bell, Some(&time));
}

pub fn answer(mut f: impl FnMut(Request)) {
    for slot in &SLOTS {
        let word = slot.word.load(Ordering::Relaxed);
        // Acquire: pairs with the AcqRel in `goes`, by which `post` publishes the request.
        if word & STATES != POSTED || !slot.goes(word, word & !STATES | TAKEN) {
            continue;
        }
        let range = Range { start: slot.start.load(Ordering::Relaxed), end: slot.end.load(Ordering::Relaxed) };
        f(match slot.kind.load(Ordering::Relaxed) {
            REGISTER => Request::Register(range),
            RELEASE => Request::Release(range),
            MAPPING => Request::Mapping(range),
            REPLACED => Request::Replaced(range),
            ENDS => Request::Ends(range.start as u32),
            FORK => Request::Fork,
            _ => Request::ForkIsOver,
        });
        // Even if no thread waits any more.
        slot.finish(word & !STATES | TAKEN);
    }
}

/// In a forked child: drops all requests and releases their waiters.
pub fn reset_after_fork() {
    for slot in &SLOTS {
        let word = slot.word.load(Ordering::Relaxed);
        slot.word.store(next(word), Ordering::Relaxed);
        slot.visit.store(0, Ordering::Relaxed);
    }
    USED.store(0, Ordering::Relaxed);
    AWAITED.store(false, Ordering::Relaxed);
}
