//! The gate before the calls that change mappings. It keeps two promises that the kernel does not give:
//!
//! - Events arrive in the order of what they report. The kernel queues an event after it has let go of its locks, so with two
//!   threads at work the news that a range was unmapped may come after the news that another mapping has moved there. So, once
//!   memory is adopted, one thread at a time maps, unmaps and moves.
//! - No event is on its way while memory is cloned: a fork waits until nobody is inside, and others wait for the fork. (What
//!   is on its way even so, because it takes too long, the pager holds back, and tells the child: see its `fork/held_back.rs`.)
//!
//! Waiting is bounded throughout: a thread that left a call by longjmp from a signal handler never comes out of the gate. And
//! calls that wait for memory to come in stay outside: under a limit they may take minutes.
//!
//! A fork itself waits for locks of the C library that threads hold while they wait here: malloc calls brk, mmap, munmap,
//! mprotect and madvise with its locks held, all of which a fork takes after its handlers have run. So the gate is shut only as
//! long as the forking thread is in its handler ([`close`] to [`goes_on`]). From there to the end of the fork, calls that raise
//! no event pass, and others after a while: a thread that holds a lock of malloc can't meet the cloning of the memory, which
//! comes after the fork has got that lock.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use lowtide_pager::mappings::Range;
use lowtide_pager::pager::Pager;
use lowtide_pager::sys::clock::now_us;
use rustix::thread::{Timespec, futex};

use crate::agent;
use crate::thread::id as tid;

static INSIDE: AtomicU32 = AtomicU32::new(0);
/// Another one in each forked child, where `INSIDE` begins at 0.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// Thread id of the thread that forks, or of the reclaimer while it changes what a fork must not see half done; 0: open.
static CLOSED_BY: AtomicU32 = AtomicU32::new(0);
/// In `CLOSED_BY`: the thread that forks has left its handler, and may wait for whoever waits at the gate. Thread ids are
/// smaller.
const GOES_ON: u32 = 1 << 31;

/// Thread id of the thread that maps, unmaps or moves; 0: none.
static CHANGING: AtomicU32 = AtomicU32::new(0);
/// What that thread changes: from where to where, of two ranges. Written by it alone.
static CHANGED: [[AtomicUsize; 2]; 2] = [const { [const { AtomicUsize::new(0) }; 2] }; 2];

/// How long a fork waits for others to come out. Not at all where a test wants to know what becomes of the child of one that
/// has waited in vain.
const PATIENCE_MS: u32 = if cfg!(feature = "faults") { 0 } else { 50 };
/// How long the reclaimer does, which has other things to do: it comes back.
const RECLAIMERS_PATIENCE_MS: u32 = 2;
/// How long a thread waits for its turn to change mappings. Much longer than any such call takes.
const TURN_MS: u32 = 2000;
/// How long a call that raises an event waits for a fork that goes on. Most forks are over by then.
const EVENT_US: u64 = 20_000;
/// The same for a call that moves memory: if it met the cloning, the run would have to end. So this is longer than a fork
/// takes; malloc moves nothing with its locks held.
const MOVE_US: u64 = 2_000_000;

/// What a call that changes mappings does, as a fork sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// No event reports it: it makes a mapping where none is, or changes a protection.
    Silent,
    /// It takes memory away.
    Drops,
    /// It may take memory elsewhere.
    Moves,
}

fn ms(n: i64) -> Timespec {
    Timespec { tv_sec: 0, tv_nsec: n * 1_000_000 }
}

/// Passed the gate in this generation; leaves when dropped.
pub struct Inside(u32);

impl Drop for Inside {
    fn drop(&mut self) {
        // A signal handler that forks in the middle of such a call: its child comes out of a call that it never went into.
        if self.0 == GENERATION.load(Ordering::Relaxed) {
            // SeqCst: pairs with the look in `wait_for_those_inside`. The call comes before what is done with nobody inside.
            INSIDE.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Enters a call that changes mappings.
pub fn enter(call: Call) -> Inside {
    let mut waits_until = 0;
    loop {
        let inside = Inside(GENERATION.load(Ordering::Relaxed));
        // SeqCst, of both: pairs with the closing of the gate and the look at `INSIDE` that follows. Either this thread sees
        // that it is closed, or who closed it sees this thread.
        INSIDE.fetch_add(1, Ordering::SeqCst);
        let by = CLOSED_BY.load(Ordering::SeqCst);
        // The forking thread itself passes, and so does a child that has not yet opened its copy of the gate.
        if by == 0 || by & !GOES_ON == tid() {
            return inside;
        }
        let Some(pager) = agent::active() else { return inside };
        if by & GOES_ON != 0 {
            let now = now_us();
            let patience = match call {
                Call::Silent => return inside,
                Call::Drops => EVENT_US,
                Call::Moves => MOVE_US,
            };
            if waits_until == 0 {
                waits_until = now + patience;
            } else if now >= waits_until {
                if call == Call::Moves {
                    pager.moves_during_fork();
                }
                return inside;
            }
        }
        drop(inside);
        let _ = futex::wait(&CLOSED_BY, futex::Flags::PRIVATE, by, Some(&ms(1)));
    }
}

/// Its turn to map, unmap or move; over when dropped.
pub struct Changing {
    _inside: Inside,
    /// Of the thread whose turn it is; 0: it goes without one, or in that of the call that it has interrupted.
    tid: u32,
    /// What that call changes.
    interrupted: Option<[Range; 2]>,
}

impl Drop for Changing {
    fn drop(&mut self) {
        if let Some(outer) = self.interrupted {
            set_changed(outer);
        }
        if self.tid == 0 || CHANGING.load(Ordering::Relaxed) != self.tid {
            return;
        }
        if changed() != [Range::NONE; 2] {
            // Whoever has just read the event of this call may not have asked yet whose it is.
            agent::active().into_iter().for_each(Pager::outlast_reading);
            set_changed([Range::NONE; 2]);
        }
        // SeqCst: pairs with the exchange in `change`, by the thread that has the turn next.
        if CHANGING.compare_exchange(self.tid, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            let _ = futex::wake(&CHANGING, futex::Flags::PRIVATE, 1);
        }
    }
}

fn set_changed(ranges: [Range; 2]) {
    // SeqCst: pairs with the loads in `changed`. A thread that reads the event of a call, which comes after this, finds what it
    // changes.
    for (at, range) in CHANGED.iter().zip(ranges) {
        // Nothing, before it begins elsewhere.
        at[1].store(0, Ordering::SeqCst);
        at[0].store(range.start, Ordering::SeqCst);
        at[1].store(range.end, Ordering::SeqCst);
    }
}

/// Where the thread that has the turn takes memory away, if one has it ([`lowtide_pager::pager::Host::turn`]). As long as its
/// event is being read and applied it stays as it is.
pub fn changed() -> [Range; 2] {
    // SeqCst: pairs with the stores in `set_changed`.
    CHANGED.each_ref().map(|at| Range { start: at[0].load(Ordering::SeqCst), end: at[1].load(Ordering::SeqCst) })
}

/// Enters a call that maps, unmaps or moves: one thread at a time, once memory is adopted. If it is not silent, events may tell
/// of these ranges.
pub fn change(call: Call, ranges: [Range; 2]) -> Changing {
    let inside = enter(call);
    if agent::active().is_none() {
        return Changing { _inside: inside, tid: 0, interrupted: None };
    }
    let ranges = if call == Call::Silent { [Range::NONE; 2] } else { ranges };
    let tid = tid();
    for _ in 0..TURN_MS {
        // SeqCst: pairs with the exchange with which a turn ends.
        match CHANGING.compare_exchange(0, tid, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => {
                set_changed(ranges);
                return Changing { _inside: inside, tid, interrupted: None };
            }
            // A signal handler in the middle of such a call: its outer call keeps the turn.
            Err(by) if by == tid => {
                let outer = changed();
                set_changed(ranges);
                return Changing { _inside: inside, tid: 0, interrupted: Some(outer) };
            }
            Err(by) => drop(futex::wait(&CHANGING, futex::Flags::PRIVATE, by, Some(&ms(1)))),
        }
    }
    Changing { _inside: inside, tid: 0, interrupted: None }
}

/// Closes the gate: the reclaimer sets nothing up meanwhile, and, once memory is adopted, nobody is inside.
pub fn close() {
    let me = tid();
    // SeqCst: pairs with those in `enter` and `open`.
    while CLOSED_BY.compare_exchange(0, me, Ordering::SeqCst, Ordering::Relaxed).is_err() {
        let by = CLOSED_BY.load(Ordering::Relaxed);
        // A signal handler that forks in the middle of a fork.
        if by & !GOES_ON == me {
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

/// The thread that closed the gate for a fork leaves its handler, and takes the C library's locks next: calls that raise no
/// event pass, and others when they have waited for a while.
pub fn goes_on() {
    // SeqCst: pairs with the load in `enter`.
    CLOSED_BY.store(tid() | GOES_ON, Ordering::SeqCst);
    let _ = futex::wake(&CLOSED_BY, futex::Flags::PRIVATE, i32::MAX as u32);
}

/// Closes the gate and waits until nobody is inside, unless another thread has closed it or somebody does not come out soon.
/// For the reclaimer, which a forking thread waits for, and so may threads that fault: false means later, not at once again.
pub fn try_close() -> bool {
    if !keep_forks_away() {
        return false;
    }
    let alone = wait_for_those_inside(RECLAIMERS_PATIENCE_MS);
    if !alone {
        open();
    }
    alone
}

/// Keeps forks away until [`open`], and nobody else; false: one is under way. A child gets a copy of lowtide's heap and tables,
/// which must not be half changed.
pub fn keep_forks_away() -> bool {
    // SeqCst: pairs with those in `enter` and `open`.
    CLOSED_BY.compare_exchange(0, tid(), Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

/// Waits for this long at most until nobody is inside.
fn wait_for_those_inside(ms: u32) -> bool {
    for _ in 0..ms * 10 {
        // SeqCst: pairs with the two in `enter`, and with the one with which a thread leaves.
        if INSIDE.load(Ordering::SeqCst) == 0 {
            return true;
        }
        let _ = rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: 100_000 });
    }
    false
}

/// Waits for a fork under way, if there is one, as long as a call does that moves memory.
pub fn wait_for_forks() {
    let until = now_us() + MOVE_US;
    loop {
        // SeqCst: pairs with the store in `open`.
        let by = CLOSED_BY.load(Ordering::SeqCst);
        let reclaimer = agent::RECLAIMER.load(Ordering::Relaxed);
        if by == 0 || by & !GOES_ON == tid() || by == reclaimer || now_us() >= until {
            return;
        }
        let _ = futex::wait(&CLOSED_BY, futex::Flags::PRIVATE, by, Some(&ms(1)));
    }
}

/// Whether the calling thread closed the gate.
pub fn is_closed_by_caller() -> bool {
    CLOSED_BY.load(Ordering::SeqCst) & !GOES_ON == tid()
}

/// The thread that forks, if one does.
pub fn forking_thread() -> u32 {
    CLOSED_BY.load(Ordering::SeqCst) & !GOES_ON
}

/// Opens the gate.
pub fn open() {
    // SeqCst: pairs with the looks in `enter`, `close`, `keep_forks_away` and `wait_for_forks`. What the gate was closed for
    // comes before.
    CLOSED_BY.store(0, Ordering::SeqCst);
    let _ = futex::wake(&CLOSED_BY, futex::Flags::PRIVATE, i32::MAX as u32);
}

/// In a forked child: open, nobody inside.
pub fn reset_after_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    INSIDE.store(0, Ordering::SeqCst);
    CLOSED_BY.store(0, Ordering::SeqCst);
    CHANGING.store(0, Ordering::SeqCst);
    set_changed([Range::NONE; 2]);
}
