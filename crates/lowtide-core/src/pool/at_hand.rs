//! How much memory the pool keeps behind frames that are free, for those that it needs next: a part of what it holds. A run of
//! many processes has many pools, and one that may keep what a large one needs may keep more than it holds.

use super::Pool;
use crate::frame::MAX_RUN;
use crate::vm::PAGE_SIZE;

/// This part of what the pool holds, rounded up to a power of two: it changes seldom.
const PART: usize = 16;
/// Frames for each NUMA node at least: a span, or as many raw pages, for each of four threads.
const LEAST: usize = 4 * MAX_RUN as usize;

impl Pool {
    /// Frames that are to be kept now.
    #[inline]
    fn at_hand(&self) -> usize {
        let part = (self.bytes() / PAGE_SIZE / PART).next_power_of_two();
        part.max(LEAST * self.frames.nodes()).min(self.frames.list_frames())
    }

    /// The pool has grown, or is new: more is kept, if it is time.
    #[inline]
    pub(super) fn keep_more(&self) {
        let now = self.at_hand();
        if self.frames.kept().is_some_and(|kept| kept < now) {
            self.frames.keep(now);
        }
    }

    /// The pool has become smaller: less is kept, if it is time. With no lock held: memory may go back to the kernel.
    #[inline]
    pub(super) fn keep_less(&self) {
        let now = self.at_hand();
        // Not at once: it may grow again.
        if self.frames.kept().is_some_and(|kept| kept > 2 * now) {
            self.frames.keep(now);
        }
    }
}
