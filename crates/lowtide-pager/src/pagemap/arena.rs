//! Memory of the page map: a reserved range, opened in steps, in granules that are reused.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use lowtide_core::lock::Lock;
use lowtide_core::vm::{self, Mapping, OnFork, room};
use rustix::io::Errno;

/// A cache line.
pub(super) const GRANULE: usize = 64;
const MOST_IN_A_ROW: usize = 16;
/// Bytes to reserve: leaves of 16 TiB, halved down to `LEAST` if refused.
const MOST: usize = 32 << 30;
const LEAST: usize = 4 << 20;
/// Of a limited address space (`ulimit -v`); dense memory's words take a seventh of it.
const WORDS_PART: usize = 64;
/// Bytes made accessible at a time.
const STEP: usize = 1 << 20;

/// Free lists by length less one; first words link.
type Free = [u32; MOST_IN_A_ROW];

/// By granule; 0: none.
pub(super) struct Arena {
    memory: Mapping,
    /// From the front.
    used: AtomicU32,
    /// Accessible bytes.
    open: AtomicUsize,
    free: Lock<Free>,
}

/// Bytes to reserve under a limit. (That commits no memory.)
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
        // Here, not at the first fault: a thread beside a CPU-bound program can hold the kernel's
        // mmap lock for milliseconds, while the reclaimer waits and memory grows.
        memory.open(0, STEP)?;
        Ok(Arena { memory, used: AtomicU32::new(1), open: AtomicUsize::new(STEP), free: Lock::new([0; MOST_IN_A_ROW]) })
    }

    pub(super) fn at(&self, granule: u32) -> *mut u8 {
        debug_assert!(granule != 0 && granule < self.used.load(Ordering::Relaxed));
        // SAFETY: granules handed out are open.
        unsafe { self.memory.as_ptr().add(granule as usize * GRANULE) }
    }

    pub(super) fn used_bytes(&self) -> usize {
        self.used.load(Ordering::Relaxed) as usize * GRANULE
    }

    /// `n` adjacent zeroed granules (1 to 16). Error: `NOMEM`.
    pub(super) fn take(&self, n: usize) -> Result<u32, Errno> {
        let mut free = self.free.lock();
        let first = &mut free[n - 1];
        if *first != 0 {
            let granule = *first;
            // SAFETY: only the locked list knows free granules, linked by their first words.
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

    /// # Safety
    /// No reference into these granules may exist or arise.
    pub(super) unsafe fn give_back(&self, granule: u32, n: usize) {
        let mut free = self.free.lock();
        // SAFETY: the granules are the arena's again.
        unsafe { self.at(granule).cast::<u32>().write(free[n - 1]) };
        free[n - 1] = granule;
    }

    /// # Safety
    /// As [`Lock::reset_after_fork`].
    pub(super) unsafe fn reset_after_fork(&self) {
        // SAFETY: the caller's obligation.
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
            assert!((limit / (256 << 10) * 576..=limit / 50).contains(&wanted(Some(limit))), "{limit}");
        }
        assert_eq!(wanted(Some(0)), LEAST);
    }
}
