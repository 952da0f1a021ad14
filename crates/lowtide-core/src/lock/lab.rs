//! Counts of locks taken, for experiments (feature `lab`): one for each lock, and per rank.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::Lock;
use super::rank::RANKS;

/// Off by default: threads would contend for the counters.
static COUNTS_TAKEN: AtomicBool = AtomicBool::new(false);
static TAKEN: [AtomicU64; RANKS] = [const { AtomicU64::new(0) }; RANKS];

/// Starts counting acquisitions ([`taken`]), for single-threaded processes.
pub fn count_taken() {
    COUNTS_TAKEN.store(true, Relaxed);
}

/// Acquisitions per rank since [`count_taken`].
pub fn taken() -> [u64; RANKS] {
    core::array::from_fn(|rank| TAKEN[rank].load(Relaxed))
}

/// Of one lock; wraps. Only the holder uses it.
pub(super) struct Acquisitions(UnsafeCell<u32>);

impl Acquisitions {
    pub(super) const fn new() -> Acquisitions {
        Acquisitions(UnsafeCell::new(0))
    }

    /// # Safety
    /// The caller holds the lock, of this rank.
    #[inline]
    pub(super) unsafe fn count(&self, rank: u8) {
        if let Some(taken) = TAKEN.get(rank as usize).filter(|_| COUNTS_TAKEN.load(Relaxed)) {
            // No atomic addition: experiments that count locked instructions would see it.
            taken.store(taken.load(Relaxed) + 1, Relaxed);
        }
        // SAFETY: the caller excludes all other threads.
        let count = unsafe { &mut *self.0.get() };
        *count = count.wrapping_add(1);
    }
}

impl<T, const RANK: u8> Lock<T, RANK> {
    /// Acquisitions modulo 2^32, without this one.
    pub fn acquisitions(&self) -> u32 {
        let guard = self.lock();
        // SAFETY: the guard excludes all other threads.
        let count = unsafe { &mut *guard.lock.acquisitions.0.get() };
        *count = count.wrapping_sub(1);
        *count
    }
}
