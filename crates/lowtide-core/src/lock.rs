//! A spin-then-park mutual exclusion lock that needs no thread-local storage and no allocation, and can be reset in a forked
//! child. The three states of the word (free, held, held with waiters) are those of Drepper, "Futexes Are Tricky" (2011).
//!
//! LOCK ORDER of lowtide, outermost first (a thread may only take a lock further right than those that it holds):
//! space (pager) > staging lists > slot cluster > lists of an area > pool class > frames. Nobody holds any of them across
//! device I/O.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;

const FREE: u32 = 0;
const HELD: u32 = 1;
const WAITED: u32 = 2;

/// How often to look at a held lock before sleeping: about as long as a futex call takes.
const SPINS: u32 = 100;

/// A mutual exclusion lock around a `T`. Not fair; poison-free (lowtide does not unwind).
#[derive(Debug, Default)]
pub struct Lock<T> {
    word: AtomicU32,
    contended: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands out one reference at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        Lock { word: AtomicU32::new(FREE), contended: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Takes the lock, spinning for a short while and then sleeping until it is free.
    pub fn lock(&self) -> Guard<'_, T> {
        if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_contended();
        }
        Guard { lock: self }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).ok().map(|_| Guard { lock: self })
    }

    #[cold]
    fn lock_contended(&self) {
        self.contended.fetch_add(1, Ordering::Relaxed);
        for _ in 0..SPINS {
            if self.word.load(Ordering::Relaxed) == FREE
                && self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
            core::hint::spin_loop();
        }
        while self.word.swap(WAITED, Ordering::Acquire) != FREE {
            let _ = futex::wait(&self.word, futex::Flags::PRIVATE, WAITED, None);
        }
    }

    /// How often a thread found the lock held.
    pub fn contended(&self) -> u32 {
        self.contended.load(Ordering::Relaxed)
    }

    /// Reaches the value without locking, given that nobody else can.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
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
        }
    }
}

/// The right to use the value; gives the lock back when dropped.
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this guard is the one holder of the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the one holder of the lock.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        if self.lock.word.swap(FREE, Ordering::Release) == WAITED {
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
        let lock = Arc::new(Lock::new(0u64));
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
        assert!(lock.try_lock().is_some());
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(held);
    }
}
