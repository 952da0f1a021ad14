//! The buddy allocator of one arena: free frames in blocks of 2^order, order 0 to 9.
//!
//! Free blocks are bits, a set per order: a free frame has no memory for list links. The lowest
//! block comes first, so frames in use stay dense.

use rustix::io::Errno;

use super::bits::BitSet;
use super::{Broken, MAX_ORDER, Run};
use crate::table::Table;
use crate::vm::OnFork;

/// The free frames of an arena, by number. Not locked.
#[derive(Debug)]
pub struct Buddy {
    words: Table<u64>,
    free: [BitSet; MAX_ORDER as usize + 1],
    free_frames: u32,
    #[cfg(test)]
    frames: usize,
}

impl Buddy {
    /// All of `frames` frames free.
    ///
    /// # Errors
    /// As [`crate::vm::map`].
    pub fn new(frames: usize) -> Result<Buddy, Errno> {
        let mut next = 0;
        let mut free = [BitSet::default(); MAX_ORDER as usize + 1];
        for (order, set) in free.iter_mut().enumerate() {
            *set = BitSet::lay_out(frames >> order, &mut next);
        }
        let mut buddy = Buddy {
            words: Table::new(next, OnFork::Copy)?,
            free,
            free_frames: 0,
            #[cfg(test)]
            frames,
        };
        buddy.put(Run { start: 0, frames: frames as u32 });
        Ok(buddy)
    }

    /// Takes `n` frames, 1 to 512, aligned to `n` rounded up to a power of two.
    pub fn take(&mut self, n: u32) -> Option<u32> {
        let order = n.next_power_of_two().trailing_zeros();
        let (mut have, block) = (order..=MAX_ORDER).find_map(|o| Some((o, self.free[o as usize].first(&self.words)?)))?;
        self.free[have as usize].remove(&mut self.words, block);
        let start = (block << have) as u32;
        while have > order {
            have -= 1;
            self.free[have as usize].insert(&mut self.words, (start as usize >> have) + 1);
        }
        let block = 1 << order;
        self.free_frames -= block;
        if n < block {
            self.put(Run { start: start + n, frames: block - n });
        }
        Some(start)
    }

    /// Frees a run, no frame of which is free.
    pub fn put(&mut self, run: Run) {
        self.free_frames += run.frames;
        let (mut start, end) = (run.start as usize, (run.start + run.frames) as usize);
        while start < end {
            let fits = (end - start).ilog2();
            let order = start.trailing_zeros().min(fits).min(MAX_ORDER);
            self.put_block(start >> order, order);
            start += 1 << order;
        }
    }

    /// Free frames.
    #[inline]
    pub fn free_frames(&self) -> u32 {
        self.free_frames
    }

    fn put_block(&mut self, mut block: usize, mut order: u32) {
        while order < MAX_ORDER && self.free[order as usize].has(&self.words, block ^ 1) {
            self.free[order as usize].remove(&mut self.words, block ^ 1);
            block >>= 1;
            order += 1;
        }
        self.free[order as usize].insert(&mut self.words, block);
    }

    /// Calls `f` with each free block, smallest order first. For checks.
    ///
    /// # Errors
    /// The error of `f`, or an unmerged or unfindable block.
    pub(super) fn free_blocks(&self, mut f: impl FnMut(Run) -> Result<(), Broken>) -> Result<(), Broken> {
        for (order, set) in (0..).zip(&self.free) {
            if !set.agrees(&self.words) {
                return Err(Broken("a set of free blocks and its summaries disagree"));
            }
            for block in set.iter(&self.words) {
                if order < MAX_ORDER && block % 2 == 0 && set.has(&self.words, block + 1) {
                    return Err(Broken("two free halves of a block are not merged"));
                }
                f(Run { start: (block << order) as u32, frames: 1 << order })?;
            }
        }
        Ok(())
    }

    pub(super) fn table_bytes(&self) -> usize {
        self.words.populated_bytes()
    }

    /// In the largest blocks that its size allows.
    #[cfg(test)]
    pub(super) fn is_whole(&self) -> bool {
        let mut start = 0;
        while start < self.frames {
            let order = (start.trailing_zeros()).min((self.frames - start).ilog2()).min(MAX_ORDER);
            if !self.free[order as usize].has(&self.words, start >> order) {
                return false;
            }
            start += 1 << order;
        }
        true
    }
}
