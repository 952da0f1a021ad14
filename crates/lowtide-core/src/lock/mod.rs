//! A spin-then-park mutex without thread-local storage or allocation, resettable in a forked child.
//!
//! Debug builds assert the lock order (`rank.rs`). Wait times are kept per rank; acquisition counts
//! only with the feature `lab`.

#[cfg_attr(not(feature = "lab"), path = "no_lab.rs")]
mod lab;
mod order;
pub mod rank;
mod stats;

use core::cell::UnsafeCell;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;
use rustix::time::Timespec;

use lab::Acquisitions;

#[cfg(feature = "lab")]
pub use lab::{count_taken, taken};
pub(crate) use order::assert_holds_none;
pub use stats::{Waits, reset_waits, waits};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Longest sleep between tries: see [`Guard`]'s drop.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// About as long as a futex call.
const SPINS: u32 = 400;

/// A mutex of a rank around a `T`. Not fair; no poisoning.
// In this order: an acquisition writes one cache line, shared with the start of the value.
#[repr(C)]
pub struct Lock<T, const RANK: u8 = { rank::UNRANKED }> {
    word: AtomicU32,
    /// Asleep or about to sleep.
    sleepers: AtomicU32,
    acquisitions: Acquisitions,
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
            acquisitions: Acquisitions::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock: spins shortly, then sleeps. Debug builds panic if this thread holds a lock
    /// of the same or a higher rank.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T, RANK> {
        order::assert_may_wait(RANK);
        // Acquire, wherever the lock is taken: pairs with the Release on unlock.
        if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_contended();
        }
        self.taken()
    }

    /// Takes the lock if it is free. Allowed whatever this thread holds: trying can't deadlock.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T, RANK>> {
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).ok().map(|_| self.taken())
    }

    #[inline]
    fn taken(&self) -> Guard<'_, T, RANK> {
        order::took(RANK);
        // SAFETY: this thread has just become the one holder.
        unsafe { self.acquisitions.count(RANK) };
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

    /// Whether a thread sleeps on it, or is about to.
    #[cfg(test)]
    pub fn is_awaited(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) > 0
    }

    /// Frees the lock, whatever its holder.
    ///
    /// # Safety
    /// Only in a forked child before it has a second thread, if the holder (a thread of the parent)
    /// was not changing the value at the fork.
    pub unsafe fn reset_after_fork(&self) {
        // A store to a free lock would copy its page in the child.
        if self.word.load(Ordering::Relaxed) != FREE {
            self.word.store(FREE, Ordering::Relaxed);
            self.sleepers.store(0, Ordering::Relaxed);
        }
    }
}

/// Out of line: rare.
#[cold]
#[inline(never)]
fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
}

/// Access to the value; unlocks on drop.
pub struct Guard<'a, T, const RANK: u8 = { rank::UNRANKED }> {
    lock: &'a Lock<T, RANK>,
}

impl<T, const RANK: u8> Deref for Guard<'_, T, RANK> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this guard is the one holder.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, const RANK: u8> DerefMut for Guard<'_, T, RANK> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the one holder.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T, const RANK: u8> Drop for Guard<'_, T, RANK> {
    #[inline]
    fn drop(&mut self) {
        order::gave(RANK);
        // Release: pairs with the Acquire of the next holder.
        self.lock.word.store(FREE, Ordering::Release);
        // A plain store: a read-modify-write costs as much as taking the lock. So the load of
        // `sleepers` may miss a thread that goes to sleep without seeing the store; it tries again
        // after its nap.
        if self.lock.sleepers.load(Ordering::Relaxed) != 0 {
            wake(&self.lock.word);
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
            while !lock.is_awaited() {
                std::thread::yield_now();
            }
            drop(held);
            assert_eq!(waiting.join().unwrap(), 100);
        });
        let of_rank = waits(RANK);
        assert!(of_rank.contended == 1 && of_rank.total_ns > 0 && of_rank.max_ns == of_rank.total_ns, "{of_rank:?}");
    }
}
