//! The memory of the page map: one reserved range of addresses, cut into granules, which is opened as it is used. Granules that
//! are given back are used again.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use lowtide_core::lock::Lock;
use lowtide_core::vm::{self, Mapping, OnFork, room};
use rustix::io::Errno;

/// Bytes of a granule: a cache line.
pub(super) const GRANULE: usize = 64;
/// Most granules that are handed out in a row.
const MOST_IN_A_ROW: usize = 16;
/// Address space to reserve: the leaves of 16 TiB of memory. Less where address space is scarce or the kernel grants less, down
/// to `LEAST`.
const MOST: usize = 32 << 30;
const LEAST: usize = 4 << 20;
/// Of the address space that a process may have (`ulimit -v`) this part: the words of dense memory would take a seventh of it.
const WORDS_PART: usize = 64;
/// Bytes that are opened at a time.
const STEP: usize = 1 << 20;

/// Lists of what was given back, by number of granules less one: the first word of each names the next.
type Free = [u32; MOST_IN_A_ROW];

/// Where nodes and leaves are. A place in it is the number of a granule; 0 is none.
pub(super) struct Arena {
    memory: Mapping,
    /// Granules handed out so far, from the front.
    used: AtomicU32,
    /// Bytes that are open.
    open: AtomicUsize,
    free: Lock<Free>,
}

/// Bytes to reserve in a process that may map only so many, if they are limited. (What is reserved and not opened is no memory
/// that the kernel has promised.)
fn wanted(limit: Option<usize>) -> usize {
    limit.map_or(MOST, |limit| (limit / WORDS_PART).clamp(LEAST, MOST))
}

impl Arena {
    pub(super) fn new() -> Result<Arena, Errno> {
        let mut len = wanted(room::limit());
        let memory = loop {
            match vm::reserve(len, OnFork::Copy) {
                Ok(memory) => break memory,
                Err(_) if len > LEAST => len /= 2,
                Err(e) => return Err(e),
            }
        };
        // The first step here, not at the first fault: for that the kernel locks the address space, and a thread that has that
        // lock at common priority beside a program that takes all CPUs keeps it for milliseconds, in which the reclaimer waits
        // and memory grows.
        memory.open(0, STEP)?;
        // Granule 0 is never handed out.
        Ok(Arena { memory, used: AtomicU32::new(1), open: AtomicUsize::new(STEP), free: Lock::new([0; MOST_IN_A_ROW]) })
    }

    /// Address of a granule.
    pub(super) fn at(&self, granule: u32) -> *mut u8 {
        debug_assert!(granule != 0 && granule < self.used.load(Ordering::Relaxed));
        // SAFETY: granules that were handed out lie in the open part of the mapping.
        unsafe { self.memory.as_ptr().add(granule as usize * GRANULE) }
    }

    /// Bytes of granules that were ever handed out.
    pub(super) fn used_bytes(&self) -> usize {
        self.used.load(Ordering::Relaxed) as usize * GRANULE
    }

    /// `n` granules in a row (1 to 16), all zero.
    ///
    /// # Errors
    /// `NOMEM`: the kernel opens no more, or all is used.
    pub(super) fn take(&self, n: usize) -> Result<u32, Errno> {
        let mut free = self.free.lock();
        let first = &mut free[n - 1];
        if *first != 0 {
            let granule = *first;
            // SAFETY: nobody else knows granules of the list, the lock is held, and their first word is the list's.
            unsafe {
                let at = self.at(granule);
                *first = at.cast::<u32>().read();
                at.write_bytes(0, n * GRANULE);
            }
            return Ok(granule);
        }
        let granule = self.used.load(Ordering::Relaxed);
        let end = (granule as usize + n) * GRANULE;
        let open = self.open.load(Ordering::Relaxed);
        if end > open {
            let step = STEP.min(self.memory.len() - open);
            if end > open + step {
                return Err(Errno::NOMEM);
            }
            self.memory.open(open, step)?;
            self.open.store(open + step, Ordering::Relaxed);
        }
        self.used.store(granule + n as u32, Ordering::Relaxed);
        Ok(granule)
    }

    /// Gives `n` granules back.
    ///
    /// # Safety
    /// Nobody may hold a reference into them, or get one any more.
    pub(super) unsafe fn give_back(&self, granule: u32, n: usize) {
        let mut free = self.free.lock();
        // SAFETY: they are the arena's again.
        unsafe { self.at(granule).cast::<u32>().write(free[n - 1]) };
        free[n - 1] = granule;
    }

    /// Frees the lock whoever holds it.
    ///
    /// # Safety
    /// As [`Lock::reset_after_fork`].
    pub(super) unsafe fn reset_after_fork(&self) {
        // SAFETY: handed on to the caller.
        unsafe { self.free.reset_after_fork() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_address_space_is_limited_the_words_of_all_of_it_fit_and_no_more_than_a_small_part_is_taken() {
        const GIB: usize = 1 << 30;
        assert_eq!((wanted(None), wanted(Some(usize::MAX))), (MOST, MOST));
        for limit in [2 * GIB, 8 * GIB, 100 * GIB] {
            // A leaf is 576 bytes for 256 KiB.
            assert!((limit / (256 << 10) * 576..=limit / 50).contains(&wanted(Some(limit))), "{limit}");
        }
        assert_eq!(wanted(Some(0)), LEAST);
    }
}
