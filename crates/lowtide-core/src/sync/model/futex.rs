//! A word that the model checker's threads sleep on.

use core::ops::Deref;

use super::atomic::{AtomicU32, Ordering};
#[cfg(feature = "loom")]
use loom::sync::{Condvar, Mutex};
#[cfg(all(feature = "shuttle", not(feature = "loom")))]
use shuttle::sync::{Condvar, Mutex};

/// As the shipped [`crate::sync::Futex`]: check and sleep are one step.
#[derive(Debug)]
pub struct Futex {
    word: AtomicU32,
    kernel: Mutex<()>,
    woken: Condvar,
}

impl Futex {
    /// A word without waiters.
    pub fn new(value: u32) -> Futex {
        Futex { word: AtomicU32::new(value), kernel: Mutex::new(()), woken: Condvar::new() }
    }

    /// Sleeps while the word is `value`.
    pub fn wait_while(&self, value: u32) {
        let mut kernel = self.kernel.lock().unwrap();
        while self.word.load(Ordering::Acquire) == value {
            kernel = self.woken.wait(kernel).unwrap();
        }
    }

    /// Times out at once.
    pub fn changes_within(&self, value: u32, _ms: u32) -> bool {
        self.word.load(Ordering::Acquire) != value
    }

    /// Wakes one sleeper.
    pub fn wake_one(&self) {
        let _kernel = self.kernel.lock().unwrap();
        self.woken.notify_one();
    }
}

impl Deref for Futex {
    type Target = AtomicU32;
    fn deref(&self) -> &AtomicU32 {
        &self.word
    }
}
