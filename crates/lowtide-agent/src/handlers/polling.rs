//! Which fault handlers poll the userfaultfd: those of the CPUs on which threads wait for pages.
//!
//! A fault wakes all pollers and one gets it; waking another CPU in vain is most of a fault's cost.
//! So idle handlers sleep here. Now and then, and sooner if it had to be woken, a handler looks up
//! the CPU of the thread it serves, and calls that CPU's handler or lets one start. A poller that
//! gets nothing goes back to sleep, except the last one. If no more may start, a sleeping handler
//! is first pinned to the CPU that lacks one.

use core::sync::atomic::{AtomicU32, Ordering};

use lowtide_core::posts::Posts;
use lowtide_core::watchers::Watchers;
use lowtide_sys::clock::now_us;
use lowtide_sys::stat::parse_cpu;

use crate::handlers::cpus::{self, MAX_POSTS};
use crate::process::thread;
use crate::reclaimer::request;

static THREADS: [AtomicU32; MAX_POSTS] = [const { AtomicU32::new(0) }; MAX_POSTS];
static POSTS: Posts = Posts::new();
static WATCHERS: Watchers<MAX_POSTS> = Watchers::new();
/// 1: some post lacks a handler, and one may start there.
static MISSING: AtomicU32 = AtomicU32::new(0);
/// By post.
static WANTED: AtomicU32 = AtomicU32::new(0);

/// Vain waits, of at most 1 ms each, before a handler steps aside.
const LOSSES: u32 = 2;
const FAULTS: u32 = 64;
/// Least and most time between lookups of some 5 us. It doubles when the answer is the handler's
/// own CPU, or one without a handler.
const LEAST_US: u64 = 100;
const MOST_US: u64 = 10_000;

pub fn reset() {
    THREADS.iter().chain([&MISSING, &WANTED]).for_each(|word| word.store(0, Ordering::Relaxed));
    POSTS.reset();
    WATCHERS.reset();
}

pub fn threads() -> impl Iterator<Item = u32> {
    THREADS.iter().map(|thread| thread.load(Ordering::Relaxed))
}

pub fn has_thread(post: usize) -> bool {
    handler_at(post).is_some()
}

pub fn number_at(post: usize) -> usize {
    POSTS.at(post)
}

pub fn is_started(number: usize) -> bool {
    THREADS[number].load(Ordering::Relaxed) != 0
}

fn handler_at(post: usize) -> Option<usize> {
    Some(number_at(post)).filter(|number| is_started(*number))
}

pub fn starts(number: usize, thread: u32) {
    // SeqCst: a thread that brings a handler to its post either sees this and pins it, or did so
    // before the handler loads its post.
    THREADS[number].store(thread, Ordering::SeqCst);
}

pub fn pin(number: usize) {
    let thread = THREADS[number].load(Ordering::SeqCst);
    if thread != 0 {
        POSTS.pin(number, |post| {
            thread::set_affinity(thread, cpus::cpus_of(post));
        });
    }
}

pub fn posts_have_changed() {
    POSTS.have_changed();
    (0..MAX_POSTS).for_each(pin);
}

/// By number, so that each sleeping handler has its turn.
fn bring(own: usize, post: usize) -> Option<usize> {
    let is_free = |number: &usize| THREADS[*number].load(Ordering::Relaxed) != 0 && WATCHERS.is_aside(*number);
    let number = (own + 1..own + MAX_POSTS).map(|number| number % MAX_POSTS).find(is_free)?;
    bring_to(post, number);
    Some(number)
}

fn bring_to(post: usize, number: usize) {
    let other = POSTS.bring(number, post);
    pin(number);
    pin(other);
}

/// Moves a handler, another each time, to a CPU without one when no more may start: threads may
/// keep all handlers off their CPUs. For the reclaimer.
pub fn bring_another() {
    static TURN: AtomicU32 = AtomicU32::new(0);
    let turn = TURN.fetch_add(1, Ordering::Relaxed) as usize;
    let number = (turn..turn + MAX_POSTS).map(|i| i % MAX_POSTS).find(|i| THREADS[*i].load(Ordering::Relaxed) != 0);
    let post = (turn..turn + cpus::posts()).map(|i| i % cpus::posts()).find(|post| !has_thread(*post));
    if let (0, Some(number), Some(post)) = (MISSING.load(Ordering::Relaxed), number, post) {
        bring_to(post, number);
    }
}

/// For the reclaimer.
pub fn count_missing() {
    let is_missing = (0..cpus::posts()).any(|post| !has_thread(post));
    MISSING.store(is_missing.into(), Ordering::Relaxed);
}

fn want(post: usize) {
    if WANTED.fetch_or(1 << post, Ordering::Relaxed) >> post & 1 == 0 {
        // In any kind of sleep.
        request::ring();
    }
}

pub fn want_another() {
    if MISSING.load(Ordering::Relaxed) != 0
        && let Some(post) = (0..cpus::posts()).find(|post| !has_thread(*post))
    {
        want(post);
    }
}

pub fn want_none() {
    MISSING.store(0, Ordering::Relaxed);
}

pub fn any_wanted() -> bool {
    WANTED.load(Ordering::Relaxed) != 0
}

/// For the reclaimer.
pub fn take_wanted() -> impl Iterator<Item = usize> {
    let wanted = WANTED.swap(0, Ordering::Relaxed);
    (0..MAX_POSTS).filter(move |post| wanted >> post & 1 == 1)
}

/// The polling handler can't run, or is not on the waiter's CPU.
pub fn call_all() {
    WATCHERS.call_all();
}

/// Wakes all pollers but the calling thread, which is about to wait for a device or a thread; a
/// handler stays away for the rest of its turn.
pub fn leave() {
    let own = thread::id();
    match threads().position(|thread| thread == own) {
        Some(number) => WATCHERS.leave(number),
        None => WATCHERS.call_all(),
    }
    if WATCHERS.are_all_away() {
        want_another();
    }
}

pub struct Watch {
    number: usize,
    losses: u32,
    faults: u32,
    asked_us: u64,
    pause_us: u64,
}

impl Watch {
    pub fn new(number: usize) -> Watch {
        WATCHERS.begin(number);
        Watch { number, losses: 0, faults: 0, asked_us: 0, pause_us: LEAST_US }
    }

    /// Milliseconds to wait for a message; negative: for ever.
    pub fn patience(&self) -> i32 {
        if WATCHERS.is_alone() { -1 } else { 1 }
    }

    pub fn back(&self) {
        WATCHERS.back(self.number);
    }

    /// A message has come. `slept`: it woke the handler. `thread` waited for a page. `rests` runs
    /// in a longer sleep.
    pub fn won(&mut self, slept: bool, thread: Option<u32>, rests: impl FnOnce()) {
        self.losses = 0;
        self.faults += 1;
        let can_call = || WATCHERS.any_aside() || MISSING.load(Ordering::Relaxed) != 0;
        let Some(thread) = thread.filter(|_| (slept || self.faults >= FAULTS) && can_call()) else {
            return;
        };
        let now = now_us();
        if now.saturating_sub(self.asked_us) < self.pause_us {
            return;
        }
        (self.asked_us, self.faults) = (now, 0);
        let longer = (self.pause_us * 2).min(MOST_US);
        self.pause_us = LEAST_US;
        let Some(post) = thread::stat(thread, parse_cpu).map(cpus::post_of) else {
            self.pause_us = longer;
            return call_all();
        };
        let mut handler = handler_at(post);
        if handler.is_none() {
            self.pause_us = longer;
            if MISSING.load(Ordering::Relaxed) != 0 {
                return want(post);
            }
            handler = bring(self.number, post);
        }
        match handler {
            Some(number) if number != self.number => {
                WATCHERS.call(number);
                if slept {
                    self.step_aside(rests);
                }
            }
            _ => self.pause_us = longer,
        }
    }

    /// No message has come; `rests` as above.
    pub fn lost(&mut self, rests: impl FnOnce()) {
        self.losses += 1;
        if self.losses >= LOSSES {
            self.step_aside(rests);
        }
    }

    fn step_aside(&mut self, rests: impl FnOnce()) {
        self.losses = 0;
        WATCHERS.step_aside(self.number, rests);
        self.faults = 0;
    }
}
