//! Page frames of one reserved arena: a buddy allocator under one lock, and a few warm runs in front of it.
//!
//! Freed runs stay warm (populated, out of the buddy) until they hold more than [`WARM_FRAMES`] frames; then all of them go back
//! to the kernel at once, neighbours together, outside the lock. So a free frame in the buddy never has memory behind it.

mod bits;
mod buddy;

use core::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;

use crate::lock::rank;
use crate::sync::Lock;
use crate::vm::{self, Mapping, OnFork, PAGE_SIZE};
use buddy::Buddy;

/// Largest order: 2^9 frames, 2 MiB.
pub const MAX_ORDER: u32 = 9;

/// Most frames that are free and still have memory behind them.
pub const WARM_FRAMES: u32 = 64;

/// A frame of an arena, by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FrameNo(pub u32);

/// The frames that were to be freed are not handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotHandedOut;

/// Consecutive frames.
#[derive(Clone, Copy, Default, Debug)]
struct Run {
    start: u32,
    frames: u32,
}

/// Freed runs that still have memory behind them.
#[derive(Debug)]
struct Warm {
    runs: [Run; WARM_FRAMES as usize],
    len: usize,
    frames: u32,
}

#[derive(Debug)]
struct State {
    buddy: Buddy,
    warm: Warm,
}

/// An arena of page frames. All methods are thread-safe; the lock inside is the innermost of lowtide.
#[derive(Debug)]
pub struct Frames {
    arena: Mapping,
    count: usize,
    in_use: AtomicUsize,
    state: Lock<State, { rank::BUDDY }>,
}

impl Warm {
    const EMPTY: Warm = Warm { runs: [Run { start: 0, frames: 0 }; WARM_FRAMES as usize], len: 0, frames: 0 };

    /// Takes a run of exactly `n` frames at a multiple of `n` rounded up to a power of two, the latest first.
    fn take(&mut self, n: u32) -> Option<u32> {
        let aligned = n.next_power_of_two();
        let i = self.runs[..self.len].iter().rposition(|r| r.frames == n && r.start.is_multiple_of(aligned))?;
        let run = self.runs[i];
        self.len -= 1;
        self.runs[i] = self.runs[self.len];
        self.frames -= n;
        Some(run.start)
    }

    /// Adds a run if it fits.
    fn put(&mut self, run: Run) -> bool {
        if self.frames + run.frames > WARM_FRAMES || self.len == self.runs.len() {
            return false;
        }
        self.runs[self.len] = run;
        self.len += 1;
        self.frames += run.frames;
        true
    }
}

impl Frames {
    /// Reserves an arena of `count` frames. No memory is used until frames are written to.
    ///
    /// # Errors
    /// `NOMEM` when the kernel refuses the range.
    pub fn new(count: usize) -> Result<Frames, Errno> {
        if count == 0 || count > u32::MAX as usize {
            return Err(Errno::INVAL);
        }
        let buddy = Buddy::new(count)?;
        let arena = vm::map(count * PAGE_SIZE, OnFork::Copy)?;
        let state = Lock::new(State { buddy, warm: Warm::EMPTY });
        Ok(Frames { arena, count, in_use: AtomicUsize::new(0), state })
    }

    /// Hands out 2^`order` frames, at a multiple of that; `None` when there is no such run or the order is above [`MAX_ORDER`].
    /// Their bytes are undefined.
    pub fn alloc(&self, order: u32) -> Option<FrameNo> {
        if order > MAX_ORDER { None } else { self.alloc_run(1 << order) }
    }

    /// Hands out `n` consecutive frames, 1 to 512. Their bytes are undefined.
    pub fn alloc_run(&self, n: u32) -> Option<FrameNo> {
        if n == 0 || n > 1 << MAX_ORDER {
            return None;
        }
        self.try_alloc(n).or_else(|| {
            self.drain();
            self.try_alloc(n)
        })
    }

    fn try_alloc(&self, n: u32) -> Option<FrameNo> {
        let mut state = self.state.lock();
        let start = match state.warm.take(n) {
            Some(start) => start,
            None => state.buddy.take(n)?,
        };
        let marked = state.buddy.mark(Run { start, frames: n }, true);
        debug_assert!(marked, "frames handed out twice");
        self.in_use.fetch_add(n as usize, Ordering::Relaxed);
        Some(FrameNo(start))
    }

    /// Frees 2^`order` frames from `frame` on.
    ///
    /// # Errors
    /// If one of them is not handed out; nothing changes then.
    pub fn free(&self, frame: FrameNo, order: u32) -> Result<(), NotHandedOut> {
        if order > MAX_ORDER { Err(NotHandedOut) } else { self.free_run(frame, 1 << order) }
    }

    /// Frees `n` frames from `frame` on; they may be part of a run that was handed out.
    ///
    /// # Errors
    /// If one of them is not handed out; nothing changes then.
    pub fn free_run(&self, frame: FrameNo, n: u32) -> Result<(), NotHandedOut> {
        let run = Run { start: frame.0, frames: n };
        let mut state = self.state.lock();
        if !state.buddy.mark(run, false) {
            return Err(NotHandedOut);
        }
        self.in_use.fetch_sub(n as usize, Ordering::Relaxed);
        if n > WARM_FRAMES {
            drop(state);
            self.give_back(&mut [run]);
            return Ok(());
        }
        if !state.warm.put(run) {
            let mut full = core::mem::replace(&mut state.warm, Warm::EMPTY);
            state.warm.put(run);
            drop(state);
            self.give_back(&mut full.runs[..full.len]);
        }
        Ok(())
    }

    /// Gives the memory of all warm frames back to the kernel.
    pub fn drain(&self) {
        let mut warm = core::mem::replace(&mut self.state.lock().warm, Warm::EMPTY);
        self.give_back(&mut warm.runs[..warm.len]);
    }

    /// Gives the memory of runs that are neither warm nor in the buddy back to the kernel, and puts them into the buddy.
    fn give_back(&self, runs: &mut [Run]) {
        runs.sort_unstable_by_key(|r| r.start);
        let mut i = 0;
        while let Some(first) = runs.get(i) {
            let mut whole = *first;
            i += 1;
            while let Some(next) = runs.get(i).filter(|r| r.start == whole.start + whole.frames) {
                whole.frames += next.frames;
                i += 1;
            }
            // SAFETY: these frames are not handed out and nobody else can reach them.
            unsafe { self.arena.discard(whole.start as usize * PAGE_SIZE, whole.frames as usize * PAGE_SIZE) };
        }
        let mut state = self.state.lock();
        for run in runs {
            state.buddy.put(*run);
        }
    }

    /// Address of a frame's first byte. A run of frames is contiguous there.
    ///
    /// # Panics
    /// If the arena has no such frame.
    pub fn ptr(&self, frame: FrameNo) -> *mut u8 {
        assert!((frame.0 as usize) < self.count);
        // SAFETY: inside the arena.
        unsafe { self.arena.as_ptr().add(frame.0 as usize * PAGE_SIZE) }
    }

    /// Frames of the arena.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Frames handed out now.
    pub fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Relaxed)
    }

    /// Bytes of memory that the allocator's own table takes.
    #[cfg(test)]
    pub(crate) fn table_bytes(&self) -> usize {
        self.state.lock().buddy.table_bytes()
    }

    /// Makes the lock usable in a forked child.
    ///
    /// # Safety
    /// As [`Lock::reset_after_fork`].
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: the caller answers.
        unsafe { self.state.reset_after_fork() }
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        // SAFETY: pointers into the arena are not used beyond the life of its allocator: whoever holds frames also holds it.
        unsafe { self.arena.retire() }
    }
}

#[cfg(test)]
mod tests;
