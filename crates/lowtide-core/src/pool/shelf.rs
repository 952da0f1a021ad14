//! The spans of a shard, each on two shelves: one by the longest of its gaps, so that the least that is enough for an object is
//! found with one look at a bitmap; and one by how much of it is free, so that the span is found whose gaps are worth joining,
//! or that is worth emptying.

use super::MAX_COMPRESSED;
use super::span::{Link, MAX_GRANULES, Span, granules};
use crate::frame::{FrameNo, Frames};

/// Width of the shelves by gaps, in granules.
const STEP: usize = 8;
/// The last of these shelves: whatever needs room finds it there.
const TOP: usize = granules(MAX_COMPRESSED).div_ceil(STEP);
/// The first shelf by what is free, and how many there are of these.
const BY_FREE: usize = TOP + 1;
const PARTS: usize = 64;
/// The shelf of spans that are being emptied: nothing new is put into them. They are on no other one.
pub(super) const ISOLATED: usize = BY_FREE + PARTS;
/// Which of a span's links is for which of its two shelves; [`ISOLATED`] goes with the former.
const GAP: usize = 0;
const FREE: usize = 1;

const _: () = assert!(ISOLATED < u128::BITS as usize);

/// The shelves of a shard. Lists of spans: first frame of the first one, plus one; 0 is none.
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

    /// The span at `frame`, one of this shard.
    fn span(&mut self, frames: &Frames, frame: u32) -> Span {
        // SAFETY: callers name spans of this shard, and having the shelves mutably they hold its lock, for longer than the
        // span.
        unsafe { Span::new(frames.ptr(FrameNo(frame))) }
    }

    /// Where a span belongs that is not isolated.
    pub(super) fn shelves_of(span: &mut Span) -> [u8; 2] {
        [(span.fit() / STEP).min(TOP) as u8, (BY_FREE + span.room() * PARTS / MAX_GRANULES) as u8]
    }

    /// Puts a span that is on no shelf where it belongs.
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

    /// Takes a span that is not isolated off its shelves.
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

    /// Puts a span whose room has changed where it belongs now. It is not isolated.
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

    /// Isolates a span.
    pub(super) fn isolate(&mut self, frames: &Frames, frame: u32) {
        self.unlink(frames, frame);
        self.link_on(frames, frame, GAP, ISOLATED as u8);
    }

    /// Whether a span is isolated.
    pub(super) fn is_isolated(&mut self, frames: &Frames, frame: u32) -> bool {
        self.span(frames, frame).header().shelves[GAP] as usize == ISOLATED
    }

    /// The isolated span that is let go next; it is then on no shelf.
    pub(super) fn pop_isolated(&mut self, frames: &Frames) -> Option<u32> {
        let frame = self.heads[ISOLATED].checked_sub(1)?;
        self.unlink_from(frames, frame, GAP);
        Some(frame)
    }

    /// A span with a gap for an object of `need` granules: the least that is enough, about.
    pub(super) fn find(&mut self, frames: &Frames, need: usize) -> Option<u32> {
        let least = need.div_ceil(STEP);
        let enough = self.filled << (u128::BITS as usize - BY_FREE) >> (u128::BITS as usize - BY_FREE) >> least;
        if enough != 0 {
            return Some(self.heads[least + enough.trailing_zeros() as usize] - 1);
        }
        // The shelf below has some that are long enough, too.
        let first = self.heads[need / STEP].checked_sub(1)?;
        (self.span(frames, first).fit() >= need).then_some(first)
    }

    /// The span of which most is free, about, and how many granules that are.
    pub(super) fn emptiest(&mut self, frames: &Frames) -> Option<(usize, u32)> {
        let filled = self.filled & !(1 << ISOLATED) & (!0 << BY_FREE);
        let frame = self.heads[filled.checked_ilog2()? as usize].checked_sub(1)?;
        Some((self.span(frames, frame).room(), frame))
    }

    /// For checks: the first span of a shelf, plus one, or 0. Shelves are numbered from 0 until this returns `None`.
    pub(super) fn head(&self, shelf: usize) -> Option<u32> {
        self.heads.get(shelf).copied()
    }

    /// For checks: which of a span's links belong to a shelf.
    pub(super) fn links_of(shelf: usize) -> usize {
        if (BY_FREE..ISOLATED).contains(&shelf) { FREE } else { GAP }
    }

    /// For checks: whether the bitmap says that there are spans on the shelf.
    pub(super) fn is_marked(&self, shelf: usize) -> bool {
        self.filled >> shelf & 1 == 1
    }
}
