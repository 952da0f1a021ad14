//! The gate before the calls that change mappings. It keeps two promises that the kernel does not give:
//!
//! - Events arrive in the order of what they report. The kernel queues an event after it has let go of its locks, so with two
//!   threads at work the news that a range was unmapped may come after the news that another mapping has moved there. So, once
//!   memory is adopted, one thread at a time maps, unmaps and moves.
//! - No event is on its way while memory is cloned: a fork waits until nobody is inside, and others wait for the fork. (What
//!   is on its way even so, because it takes too long, the pager holds back, and tells the child: see its `fork/held_back.rs`.)
//!
//! Waiting is bounded throughout. Who has left a call by longjmp from a signal handler, or ended in it, is found out
//! (`lowtide_core::visits`); where nothing proves it, it is waited for in vain for a while, once. And calls that wait for
//! memory to come in stay outside: under a limit they may take minutes.
//!
//! A fork itself waits for locks of the C library that threads hold while they wait here: malloc calls brk, mmap, munmap,
//! mprotect and madvise with its locks held, all of which a fork takes after its handlers have run. So the gate is shut only as
//! long as the forking thread is in its handler ([`close`] to [`goes_on`]). From there to the end of the fork, calls that raise
//! no event pass, and others after a while: a thread that holds a lock of malloc can't meet the cloning of the memory, which
//! comes after the fork has got that lock.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use lowtide_core::turn::{Had, Turn};
use lowtide_core::visits::{Begun, Seen, Visit, Visits};
use lowtide_pager::mappings::Range;
use lowtide_pager::pager::Pager;
use lowtide_pager::sys::clock::now_us;
use rustix::thread::{Timespec, futex};

use crate::mark::{self, Mark};
use crate::thread::id as tid;
use crate::{agent, request, thread, wake};

/// Who is inside.
static INSIDE: Visits = Visits::new();
/// Thread id of the thread that forks, or of the reclaimer while it changes what a fork must not see half done; 0: open.
static CLOSED_BY: AtomicU32 = AtomicU32::new(0);
/// In `CLOSED_BY`: the thread that forks has left its handler, and may wait for whoever waits at the gate. Thread ids are
/// smaller.
const GOES_ON: u32 = 1 << 31;

/// Whose turn it is to map, unmap or move.
static TURN: Turn = Turn::new();
/// Its place, among those of visits.
const PLACE_OF_TURN: usize = usize::MAX;
/// How often a turn has ended while others waited; wraps. These wait for it.
static ENDED: AtomicU32 = AtomicU32::new(0);
/// Whether any may.
static AWAITED: AtomicBool = AtomicBool::new(false);
/// What that thread changes: from where to where, of two ranges. Written by it alone.
static CHANGED: [[AtomicUsize; 2]; 2] = [const { [const { AtomicUsize::new(0) }; 2] }; 2];

/// How long a fork waits for others to come out. Not at all where a test wants to know what becomes of the child of one that
/// has waited in vain.
const PATIENCE_MS: u32 = if cfg!(feature = "faults") { 0 } else { 50 };
/// How long the reclaimer does, which has other things to do: it comes back.
const RECLAIMERS_PATIENCE_MS: u32 = 2;
/// How long a thread waits for its turn to change mappings. Much longer than any such call takes.
const TURN_MS: u32 = 2000;
/// So often, in milliseconds, it looks whether who has the turn is still there.
const LOOK_MS: u32 = 4;
/// How long others wait for one visit, all together, until it is taken for one that was left behind.
const LEFT_MS: u32 = 500;
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

/// Passed the gate; leaves when dropped.
pub struct Inside<'a> {
    /// Where others look for its mark.
    mark: PhantomData<&'a Mark>,
    visit: Visit,
    /// None: another call of the same thread is inside, or there is no place.
    place: Option<usize>,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // (A signal handler that forks in the middle of such a call: its child comes out of a call that it never went into.)
        if let Some(place) = self.place {
            INSIDE.end(place, self.visit);
        }
    }
}

impl Inside<'_> {
    /// The thread.
    pub fn who(&self) -> u32 {
        self.visit.who()
    }
}

fn begin(visit: Visit) -> Option<usize> {
    request::take_back(visit);
    for _ in 0..TURN_MS {
        match INSIDE.begin(visit, |older| mark::is_over(older, visit)) {
            Begun::At(place) => return Some(place),
            Begun::After(place) => {
                clean_up_after(visit.who());
                return Some(place);
            }
            Begun::Within => return None,
            Begun::Full => {
                let mut forgotten = 0;
                thread::without_signals(&mut || forgotten = INSIDE.seen().filter(|seen| forget_if_left(*seen)).count());
                if forgotten == 0 {
                    let _ = rustix::thread::nanosleep(&ms(1));
                }
            }
        }
    }
    None
}

/// What a visit has left behind that was no end of a call.
fn clean_up_after(who: u32) {
    if let Some(pager) = agent::active() {
        pager.forget_removals_of(who);
        pager.guards.forget(who);
        // Nobody has asked for what it has mapped.
        wake::look_again();
    }
}

/// Forgets a visit of which it is known that it is over. False: not now, or it has ended by itself.
pub fn forget(seen: Seen) -> bool {
    // What was removed in one is let go of first, and a fork is to be over, for which others wait.
    if agent::active().is_some_and(|pager| pager.has_removals_left() || pager.paused()) {
        return false;
    }
    if seen.place == PLACE_OF_TURN {
        return end_turn_of(seen);
    }
    let forgotten = INSIDE.forget(seen);
    if forgotten {
        clean_up_after(seen.visit.who());
    }
    forgotten
}

fn forget_if_left(seen: Seen) -> bool {
    mark::is_left(seen.visit) && forget(seen)
}

/// Who is inside, and who has the turn.
pub fn seen() -> impl Iterator<Item = Seen> {
    let turn = TURN.now().map(|had| {
        let (visit, count) = (TURN.visit(had), count_of(had));
        Seen { place: PLACE_OF_TURN, visit, count, is_given_up: false }
    });
    turn.into_iter().chain(INSIDE.seen())
}

/// The turn of this number is another one after four thousand million.
fn count_of(had: Had) -> u32 {
    had.number() as u32
}

/// Whether somebody waits for the end of a visit that was seen, or soon will.
pub fn is_awaited(seen: Seen) -> bool {
    seen.place != PLACE_OF_TURN || AWAITED.load(Ordering::Relaxed)
}

/// Enters a call that changes mappings.
pub fn enter(mark: &Mark, call: Call) -> Inside<'_> {
    let visit = mark.visit(mark::who());
    let mut waits_until = 0;
    loop {
        // Its SeqCst pairs with the closing of the gate and the look at `INSIDE` that follows: either this thread sees that it
        // is closed, or who closed it sees this thread.
        let inside = Inside { mark: PhantomData, visit, place: begin(visit) };
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
pub struct Changing<'a> {
    _inside: Inside<'a>,
    /// Whose turn it is; None: it goes without one, or in that of the call that it has interrupted.
    turn: Option<Had>,
    /// What that call changes.
    interrupted: Option<[Range; 2]>,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if let Some(outer) = self.interrupted {
            set_changed(outer);
        }
        let Some(turn) = self.turn.filter(|turn| TURN.now() == Some(*turn)) else { return };
        if changed() != [Range::NONE; 2] {
            // Whoever has just read the event of this call may not have asked yet whose it is.
            agent::active().into_iter().for_each(Pager::outlast_reading);
            set_changed([Range::NONE; 2]);
        }
        end_turn(turn);
    }
}

fn end_turn(turn: Had) {
    // SeqCst, as the end before it: pairs with the store and the look in `wait_for_turn`. Either that thread sees that the turn
    // has ended, or this one that it is awaited.
    if TURN.end(turn) && AWAITED.load(Ordering::SeqCst) {
        ENDED.fetch_add(1, Ordering::SeqCst);
        if futex::wake(&ENDED, futex::Flags::PRIVATE, 1) == Ok(0) {
            AWAITED.store(false, Ordering::SeqCst);
        }
    }
}

/// A turn was left behind: it is taken and ended. By the reclaimer.
fn end_turn_of(seen: Seen) -> bool {
    let Some(had) = TURN.now().filter(|had| count_of(*had) == seen.count) else { return false };
    let mark = Mark::new();
    let turn = TURN.take(Some(had), mark.visit(tid()));
    if let Some(turn) = turn {
        set_changed([Range::NONE; 2]);
        end_turn(turn);
    }
    turn.is_some()
}

/// Wakes the reclaimer, which looks, too, whether this turn was left: by who has waited longest, each time that it has waited for
/// longer.
fn ring_for(turn: Had, waited_ms: u32) {
    static RUNG: AtomicU64 = AtomicU64::new(0);
    const { assert!(TURN_MS < 1 << 11) };
    let what = turn.number() << 11 | u64::from(waited_ms);
    if RUNG.fetch_max(what, Ordering::Relaxed) < what {
        request::ring();
    }
}

/// Waits until this turn has ended, for a millisecond at most.
fn wait_for_turn(by: Option<Had>) {
    let ended = ENDED.load(Ordering::SeqCst);
    AWAITED.store(true, Ordering::SeqCst);
    if TURN.now() == by {
        let _ = futex::wait(&ENDED, futex::Flags::PRIVATE, ended, Some(&ms(1)));
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
pub fn change(mark: &Mark, call: Call, ranges: [Range; 2]) -> Changing<'_> {
    let inside = enter(mark, call);
    if agent::active().is_none() {
        return Changing { _inside: inside, turn: None, interrupted: None };
    }
    let ranges = if call == Call::Silent { [Range::NONE; 2] } else { ranges };
    let visit = inside.visit;
    let first = TURN.now();
    for waited in 0..=TURN_MS {
        let by = TURN.now();
        let goes = match by {
            None => true,
            Some(older) if older.who() == visit.who() => {
                if !mark::is_over(TURN.visit(older), visit) {
                    // A signal handler in the middle of such a call: its outer call keeps the turn.
                    let outer = changed();
                    set_changed(ranges);
                    return Changing { _inside: inside, turn: None, interrupted: Some(outer) };
                }
                true
            }
            // One that does not end is taken by the first who has waited for it all the time.
            Some(_) if waited == TURN_MS => by == first,
            Some(older) if waited % LOOK_MS == 1 => {
                let is_left = mark::is_left(TURN.visit(older));
                if !is_left {
                    ring_for(older, waited);
                }
                is_left
            }
            Some(_) => false,
        };
        if goes && let Some(turn) = TURN.take(by, visit) {
            set_changed(ranges);
            return Changing { _inside: inside, turn: Some(turn), interrupted: None };
        }
        if !goes {
            wait_for_turn(by);
        }
    }
    Changing { _inside: inside, turn: None, interrupted: None }
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

/// Waits for this long at most until nobody is inside (but the calling thread itself, in a signal handler that forks).
fn wait_for_those_inside(ms: u32) -> bool {
    let who = mark::who();
    let first = || INSIDE.seen().find(|seen| !seen.is_given_up && seen.visit.who() != who);
    for tries in 0..ms * 10 {
        match first() {
            None => return true,
            Some(seen) if tries > 0 && forget_if_left(seen) => {}
            Some(_) => drop(rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: 100_000 })),
        }
    }
    first().is_none_or(|seen| {
        waited_in_vain(seen, ms);
        false
    })
}

/// So long this visit was waited for.
fn waited_in_vain(seen: Seen, ms: u32) {
    /// Which one it was that the last one waited for, and how long all have. (One who reads what another writes in this moment
    /// waits for longer, or not as long.)
    static FOR: AtomicU64 = AtomicU64::new(0);
    static COUNT: AtomicU32 = AtomicU32::new(0);
    static WAITED_MS: AtomicU32 = AtomicU32::new(0);
    let is_new = FOR.swap(seen.visit.word(), Ordering::Relaxed) != seen.visit.word();
    if COUNT.swap(seen.count, Ordering::Relaxed) != seen.count || is_new {
        WAITED_MS.store(0, Ordering::Relaxed);
    }
    if WAITED_MS.fetch_add(ms, Ordering::Relaxed) >= LEFT_MS {
        INSIDE.give_up(seen);
    }
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
    INSIDE.reset_after_fork();
    CLOSED_BY.store(0, Ordering::SeqCst);
    TURN.reset_after_fork();
    set_changed([Range::NONE; 2]);
}
