//! A mutex of loom's parts. Loom's own blocks a thread in `try_lock` while another takes the mutex,
//! and so reports false deadlocks.

use loom::sync::{Condvar, Mutex as Turn};
use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, TryLockError, TryLockResult};

/// As `std::sync::Mutex`; never poisoned.
#[derive(Debug, Default)]
pub struct Mutex<T> {
    held: Turn<bool>,
    freed: Condvar,
    /// Only the holder takes this.
    value: std::sync::Mutex<T>,
}

/// As `std::sync::MutexGuard`.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// `None` only during drop.
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
        // The check has failed, and its threads have stopped.
        if !std::thread::panicking() {
            *self.mutex.held.lock().unwrap() = false;
            self.mutex.freed.notify_one();
        }
    }
}
