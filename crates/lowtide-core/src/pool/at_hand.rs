//! Memory kept behind free frames: a part of what the pool holds, because a run of many processes
//! has many pools.

use super::Pool;
use crate::frame::MAX_RUN;
use crate::vm::PAGE_SIZE;

/// Rounded up to a power of two, to change seldom.
const PART: usize = 16;
/// Least frames for each NUMA node: a span, or as many raw pages, for each of four threads.
const LEAST: usize = 4 * MAX_RUN as usize;

impl Pool {
    #[inline]
    fn at_hand(&self) -> usize {
        let part = (self.bytes() / PAGE_SIZE / PART).next_power_of_two();
        part.max(LEAST * self.frames.nodes()).min(self.frames.list_frames())
    }

    /// Call when the pool has grown.
    #[inline]
    pub(super) fn keep_more(&self) {
        let now = self.at_hand();
        if self.frames.kept().is_some_and(|kept| kept < now) {
            self.frames.keep(now);
        }
    }

    /// Call when the pool has shrunk, without locks: memory may go back to the kernel.
    #[inline]
    pub(super) fn keep_less(&self) {
        let now = self.at_hand();
        // The pool may grow again.
        if self.frames.kept().is_some_and(|kept| kept > 2 * now) {
            self.frames.keep(now);
        }
    }
}
