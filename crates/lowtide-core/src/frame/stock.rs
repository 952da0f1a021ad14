//! The buddy of an arena under its lock, and its free frames, readable without it: a search skips
//! nodes without any.

use alloc::sync::Arc;
use core::sync::atomic::Ordering::{Acquire, Release};

use rustix::io::Errno;

use super::arrivals::Arrivals;
use super::buddy::Buddy;
use crate::lock::rank;
use crate::sync::Lock;
use crate::sync::atomic::AtomicU32;

#[derive(Debug)]
pub(super) struct Stock {
    buddy: Lock<Buddy, { rank::BUDDY }>,
    /// A thread that a free happened before sees it here. Acquire and Release: a thread that sees
    /// frames gone also sees their lists noted.
    free: AtomicU32,
    /// Notified when an empty buddy gets frames.
    arrivals: Arc<Arrivals>,
}

impl Stock {
    pub(super) fn new(frames: usize, arrivals: Arc<Arrivals>) -> Result<Stock, Errno> {
        Ok(Stock { buddy: Lock::new(Buddy::new(frames)?), free: AtomicU32::new(frames as u32), arrivals })
    }

    /// Takes no lock.
    #[inline]
    pub(super) fn free(&self) -> u32 {
        self.free.load(Acquire)
    }

    /// The lock comes after that of a CPU's lists.
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

    #[cfg(all(test, not(any(feature = "loom", feature = "shuttle"))))]
    pub(super) fn acquisitions(&self) -> u32 {
        self.buddy.acquisitions()
    }

    /// Makes the lock usable in a forked child.
    ///
    /// # Safety
    /// As [`crate::lock::Lock::reset_after_fork`].
    pub(super) unsafe fn reset_after_fork(&self) {
        // SAFETY: the caller's contract.
        unsafe { self.buddy.reset_after_fork() }
    }
}
