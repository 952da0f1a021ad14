//! What a thread of the program asks of the reclaimer, and how it waits for the answer.
//!
//! Nothing here is on the asking thread's stack (it may be swapped out), and no lock is taken: a request is one of a few slots,
//! claimed by compare-and-swap. The reclaimer frees it, so that nothing is left behind by a thread that does not wait for the
//! answer any more, because a signal handler has ended it or left by longjmp. From the claim until the request is posted all
//! signals are blocked: nobody has a slot for nothing.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use lowtide_core::visits::Visit;
use lowtide_pager::mappings::Range;
use rustix::io::Errno;
use rustix::thread::{Timespec, futex};

use crate::mark::{self, Mark};
use crate::{agent, long_nap, thread, wake};

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Adopt this new mapping before the program touches it.
    Adopt(Range),
    /// Give this memory back to the program: it wants to do with it what nobody can do twice.
    Release(Range),
    /// Which mapping is there, or follows: [`mapping`].
    Mapping(Range),
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
const MAPPING: u32 = 6;

/// What a slot is for, in the lowest bits of its word; above them is how many requests it has had, which wraps.
const STATES: u32 = 3;
/// Nothing is asked.
const QUIET: u32 = 0;
/// The reclaimer is to do it.
const POSTED: u32 = 1;
/// It is at it.
const TAKEN: u32 = 2;

struct Slot {
    /// Of the thread that has it; 0: it is free.
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
        kind: AtomicU32::new(ADOPT),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
    }
}; 64];
/// How many slots are not free.
static USED: AtomicU32 = AtomicU32::new(0);
static BELL: AtomicU32 = AtomicU32::new(0);
/// How often slots have become free while threads waited for that; wraps.
static FREED: AtomicU32 = AtomicU32::new(0);
/// Whether any may.
static AWAITED: AtomicBool = AtomicBool::new(false);

/// A thread that waits for an answer looks so often whether there is a reclaimer: in a child that was forked meanwhile by a raw
/// call there is none.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The word of the next request.
fn next(word: u32) -> u32 {
    (word | STATES).wrapping_add(1)
}

impl Slot {
    /// Goes from `word` to another one.
    fn goes(&self, word: u32, to: u32) -> bool {
        // AcqRel: what was written in the slot comes before, for who takes the request.
        self.word.compare_exchange(word, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Nothing is asked here any more, and it is free. False: it was not as `word` says.
    fn finish(&self, word: u32) -> bool {
        // Nobody else can claim it yet.
        let visit = self.visit.load(Ordering::Relaxed);
        // AcqRel: pairs with the Acquire in `wait`.
        if !self.goes(word, next(word)) {
            return false;
        }
        let _ = futex::wake(&self.word, futex::Flags::PRIVATE, i32::MAX as u32);
        // SeqCst, of both: pairs with the store and the look in `claim`. Either the thread that finds no slot finds this one, or
        // this thread finds that it waits.
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

    /// Waits until the request is done that this word is of.
    fn wait(&self, word: u32) {
        loop {
            // Acquire: pairs with the AcqRel in `finish`. What was asked has been done.
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

/// Asks the reclaimer and waits until it has done it. Only when this process has a reclaimer.
pub fn ask(request: Request) {
    let mark = Mark::new();
    let visit = mark.visit(mark::who());
    take_back(visit);
    let (kind, range) = match request {
        Request::Adopt(range) => (ADOPT, range),
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

/// Asks in a slot, and its word before that; None: there is no slot. With all signals blocked.
fn post(visit: Visit, kind: u32, range: Range) -> Option<(&'static Slot, u32)> {
    let slot = claim(visit)?;
    let word = slot.word.load(Ordering::Relaxed);
    slot.kind.store(kind, Ordering::Relaxed);
    slot.start.store(range.start, Ordering::Relaxed);
    slot.end.store(range.end, Ordering::Relaxed);
    // (Nobody else changes the word of a slot for which nothing is asked.)
    slot.goes(word, word | POSTED);
    ring();
    Some((slot, word))
}

/// A thread begins something: what it has asked for before and does not wait for any more is not done from here on. (A signal
/// handler has left that by longjmp; memory may be something else soon.)
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
        // What the reclaimer is at is done first.
        if !is_back {
            slot.wait(word);
        }
    }
}

/// Claims a slot, if one is free. Again after a wait: whoever frees one is to know that it is awaited.
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

/// Sleeps until a slot has become free since `freed`. (To yield would keep the reclaimer from running, if it has this CPU and this
/// thread the higher priority.)
fn wait_for_slot(freed: u32) {
    let _ = futex::wait(&FREED, futex::Flags::PRIVATE, freed, Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 }));
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
        let word = slot.word.load(Ordering::Relaxed);
        // Its Acquire pairs with that in `ask`, before which the request was written.
        if word & STATES != POSTED || !slot.goes(word, word & !STATES | TAKEN) {
            continue;
        }
        let range = Range { start: slot.start.load(Ordering::Relaxed), end: slot.end.load(Ordering::Relaxed) };
        f(match slot.kind.load(Ordering::Relaxed) {
            ADOPT => Request::Adopt(range),
            RELEASE => Request::Release(range),
            MAPPING => Request::Mapping(range),
            REPLACED => Request::Replaced(range),
            ENDS => Request::Ends(range.start as u32),
            FORK => Request::Fork,
            _ => Request::ForkIsOver,
        });
        // Whether or not anybody waits for it still.
        slot.finish(word & !STATES | TAKEN);
    }
}

/// In a forked child: nothing is asked, and who comes back to a request is done with it.
pub fn reset_after_fork() {
    for slot in &SLOTS {
        let word = slot.word.load(Ordering::Relaxed);
        slot.word.store(next(word), Ordering::Relaxed);
        slot.visit.store(0, Ordering::Relaxed);
    }
    USED.store(0, Ordering::Relaxed);
    AWAITED.store(false, Ordering::Relaxed);
}
