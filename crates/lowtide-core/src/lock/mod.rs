//! A spin-then-park mutual exclusion lock that needs no thread-local storage and no allocation, and can be reset in a forked
//! child.
//!
//! Each lock has a rank, its place in the lock order of lowtide (`rank.rs`); debug builds assert it. The time that threads wait
//! is kept per rank; how often a lock is taken only with the feature `lab`.

mod order;
pub mod rank;
mod stats;

use core::cell::UnsafeCell;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;
use rustix::time::Timespec;

pub(crate) use order::assert_holds_none;
pub use stats::{Waits, all_waits, reset_waits, waits};
#[cfg(feature = "lab")]
pub use stats::{count_taken, taken};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// How long a thread sleeps at most before it looks again: see [`Guard`]'s drop.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// How often to look at a held lock before sleeping: about as long as a futex call takes.
const SPINS: u32 = 400;

/// A mutual exclusion lock of a rank around a `T`. Not fair; poison-free (lowtide does not unwind).
// In this order: what each acquisition writes lies on one cache line, with the beginning of the value.
#[repr(C)]
pub struct Lock<T, const RANK: u8 = { rank::UNRANKED }> {
    word: AtomicU32,
    /// Threads that sleep or are about to.
    sleepers: AtomicU32,
    /// How often the lock was taken; wraps. Only the holder uses it.
    #[cfg(feature = "lab")]
    taken: UnsafeCell<u32>,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands out one reference at a time.
unsafe impl<T: Send, const RANK: u8> Sync for Lock<T, RANK> {}

impl<T, const RANK: u8> fmt::Debug for Lock<T, RANK> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("rank", &RANK).field("word", &self.word).finish_non_exhaustive()
    }
}

impl<T: Default, const RANK: u8> Default for Lock<T, RANK> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T, const RANK: u8> Lock<T, RANK> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        Lock {
            word: AtomicU32::new(FREE),
            sleepers: AtomicU32::new(0),
            #[cfg(feature = "lab")]
            taken: UnsafeCell::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock, spinning for a short while and then sleeping until it is free. Debug builds panic if this thread holds a
    /// lock of the same or a higher rank.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T, RANK> {
        order::assert_may_wait(RANK);
        // Acquire, wherever the lock is taken: pairs with the Release with which it is given back.
        if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_contended();
        }
        self.taken()
    }

    /// Takes the lock if it is free. Allowed whatever this thread holds: a thread that does not wait can't deadlock.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T, RANK>> {
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).ok().map(|_| self.taken())
    }

    #[inline]
    fn taken(&self) -> Guard<'_, T, RANK> {
        order::took(RANK);
        #[cfg(feature = "lab")]
        stats::took(RANK);
        #[cfg(feature = "lab")]
        // SAFETY: this thread has just become the one holder.
        unsafe {
            *self.taken.get() = (*self.taken.get()).wrapping_add(1);
        }
        Guard { lock: self }
    }

    #[cold]
    fn lock_contended(&self) {
        let wait = stats::begin();
        self.wait();
        stats::end(RANK, wait);
    }

    fn wait(&self) {
        for _ in 0..SPINS {
            if self.word.load(Ordering::Relaxed) == FREE
                && self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
            core::hint::spin_loop();
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            let _ = futex::wait(&self.word, futex::Flags::PRIVATE, HELD, Some(&NAP));
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// How often the lock was taken, modulo 2^32. Takes it once more, uncounted.
    #[cfg(feature = "lab")]
    pub fn acquisitions(&self) -> u32 {
        let guard = self.lock();
        // SAFETY: the guard excludes everybody else.
        let taken = unsafe { &mut *guard.lock.taken.get() };
        *taken = taken.wrapping_sub(1);
        *taken
    }

    /// Frees the lock whoever holds it.
    ///
    /// # Safety
    /// Only in a forked child, before it has a second thread, when the holder (a thread of the parent that does not exist here)
    /// was not changing the value at the moment of the fork.
    pub unsafe fn reset_after_fork(&self) {
        // Looked at first: a store to a free lock would make the child copy the page that the lock is in.
        if self.word.load(Ordering::Relaxed) != FREE {
            self.word.store(FREE, Ordering::Relaxed);
            self.sleepers.store(0, Ordering::Relaxed);
        }
    }
}

/// The right to use the value; gives the lock back when dropped.
pub struct Guard<'a, T, const RANK: u8 = { rank::UNRANKED }> {
    lock: &'a Lock<T, RANK>,
}

impl<T, const RANK: u8> Deref for Guard<'_, T, RANK> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this guard is the one holder of the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, const RANK: u8> DerefMut for Guard<'_, T, RANK> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the one holder of the lock.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T, const RANK: u8> Drop for Guard<'_, T, RANK> {
    #[inline]
    fn drop(&mut self) {
        order::gave(RANK);
        // Release: pairs with the Acquire with which the lock is taken.
        self.lock.word.store(FREE, Ordering::Release);
        // A plain store, not a read-modify-write, which would cost as much as taking the lock. So a processor may look for
        // sleepers before its store is seen by one who is about to sleep: then nobody wakes that one, who looks again after its
        // nap.
        if self.lock.sleepers.load(Ordering::Relaxed) != 0 {
            let _ = futex::wake(&self.lock.word, futex::Flags::PRIVATE, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::vec::Vec;

    #[test]
    fn excludes() {
        let lock = Arc::new(Lock::<u64>::new(0));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let lock = lock.clone();
                std::thread::spawn(move || {
                    for _ in 0..20_000 {
                        let mut value = lock.lock();
                        let seen = *value;
                        core::hint::spin_loop();
                        *value = seen + 1;
                    }
                })
            })
            .collect();
        for t in threads {
            t.join().unwrap();
        }
        assert_eq!(*lock.lock(), 80_000);
        assert_eq!(lock.acquisitions(), 80_001);
        assert_eq!(lock.acquisitions(), 80_001, "asking does not count");
        assert!(lock.try_lock().is_some());
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(held);
    }

    #[test]
    fn who_waits_is_counted_and_who_does_not_wait_is_not() {
        // No other test has such a lock.
        const RANK: u8 = rank::HAND;
        let lock = Lock::<u64, RANK>::new(0);
        for _ in 0..100 {
            *lock.lock() += 1;
        }
        assert_eq!(waits(RANK), Waits::default());
        let held = lock.lock();
        std::thread::scope(|threads| {
            let waiting = threads.spawn(|| *lock.lock());
            while lock.sleepers.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            drop(held);
            assert_eq!(waiting.join().unwrap(), 100);
        });
        let (of_rank, all) = (waits(RANK), all_waits());
        assert!(of_rank.contended == 1 && of_rank.total_ns > 0 && of_rank.max_ns == of_rank.total_ns, "{of_rank:?}");
        assert!(all.contended >= 1 && all.total_ns >= of_rank.total_ns && all.max_ns >= of_rank.max_ns, "{all:?}");
    }
}
