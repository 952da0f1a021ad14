//! The spans of a shard, on shelves by how much room they have.
//!
//! A span without holes is on the shelf of its room, so that the least room that is enough is found with one look at a bitmap.
//! A span with holes is on a shelf by the eighths of it that are free: when no room fits, the objects of such a span slide together.
//! That is done only where it yields an eighth of a span, so that its cost is spread over several objects; smaller holes wait for
//! the limit to be reached or for compaction. So without compaction less than an eighth of a span is lost to holes once all have been
//! looked at.

use super::MAX_COMPRESSED;
use super::span::{Span, need};
use crate::frame::{FrameNo, Frames};

/// Width of the shelves of spans without holes, in bytes of room.
const STEP: usize = 64;
/// The last of these shelves: whatever needs room finds it there.
const TOP: usize = need(MAX_COMPRESSED).div_ceil(STEP);
/// The first shelf of spans with holes: there are as many as eighths.
const HOLEY: usize = TOP + 1;
const EIGHTHS: usize = 8;
/// The shelf of spans that are being emptied: nothing new is put into them.
pub(super) const ISOLATED: usize = HOLEY + EIGHTHS;
/// How many spans with small holes are looked at for one object.
const PROBES: usize = 16;

const _: () = assert!(HOLEY <= u64::BITS as usize);

/// The shelves of a shard. Lists of spans: first frame of the first one, plus one; 0 is none.
#[derive(Debug)]
pub(super) struct Shelves {
    heads: [u32; ISOLATED + 1],
    /// Bit i: shelf i of those without holes is not empty.
    roomy: u64,
}

/// How hard to look for room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effort {
    /// Not at small holes: a new span is cheaper.
    Little,
    /// Small holes too.
    All,
}

impl Shelves {
    pub(super) const fn new() -> Shelves {
        Shelves { heads: [0; ISOLATED + 1], roomy: 0 }
    }

    /// The span at `frame`, one of this shard.
    fn span(&mut self, frames: &Frames, frame: u32) -> Span {
        // SAFETY: callers name spans of this shard, and having the shelves mutably they hold its lock, for longer than the span.
        unsafe { Span::new(frames.ptr(FrameNo(frame))) }
    }

    /// Where a span belongs.
    pub(super) fn shelf_of(span: &mut Span) -> usize {
        if span.holes() == 0 { (span.room() / STEP).min(TOP) } else { HOLEY + eighths(span) }
    }

    /// Puts a span that is on no shelf where it belongs.
    pub(super) fn link(&mut self, frames: &Frames, frame: u32) {
        let shelf = Self::shelf_of(&mut self.span(frames, frame));
        self.link_on(frames, frame, shelf);
    }

    fn link_on(&mut self, frames: &Frames, frame: u32, shelf: usize) {
        let next = core::mem::replace(&mut self.heads[shelf], frame + 1);
        let mut span = self.span(frames, frame);
        let header = span.header();
        (header.next, header.prev, header.shelf) = (next, 0, shelf as u8);
        if next != 0 {
            self.span(frames, next - 1).header().prev = frame + 1;
        }
        if shelf <= TOP {
            self.roomy |= 1 << shelf;
        }
    }

    /// Takes a span off its shelf.
    pub(super) fn unlink(&mut self, frames: &Frames, frame: u32) {
        let mut span = self.span(frames, frame);
        let header = span.header();
        let (next, prev, shelf) = (header.next, header.prev, header.shelf as usize);
        if prev == 0 {
            self.heads[shelf] = next;
            if next == 0 && shelf <= TOP {
                self.roomy &= !(1 << shelf);
            }
        } else {
            self.span(frames, prev - 1).header().next = next;
        }
        if next != 0 {
            self.span(frames, next - 1).header().prev = prev;
        }
    }

    /// Puts a span whose room has changed where it belongs now. It is not isolated.
    pub(super) fn settle(&mut self, frames: &Frames, frame: u32) {
        let mut span = self.span(frames, frame);
        if Self::shelf_of(&mut span) != span.header().shelf as usize {
            self.unlink(frames, frame);
            self.link(frames, frame);
        }
    }

    /// Isolates a span.
    pub(super) fn isolate(&mut self, frames: &Frames, frame: u32) {
        self.unlink(frames, frame);
        self.link_on(frames, frame, ISOLATED);
    }

    /// Whether a span is isolated.
    pub(super) fn is_isolated(&mut self, frames: &Frames, frame: u32) -> bool {
        self.span(frames, frame).header().shelf as usize == ISOLATED
    }

    /// The isolated span that is let go next; it is then on no shelf.
    pub(super) fn pop_isolated(&mut self, frames: &Frames) -> Option<u32> {
        let frame = self.heads[ISOLATED].checked_sub(1)?;
        self.unlink(frames, frame);
        Some(frame)
    }

    /// A span with room for an object that needs `need` bytes: the one with the least that is enough, of those without holes; else
    /// the fullest that can be made to have it.
    pub(super) fn find(&mut self, frames: &Frames, need: usize, effort: Effort) -> Option<u32> {
        let least = need.div_ceil(STEP);
        let fits = self.roomy >> least;
        if fits != 0 {
            return Some(self.heads[least + fits.trailing_zeros() as usize] - 1);
        }
        // The shelf below has some that fit, too.
        if let Some(first) = self.heads[least - 1].checked_sub(1)
            && self.span(frames, first).room() >= need
        {
            return Some(first);
        }
        for shelf in HOLEY + 1..HOLEY + EIGHTHS {
            if let Some(frame) = self.slide_one(frames, shelf, need, 1) {
                return Some(frame);
            }
        }
        if effort == Effort::All { self.slide_one(frames, HOLEY, need, PROBES) } else { None }
    }

    /// Makes room in one of the first `probes` spans of a shelf.
    fn slide_one(&mut self, frames: &Frames, shelf: usize, need: usize, probes: usize) -> Option<u32> {
        let mut next = self.heads[shelf];
        for _ in 0..probes {
            let frame = next.checked_sub(1)?;
            let mut span = self.span(frames, frame);
            if span.free() >= need {
                span.slide();
                self.settle(frames, frame);
                return Some(frame);
            }
            next = span.header().next;
        }
        None
    }

    /// The emptiest span, about: with the eighths of it that are free.
    pub(super) fn emptiest(&mut self, frames: &Frames) -> Option<(usize, u32)> {
        let holey = (0..EIGHTHS).rev().find_map(|e| Some((e, self.heads[HOLEY + e].checked_sub(1)?)));
        let roomy = self.heads[TOP].checked_sub(1).map(|frame| (eighths(&mut self.span(frames, frame)), frame));
        holey.max(roomy)
    }

    /// For checks: the first span of a shelf, plus one, or 0. Shelves are numbered from 0 until this returns `None`.
    pub(super) fn head(&self, shelf: usize) -> Option<u32> {
        self.heads.get(shelf).copied()
    }

    /// For checks: whether the bitmap says that there are spans on the shelf; those with holes are not in it.
    pub(super) fn is_marked(&self, shelf: usize) -> bool {
        if shelf <= TOP { self.roomy >> shelf & 1 == 1 } else { self.heads[shelf] != 0 }
    }
}

fn eighths(span: &mut Span) -> usize {
    (span.free() * EIGHTHS / span.size()).min(EIGHTHS - 1)
}
