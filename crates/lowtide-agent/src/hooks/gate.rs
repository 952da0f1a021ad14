//! The gate before the calls that change mappings. It guarantees what the kernel does not:
//!
//! - Events arrive in the order of the changes. The kernel queues an event after it has released
//!   its locks, so an unmap's event could follow that of a later move to the same place. Once
//!   memory is registered, one thread at a time maps, unmaps and moves.
//! - No event is in flight while memory is cloned: a fork waits until no thread is inside, and
//!   others wait for the fork. (The pager holds back late events: `fork/held_back.rs`.)
//!
//! All waits are bounded. `lowtide_core::visits` detects calls left by longjmp, or whose thread
//! ended; without proof, others wait for one once, up to a limit. Calls that wait for pages stay
//! outside: they may take minutes.
//!
//! malloc calls brk, mmap, munmap, mprotect and madvise under locks that fork takes after its
//! handlers. So the gate is shut only while the forking thread runs its handler ([`close`] to
//! [`goes_on`]). From there to the end of the fork, calls without an event pass, and others pass
//! after a delay: a holder of a malloc lock cannot meet the cloning, which comes after fork has
//! that lock.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use lowtide_core::turn::{Had, Turn};
use lowtide_core::visits::{Begun, Seen, Visit, Visits};
use lowtide_pager::mappings::Changes;
use lowtide_pager::pager::Pager;
use lowtide_sys::clock::now_us;
use rustix::thread::{Timespec, futex};

use crate::hooks::changes_in_turn::{changed, set_changed};
use crate::hooks::mark::{self, Mark};
use crate::process::agent;
use crate::process::thread::{self, id as tid};
use crate::reclaimer::{request, wake};

static INSIDE: Visits = Visits::new();
/// Thread id of the forking thread, or of the reclaimer while it changes what a fork must not copy;
/// 0: open.
static CLOSED_BY: AtomicU32 = AtomicU32::new(0);
/// In `CLOSED_BY`: the forking thread may now wait for threads at the gate.
const GOES_ON: u32 = 1 << 31;

static TURN: Turn = Turn::new();
const PLACE_OF_TURN: usize = usize::MAX;
/// Futex: ends of turns while others waited; wraps.
static ENDED: AtomicU32 = AtomicU32::new(0);
static AWAITED: AtomicBool = AtomicBool::new(false);

/// Zero in builds that test a fork that gave up.
const PATIENCE_MS: u32 = if cfg!(feature = "faults") { 0 } else { 50 };
const RECLAIMERS_PATIENCE_MS: u32 = 2;
/// Far longer than such calls take.
const TURN_MS: u32 = 2000;
const LOOK_MS: u32 = 4;
/// The total wait after which a visit counts as abandoned.
const LEFT_MS: u32 = 500;
/// Most forks are over by then.
const EVENT_US: u64 = 20_000;
/// Longer than a fork takes: a move that meets the cloning would end the run. malloc moves nothing
/// under its locks.
const MOVE_US: u64 = 2_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Silent,
    Drops,
    Moves,
}

fn ms(n: i64) -> Timespec {
    Timespec { tv_sec: 0, tv_nsec: n * 1_000_000 }
}

pub struct Inside<'a> {
    mark: PhantomData<&'a Mark>,
    visit: Visit,
    /// None: an outer call of the same thread is inside, or no place is free.
    place: Option<usize>,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // A signal handler may fork inside the call: its child never entered it.
        if let Some(place) = self.place {
            INSIDE.end(place, self.visit);
        }
    }
}

impl Inside<'_> {
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

fn clean_up_after(who: u32) {
    if let Some(pager) = agent::active() {
        pager.forget_removals_of(who);
        pager.guards().forget(who);
        wake::look_again();
    }
}

pub fn forget(seen: Seen) -> bool {
    // Release its removals first, and let a fork end.
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

pub fn seen() -> impl Iterator<Item = Seen> {
    let turn = TURN.now().map(|had| {
        let (visit, count) = (TURN.visit(had), count_of(had));
        Seen { place: PLACE_OF_TURN, visit, count, is_given_up: false }
    });
    turn.into_iter().chain(INSIDE.seen())
}

fn count_of(had: Had) -> u32 {
    had.number() as u32
}

pub fn is_awaited(seen: Seen) -> bool {
    seen.place != PLACE_OF_TURN || AWAITED.load(Ordering::Relaxed)
}

pub fn enter(mark: &Mark, call: Call) -> Inside<'_> {
    let visit = mark.visit(mark::who());
    let mut waits_until = 0;
    loop {
        // SeqCst: pairs with the close of the gate and the load of `INSIDE` after it. Either this
        // thread sees the gate closed, or the closer sees this visit.
        let inside = Inside { mark: PhantomData, visit, place: begin(visit) };
        let by = CLOSED_BY.load(Ordering::SeqCst);
        // The forking thread passes, and a child that has not yet opened its copy.
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

pub struct Changing<'a> {
    _inside: Inside<'a>,
    turn: Option<Had>,
    interrupted: Option<Changes>,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if let Some(outer) = self.interrupted {
            set_changed(outer);
        }
        let Some(turn) = self.turn.filter(|turn| TURN.now() == Some(*turn)) else { return };
        if changed() != Changes::NONE {
            // A reader of this call's event may not have looked up the ranges yet.
            agent::active().into_iter().for_each(Pager::outlast_reading);
            set_changed(Changes::NONE);
        }
        end_turn(turn);
    }
}

fn end_turn(turn: Had) {
    // SeqCst, like the end before it: pairs with the store and load in `wait_for_turn`. Either that
    // thread sees the end, or this one sees `AWAITED`.
    if TURN.end(turn) && AWAITED.load(Ordering::SeqCst) {
        ENDED.fetch_add(1, Ordering::SeqCst);
        if futex::wake(&ENDED, futex::Flags::PRIVATE, 1) == Ok(0) {
            AWAITED.store(false, Ordering::SeqCst);
        }
    }
}

fn end_turn_of(seen: Seen) -> bool {
    let Some(had) = TURN.now().filter(|had| count_of(*had) == seen.count) else { return false };
    let mark = Mark::new();
    let turn = TURN.take(Some(had), mark.visit(tid()));
    if let Some(turn) = turn {
        set_changed(Changes::NONE);
        end_turn(turn);
    }
    turn.is_some()
}

/// The reclaimer checks for an abandoned turn: once for each new maximum wait.
fn ring_for(turn: Had, waited_ms: u32) {
    static RUNG: AtomicU64 = AtomicU64::new(0);
    const { assert!(TURN_MS < 1 << 11) };
    let what = turn.number() << 11 | u64::from(waited_ms);
    if RUNG.fetch_max(what, Ordering::Relaxed) < what {
        request::ring();
    }
}

fn wait_for_turn(by: Option<Had>) {
    let ended = ENDED.load(Ordering::SeqCst);
    AWAITED.store(true, Ordering::SeqCst);
    if TURN.now() == by {
        let _ = futex::wait(&ENDED, futex::Flags::PRIVATE, ended, Some(&ms(1)));
    }
}

/// Unless `call` is silent, events may report `changes`.
pub fn change(mark: &Mark, call: Call, changes: Changes) -> Changing<'_> {
    let inside = enter(mark, call);
    if agent::active().is_none() {
        return Changing { _inside: inside, turn: None, interrupted: None };
    }
    let changes = if call == Call::Silent { Changes::NONE } else { changes };
    let visit = inside.visit;
    let first = TURN.now();
    for waited in 0..=TURN_MS {
        let by = TURN.now();
        let goes = match by {
            None => true,
            Some(older) if older.who() == visit.who() => {
                if !mark::is_over(TURN.visit(older), visit) {
                    // A signal handler inside such a call.
                    let outer = changed();
                    set_changed(changes);
                    return Changing { _inside: inside, turn: None, interrupted: Some(outer) };
                }
                true
            }
            // Taken by the first thread that waited for this turn all the time.
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
            set_changed(changes);
            return Changing { _inside: inside, turn: Some(turn), interrupted: None };
        }
        if !goes {
            wait_for_turn(by);
        }
    }
    Changing { _inside: inside, turn: None, interrupted: None }
}

/// The reclaimer sets nothing up meanwhile and, once memory is registered, no thread is inside.
pub fn close() {
    let me = tid();
    // SeqCst: pairs with the loads in `enter` and the store in `open`.
    while CLOSED_BY.compare_exchange(0, me, Ordering::SeqCst, Ordering::Relaxed).is_err() {
        let by = CLOSED_BY.load(Ordering::Relaxed);
        // A signal handler forks inside a fork.
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

pub fn goes_on() {
    CLOSED_BY.store(tid() | GOES_ON, Ordering::SeqCst);
    let _ = futex::wake(&CLOSED_BY, futex::Flags::PRIVATE, i32::MAX as u32);
}

/// Waits until no thread is inside. For the reclaimer, on which forks and faults may wait. False:
/// try later, not at once.
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

/// False: a fork is under way. A child copies lowtide's heap and tables.
pub fn keep_forks_away() -> bool {
    CLOSED_BY.compare_exchange(0, tid(), Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

/// Except the calling thread: a signal handler may fork.
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

fn waited_in_vain(seen: Seen, ms: u32) {
    /// Races only change the wait.
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

pub fn wait_for_forks() {
    let until = now_us() + MOVE_US;
    loop {
        let by = CLOSED_BY.load(Ordering::SeqCst);
        let reclaimer = agent::RECLAIMER.load(Ordering::Relaxed);
        if by == 0 || by & !GOES_ON == tid() || by == reclaimer || now_us() >= until {
            return;
        }
        let _ = futex::wait(&CLOSED_BY, futex::Flags::PRIVATE, by, Some(&ms(1)));
    }
}

pub fn is_closed_by_caller() -> bool {
    CLOSED_BY.load(Ordering::SeqCst) & !GOES_ON == tid()
}

pub fn forking_thread() -> u32 {
    CLOSED_BY.load(Ordering::SeqCst) & !GOES_ON
}

pub fn open() {
    // SeqCst: pairs with the loads in `enter`, `close`, `keep_forks_away` and `wait_for_forks`.
    // What the closer changed comes before.
    CLOSED_BY.store(0, Ordering::SeqCst);
    let _ = futex::wake(&CLOSED_BY, futex::Flags::PRIVATE, i32::MAX as u32);
}

pub fn reset_after_fork() {
    INSIDE.reset_after_fork();
    CLOSED_BY.store(0, Ordering::SeqCst);
    TURN.reset_after_fork();
    set_changed(Changes::NONE);
}
