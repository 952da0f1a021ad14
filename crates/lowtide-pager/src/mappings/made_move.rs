//! A move (`mremap`) that a thread of lowtide's makes for a thread of the program, which learns the
//! new place after the event was read. If all moves are made like this, and raw system calls change
//! all else, events out of order can be told apart (`event_order.rs`):
//!
//! - Older UNMAPs of the old place are read before the call, which waits until no change is on its
//!   way. Else the old words would move along.
//! - UNMAPs of the new place, and of what the mapping grows by, are older than the move until the
//!   program learns it, when no change is on its way again. Applied later, they would drop what has
//!   moved there. Read before the move, they look refused (`registered.rs`).
//! - Later mappings at the old place bring no events: the gate registers nothing during the call.
//!   An UNMAP of it that is read before the move is in doubt.
//!
//! The child's userfaultfd tells, where it can, whether a raw fork came before the move
//! (`place_in_child.rs`).
//!
//! A thread without CPU may keep changes on their way for long. Then the call is made and returned
//! all the same, and later events are in doubt like those of raw calls.

use core::sync::atomic::{AtomicU32, Ordering};

use arrayvec::ArrayVec;
use rustix::thread::{Timespec, nanosleep};

use crate::pager::Pager;
use crate::pages::space::Exclusive;
use crate::segment::add;
use crate::sys::Range;
use crate::sys::uffd::{Message, Standing};

/// Naps for changes on their way: before the turn is taken, and while others wait for it.
const MOST_NAPS: u32 = 8192;
const NAPS_INSIDE: u32 = 64;
/// Threads that change mappings all the time must not delay each move for long.
const LEAST_NAPS: u32 = 16;
/// Extra naps while a raw fork's child is filled, which ends that change.
const MOST_NAPS_OF_FORKS: u32 = 10_000;
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000 };
const SPINS: u32 = 50;

/// What a call asks for.
#[derive(Debug, Clone, Copy)]
pub struct Move {
    /// What moves.
    pub from: Range,
    /// The new place, if the program gives one.
    pub to: Option<Range>,
    /// The old place stays mapped.
    pub leaves: bool,
    /// The mapping's length afterwards, in bytes.
    pub len: usize,
}

impl Move {
    /// An address, where its standing before the call matters.
    fn asks_of(&self) -> Option<usize> {
        (self.to.is_some() || self.leaves).then_some(self.from.start)
    }

    fn shortens(&self) -> bool {
        self.len < self.from.end - self.from.start
    }

    /// What the mapping grows by where it can stay.
    fn grows_by(&self) -> Range {
        let end = self.from.start.saturating_add(self.len);
        if self.to.is_none() && end > self.from.end { Range { start: self.from.end, end } } else { Range::NONE }
    }
}

const MOST_PUT_OFF: usize = 4;
pub(super) const MOST_OF_ONE: usize = 3 + 2 * MOST_PUT_OFF;

#[derive(Debug, Clone, Copy)]
pub(crate) struct MadeMove {
    pub(super) asked: Move,
    /// From where to where, once the move was read.
    pub(crate) moved: Option<[Range; 2]>,
    /// What the kernel chose and was free before: the new place with what has grown, or that alone.
    chosen: Range,
    /// See [`MadeMove::has_grown`].
    has_grown: bool,
    /// How `from` stood when no change was on its way, and so until the call. Changing: there was
    /// no such time.
    pub(super) stood: Standing,
    /// UNMAPs of the old place read before the move, perhaps newer than it.
    put_off: [Range; MOST_PUT_OFF],
    pub(super) has_returned: bool,
    /// The program has the result although older changes were still on their way.
    pub(crate) is_late: bool,
    pub(super) is_reused: bool,
    /// Changes have been on their way since a late move; among them may be a fork from before it.
    pub(super) follows_late: bool,
}

impl MadeMove {
    pub(crate) fn new(asked: Move, stood: Standing) -> MadeMove {
        let put_off = [Range::NONE; MOST_PUT_OFF];
        MadeMove {
            asked,
            moved: None,
            chosen: Range::NONE,
            has_grown: false,
            stood,
            put_off,
            has_returned: false,
            is_late: false,
            is_reused: false,
            follows_late: false,
        }
    }

    fn behind(self, before: Option<MadeMove>) -> MadeMove {
        let is_behind_late = before.is_some_and(|before| before.is_late || before.follows_late);
        MadeMove { follows_late: !self.is_settled() && is_behind_late, ..self }
    }

    fn is_settled(&self) -> bool {
        self.stood != Standing::Changing
    }

    pub(crate) fn all_was_read(self) -> Option<MadeMove> {
        (!self.is_late).then_some(MadeMove { follows_late: false, ..self })
    }

    pub(crate) fn begins_in(&self, range: Range) -> bool {
        self.asked.from.meets(range)
    }

    pub(crate) fn leaves(&self, place: Range) -> bool {
        self.asked.leaves && self.asked.from.covers(place)
    }

    /// The old place, if all its UNMAPs still to be read are newer than the move: by the call
    /// itself, or of unregistered mappings. (A call that shortens may unmap a part first.) They are
    /// put off until the move was read.
    pub(crate) fn left_behind(&self) -> Range {
        let is_known = self.is_settled() && !self.is_late && !self.asked.leaves;
        match self.moved {
            Some([from, _]) if is_known => from,
            None if is_known
                && !self.has_returned
                && !self.asked.shortens()
                && self.put_off[MOST_PUT_OFF - 1] == Range::NONE =>
            {
                self.asked.from
            }
            _ => Range::NONE,
        }
    }

    fn unmapped(&mut self, range: Range) -> ArrayVec<Range, 2> {
        let left = self.left_behind();
        if self.moved.is_some() || !left.meets(range) {
            return self.newer(range);
        }
        let part = range.within(left);
        self.put_off.iter_mut().find(|put_off| **put_off == Range::NONE).into_iter().for_each(|put_off| *put_off = part);
        around(range, left).collect()
    }

    /// What of `part` of `mapping`, which was unmapped, is there because this move has made its
    /// mapping longer. A refused call would have cut the mapping.
    pub(crate) fn has_grown(&mut self, mapping: Range, part: Range) -> Range {
        let grown = self.asked.grows_by();
        if !grown.meets(part) || !mapping.covers(self.asked.from) {
            return Range::NONE;
        }
        self.has_grown = true;
        grown.within(part)
    }

    /// Whether a mapping may have moved or grown to anywhere, as far as was read.
    pub(crate) fn is_anywhere(&self) -> bool {
        self.moved.is_none() && !self.has_returned
    }

    /// What is to be unmapped. `at`: the result of the call.
    fn returns(&mut self, at: isize) -> impl Iterator<Item = Range> + use<> {
        self.has_returned = true;
        if self.moved.is_none() && at == self.asked.from.start as isize {
            self.chosen = self.asked.grows_by();
        }
        let grown = (self.moved.is_none() && self.chosen != Range::NONE).then_some(self.chosen);
        grown.into_iter().chain(self.take_put_off())
    }

    fn take_put_off(&mut self) -> impl Iterator<Item = Range> + use<> {
        let moved = self.moved.map_or(Range::NONE, |[from, _]| from);
        let put_off = core::mem::replace(&mut self.put_off, [Range::NONE; MOST_PUT_OFF]);
        put_off.into_iter().flat_map(move |part| around(part, moved))
    }

    /// Notes a REMAP, if it is this move's. What must be unmapped first.
    fn has_moved(&mut self, from: Range, to: Range) -> Option<Range> {
        if !self.is_anywhere() || !self.asked.from.covers(from) {
            return None;
        }
        self.moved = Some([from, to]);
        if self.asked.to.is_some() {
            return None;
        }
        self.chosen = Range { start: to.start, end: to.end.max(to.start.saturating_add(self.asked.len)) };
        Some(self.chosen)
    }

    fn reuses(&mut self, range: Range) {
        self.is_reused |= self.begins_in(range);
    }

    /// The parts of an UNMAP that are newer than the move to their place.
    pub(crate) fn newer(&self, unmapped: Range) -> ArrayVec<Range, 2> {
        if self.is_late || !self.chosen.meets(unmapped) {
            return [unmapped].into_iter().collect();
        }
        around(unmapped, self.chosen).collect()
    }
}

pub(super) fn around(range: Range, hole: Range) -> impl Iterator<Item = Range> {
    let before = Range { end: range.end.min(hole.start), ..range };
    let behind = Range { start: range.start.max(hole.end), ..range };
    [before, behind].into_iter().filter(|part| part.start < part.end)
}

#[derive(Debug)]
pub(crate) struct Settling(AtomicU32);

impl Default for Settling {
    fn default() -> Settling {
        Settling(AtomicU32::new(MOST_NAPS))
    }
}

impl Settling {
    fn naps(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    fn has_ended(&self, settled: bool) {
        let next = if settled { self.naps() * 2 } else { self.naps() / 4 };
        self.0.store(next.clamp(LEAST_NAPS, MOST_NAPS), Ordering::Relaxed);
    }
}

impl Pager {
    /// Waits a while until no change is on its way, before the turn to make a move. Takes nothing.
    pub fn outlast_changes(&self) {
        self.mappings.settling.has_ended(self.settle(self.mappings.settling.naps(), None).is_some());
    }

    /// Makes a call that may move memory, for a thread of the program. By a thread of lowtide's
    /// that has the turn, reads no messages and holds no lock.
    pub fn make_move(&self, asked: Move, call: impl FnOnce() -> isize) -> isize {
        self.set_made_move(Some(asked));
        let result = call();
        self.has_made_move(result);
        self.set_made_move(None);
        add(&self.counters().moves_made, 1);
        result
    }

    /// Waits a while until no change is on its way, then begins or ends a move: all older changes
    /// were read and applied.
    fn set_made_move(&self, asked: Option<Move>) {
        let settled = self.settle(NAPS_INSIDE.min(self.mappings.settling.naps()), asked.and_then(|asked| asked.asks_of()));
        let lock = self.pages.space.exclusive();
        self.look_whether_all_was_read(&lock);
        let mut order = self.mappings.order.lock();
        settled.into_iter().for_each(|(count, _)| order.are_certain(count));
        order.made = match (asked, settled) {
            (Some(asked), settled) => {
                let stood = settled.map_or(Standing::Changing, |(_, standing)| standing);
                Some(MadeMove::new(asked, stood).behind(order.made))
            }
            (None, None) => order.made.map(|made| MadeMove { is_late: true, ..made }),
            (None, Some(_)) => None,
        };
    }

    fn has_made_move(&self, result: isize) {
        let lock = self.pages.space.exclusive();
        let mut order = self.mappings.order.lock();
        let unmapped: ArrayVec<Range, MOST_OF_ONE> =
            order.made.as_mut().into_iter().flat_map(|made| made.returns(result)).collect();
        let is_wrong = order.made.is_some_and(|made| made.has_grown && (made.moved.is_some() || made.chosen == Range::NONE));
        let chosen = order.made.map_or(Range::NONE, |made| made.chosen);
        order.was_unmapped(chosen);
        drop(order);
        if is_wrong {
            (self.host.fatal)(
                b"a call to unmap memory was refused while another thread's mapping grew or moved (mremap), and lowtide took it as done",
            );
        }
        for Range { start, end } in unmapped {
            self.pass_or_hold_back(&lock, Message::Unmap { start, end });
        }
    }

    /// The number of changes read when none was on its way, and how `at` stood then.
    fn settle(&self, naps: u32, at: Option<usize>) -> Option<(u64, Standing)> {
        let (mut looks, mut naps_of_forks) = (0, 0);
        while looks < SPINS + naps {
            // A reader that has read events has counted them.
            self.outlast_reading();
            let count = self.mappings.order.lock().count();
            let stood = at.map_or(Standing::Registered, |at| self.uffd().standing(at));
            // The kernel reports changes only for addresses that can be mapped.
            let all = self.uffd().standing(self.pages.staging.addresses().start);
            if ![stood, all].contains(&Standing::Changing) {
                return Some((count, stood));
            }
            let is_of_fork = self.forks.hold.is_owed() && naps_of_forks < MOST_NAPS_OF_FORKS;
            *(if is_of_fork { &mut naps_of_forks } else { &mut looks }) += 1;
            if is_of_fork || looks > SPINS {
                let _ = nanosleep(&NAP);
            } else {
                core::hint::spin_loop();
            }
        }
        None
    }

    pub(super) fn in_order(&self, _: &Exclusive<'_>, event: Message) -> ArrayVec<Message, MOST_OF_ONE> {
        let unmap = |Range { start, end }| Message::Unmap { start, end };
        let mut order = self.mappings.order.lock();
        let Some(made) = &mut order.made else { return [event].into_iter().collect() };
        match event {
            Message::Remap { from, to, len } => {
                let [left, place] = [from, to].map(|start| Range { start, end: start + len });
                let first = made.has_moved(left, place).map(unmap);
                let put_off: ArrayVec<Range, MOST_OF_ONE> =
                    made.moved.map(|_| made.take_put_off()).into_iter().flatten().collect();
                first.into_iter().chain([event]).chain(put_off.into_iter().map(unmap)).collect()
            }
            Message::Unmap { start, end } => made.unmapped(Range { start, end }).into_iter().map(unmap).collect(),
            _ => [event].into_iter().collect(),
        }
    }

    pub(crate) fn will_register(&self, lock: &Exclusive<'_>, range: Range) {
        self.look_whether_all_was_read(lock);
        self.mappings.order.lock().made.iter_mut().for_each(|made| made.reuses(range));
    }
}

#[cfg(test)]
#[path = "made_move_tests.rs"]
mod tests;
