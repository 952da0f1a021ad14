//! Which fault handler threads watch the userfaultfd: those of the CPUs on which threads wait for pages.
//!
//! A fault wakes all that watch, one of them gets it, and waking another CPU for nothing is the larger part of what a fault
//! costs. (The kernel puts the others back to sleep without telling them.) So the others sleep here. A handler asks now and
//! then on which CPU a thread is that it serves, and calls the one that serves that CPU if that is another, or lets it be
//! started; sooner if it had to be woken for the fault, which it need not be where the thread that stopped has left its CPU to
//! it. Who watches and gets nothing goes back to sleep, but for the last one. Where no more are to be started, one that sleeps
//! is pinned to the CPU where one is missing, before it is called: that wakes nobody else.

use core::sync::atomic::{AtomicU32, Ordering};

use lowtide_core::posts::Posts;
use lowtide_core::watchers::Watchers;
use lowtide_pager::sys::clock::now_us;
use lowtide_pager::sys::stat::parse_cpu;

use crate::cpus::{self, MAX_POSTS};
use crate::{request, thread};

/// The thread id of each handler, by number; 0: there is none so far.
static THREADS: [AtomicU32; MAX_POSTS] = [const { AtomicU32::new(0) }; MAX_POSTS];
/// At which post each of them is.
static POSTS: Posts = Posts::new();
/// Who of them watches, by number.
static WATCHERS: Watchers<MAX_POSTS> = Watchers::new();
/// 1: a CPU has a post at which there is no handler, and one may be started there.
static MISSING: AtomicU32 = AtomicU32::new(0);
/// Bit n: one is to be started at post n.
static WANTED: AtomicU32 = AtomicU32::new(0);

/// Waits in a row that came to nothing, of a millisecond each at most, after which a handler steps aside.
const LOSSES: u32 = 2;
/// Faults after which it asks where the thread of one is.
const FAULTS: u32 = 64;
/// Time between two such questions, in microseconds, at least and at most: one takes some 5. Twice as long each time that the
/// answer is this handler's own CPU, or one that has none.
const LEAST_US: u64 = 100;
const MOST_US: u64 = 10_000;

/// In a new process image or a forked child, before its handlers start.
pub fn reset() {
    THREADS.iter().chain([&MISSING, &WANTED]).for_each(|word| word.store(0, Ordering::Relaxed));
    POSTS.reset();
    WATCHERS.reset();
}

/// Thread ids of the handlers, by number; 0: none.
pub fn threads() -> impl Iterator<Item = u32> {
    THREADS.iter().map(|thread| thread.load(Ordering::Relaxed))
}

/// Whether there is a handler at a post.
pub fn has_thread(post: usize) -> bool {
    handler_at(post).is_some()
}

/// The number of the handler that there is at a post, or would be.
pub fn number_at(post: usize) -> usize {
    POSTS.at(post)
}

/// Whether there is a handler of this number.
pub fn is_started(number: usize) -> bool {
    THREADS[number].load(Ordering::Relaxed) != 0
}

fn handler_at(post: usize) -> Option<usize> {
    Some(number_at(post)).filter(|number| is_started(*number))
}

/// The handler of a number is started as this thread. By the reclaimer, and by itself.
pub fn starts(number: usize, thread: u32) {
    // SeqCst: who brings another one to its post either sees it, and pins it, or has done so before it asks for its post.
    THREADS[number].store(thread, Ordering::SeqCst);
}

/// Keeps the handler of a number, if there is one, on the CPUs of its post.
pub fn pin(number: usize) {
    let thread = THREADS[number].load(Ordering::SeqCst);
    if thread != 0 {
        POSTS.pin(number, |post| {
            thread::set_affinity(thread, cpus::cpus_of(post));
        });
    }
}

/// Keeps all handlers on the CPUs of their posts, which have become others. By the reclaimer.
pub fn posts_have_changed() {
    POSTS.have_changed();
    (0..MAX_POSTS).for_each(pin);
}

/// Brings a handler that sleeps to a post where there is none. The next one by number: each has its turn.
fn bring(own: usize, post: usize) -> Option<usize> {
    let is_free = |number: &usize| THREADS[*number].load(Ordering::Relaxed) != 0 && WATCHERS.is_aside(*number);
    let number = (own + 1..own + MAX_POSTS).map(|number| number % MAX_POSTS).find(is_free)?;
    bring_to(post, number);
    Some(number)
}

fn bring_to(post: usize, number: usize) {
    let other = POSTS.bring(number, post);
    pin(number);
    // One may have been started there meanwhile.
    pin(other);
}

/// Brings one to another CPU, where no more may be started: others may keep those busy where they are. Another one each time. By
/// the reclaimer.
pub fn bring_another() {
    static TURN: AtomicU32 = AtomicU32::new(0);
    let turn = TURN.fetch_add(1, Ordering::Relaxed) as usize;
    let number = (turn..turn + MAX_POSTS).map(|i| i % MAX_POSTS).find(|i| THREADS[*i].load(Ordering::Relaxed) != 0);
    let post = (turn..turn + cpus::posts()).map(|i| i % cpus::posts()).find(|post| !has_thread(*post));
    if let (0, Some(number), Some(post)) = (MISSING.load(Ordering::Relaxed), number, post) {
        bring_to(post, number);
    }
}

/// Looks whether all posts have their handlers. By the reclaimer, when those or the posts have changed.
pub fn count_missing() {
    let is_missing = (0..cpus::posts()).any(|post| !has_thread(post));
    MISSING.store(is_missing.into(), Ordering::Relaxed);
}

/// A thread faults where there is no handler: one is to be started.
fn want(post: usize) {
    if WANTED.fetch_or(1 << post, Ordering::Relaxed) >> post & 1 == 0 {
        // However it sleeps, or is about to.
        request::ring();
    }
}

/// Lets one more be started, if a CPU has none: those that there are can't run, or wait.
pub fn want_another() {
    if MISSING.load(Ordering::Relaxed) != 0
        && let Some(post) = (0..cpus::posts()).find(|post| !has_thread(*post))
    {
        want(post);
    }
}

/// None can be started for a while: nobody is to ask.
pub fn want_none() {
    MISSING.store(0, Ordering::Relaxed);
}

/// Whether any are to be started.
pub fn any_wanted() -> bool {
    WANTED.load(Ordering::Relaxed) != 0
}

/// Which. By the reclaimer, which starts them.
pub fn take_wanted() -> impl Iterator<Item = usize> {
    let wanted = WANTED.swap(0, Ordering::Relaxed);
    (0..MAX_POSTS).filter(move |post| wanted >> post & 1 == 1)
}

/// All watch: the one that does can't run, or is not on the CPU of the thread that waits.
pub fn call_all() {
    WATCHERS.call_all();
}

/// All watch but the calling thread, which is about to wait, for a device or for another thread; if it is a handler, until its
/// turn is over.
pub fn leave() {
    let own = thread::id();
    match threads().position(|thread| thread == own) {
        Some(number) => WATCHERS.leave(number),
        None => WATCHERS.call_all(),
    }
    // Several threads wait at the same time, or would have to.
    if WATCHERS.are_all_away() {
        want_another();
    }
}

/// One handler's.
pub struct Watch {
    number: usize,
    losses: u32,
    faults: u32,
    asked_us: u64,
    pause_us: u64,
}

impl Watch {
    /// The handler of a number, the calling thread, begins to watch.
    pub fn new(number: usize) -> Watch {
        WATCHERS.begin(number);
        Watch { number, losses: 0, faults: 0, asked_us: 0, pause_us: LEAST_US }
    }

    /// How long to wait for a message, in milliseconds (negative: for ever).
    pub fn patience(&self) -> i32 {
        if WATCHERS.is_alone() { -1 } else { 1 }
    }

    /// Its turn is over: if it had to wait, it watches again.
    pub fn back(&self) {
        WATCHERS.back(self.number);
    }

    /// It has got a message; `slept`: it had to be woken for it. `thread` waited for a page, if that was it. `rests` is called
    /// when it has slept for a while until it is called.
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
                // No thread of this one's CPUs waits.
                if slept {
                    self.step_aside(rests);
                }
            }
            _ => self.pause_us = longer,
        }
    }

    /// It waited, and there was nothing for it. Sleeps if others watch; `rests` as above.
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
