//! Which monitors watch the userfaultfd: those of the CPUs on which threads wait for pages.
//!
//! A fault wakes all that watch, one of them gets it, and waking another CPU for nothing is the larger part of what a fault
//! costs. (The kernel puts the others back to sleep without telling them.) So the others sleep here. A monitor asks now and
//! then on which CPU a thread is that it serves, and calls the monitor there if that is not its own; sooner if it had to be
//! woken for the fault, which it need not be where the thread that stopped has left its CPU to it. Who watches and gets nothing
//! goes back to sleep, but for the last one.

use core::sync::atomic::{AtomicU32, Ordering};

use lowtide_core::watchers::Watchers;
use lowtide_pager::sys::Line;
use lowtide_pager::sys::clock::now_us;
use lowtide_pager::sys::stat::parse_cpu;

use crate::thread;

/// One monitor, as the others find it.
struct Post {
    /// Its CPU, plus 1; 0: there is none.
    cpu: AtomicU32,
    /// Its thread id.
    thread: AtomicU32,
}

/// Most monitors: a fault wakes all of them that watch, so more of them cost more.
pub const MAX_MONITORS: usize = 16;

static POSTS: [Post; MAX_MONITORS] = [const { Post { cpu: AtomicU32::new(0), thread: AtomicU32::new(0) } }; MAX_MONITORS];
/// Who of them watches, by post.
static WATCHERS: Watchers<MAX_MONITORS> = Watchers::new();

/// Waits in a row that came to nothing, of a millisecond each at most, after which a monitor steps aside.
const LOSSES: u32 = 2;
/// Faults after which it asks where the thread of one is.
const FAULTS: u32 = 64;
/// Time between two such questions, in microseconds, at least and at most: one takes some 5. Twice as long each time that the
/// answer is this monitor's own CPU.
const LEAST_US: u64 = 100;
const MOST_US: u64 = 10_000;

/// In a new process image or a forked child, before its monitors start.
pub fn reset() {
    for post in &POSTS {
        post.cpu.store(0, Ordering::Relaxed);
        post.thread.store(0, Ordering::Relaxed);
    }
    WATCHERS.reset();
}

/// Thread ids of the monitors; 0: none.
pub fn threads() -> impl Iterator<Item = u32> {
    POSTS.iter().map(|post| post.thread.load(Ordering::Relaxed))
}

/// All watch: the one that does can't run, or is not on the CPU of the thread that waits.
pub fn call_all() {
    WATCHERS.call_all();
}

/// All watch but the calling thread, which is about to wait, for a device or for another thread; if it is a monitor, until its
/// turn is over.
pub fn leave() {
    let own = thread::id();
    match POSTS.iter().position(|post| post.thread.load(Ordering::Relaxed) == own) {
        Some(post) => WATCHERS.leave(post),
        None => WATCHERS.call_all(),
    }
}

/// The CPU on which a thread of this process runs or last ran.
fn cpu_of(thread: u32) -> Option<u32> {
    let mut path = Line::new();
    path.push(b"/proc/self/task/").number(u64::from(thread)).push(b"/stat");
    thread::read_stat(path.bytes(), parse_cpu)
}

/// One monitor's.
pub struct Watch {
    post: usize,
    cpu: u32,
    losses: u32,
    faults: u32,
    asked_us: u64,
    pause_us: u64,
}

impl Watch {
    /// The monitor of a CPU begins to watch.
    pub fn new(cpu: usize) -> Watch {
        let cpu = cpu as u32;
        let free = |p: &Post| p.cpu.compare_exchange(0, cpu + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        // There are as many posts as monitors.
        let post = POSTS.iter().position(free).unwrap_or(0);
        POSTS[post].thread.store(thread::id(), Ordering::Relaxed);
        WATCHERS.begin(post);
        Watch { post, cpu, losses: 0, faults: 0, asked_us: 0, pause_us: LEAST_US }
    }

    /// How long to wait for a message, in milliseconds (negative: for ever).
    pub fn patience(&self) -> i32 {
        if WATCHERS.is_alone() { -1 } else { 1 }
    }

    /// Its turn is over: if it had to wait, it watches again.
    pub fn back(&self) {
        WATCHERS.back(self.post);
    }

    /// It has got a message; `slept`: it had to be woken for it. `thread` waited for a page, if that was it.
    pub fn won(&mut self, slept: bool, thread: Option<u32>) {
        self.losses = 0;
        self.faults += 1;
        let Some(thread) = thread.filter(|_| (slept || self.faults >= FAULTS) && WATCHERS.any_aside()) else {
            return;
        };
        let now = now_us();
        if now.saturating_sub(self.asked_us) < self.pause_us {
            return;
        }
        (self.asked_us, self.faults) = (now, 0);
        let own = self.pause_us * 2;
        self.pause_us = LEAST_US;
        match cpu_of(thread) {
            Some(cpu) if cpu == self.cpu => self.pause_us = own.min(MOST_US),
            Some(cpu) => {
                let Some(there) = POSTS.iter().position(|post| post.cpu.load(Ordering::Acquire) == cpu + 1) else {
                    // There are more CPUs than monitors: whichever serves it has to be woken.
                    self.pause_us = own.min(MOST_US);
                    return call_all();
                };
                WATCHERS.call(there);
                // No thread of this CPU waits.
                if slept {
                    self.step_aside();
                }
            }
            None => {
                self.pause_us = own.min(MOST_US);
                call_all();
            }
        }
    }

    /// It waited, and there was nothing for it. Sleeps if others watch.
    pub fn lost(&mut self) {
        self.losses += 1;
        if self.losses >= LOSSES {
            self.step_aside();
        }
    }

    fn step_aside(&mut self) {
        self.losses = 0;
        WATCHERS.step_aside(self.post);
        self.faults = 0;
    }
}
