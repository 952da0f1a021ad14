//! The spans of a shard, each on two shelves: by its longest gap, so that one look at a bitmap
//! finds a fitting one, and by its free room, for joining gaps and emptying.

use super::MAX_COMPRESSED;
use super::span::{Link, MAX_GRANULES, Span, granules};
use crate::frame::{FrameNo, Frames};

/// Width of the shelves by gap, in granules.
const STEP: usize = 8;
const TOP: usize = granules(MAX_COMPRESSED).div_ceil(STEP);
const BY_FREE: usize = TOP + 1;
const PARTS: usize = 64;
/// The shelf of isolated spans, which are on no other and take no objects.
pub(super) const ISOLATED: usize = BY_FREE + PARTS;
/// Indexes into a span's links and shelves; [`ISOLATED`] uses GAP.
const GAP: usize = 0;
const FREE: usize = 1;

const _: () = assert!(ISOLATED < u128::BITS as usize);

/// First frames plus one; 0: no span.
#[derive(Debug)]
pub(super) struct Shelves {
    heads: [u32; ISOLATED + 1],
    /// Bit i: shelf i is not empty.
    filled: u128,
}

impl Shelves {
    pub(super) const fn new() -> Shelves {
        Shelves { heads: [0; ISOLATED + 1], filled: 0 }
    }

    fn span(&mut self, frames: &Frames, frame: u32) -> Span {
        // SAFETY: callers name spans of this shard, and hold its lock for longer than the span
        // lives.
        unsafe { Span::new(frames.ptr(FrameNo(frame))) }
    }

    pub(super) fn shelves_of(span: &mut Span) -> [u8; 2] {
        [(span.fit() / STEP).min(TOP) as u8, (BY_FREE + span.room() * PARTS / MAX_GRANULES) as u8]
    }

    pub(super) fn link(&mut self, frames: &Frames, frame: u32) {
        let [gap, free] = Self::shelves_of(&mut self.span(frames, frame));
        self.link_on(frames, frame, GAP, gap);
        self.link_on(frames, frame, FREE, free);
    }

    fn link_on(&mut self, frames: &Frames, frame: u32, by: usize, shelf: u8) {
        let next = core::mem::replace(&mut self.heads[shelf as usize], frame + 1);
        let mut span = self.span(frames, frame);
        let header = span.header();
        header.links[by] = Link { next, prev: 0 };
        header.shelves[by] = shelf;
        if next != 0 {
            self.span(frames, next - 1).header().links[by].prev = frame + 1;
        }
        self.filled |= 1 << shelf;
    }

    pub(super) fn unlink(&mut self, frames: &Frames, frame: u32) {
        self.unlink_from(frames, frame, GAP);
        self.unlink_from(frames, frame, FREE);
    }

    fn unlink_from(&mut self, frames: &Frames, frame: u32, by: usize) {
        let mut span = self.span(frames, frame);
        let header = span.header();
        let (Link { next, prev }, shelf) = (header.links[by], header.shelves[by]);
        if prev == 0 {
            self.heads[shelf as usize] = next;
            if next == 0 {
                self.filled &= !(1 << shelf);
            }
        } else {
            self.span(frames, prev - 1).header().links[by].next = next;
        }
        if next != 0 {
            self.span(frames, next - 1).header().links[by].prev = prev;
        }
    }

    pub(super) fn reshelve(&mut self, frames: &Frames, frame: u32) {
        let mut span = self.span(frames, frame);
        let (now, then) = (Self::shelves_of(&mut span), span.header().shelves);
        for by in [GAP, FREE] {
            if now[by] != then[by] {
                self.unlink_from(frames, frame, by);
                self.link_on(frames, frame, by, now[by]);
            }
        }
    }

    pub(super) fn isolate(&mut self, frames: &Frames, frame: u32) {
        self.unlink(frames, frame);
        self.link_on(frames, frame, GAP, ISOLATED as u8);
    }

    pub(super) fn is_isolated(&mut self, frames: &Frames, frame: u32) -> bool {
        self.span(frames, frame).header().shelves[GAP] as usize == ISOLATED
    }

    pub(super) fn pop_isolated(&mut self, frames: &Frames) -> Option<u32> {
        let frame = self.heads[ISOLATED].checked_sub(1)?;
        self.unlink_from(frames, frame, GAP);
        Some(frame)
    }

    /// About the best-fitting span for `need` granules.
    pub(super) fn find(&mut self, frames: &Frames, need: usize) -> Option<u32> {
        let least = need.div_ceil(STEP);
        let enough = self.filled << (u128::BITS as usize - BY_FREE) >> (u128::BITS as usize - BY_FREE) >> least;
        if enough != 0 {
            return Some(self.heads[least + enough.trailing_zeros() as usize] - 1);
        }
        // Some of the shelf below are long enough, too.
        let first = self.heads[need / STEP].checked_sub(1)?;
        (self.span(frames, first).fit() >= need).then_some(first)
    }

    /// About the emptiest span, and its free granules.
    pub(super) fn emptiest(&mut self, frames: &Frames) -> Option<(usize, u32)> {
        let filled = self.filled & !(1 << ISOLATED) & (!0 << BY_FREE);
        let frame = self.heads[filled.checked_ilog2()? as usize].checked_sub(1)?;
        Some((self.span(frames, frame).room(), frame))
    }

    /// For checks: the first span plus one, or 0; `None` past the last shelf.
    pub(super) fn head(&self, shelf: usize) -> Option<u32> {
        self.heads.get(shelf).copied()
    }

    pub(super) fn links_of(shelf: usize) -> usize {
        if (BY_FREE..ISOLATED).contains(&shelf) { FREE } else { GAP }
    }

    pub(super) fn is_marked(&self, shelf: usize) -> bool {
        self.filled >> shelf & 1 == 1
    }
}
