//! The buddy of an arena under its lock, and how much it has, which anybody reads without the lock: who finds no frame goes to
//! no node that has none.

use alloc::sync::Arc;
use core::sync::atomic::Ordering::{Acquire, Release};

use rustix::io::Errno;

use super::arrivals::Arrivals;
use super::buddy::Buddy;
use crate::lock::rank;
use crate::sync::Lock;
use crate::sync::atomic::AtomicU32;

/// A buddy that all CPUs share.
#[derive(Debug)]
pub(super) struct Stock {
    buddy: Lock<Buddy, { rank::BUDDY }>,
    /// Free frames of the buddy, written by plain stores with its lock held. What is free is seen by the lock; to whom a free
    /// has happened before, this has, too. Who sees that frames have left (Acquire) sees that the lists where they went are
    /// noted (Release).
    free: AtomicU32,
    /// Told when a buddy that was empty is so no longer.
    arrivals: Arc<Arrivals>,
}

impl Stock {
    /// All of `frames` frames free.
    ///
    /// # Errors
    /// As [`Buddy::new`].
    pub(super) fn new(frames: usize, arrivals: Arc<Arrivals>) -> Result<Stock, Errno> {
        Ok(Stock { buddy: Lock::new(Buddy::new(frames)?), free: AtomicU32::new(frames as u32), arrivals })
    }

    /// Free frames, as the last holder of the lock left them. Takes no lock.
    #[inline]
    pub(super) fn free(&self) -> u32 {
        self.free.load(Acquire)
    }

    /// Calls `f` with the lock held, which comes after that of a CPU's lists.
    #[inline]
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut Buddy) -> T) -> T {
        let mut buddy = self.buddy.lock();
        let before = buddy.free_frames();
        let value = f(&mut buddy);
        self.free.store(buddy.free_frames(), Release);
        if before == 0 && buddy.free_frames() > 0 {
            self.arrivals.add();
        }
        value
    }

    /// How often the lock was taken.
    #[cfg(all(test, not(any(feature = "loom", feature = "shuttle"))))]
    pub(super) fn acquisitions(&self) -> u32 {
        self.buddy.acquisitions()
    }

    /// Makes the lock usable in a forked child.
    ///
    /// # Safety
    /// As [`crate::lock::Lock::reset_after_fork`].
    pub(super) unsafe fn reset_after_fork(&self) {
        // SAFETY: the caller answers.
        unsafe { self.buddy.reset_after_fork() }
    }
}
