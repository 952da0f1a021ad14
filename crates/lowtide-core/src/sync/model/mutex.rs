//! A mutex of loom's parts in place of loom's own, which blocks a thread that is about to *try* a mutex when another one takes
//! it, and so reports deadlocks that can't happen.

use loom::sync::{Condvar, Mutex as Turn};
use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, TryLockError, TryLockResult};

/// As `std::sync::Mutex`; never poisoned.
#[derive(Debug, Default)]
pub struct Mutex<T> {
    /// Whether it is held.
    held: Turn<bool>,
    freed: Condvar,
    /// Only the holder takes this.
    value: std::sync::Mutex<T>,
}

/// As `std::sync::MutexGuard`.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// Until it is dropped.
    value: Option<std::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub fn new(value: T) -> Mutex<T> {
        Mutex { held: Turn::new(false), freed: Condvar::new(), value: std::sync::Mutex::new(value) }
    }

    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let mut held = self.held.lock().unwrap();
        while *held {
            held = self.freed.wait(held).unwrap();
        }
        *held = true;
        Ok(self.guard())
    }

    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        let mut held = self.held.lock().unwrap();
        if *held {
            return Err(TryLockError::WouldBlock);
        }
        *held = true;
        Ok(self.guard())
    }

    fn guard(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, value: Some(self.value.try_lock().expect("one holder at a time")) }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.value.as_ref().unwrap()
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().unwrap()
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        // The check has failed already, and its threads run no more.
        if !std::thread::panicking() {
            *self.mutex.held.lock().unwrap() = false;
            self.mutex.freed.notify_one();
        }
    }
}
