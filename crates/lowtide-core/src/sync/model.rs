//! The model checker's lock, as [`crate::lock::Lock`].

#[cfg(feature = "loom")]
pub mod atomic;
mod futex;
#[cfg(feature = "loom")]
mod mutex;

use std::boxed::Box;
use std::ops::{Deref, DerefMut};

use rustix::io::Errno;

use crate::vm::OnFork;

pub use futex::Futex;
#[cfg(feature = "loom")]
pub use loom::{hint::spin_loop, thread::yield_now as pause, thread::yield_now as rest};
#[cfg(feature = "loom")]
use mutex::{Mutex, MutexGuard};
#[cfg(all(feature = "shuttle", not(feature = "loom")))]
use shuttle::sync::{Mutex, MutexGuard};
#[cfg(all(feature = "shuttle", not(feature = "loom")))]
pub use shuttle::{hint::spin_loop, sync::atomic, thread::yield_now as pause, thread::yield_now as rest};

/// As [`crate::lock::Lock`].
#[derive(Debug, Default)]
pub struct Lock<T, const RANK: u8 = 0>(Mutex<T>);

/// As [`crate::lock::Guard`].
pub struct Guard<'a, T, const RANK: u8 = 0>(MutexGuard<'a, T>);

impl<T, const RANK: u8> Lock<T, RANK> {
    /// A free lock.
    pub fn new(value: T) -> Self {
        Lock(Mutex::new(value))
    }

    /// Takes the lock.
    pub fn lock(&self) -> Guard<'_, T, RANK> {
        Guard(self.0.lock().unwrap())
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<Guard<'_, T, RANK>> {
        self.0.try_lock().ok().map(Guard)
    }

    /// Not counted in a model.
    pub fn acquisitions(&self) -> u32 {
        0
    }

    /// No effect: models don't fork.
    ///
    /// # Safety
    /// As [`crate::lock::Lock::reset_after_fork`].
    pub unsafe fn reset_after_fork(&self) {}
}

impl<T, const RANK: u8> Deref for Guard<'_, T, RANK> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T, const RANK: u8> DerefMut for Guard<'_, T, RANK> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// As [`crate::table::Table`], of values made one by one.
#[derive(Debug)]
pub struct Array<T>(Box<[T]>);

impl<T: Default> Array<T> {
    /// An array of `len` default values.
    ///
    /// # Errors
    /// None, unlike [`crate::table::Table::new`].
    pub fn new(len: usize, _on_fork: OnFork) -> Result<Array<T>, Errno> {
        Ok(Array((0..len).map(|_| T::default()).collect()))
    }
}

impl<T> Array<T> {
    /// Not counted in a model.
    pub fn populated_bytes(&self) -> usize {
        0
    }
}

impl<T> Deref for Array<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}
