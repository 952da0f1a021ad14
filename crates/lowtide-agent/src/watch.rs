//! Which fault handler threads watch the userfaultfd: those of the CPUs on which threads wait for pages.
//!
//! A fault wakes all that watch, one of them gets it, and waking another CPU for nothing is the larger part of what a fault
//! costs. (The kernel puts the others back to sleep without telling them.) So the others sleep here. A handler asks now and
//! then on which CPU a thread is that it serves, and calls the one that serves that CPU if that is another, or lets it be
//! started; sooner if it had to be woken for the fault, which it need not be where the thread that stopped has left its CPU to
//! it. Who watches and gets nothing goes back to sleep, but for the last one.

use core::sync::atomic::{AtomicU32, Ordering};

use lowtide_core::watchers::Watchers;
use lowtide_pager::sys::Line;
use lowtide_pager::sys::clock::now_us;
use lowtide_pager::sys::stat::parse_cpu;

use crate::cpus::{self, MAX_POSTS};
use crate::{request, thread};

/// The thread id of the handler at each post; 0: there is none so far.
static POSTS: [AtomicU32; MAX_POSTS] = [const { AtomicU32::new(0) }; MAX_POSTS];
/// Who of them watches, by post.
static WATCHERS: Watchers<MAX_POSTS> = Watchers::new();
/// 1: a CPU has a post at which there is no handler.
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
    POSTS.iter().chain([&MISSING, &WANTED]).for_each(|word| word.store(0, Ordering::Relaxed));
    WATCHERS.reset();
}

/// Thread ids of the handlers, by post; 0: none.
pub fn threads() -> impl Iterator<Item = u32> {
    POSTS.iter().map(|thread| thread.load(Ordering::Relaxed))
}

/// Whether there is a handler at a post.
pub fn has_thread(post: usize) -> bool {
    POSTS[post].load(Ordering::Relaxed) != 0
}

/// The handler at a post is started as this thread. By the reclaimer.
pub fn starts(post: usize, thread: u32) {
    POSTS[post].store(thread, Ordering::Relaxed);
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
        Some(post) => WATCHERS.leave(post),
        None => WATCHERS.call_all(),
    }
    // Several threads wait at the same time, or would have to.
    if WATCHERS.are_all_away() {
        want_another();
    }
}

/// The CPU on which a thread of this process runs or last ran.
fn cpu_of(thread: u32) -> Option<u32> {
    let mut path = Line::new();
    path.push(b"/proc/self/task/").number(u64::from(thread)).push(b"/stat");
    thread::read_stat(path.bytes(), parse_cpu)
}

/// One handler's.
pub struct Watch {
    post: usize,
    losses: u32,
    faults: u32,
    asked_us: u64,
    pause_us: u64,
}

impl Watch {
    /// The handler at a post, the calling thread, begins to watch.
    pub fn new(post: usize) -> Watch {
        starts(post, thread::id());
        WATCHERS.begin(post);
        Watch { post, losses: 0, faults: 0, asked_us: 0, pause_us: LEAST_US }
    }

    /// How long to wait for a message, in milliseconds (negative: for ever).
    pub fn patience(&self) -> i32 {
        if WATCHERS.is_alone() { -1 } else { 1 }
    }

    /// Its turn is over: if it had to wait, it watches again.
    pub fn back(&self) {
        WATCHERS.back(self.post);
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
        match cpu_of(thread).map(cpus::post_of) {
            Some(post) if post == self.post => self.pause_us = longer,
            Some(post) if has_thread(post) => {
                WATCHERS.call(post);
                // No thread of this one's CPUs waits.
                if slept {
                    self.step_aside(rests);
                }
            }
            Some(post) => {
                self.pause_us = longer;
                want(post);
            }
            None => {
                self.pause_us = longer;
                call_all();
            }
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
        WATCHERS.step_aside(self.post, rests);
        self.faults = 0;
    }
}
