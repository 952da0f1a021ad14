//! A move (`mremap`) that a thread of lowtide's makes for a thread of the program, which waits for the result: so it is known
//! from before the kernel makes it until after its event was read, and nobody in the program knows the new place before that.
//! Where only moves are made like this, and all else is changed by raw system calls, the events that come out of order
//! (`event_order.rs`) can be told apart:
//!
//! - What was unmapped where the move begins, before something else was mapped there, was read before the call is made: it is not
//!   made before no change is on its way. Else the words of what was there would move along.
//! - What is unmapped where the kernel has taken it to was unmapped before, as long as the program has not been told where that is:
//!   it is told when no change is on its way again. Applied later, that would drop what has moved there.
//! - Where it has left, others may have mapped something and unmapped it again. Of that nothing is told: nothing is registered
//!   while a thread is inside such a call (the agent's gate), and what is registered grows only by such a call. What is told of the
//!   place all the same, before the move is, is in doubt.
//!
//! A raw fork may be read before the move though it came after it, or the other way round. The child's userfaultfd tells, where it
//! can (`seen_by_child`).
//!
//! A thread that gets no CPU may keep changes on their way for long. Then the call is made, and the program told, all the same, and
//! what is read after that is in doubt as that of raw calls is.

use core::sync::atomic::{AtomicU32, Ordering};

use arrayvec::ArrayVec;
use rustix::thread::{Timespec, nanosleep};

use crate::mappings::regions::Range;
use crate::mappings::space::Exclusive;
use crate::pagemap::ids::PageNo;
use crate::pager::{Pager, add};
use crate::sys::uffd::{Message, Standing, Uffd};

/// Naps during which changes may be on their way: before others have to wait for the call, and while they do.
const MOST_NAPS: u32 = 8192;
const NAPS_INSIDE: u32 = 64;
/// As many as are left where that was in vain again and again: threads that change mappings all the time are not to hold each move
/// up for long.
const LEAST_NAPS: u32 = 16;
/// Naps that count for nothing, while a child is filled that was forked by a raw system call: the change that it is ends when the
/// child is whole, and all that faults waits for that anyway.
const MOST_NAPS_OF_FORKS: u32 = 10_000;
/// A nap; and how often it looks before the first.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000 };
const SPINS: u32 = 50;

/// What a call asks for.
#[derive(Debug, Clone, Copy)]
pub struct Move {
    /// What is to move.
    pub from: Range,
    /// Where to, if the program has said so.
    pub to: Option<Range>,
    /// The old place stays mapped.
    pub leaves: bool,
    /// What is there becomes shorter.
    pub shortens: bool,
}

impl Move {
    /// The address of which must be known how it stands before the call. Of other moves it does not matter. (The program may have a
    /// userfaultfd of its own there.)
    fn asks_of(&self) -> Option<usize> {
        (self.to.is_some() || self.leaves).then_some(self.from.start)
    }
}

/// Unmappings that are put off at most.
const MOST_PUT_OFF: usize = 4;
/// What one event comes to at most.
pub(super) const MOST_OF_ONE: usize = 2 + 2 * MOST_PUT_OFF;

/// A call that is being made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MadeMove {
    asked: Move,
    /// From where to where it has moved something, once that was read.
    pub(crate) moved: Option<[Range; 2]>,
    /// How what is to move stood when no change was on its way; nothing changes that until the call is made. Changing: there was no
    /// such time. Where it does not matter it is taken for registered.
    stood: Standing,
    /// What was unmapped where it begins, and read before the move: nothing, perhaps, that was there before it.
    put_off: [Range; MOST_PUT_OFF],
    /// All that it does has been done and read.
    has_returned: bool,
    /// The program was told, although changes were still on their way that were when the call was made.
    pub(crate) is_late: bool,
    /// Something has been registered in the place where it began.
    is_reused: bool,
    /// There was a move before it that was late, and changes have been on their way ever since: a fork of before that may be among
    /// them.
    follows_late: bool,
}

impl MadeMove {
    pub(crate) fn new(asked: Move, stood: Standing) -> MadeMove {
        let put_off = [Range::NONE; MOST_PUT_OFF];
        MadeMove {
            asked,
            moved: None,
            stood,
            put_off,
            has_returned: false,
            is_late: false,
            is_reused: false,
            follows_late: false,
        }
    }

    /// The same of one that begins while changes are on their way, after this one or none.
    fn behind(self, before: Option<MadeMove>) -> MadeMove {
        let is_behind_late = before.is_some_and(|before| before.is_late || before.follows_late);
        MadeMove { follows_late: !self.is_settled() && is_behind_late, ..self }
    }

    /// Whether whatever was on its way before the call has been read before it was made.
    fn is_settled(&self) -> bool {
        self.stood != Standing::Changing
    }

    /// No change is on its way now.
    pub(crate) fn all_was_read(self) -> Option<MadeMove> {
        (!self.is_late).then_some(MadeMove { follows_late: false, ..self })
    }

    /// Whether something of a range is to move.
    pub(crate) fn begins_in(&self, range: Range) -> bool {
        self.asked.from.meets(range)
    }

    /// Whether it leaves this place mapped.
    pub(crate) fn leaves(&self, place: Range) -> bool {
        self.asked.leaves && self.asked.from.covers(place)
    }

    /// Where it begins, if all that is unmapped there was so after it has moved that away: by the call itself, or by others who have
    /// mapped something there, of which nothing is registered. (Else the program unmaps what it has moved at the same time. A call
    /// that makes shorter may unmap a part first.) What is read of it before the move is to be put off.
    pub(crate) fn left_behind(&self) -> Range {
        let is_known = self.is_settled() && !self.is_late && !self.asked.leaves;
        match self.moved {
            Some([from, _]) if is_known => from,
            // There is room for one more.
            None if is_known && !self.has_returned && !self.asked.shortens && self.put_off[MOST_PUT_OFF - 1] == Range::NONE => {
                self.asked.from
            }
            _ => Range::NONE,
        }
    }

    /// Takes note of an unmapping; what of it is to be applied now.
    fn unmapped(&mut self, range: Range) -> ArrayVec<Range, 2> {
        let left = self.left_behind();
        if self.moved.is_some() || !left.meets(range) {
            return self.newer(range);
        }
        let part = Range { start: range.start.max(left.start), end: range.end.min(left.end) };
        self.put_off.iter_mut().find(|put_off| **put_off == Range::NONE).into_iter().for_each(|put_off| *put_off = part);
        around(range, left).collect()
    }

    /// The call has returned; what was put off for it.
    fn returns(&mut self) -> impl Iterator<Item = Range> + use<> {
        self.has_returned = true;
        self.take_put_off()
    }

    /// What was put off and was no part of what has moved.
    fn take_put_off(&mut self) -> impl Iterator<Item = Range> + use<> {
        let moved = self.moved.map_or(Range::NONE, |[from, _]| from);
        let put_off = core::mem::replace(&mut self.put_off, [Range::NONE; MOST_PUT_OFF]);
        put_off.into_iter().flat_map(move |part| around(part, moved))
    }

    /// Takes note of a move that was read, if it is this one. True: where it has gone is still to be taken for unmapped.
    fn has_moved(&mut self, from: Range, to: Range) -> bool {
        let is_it = self.moved.is_none() && !self.has_returned && self.asked.from.covers(from);
        if is_it {
            self.moved = Some([from, to]);
        }
        is_it && self.asked.to.is_none()
    }

    /// A range is about to be registered.
    fn reuses(&mut self, range: Range) {
        self.is_reused |= self.begins_in(range);
    }

    /// Where a child whose fork is read now has what this process's tables have elsewhere. `in_child`: how what begins there stood
    /// when the memory was cloned for it.
    fn seen_by_child(&self, in_child: impl Fn(Range) -> Standing) -> Result<Shift, CanNotTell> {
        use Standing::{Changing, NotRegistered, Registered};
        let MadeMove { asked, moved, stood, has_returned, is_late, is_reused, follows_late, .. } = *self;
        if follows_late {
            return Err(CanNotTell);
        }
        if let Some([from, to]) = moved {
            return match in_child(from) {
                NotRegistered => Ok(Shift::NONE),
                // What is there may have come since.
                Registered if is_late && is_reused => Err(CanNotTell),
                // Or it stays there.
                Registered if asked.leaves && (is_late || in_child(to) != NotRegistered) => Err(CanNotTell),
                Registered => Ok(Shift::back(from, to)),
                Changing => Err(CanNotTell),
            };
        }
        if has_returned || stood == NotRegistered {
            // Nothing moves that is registered.
            return Ok(Shift::NONE);
        }
        match (asked.to, in_child(asked.from)) {
            _ if asked.leaves => Err(CanNotTell),
            // To where the kernel likes: nobody has been told of that place.
            (None, _) | (Some(_), Registered) => Ok(Shift::NONE),
            // It has moved, and the event of that is still to be read.
            (Some(to), NotRegistered) if stood == Registered => Ok(Shift::ahead(asked.from, to)),
            (Some(_), _) => Err(CanNotTell),
        }
    }

    /// What of an unmapping that is read now is not older than what has come to its place since.
    pub(crate) fn newer(&self, unmapped: Range) -> ArrayVec<Range, 2> {
        let older =
            self.moved.filter(|_| self.asked.to.is_none() && !self.is_late).map(|[_, to]| to).filter(|to| to.meets(unmapped));
        match older {
            None => [unmapped].into_iter().collect(),
            Some(to) => around(unmapped, to).collect(),
        }
    }
}

/// Where a child has pages that this process's tables have elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shift {
    /// What the tables have here,
    known: Range,
    /// the child has from here on.
    at: usize,
    /// What the tables still have here it has not.
    gone: Range,
}

impl Shift {
    const NONE: Shift = Shift { known: Range::NONE, at: 0, gone: Range::NONE };

    /// It was cloned before a move that the tables know.
    fn back(from: Range, to: Range) -> Shift {
        Shift { known: to, at: from.start, gone: Range::NONE }
    }

    /// It was cloned after a move that the tables don't know.
    fn ahead(from: Range, to: Range) -> Shift {
        let len = (from.end - from.start).min(to.end - to.start);
        Shift { known: Range { end: from.start + len, ..from }, at: to.start, gone: to }
    }

    /// Where the child has what the tables have at an address. None: nowhere.
    fn of(self, addr: usize) -> Option<usize> {
        let is_in = |range: Range| (range.start..range.end).contains(&addr);
        if is_in(self.known) { Some(addr - self.known.start + self.at) } else { (!is_in(self.gone)).then_some(addr) }
    }
}

/// Whether a fork or a move came first is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CanNotTell;

/// What of `range` is outside `hole`.
pub(super) fn around(range: Range, hole: Range) -> impl Iterator<Item = Range> {
    let before = Range { end: range.end.min(hole.start), ..range };
    let behind = Range { start: range.start.max(hole.end), ..range };
    [before, behind].into_iter().filter(|part| part.start < part.end)
}

/// For how many naps a move waits, before its turn, for changes that are on their way.
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

    /// What has come of as many naps.
    fn has_ended(&self, settled: bool) {
        let next = if settled { self.naps() * 2 } else { self.naps() / 4 };
        self.0.store(next.clamp(LEAST_NAPS, MOST_NAPS), Ordering::Relaxed);
    }
}

impl Pager {
    /// Waits for a while until no change is on its way: before the turn to make a move, for which others wait. It takes nothing.
    pub fn outlast_changes(&self) {
        self.settling.has_ended(self.settle(self.settling.naps(), None).is_some());
    }

    /// Makes a call that may move memory, for a thread of the program that waits for the result. By a thread of lowtide's that has
    /// the turn to change mappings and reads no messages; no lock may be held.
    pub fn make_move(&self, asked: Move, call: impl FnOnce() -> isize) -> isize {
        self.set_made_move(Some(asked));
        let result = call();
        self.has_made_move();
        self.set_made_move(None);
        add(&self.counters().moves_made, 1);
        result
    }

    /// Waits until no change is on its way, or that takes too long. Then all that was when this began has been read and applied,
    /// and a move begins or is over.
    fn set_made_move(&self, asked: Option<Move>) {
        let settled = self.settle(NAPS_INSIDE.min(self.settling.naps()), asked.and_then(|asked| asked.asks_of()));
        // What was read is applied, too.
        let lock = self.space.exclusive();
        self.look_whether_all_was_read(&lock);
        let mut order = self.order.lock();
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

    /// The call has returned: what was put off is applied, where it has moved nothing.
    fn has_made_move(&self) {
        let lock = self.space.exclusive();
        let put_off: ArrayVec<Range, MOST_OF_ONE> =
            self.order.lock().made.as_mut().into_iter().flat_map(MadeMove::returns).collect();
        put_off.into_iter().for_each(|Range { start, end }| self.pass_or_hold_back(&lock, Message::Unmap { start, end }));
    }

    /// How many changes had been read at least when none was on its way, and how memory at an address stood then: registered, where
    /// none is asked for. None: that takes too many naps.
    fn settle(&self, naps: u32, at: Option<usize>) -> Option<(u64, Standing)> {
        let (mut looks, mut naps_of_forks) = (0, 0);
        while looks < SPINS + naps {
            // Whoever has read some has counted them.
            self.outlast_reading();
            let count = self.order.lock().count();
            let stood = at.map_or(Standing::Registered, |at| self.uffd().standing(at));
            // Of an address that can't be mapped the kernel does not tell whether anything is changing.
            let all = self.uffd().standing(self.staging.addresses().start);
            if ![stood, all].contains(&Standing::Changing) {
                return Some((count, stood));
            }
            let is_of_fork = self.hold.is_owed() && naps_of_forks < MOST_NAPS_OF_FORKS;
            *(if is_of_fork { &mut naps_of_forks } else { &mut looks }) += 1;
            if is_of_fork || looks > SPINS {
                let _ = nanosleep(&NAP);
            } else {
                core::hint::spin_loop();
            }
        }
        None
    }

    /// An event was read: what of it is to be applied, in this order.
    pub(super) fn in_order(&self, _: &Exclusive<'_>, event: Message) -> ArrayVec<Message, MOST_OF_ONE> {
        let unmap = |Range { start, end }| Message::Unmap { start, end };
        let mut order = self.order.lock();
        let Some(made) = &mut order.made else { return [event].into_iter().collect() };
        match event {
            Message::Remap { from, to, len } => {
                let [left, place] = [from, to].map(|start| Range { start, end: start + len });
                let clears = made.has_moved(left, place);
                let first = clears.then_some(unmap(place));
                let put_off: ArrayVec<Range, MOST_OF_ONE> =
                    made.moved.map(|_| made.take_put_off()).into_iter().flatten().collect();
                first.into_iter().chain([event]).chain(put_off.into_iter().map(unmap)).collect()
            }
            Message::Unmap { start, end } => made.unmapped(Range { start, end }).into_iter().map(unmap).collect(),
            _ => [event].into_iter().collect(),
        }
    }

    /// A range is about to be registered.
    pub(crate) fn will_register(&self, lock: &Exclusive<'_>, range: Range) {
        self.look_whether_all_was_read(lock);
        self.order.lock().made.iter_mut().for_each(|made| made.reuses(range));
    }

    /// Where a child of a raw fork has a page that this process's tables have at `page`; None: nowhere. That differs where a move and
    /// the fork are read in another order than they came. What is registered in the child is what was at the cloning, and nothing is
    /// registered while a call is made. Where that does not tell which came first, the run ends.
    pub(crate) fn page_of_child(&self, _: &Exclusive<'_>, child: &Uffd) -> impl Fn(PageNo) -> Option<PageNo> + use<> {
        let made = self.order.lock().made;
        let in_child = |range: Range| match child.standing(range.start) {
            // It needs nothing.
            Standing::Changing if child.is_gone(range.start) => Standing::NotRegistered,
            standing => standing,
        };
        let shift = made.map_or(Ok(Shift::NONE), |made| made.seen_by_child(in_child));
        let shift = shift.unwrap_or_else(|CanNotTell| self.can_t_tell());
        move |page| shift.of(page.addr()).map(PageNo::of)
    }

    fn can_t_tell(&self) -> ! {
        (self.host.fatal)(b"memory was moved (mremap) while the program forked: the child can't know where it is")
    }
}

#[cfg(test)]
#[path = "made_move_tests.rs"]
mod tests;
