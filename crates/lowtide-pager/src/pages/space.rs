//! The space lock. Threads that serve and store share it. A thread that reads a message takes it
//! alone, and applies the event in the same hold; so does a thread that detaches pages.
//!
//! Outermost in the lock order. Host threads never take it: a host thread may fault on its own
//! stack, and the handler that would serve that needs this lock.

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::thread::{Timespec, futex, nanosleep, sched_yield};

use lowtide_sys::clock::now_ns;

const EXCLUSIVE: u32 = 1 << 31;
/// Some tens of microseconds. A hold takes one or two; waking a thread on a halted virtual CPU
/// takes 40.
const SPINS: u32 = 2000;
/// Where nobody would wake a sleeper; then naps, in nanoseconds.
const YIELDS: u32 = 100;
const NAP_NS: i64 = 50_000;

/// A reader-writer lock without thread-local storage or allocation; waiting writers keep new
/// readers out.
#[derive(Debug, Default)]
pub struct SpaceLock {
    state: AtomicU32,
    writers: AtomicU32,
    sleepers: AtomicU32,
    /// Exclusive holds so far; wraps.
    ended: AtomicU32,
    /// How often a thread slept for it.
    pub sleeps: AtomicU64,
    /// For how many nanoseconds.
    pub waited_ns: AtomicU64,
}

/// The right to serve and evict; see [`SpaceLock::shared`].
pub struct Shared<'a>(&'a SpaceLock);
/// The right to read and apply messages; see [`SpaceLock::exclusive`].
pub struct Exclusive<'a> {
    lock: &'a SpaceLock,
    spent: Cell<usize>,
}

impl SpaceLock {
    /// A free lock.
    pub const fn new() -> Self {
        SpaceLock {
            state: AtomicU32::new(0),
            writers: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            ended: AtomicU32::new(0),
            sleeps: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
        }
    }

    /// Takes the lock together with other sharers.
    pub fn shared(&self) -> Shared<'_> {
        let mut spins = 0;
        loop {
            let s = self.state.load(Ordering::Relaxed);
            // Acquire: pairs with the SeqCst, as a Release, of dropping an Exclusive.
            let free = s & EXCLUSIVE == 0 && self.writers.load(Ordering::Relaxed) == 0;
            if free && self.state.compare_exchange_weak(s, s + 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Shared(self);
            }
            self.pause(&mut spins, s, s & EXCLUSIVE != 0);
        }
    }

    /// Takes the lock alone.
    pub fn exclusive(&self) -> Exclusive<'_> {
        // Acquire, here and below: pairs with the SeqCst, as a Release, of dropping a Shared or an
        // Exclusive.
        if self.state.compare_exchange(0, EXCLUSIVE, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return Exclusive { lock: self, spent: Cell::new(0) };
        }
        self.writers.fetch_add(1, Ordering::Relaxed);
        let mut spins = 0;
        loop {
            if self.state.compare_exchange(0, EXCLUSIVE, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                self.writers.fetch_sub(1, Ordering::Relaxed);
                return Exclusive { lock: self, spent: Cell::new(0) };
            }
            let s = self.state.load(Ordering::Relaxed);
            if s != 0 {
                self.pause(&mut spins, s, true);
            }
        }
    }

    /// Whether others wait, apart from those that still spin.
    pub(crate) fn is_wanted(&self) -> bool {
        self.writers.load(Ordering::Relaxed) > 0 || self.sleepers.load(Ordering::Relaxed) > 0
    }

    #[cfg(test)]
    pub(crate) fn holds(&self) -> u32 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Waits until the present exclusive holder has let go. For host threads: takes nothing.
    pub fn outlast_exclusive(&self) {
        // Acquire, of both: pairs with the Release and the SeqCst of dropping an Exclusive.
        let ended = self.ended.load(Ordering::Acquire);
        let mut spins = 0;
        loop {
            let state = self.state.load(Ordering::Acquire);
            if state & EXCLUSIVE == 0 || self.ended.load(Ordering::Acquire) != ended {
                return;
            }
            self.pause(&mut spins, state, true);
        }
    }

    /// Spins, then sleeps while the state is `seen`; only naps if it may become `seen` again
    /// unnoticed.
    fn pause(&self, spins: &mut u32, seen: u32, may_sleep: bool) {
        *spins += 1;
        if *spins < SPINS {
            core::hint::spin_loop();
        } else if may_sleep {
            let started = now_ns();
            // SeqCst: pairs with the change of `state` and the load of `sleepers` in the thread
            // that lets go. Either that load sees this thread, or the kernel sees the changed
            // `state` before the sleep.
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            let _ = futex::wait(&self.state, futex::Flags::PRIVATE, seen, None);
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
            self.sleeps.fetch_add(1, Ordering::Relaxed);
            self.waited_ns.fetch_add(now_ns() - started, Ordering::Relaxed);
        } else if *spins < SPINS + YIELDS {
            sched_yield();
        } else {
            let _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec: NAP_NS });
        }
    }

    fn wake(&self) {
        // SeqCst: pairs with the count in `pause`.
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _ = futex::wake(&self.state, futex::Flags::PRIVATE, i32::MAX as u32);
        }
    }

    /// Frees the lock, whatever its state.
    ///
    /// # Safety
    /// Only in a forked child before it has a second thread.
    pub unsafe fn reset_after_fork(&self) {
        self.state.store(0, Ordering::Relaxed);
        self.writers.store(0, Ordering::Relaxed);
        self.sleepers.store(0, Ordering::Relaxed);
        self.sleeps.store(0, Ordering::Relaxed);
        self.waited_ns.store(0, Ordering::Relaxed);
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        // SeqCst: pairs with the Acquire in `exclusive`, and with the sleepers' in `pause`.
        if self.0.state.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.wake();
        }
    }
}

impl Exclusive<'_> {
    /// Others can have the lock while `f` runs. All read messages must be applied or held back.
    pub(crate) fn while_free<R>(&mut self, f: impl FnOnce() -> R) -> R {
        self.let_go();
        let result = f();
        core::mem::forget(self.lock.exclusive());
        self.spent.set(0);
        result
    }

    /// Work done in this hold, in the caller's unit.
    pub(crate) fn spent(&self) -> usize {
        self.spent.get()
    }

    pub(crate) fn spend(&self, more: usize) {
        self.spent.set(self.spent.get().saturating_add(more));
    }

    fn let_go(&self) {
        // Release: pairs with the Acquire in `outlast_exclusive`.
        self.lock.ended.fetch_add(1, Ordering::Release);
        // SeqCst: pairs with the Acquire in `shared`, `exclusive` and `outlast_exclusive`, and with
        // the sleepers' in `pause`.
        self.lock.state.store(0, Ordering::SeqCst);
        self.lock.wake();
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        self.let_go();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicUsize;
    use std::sync::Arc;
    use std::vec::Vec;

    #[test]
    fn writers_are_alone_and_readers_are_not() {
        let lock = Arc::new((SpaceLock::new(), AtomicUsize::new(0), AtomicUsize::new(0)));
        let threads: Vec<_> = (0..4)
            .map(|t| {
                let lock = lock.clone();
                std::thread::spawn(move || {
                    for i in 0..5000 {
                        if (i + t) % 4 == 0 {
                            let _g = lock.0.exclusive();
                            assert_eq!(lock.1.fetch_add(1, Ordering::SeqCst), 0, "two writers");
                            assert_eq!(lock.2.load(Ordering::SeqCst), 0, "a reader beside a writer");
                            lock.1.fetch_sub(1, Ordering::SeqCst);
                        } else {
                            let _g = lock.0.shared();
                            lock.2.fetch_add(1, Ordering::SeqCst);
                            assert_eq!(lock.1.load(Ordering::SeqCst), 0, "a writer beside a reader");
                            lock.2.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                })
            })
            .collect();
        for t in threads {
            t.join().unwrap();
        }
        let (a, b) = (lock.0.shared(), lock.0.shared());
        drop((a, b));
    }

    #[test]
    fn who_waits_for_a_writer_that_has_not_begun_lets_the_cpu_go() {
        let lock = Arc::new((SpaceLock::new(), AtomicUsize::new(0)));
        lock.0.writers.fetch_add(1, Ordering::Relaxed);
        let reader = lock.clone();
        let reader = std::thread::spawn(move || {
            reader.1.store(rustix::thread::gettid().as_raw_nonzero().get() as usize, Ordering::Relaxed);
            drop(reader.0.shared());
        });
        let sleeps = || {
            let status = std::fs::read_to_string(std::format!("/proc/self/task/{}/status", lock.1.load(Ordering::Relaxed)));
            let line = |s: &str| s.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok());
            status.ok().and_then(|s| line(&s)).unwrap_or(0u64)
        };
        for _ in 0..1000 {
            if sleeps() >= 20 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let slept = sleeps();
        lock.0.writers.fetch_sub(1, Ordering::Relaxed);
        reader.join().unwrap();
        assert!(slept >= 20, "it slept {slept} times");
    }
}
