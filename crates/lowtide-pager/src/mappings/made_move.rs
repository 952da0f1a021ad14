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
    /// How what is to move to a given place stood when no change was on its way; nothing changes that until the call is made.
    /// Changing: there was no such time.
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
        self.settling.has_ended(self.settle(self.settling.naps(), self.staging.addresses().start).is_some());
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
        // Only of a move to a given place it matters. (Elsewhere the program may have a userfaultfd of its own.)
        let at = asked.filter(|asked| asked.to.is_some()).map_or(self.staging.addresses().start, |asked| asked.from.start);
        let settled = self.settle(NAPS_INSIDE.min(self.settling.naps()), at);
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

    /// How many changes had been read at least when none was on its way, and how memory at an address stood then. None: that takes
    /// too many naps.
    fn settle(&self, naps: u32, at: usize) -> Option<(u64, Standing)> {
        let (mut looks, mut naps_of_forks) = (0, 0);
        while looks < SPINS + naps {
            // Whoever has read some has counted them.
            self.outlast_reading();
            let count = self.order.lock().count();
            // Of an address that can't be mapped the kernel does not tell whether anything is changing.
            let [stood, all] = [at, self.staging.addresses().start].map(|at| self.uffd().standing(at));
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
mod tests {
    use super::*;
    use crate::mappings::event_order::Order;
    use crate::mappings::events::tests::{mapping, pager, words};
    use crate::pagemap::PageState;
    use crate::sys::uffd::Watched;
    use core::sync::atomic::Ordering;
    use lowtide_core::vm::PAGE_SIZE;
    use std::collections::VecDeque;
    use std::vec::Vec;

    const PLACES: usize = 6;

    /// What is left out, to see that it is needed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Without {
        Nothing,
        SettlingBefore,
        Clearing,
        Cutting,
        SettlingAfter,
        /// To wait until it has settled, each time: sometimes that takes too long.
        Patience,
        /// To look where the child of a fork has what has moved.
        Looking,
        /// Not to give it what lay where it has moved something to.
        Hiding,
        /// To remember what was registered anew where a move began, which was told while changes were on their way.
        Reuse,
    }

    /// What threads do beside moves to another place.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Kinds {
        Plain,
        /// Moves that leave the old place mapped, and those that make shorter.
        AllMoves,
        /// Raw forks.
        Forks,
        /// All.
        All,
    }

    /// What a thread has asked for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Ask {
        by: usize,
        from: usize,
        /// Its length, of which one place moves.
        len: usize,
        /// Where to, if not to where the kernel likes.
        given: Option<usize>,
        leaves: bool,
    }

    impl Ask {
        fn asked(self) -> Move {
            let from = Range { start: self.from, end: self.from + self.len };
            Move { from, to: self.given.map(place), leaves: self.leaves, shortens: self.len > 1 }
        }
    }

    /// What the thread does that moves.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Mover {
        Waits,
        Asked(Ask),
        /// It may make the call.
        Begun(Ask),
        /// It has, and these places are the thread's now.
        Done(Ask, [Option<usize>; 2]),
        /// What was put off for the call was applied.
        Returned(Ask, [Option<usize>; 2]),
    }

    impl Mover {
        fn ask(self) -> Option<Ask> {
            match self {
                Mover::Waits => None,
                Mover::Asked(ask) | Mover::Begun(ask) | Mover::Done(ask, _) | Mover::Returned(ask, _) => Some(ask),
            }
        }
    }

    /// The child of a fork, as it was at the cloning.
    struct Forked {
        registered: [bool; PLACES],
        evicted: [Option<u32>; PLACES],
        touched: [bool; PLACES],
        /// What is unmapped after the cloning, to lowtide's knowledge when the fork is read: nobody can know whether the child has
        /// it. What was moved to a place that nobody was told of. And what was mapped again, and not touched, before its unmapping
        /// was read: the child is given what was there.
        is_free: [bool; PLACES],
        /// After so many calls.
        when: usize,
    }

    enum Event {
        /// And after how many calls.
        Change(Message, usize),
        Fork(Forked),
    }

    /// Threads that map and unmap by themselves, several of their places in one call where they can, and have what they have moved
    /// by another one; and the kernel, which reports what they do in any order. Each place is one page.
    struct World {
        without: Without,
        kinds: Kinds,
        mapped: [bool; PLACES],
        registered: [bool; PLACES],
        /// What lowtide has of what was evicted, where it is now.
        evicted: [Option<u32>; PLACES],
        /// What is in memory, or out: the rest would read as zeros.
        touched: [bool; PLACES],
        /// How many calls were made.
        calls: usize,
        /// After how many the latest unmapping was that was read, and put off, perhaps.
        put_off_at: usize,
        /// The events of each thread that were not read yet, the mover's last.
        under_way: Vec<VecDeque<Event>>,
        /// What each thread has.
        has: Vec<Vec<usize>>,
        mover: Mover,
        // lowtide's view.
        words: [Option<u32>; PLACES],
        adopted: [bool; PLACES],
        order: Order,
        next: u32,
        /// Children that have not what they need.
        lacking: bool,
    }

    fn place(at: usize) -> Range {
        Range { start: at, end: at + 1 }
    }

    impl World {
        fn new(threads: usize, without: Without, kinds: Kinds) -> World {
            World {
                without,
                kinds,
                mapped: [false; PLACES],
                registered: [false; PLACES],
                evicted: [None; PLACES],
                touched: [false; PLACES],
                calls: 0,
                put_off_at: 0,
                under_way: (0..=threads).map(|_| VecDeque::new()).collect(),
                has: std::vec![Vec::new(); threads],
                mover: Mover::Waits,
                words: [None; PLACES],
                adopted: [false; PLACES],
                order: Order::default(),
                next: 0,
                lacking: false,
            }
        }

        fn is_settled(&self) -> bool {
            self.under_way.iter().all(VecDeque::is_empty)
        }

        /// How many changes are known to be in order, if nothing is under way, and how a place stands.
        fn settled(&self, at: usize) -> Option<(u64, Standing)> {
            self.is_settled().then(|| (self.order.count(), self.standing(at)))
        }

        fn standing(&self, at: usize) -> Standing {
            if self.registered[at] { Standing::Registered } else { Standing::NotRegistered }
        }

        fn free(&self, random: &mut fastrand::Rng) -> Option<usize> {
            let free: Vec<_> = (0..PLACES).filter(|&at| !self.mapped[at]).collect();
            (!free.is_empty()).then(|| free[random.usize(..free.len())])
        }

        /// A call of a thread that has none under way, as far as the kernel's locks reach.
        fn call(&mut self, thread: usize, random: &mut fastrand::Rng) {
            self.calls += 1;
            if matches!(self.kinds, Kinds::Forks | Kinds::All) && random.u32(..8) == 0 {
                if self.registered.contains(&true) {
                    let (registered, evicted, touched) = (self.registered, self.evicted, self.touched);
                    let mut forked = Forked { registered, evicted, touched, is_free: [false; PLACES], when: self.calls };
                    // (What the thread that moves has moved over is not registered again before that was read.)
                    for event in self.under_way[..self.under_way.len() - 1].iter().flatten() {
                        if let Event::Change(Message::Unmap { start, end }, _) = *event {
                            (start..end).for_each(|at| forked.is_free[at] = evicted[at].is_none());
                        }
                    }
                    // Where the kernel has moved something nobody looks before it has been told.
                    if let Mover::Done(ask, [Some(to), _]) | Mover::Returned(ask, [Some(to), _]) = self.mover {
                        forked.is_free[to] |= ask.given.is_none() && to != ask.from;
                    }
                    self.under_way[thread].push_back(Event::Fork(forked));
                }
                return;
            }
            let own = (!self.has[thread].is_empty()).then(|| random.usize(..self.has[thread].len()));
            match (random.u32(..4), own) {
                (0, Some(own)) => {
                    let start = self.has[thread][own];
                    let mut end = start + 1;
                    while self.has[thread].contains(&end) && random.bool() {
                        end += 1;
                    }
                    self.has[thread].retain(|at| !(start..end).contains(at));
                    let event = self.unmap(start..end);
                    self.under_way[thread].extend(event.map(|event| Event::Change(event, self.calls)));
                }
                (1 | 2, Some(own)) if self.mover == Mover::Waits => {
                    self.mover = Mover::Asked(self.ask(thread, own, random));
                }
                _ => {
                    if let Some(at) = self.free(random) {
                        self.mapped[at] = true;
                        self.touched[at] = random.bool();
                        self.has[thread].push(at);
                    }
                }
            }
        }

        fn ask(&mut self, by: usize, own: usize, random: &mut fastrand::Rng) -> Ask {
            let from = self.has[by].swap_remove(own);
            let mut ask = Ask { by, from, len: 1, given: None, leaves: false };
            if !self.has[by].is_empty() && random.u32(..4) == 0 {
                ask.given = self.has[by].pop();
            }
            if matches!(self.kinds, Kinds::AllMoves | Kinds::All) {
                if let Some(more) = self.has[by].iter().position(|at| *at == from + 1).filter(|_| ask.given.is_some()) {
                    self.has[by].swap_remove(more);
                    ask.len = 2;
                }
                ask.leaves = ask.len == 1 && random.u32(..4) == 0;
            }
            ask
        }

        /// What of that is reported.
        fn unmap(&mut self, places: core::ops::Range<usize>) -> Option<Message> {
            let is_reported = self.registered[places.clone()].contains(&true);
            for at in places.clone() {
                (self.mapped[at], self.registered[at], self.evicted[at], self.touched[at]) = (false, false, None, false);
            }
            is_reported.then_some(Message::Unmap { start: places.start, end: places.end })
        }

        /// Whether it goes on although changes are on their way.
        fn gives_up(&self, random: &mut fastrand::Rng) -> bool {
            matches!(self.without, Without::Patience | Without::Reuse) && random.bool()
        }

        /// The next step of the thread that moves.
        fn step(&mut self, random: &mut fastrand::Rng) {
            match self.mover {
                Mover::Asked(ask) => {
                    let mut settled = self.settled(ask.from);
                    if self.without == Without::SettlingBefore {
                        settled = Some((self.order.count(), self.standing(ask.from)));
                    } else if settled.is_none() && !self.gives_up(random) {
                        return;
                    }
                    settled.into_iter().for_each(|(count, _)| self.order.are_certain(count));
                    let made = MadeMove::new(ask.asked(), settled.map_or(Standing::Changing, |(_, standing)| standing));
                    self.order.made = Some(made.behind(self.order.made));
                    self.mover = Mover::Begun(ask);
                }
                // It grows in its place, which nothing tells.
                Mover::Begun(ask) if ask.given.is_none() && !ask.leaves && random.u32(..4) == 0 => {
                    let more = ask.from + 1;
                    if more < PLACES && !self.mapped[more] {
                        (self.mapped[more], self.registered[more]) = (true, self.registered[ask.from]);
                        self.touched[more] = random.bool();
                        self.has[ask.by].push(more);
                    }
                    self.mover = Mover::Done(ask, [Some(ask.from), None]);
                }
                Mover::Begun(ask) => self.mover = Mover::Done(ask, self.moves(ask, random)),
                // (Its own were read.)
                Mover::Done(ask, places) if self.under_way.last().unwrap().is_empty() => {
                    let put_off: Vec<_> = self.order.made.as_mut().into_iter().flat_map(MadeMove::returns).collect();
                    self.forgets_put_off(put_off);
                    self.mover = Mover::Returned(ask, places);
                }
                Mover::Returned(ask, places) => {
                    let mut settled = self.settled(ask.from);
                    if self.without == Without::SettlingAfter {
                        settled = Some((self.order.count(), self.standing(ask.from)));
                    } else if settled.is_none() && !self.gives_up(random) {
                        return;
                    }
                    settled.into_iter().for_each(|(count, _)| self.order.are_certain(count));
                    self.order.made =
                        self.order.made.filter(|_| settled.is_none()).map(|made| MadeMove { is_late: true, ..made });
                    self.has[ask.by].extend(places.into_iter().flatten());
                    self.mover = Mover::Waits;
                }
                Mover::Waits | Mover::Done(..) => {}
            }
        }

        /// The call; what the thread has afterwards.
        fn moves(&mut self, ask: Ask, random: &mut fastrand::Rng) -> [Option<usize>; 2] {
            let Ask { from, len, given, leaves, .. } = ask;
            let Some(to) = given.or_else(|| self.free(random)) else { return [Some(from), None] };
            self.calls += 1;
            let cleared = self.unmap(to..to + 1);
            let tail = if len > 1 { self.unmap(from + 1..from + len) } else { None };
            // Having made it shorter it finds no memory, perhaps.
            let fails = len > 1 && random.u32(..8) == 0;
            let mut moved = [None, None];
            if !fails {
                self.mapped[to] = true;
                self.evicted[to] = self.evicted[from].take();
                self.touched[to] = core::mem::take(&mut self.touched[from]);
                self.registered[to] = self.registered[from];
                if self.registered[from] {
                    moved[0] = Some(Message::Remap { from, to, len: 1 });
                    moved[1] = (!leaves).then_some(Message::Unmap { start: from, end: from + 1 });
                }
                if !leaves {
                    (self.mapped[from], self.registered[from]) = (false, false);
                }
            }
            let [remap, left] = moved;
            let events = [cleared, remap, tail, left].into_iter().flatten();
            let events = events.map(|event| Event::Change(event, self.calls));
            self.under_way.last_mut().unwrap().extend(events);
            if fails { [Some(from), None] } else { [Some(to), leaves.then_some(from)] }
        }

        /// The reclaimer registers something, while nobody is in a call that it would have to wait for.
        fn register(&mut self, random: &mut fastrand::Rng) {
            let at = random.usize(..PLACES);
            if self.mover == Mover::Waits && self.mapped[at] && (!self.registered[at] || !self.adopted[at]) {
                // Of what is adopted for all it knows it looks at nothing, unless it is a part of something larger.
                if !self.adopted[at] {
                    self.words[at] = None;
                } else if random.bool() {
                    return;
                }
                (self.registered[at], self.adopted[at]) = (true, true);
                if self.without != Without::Reuse {
                    self.order.made.iter_mut().for_each(|made| made.reuses(place(at)));
                }
            }
        }

        fn forgets_put_off(&mut self, put_off: Vec<Range>) {
            put_off.iter().for_each(|range| self.frees(*range, self.put_off_at));
            self.forget(put_off);
        }

        fn forget(&mut self, ranges: impl IntoIterator<Item = Range>) {
            for at in ranges.into_iter().flat_map(|range| range.start..range.end) {
                (self.words[at], self.adopted[at]) = (None, false);
            }
        }

        /// The next event of a thread is read and applied; false: it is not certain.
        fn read(&mut self, thread: usize) -> bool {
            let Some(event) = self.under_way[thread].pop_front() else { return true };
            match event {
                Event::Change(event, when) => self.changed(event, when),
                Event::Fork(forked) => self.forked(&forked),
            }
        }

        fn changed(&mut self, event: Message, when: usize) -> bool {
            let turn = self.mover.ask().filter(|_| !matches!(self.mover, Mover::Asked(_)));
            let turn = turn.map_or([Range::NONE; 2], |ask| [ask.asked().from, ask.given.map_or(Range::NONE, place)]);
            let in_turn = |range: Range| turn.iter().any(|changed| changed.covers(range));
            let is_certain = self.order.is_certain(&event, in_turn, || false);
            match event {
                Message::Unmap { start, end } => {
                    let range = Range { start, end };
                    let parts = self.order.made.as_mut().map_or([range].into_iter().collect(), |made| made.unmapped(range));
                    let moved = self.order.made.and_then(|made| made.moved);
                    for part in &parts {
                        self.frees(*part, when);
                        // A child from before the move has it where it was.
                        if let Some([from, _]) = moved.filter(|[_, to]| to.meets(*part)) {
                            self.frees(from, when);
                        }
                    }
                    self.put_off_at = when;
                    self.forget(parts);
                }
                Message::Remap { from, to, .. } => {
                    let mut made = self.order.made.unwrap();
                    if made.has_moved(place(from), place(to)) && self.without != Without::Clearing {
                        self.words[to] = None;
                        self.frees(place(to), when);
                    }
                    let put_off: Vec<_> = made.take_put_off().collect();
                    if self.without != Without::Cutting {
                        self.order.made = Some(made);
                    }
                    if let Some(word) = self.words[from].take() {
                        self.words[to] = Some(word);
                    }
                    self.adopted[to] = true;
                    self.forgets_put_off(put_off);
                }
                _ => unreachable!(),
            }
            is_certain
        }

        /// An unmapping was read, of a call after so many: of children from before, whose forks were not read, nobody can know
        /// whether they have that.
        fn frees(&mut self, range: Range, when: usize) {
            for event in self.under_way.iter_mut().flatten() {
                if let Event::Fork(forked) = event
                    && forked.when < when
                {
                    (range.start..range.end).for_each(|at| forked.is_free[at] = true);
                }
            }
        }

        /// The child gets what is out, where it has it.
        fn forked(&mut self, child: &Forked) -> bool {
            let in_child =
                |range: Range| if child.registered[range.start] { Standing::Registered } else { Standing::NotRegistered };
            let made = self.order.made.filter(|_| self.without != Without::Looking);
            let mut shift = match made.map_or(Ok(Shift::NONE), |made| made.seen_by_child(in_child)) {
                Ok(shift) => shift,
                Err(CanNotTell) => return false,
            };
            if self.without == Without::Hiding {
                shift.gone = Range::NONE;
            }
            let mut filled = [None; PLACES];
            for at in 0..PLACES {
                if let Some(there) = shift.of(at).filter(|there| child.registered[*there]) {
                    filled[there] = filled[there].or(self.words[at]);
                }
            }
            let is_wrong = |at: usize| match child.evicted[at] {
                None => !child.touched[at] && filled[at].is_some(),
                evicted => filled[at] != evicted,
            };
            self.lacking |= (0..PLACES).any(|at| child.registered[at] && !child.is_free[at] && is_wrong(at));
            true
        }

        /// Where nothing is under way: is all as it should be? Evicts some, and brings some in.
        fn look_and_evict(&mut self, random: &mut fastrand::Rng) -> bool {
            let is_right = self.words == self.evicted && (0..PLACES).all(|at| self.mapped[at] || !self.adopted[at]);
            // Whoever reads messages looks before that, and need not see it.
            if random.bool() {
                self.order.all_is_certain();
            }
            for at in (0..PLACES).filter(|&at| self.registered[at] && self.adopted[at]) {
                match (self.evicted[at], random.bool()) {
                    (None, true) => {
                        self.touched[at] = true;
                        self.next += 1;
                        (self.evicted[at], self.words[at]) = (Some(self.next), Some(self.next));
                    }
                    (Some(_), true) => (self.evicted[at], self.words[at]) = (None, None),
                    _ => {}
                }
            }
            is_right
        }
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum End {
        Right,
        InDoubt,
        Wrong,
    }

    /// How it ends, and after how many moves of what is registered.
    fn run(threads: usize, without: Without, kinds: Kinds, seed: u64) -> (End, usize) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut world = World::new(threads, without, kinds);
        let mut moves = 0;
        for _ in 0..400 {
            // Not each step: whoever is woken may sleep on.
            match random.usize(..threads + 3) {
                thread if thread < threads && world.under_way[thread].is_empty() => {
                    if world.mover.ask().is_none_or(|ask| ask.by != thread) {
                        world.call(thread, &mut random);
                    }
                }
                thread if thread <= threads => {
                    let is_move = matches!(world.under_way[thread].front(), Some(Event::Change(Message::Remap { .. }, _)));
                    moves += usize::from(is_move);
                    if !world.read(thread) {
                        return (End::InDoubt, moves);
                    }
                }
                step if step == threads + 1 => world.step(&mut random),
                _ => world.register(&mut random),
            }
            if world.lacking || world.is_settled() && !world.look_and_evict(&mut random) {
                return (End::Wrong, moves);
            }
        }
        (End::Right, moves)
    }

    /// How often it ends so, of as many runs.
    fn ends(runs: u64, without: Without, kinds: Kinds) -> [usize; 3] {
        let mut counts = [0; 3];
        (0..runs).for_each(|seed| counts[run(2 + seed as usize % 3, without, kinds, seed).0 as usize] += 1);
        counts
    }

    #[test]
    fn nothing_is_in_doubt_and_nothing_wrong() {
        let ends: Vec<_> = (0..20_000).map(|seed| run(2 + seed as usize % 3, Without::Nothing, Kinds::Plain, seed)).collect();
        let bad = ends.iter().position(|(end, _)| *end != End::Right);
        assert_eq!(bad, None, "{:?}", bad.map(|seed| &ends[seed]));
        let moves: usize = ends.iter().map(|(_, moves)| moves).sum();
        assert!(moves > 20_000, "{moves} moves");
    }

    /// Only what makes shorter, or leaves the old place mapped, is ever in doubt.
    #[test]
    fn nothing_is_wrong_with_forks_and_with_all_kinds_of_moves() {
        for (kinds, most_in_doubt) in [(Kinds::Forks, 1), (Kinds::AllMoves, 20), (Kinds::All, 6_000)] {
            let [right, doubt, wrong] = ends(20_000, Without::Nothing, kinds);
            assert!(
                wrong == 0 && right > 1000 && doubt < most_in_doubt,
                "{kinds:?}: {right} right, {doubt} in doubt, {wrong} wrong"
            );
        }
    }

    #[test]
    fn each_step_is_needed() {
        use Without::*;
        let steps = [(SettlingBefore, true), (Clearing, true), (Cutting, false), (SettlingAfter, false)];
        for (without, is_wrong) in steps {
            let [_, doubt, wrong] = ends(20_000, without, Kinds::Plain);
            assert!(wrong > 0 || !is_wrong && doubt > 0, "without {without:?} {wrong} are wrong and {doubt} in doubt");
        }
        for without in [Looking, Hiding, Reuse] {
            assert!(ends(20_000, without, Kinds::Forks)[2] > 0, "without {without:?}");
        }
    }

    /// Threads that get no CPU keep changes on their way.
    #[test]
    fn where_it_does_not_settle_nothing_is_wrong() {
        for (kinds, least_right) in [(Kinds::Plain, 1000), (Kinds::Forks, 1000), (Kinds::AllMoves, 1000), (Kinds::All, 100)] {
            let [right, doubt, wrong] = ends(20_000, Without::Patience, kinds);
            assert!(
                wrong == 0 && doubt > 100 && right > least_right,
                "{kinds:?}: {right} right, {doubt} in doubt, {wrong} wrong"
            );
        }
    }

    /// The place of a move, as the kernel chooses it, was unmapped before: what is read after the move says so late.
    #[test]
    fn what_was_unmapped_before_takes_nothing_along() {
        const MOVED: usize = 8;
        let Some(mut pager) = pager() else { return };
        let (from, to) = (mapping(MOVED), mapping(12));
        let range = |start: usize, pages: usize| Range { start, end: start + pages * PAGE_SIZE };
        let (whole, moved) = (range(to, 12), range(to + PAGE_SIZE, MOVED));
        pager.host.turn = || [Range { start: 0, end: usize::MAX }, Range::NONE];
        for page in PageNo::of(from).up_to(PageNo::of(from) + MOVED).chain(PageNo::of(to).up_to(PageNo::of(to) + 12)) {
            assert_eq!(pager.map.claim(page, PageState::None, PageState::Zero), Ok(true));
            pager.zero_now.fetch_add(1, Ordering::Relaxed);
        }
        pager.set_made_move(Some(Move { from: range(from, MOVED), to: None, leaves: false, shortens: false }));
        let lock = pager.space.exclusive();
        pager.regions.insert(&lock, whole);
        let read = |event: Message| {
            pager.look_at_order(&lock, &event);
            pager.happened(&lock, event);
        };
        read(Message::Remap { from, to: moved.start, len: MOVED * PAGE_SIZE });
        read(Message::Unmap { start: whole.start, end: whole.end });
        assert_eq!(words(&pager, moved.start, MOVED), [PageState::Zero; MOVED]);
        assert_eq!(pager.zero_now.load(Ordering::Relaxed), MOVED as u64);
        let gaps: Vec<_> = pager.regions.gaps(&lock, whole).collect();
        assert_eq!(gaps, [Range { end: moved.start, ..whole }, Range { start: moved.end, ..whole }]);
        // When the program knows the place, it may unmap it.
        drop(lock);
        pager.set_made_move(None);
        let lock = pager.space.exclusive();
        let unmapped = Message::Unmap { start: moved.start, end: moved.end };
        pager.look_at_order(&lock, &unmapped);
        pager.happened(&lock, unmapped);
        assert_eq!(
            (words(&pager, moved.start, MOVED), pager.zero_now.load(Ordering::Relaxed)),
            (std::vec![PageState::None; MOVED], 0)
        );
    }

    /// Of a fork that is read behind two moves it would not be known which of them it has seen.
    #[test]
    fn what_follows_a_late_move_is_known_to_until_all_was_read() {
        let asked = Move { from: Range::NONE, to: None, leaves: false, shortens: false };
        let made = |is_settled, before| {
            let stood = if is_settled { Standing::Registered } else { Standing::Changing };
            MadeMove::new(asked, stood).behind(before)
        };
        let late = MadeMove { is_late: true, ..made(true, None) };
        let second = made(false, Some(late));
        assert!(second.follows_late && made(false, Some(second)).follows_late);
        assert!(!made(true, Some(late)).follows_late && !made(false, Some(made(false, None))).follows_late);
        assert!(second.all_was_read().is_some_and(|made| !made.follows_late) && late.all_was_read().is_none());
    }

    /// A child that was cloned before a move has its pages where they were, and one that was cloned after it where they are. Here
    /// what is registered with another userfaultfd stands for what was registered at the cloning.
    #[test]
    fn what_has_moved_since_a_fork_is_where_it_was_in_the_child() {
        const PAGES: usize = 8;
        let range = |start: usize| Range { start, end: start + PAGES * PAGE_SIZE };
        for (cloned_before, leaves) in [(true, false), (false, false), (true, true)] {
            let Some(mut pager) = pager() else { return };
            pager.host.turn = || [Range { start: 0, end: usize::MAX }, Range::NONE];
            let (from, to) = (mapping(PAGES), mapping(PAGES));
            let child = (pager.host.open_uffd)().unwrap();
            let there = if cloned_before { from } else { to };
            // SAFETY: nobody touches what is missing there.
            unsafe { child.register(there, PAGES * PAGE_SIZE, Watched::Missing).unwrap() };
            pager.set_made_move(Some(Move { from: range(from), to: None, leaves, shortens: false }));
            let lock = pager.space.exclusive();
            pager.happened(&lock, Message::Remap { from, to, len: PAGES * PAGE_SIZE });
            let page_of_child = pager.page_of_child(&lock, &child);
            let last = PAGES - 1;
            assert_eq!(page_of_child(PageNo::of(to) + last), Some(PageNo::of(there) + last), "{cloned_before} {leaves}");
            assert_eq!(page_of_child(PageNo::of(to) + PAGES), Some(PageNo::of(to) + PAGES), "it has not moved");
            pager.order.lock().made = None;
            assert_eq!(pager.page_of_child(&lock, &child)(PageNo::of(to)), Some(PageNo::of(to)), "all of it is over");
        }
    }

    /// The same where the program has said where to, and the fork is read before the move.
    #[test]
    fn what_moves_to_a_given_place_is_there_in_a_child_cloned_later() {
        const PAGES: usize = 8;
        let range = |start: usize, pages: usize| Range { start, end: start + pages * PAGE_SIZE };
        for (is_after, pages) in [(true, 4), (true, 12), (false, 4), (false, 12)] {
            let Some(mut pager) = pager() else { return };
            pager.host.turn = || [Range { start: 0, end: usize::MAX }, Range::NONE];
            let (from, to) = (mapping(PAGES), mapping(12));
            // SAFETY: nobody touches what is missing there.
            unsafe { pager.uffd().register(from, PAGES * PAGE_SIZE, Watched::Missing).unwrap() };
            let asked = Move { from: range(from, PAGES), to: Some(range(to, pages)), leaves: false, shortens: pages < PAGES };
            pager.set_made_move(Some(asked));
            let child = (pager.host.open_uffd)().unwrap();
            let there = if is_after { range(to, pages) } else { range(from, PAGES) };
            // SAFETY: as above.
            unsafe {
                pager.uffd().unregister(from, PAGES * PAGE_SIZE).unwrap();
                child.register(there.start, there.end - there.start, Watched::Missing).unwrap();
            }
            let lock = pager.space.exclusive();
            let page_of_child = pager.page_of_child(&lock, &child);
            let of = |start: usize, page| page_of_child(PageNo::of(start) + page);
            let at = |start: usize, page| Some(PageNo::of(start) + page);
            let moved = pages.min(PAGES);
            for page in [0, moved - 1] {
                assert_eq!(of(from, page), at(there.start, page), "{is_after} {pages}");
            }
            for page in [0, pages - 1] {
                assert_eq!(of(to, page), if is_after { None } else { at(to, page) }, "{is_after} {pages}");
            }
            assert_eq!([of(from, PAGES), of(to, pages)], [at(from, PAGES), at(to, pages)], "these don't move");
        }
    }

    /// Where changes never ceased before a call, what is registered in a child tells nothing of which came first but that it is.
    #[test]
    fn a_move_that_began_while_changes_were_on_their_way_is_in_doubt() {
        let from = Range { start: 0x1000, end: 0x2000 };
        let asked = Move { from, to: Some(Range { start: 0x5000, end: 0x6000 }), leaves: false, shortens: false };
        let seen = |stood, standing| MadeMove::new(asked, stood).seen_by_child(|_| standing);
        use Standing::*;
        assert_eq!(seen(Registered, NotRegistered), Ok(Shift::ahead(from, asked.to.unwrap())));
        assert_eq!(seen(NotRegistered, NotRegistered), Ok(Shift::NONE));
        for stood in [Registered, NotRegistered, Changing] {
            assert_eq!(seen(stood, Registered), Ok(Shift::NONE));
        }
        assert_eq!([seen(Changing, NotRegistered), seen(Registered, Changing)], [Err(CanNotTell); 2]);
    }

    /// What is registered in a child where a move began tells nothing any more once it may be something new.
    #[test]
    fn what_is_registered_where_a_late_move_began_is_remembered() {
        const PAGES: usize = 8;
        let Some(pager) = pager() else { return };
        let [from, other] = [mapping(PAGES), mapping(PAGES)];
        let range = Range { start: from, end: from + PAGES * PAGE_SIZE };
        let asked = Move { from: range, to: None, leaves: false, shortens: false };
        let moved = Some([range, Range { start: range.start + (1 << 30), end: range.end + (1 << 30) }]);
        let late = MadeMove { is_late: true, has_returned: true, moved, ..MadeMove::new(asked, Standing::Registered) };
        assert!(late.seen_by_child(|_| Standing::Registered).is_ok_and(|shift| shift != Shift::NONE));
        pager.order.lock().made = Some(late);
        // SAFETY: nobody touches it.
        unsafe { pager.uffd().register(other, PAGES * PAGE_SIZE, Watched::Missing).unwrap() };
        std::thread::scope(|scope| {
            // SAFETY: the test's own.
            scope.spawn(|| unsafe { rustix::mm::munmap(other as *mut _, PAGES * PAGE_SIZE).unwrap() });
            while pager.uffd().standing(from) != Standing::Changing {
                std::thread::yield_now();
            }
            pager.adopt(range).unwrap();
            let made = pager.order.lock().made.expect("changes are on their way");
            assert_eq!(made.seen_by_child(|_| Standing::Registered), Err(CanNotTell));
            assert!(matches!(pager.uffd().read(), Ok(Message::Unmap { .. })));
        });
    }
}
