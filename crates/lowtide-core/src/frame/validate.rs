//! Checks a whole allocator: each frame is in one place, and the counts match.

use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

use super::arena::{Arena, Cpu};
use super::cpu_lists::MOST_COLD;
use super::{Frames, Handed, Run, kind_of};
use crate::vm::PAGE_SIZE;

/// What [`Frames::validate`] found wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken(pub &'static str);

struct Seen(Vec<bool>);

impl Seen {
    fn add(&mut self, run: Run) -> Result<(), Broken> {
        let frames =
            self.0.get_mut(run.start as usize..(run.start + run.frames) as usize).ok_or(Broken("there is no such frame"))?;
        for seen in frames {
            if core::mem::replace(seen, true) {
                return Err(Broken("a frame is in two places"));
            }
        }
        Ok(())
    }
}

impl Frames {
    /// Compares every frame, list and free block with the counts. For tests without concurrent
    /// users, or transparent huge pages, which exceed the counts.
    ///
    /// # Errors
    /// The first error found.
    pub fn validate(&self) -> Result<(), Broken> {
        for arena in &self.arenas {
            arena.validate(&self.handed)?;
        }
        if self.memory.populated_pages() * PAGE_SIZE > self.held_bytes() {
            return Err(Broken("there is memory behind frames that is not counted"));
        }
        Ok(())
    }
}

impl Arena {
    fn validate(&self, handed: &Handed) -> Result<(), Broken> {
        let mut seen = Seen(vec![false; self.range().len()]);
        let mut in_use = 0;
        for (start, frame) in (0..).zip(self.range()) {
            if handed.is_handed(frame as u32) {
                seen.add(Run { start, frames: 1 })?;
                in_use += 1;
            }
        }
        if in_use != self.in_use() {
            return Err(Broken("frames handed out are counted wrongly"));
        }
        for (number, cpu) in self.cpus.iter().enumerate() {
            cpu.validate(self.noted.has(number), &mut seen)?;
        }
        if self.returning.load(Relaxed) != 0 {
            return Err(Broken("frames are on their way to the buddy for ever"));
        }
        let mut free = 0;
        self.stock.with(|buddy| {
            buddy.free_blocks(|run| {
                free += run.frames;
                seen.add(run)
            })
        })?;
        if free != self.stock.free() {
            return Err(Broken("free frames of the buddy are counted wrongly"));
        }
        if seen.0.contains(&false) { Err(Broken("a frame is nowhere")) } else { Ok(()) }
    }
}

impl Cpu {
    fn validate(&self, is_noted: bool, seen: &mut Seen) -> Result<(), Broken> {
        let lists = self.lists.lock();
        let (mut frames, mut warm) = (0, 0);
        let mut below = None;
        for (run, is_warm) in lists.iter() {
            if below.replace((run.frames, is_warm)) == Some((run.frames, true)) && !is_warm {
                return Err(Broken("a run without memory lies above one with memory"));
            }
            if kind_of(run.frames).is_none() || !run.start.is_multiple_of(run.frames.next_power_of_two()) {
                return Err(Broken("a list has a run that is not aligned"));
            }
            seen.add(run)?;
            frames += run.frames;
            warm += if is_warm { run.frames } else { 0 };
        }
        if frames != lists.frames() || warm != lists.warm() || warm as isize != self.warm.load(Relaxed) {
            return Err(Broken("frames in lists are counted wrongly"));
        }
        if warm > lists.bound() {
            return Err(Broken("lists keep more memory than they may"));
        }
        if frames - warm > MOST_COLD {
            return Err(Broken("lists keep more frames without memory than there is room for"));
        }
        if is_noted != lists.is_noted || (frames > 0 && !is_noted) {
            return Err(Broken("no drain will find what is in lists"));
        }
        Ok(())
    }
}
