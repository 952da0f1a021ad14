//! Whether events were read in the order of what they report.
//!
//! The kernel queues an event after it has released its locks, so the later of two threads' events
//! may be read first: "a mapping moved to X", then "X was unmapped", which made room for it. The
//! second would then drop what the first brought. The agent's gate orders the calls that the host
//! watches, so only raw system calls of several threads can do this, and only with a move among
//! them. The run then ends, rather than risk wrong bytes.
//!
//! The kernel counts changes (`mmap_changing`) from before each one until its thread runs on:
//! events read before that count was zero are certain. And a thread uses the new place of a move
//! only after its own event was read. In doubt remains memory taken from where something moved to,
//! from where something moved away (except by the move's own unmapping), and, by a move, from where
//! something was unmapped. A model with a kernel that delays any event checks this.
//!
//! Events of a thread that has ended may still come, so each raw call looks anew whether the
//! program has other threads. Threads of programs without hooks move nothing where a filter tells
//! of their calls (`call_filter.rs` of `lowtide-wire`).

use arrayvec::ArrayVec;

use lowtide_sys::Range;
use lowtide_sys::uffd::Message;

/// A thread delayed for more changes goes unnoticed.
const MOST: usize = 64;

pub(super) const MOST_PUT_BACK: usize = 32;

#[derive(Debug)]
struct Change {
    left: Range,
    to: Option<Range>,
    in_turn: bool,
    /// The call had no turn, and the program had other threads.
    is_of_many: bool,
    /// The move's own UNMAP was read.
    has_left: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Order {
    read: ArrayVec<Change, MOST>,
    /// Parts of UNMAPs that look refused: they are registered.
    put_back: ArrayVec<PutBack, MOST_PUT_BACK>,
}

#[derive(Debug, Clone, Copy)]
struct PutBack {
    range: Range,
    /// The program had other threads.
    is_of_many: bool,
}

impl Order {
    pub(crate) fn is_all_certain(&self) -> bool {
        self.read.is_empty()
    }

    pub(crate) fn all_is_certain(&mut self) {
        self.read.clear();
        self.put_back.clear();
    }

    pub(crate) fn is_put_back(&mut self, range: Range, is_of_many: bool) {
        self.push_put_back(PutBack { range, is_of_many });
    }

    /// The oldest is forgotten: a mapping rarely moves while that many calls are refused.
    fn push_put_back(&mut self, put_back: PutBack) {
        if self.put_back.is_full() {
            self.put_back.remove(0);
        }
        self.put_back.push(put_back);
    }

    /// Something was unmapped there, or a mapping has moved or grown to there: no earlier UNMAP of
    /// it was refused.
    pub(crate) fn was_unmapped(&mut self, place: Range) {
        for put_back in core::mem::take(&mut self.put_back) {
            put_back.range.without(place).for_each(|range| self.push_put_back(PutBack { range, ..put_back }));
        }
    }

    /// The parts of `range` whose UNMAPs look refused, unless the program has and had one thread.
    pub(crate) fn in_doubt(&self, range: Range, is_alone: impl Fn() -> bool) -> ArrayVec<Range, MOST_PUT_BACK> {
        let there = self.put_back.iter().filter(|put_back| put_back.range.meets(range));
        there.filter(|put_back| put_back.is_of_many || !is_alone()).map(|put_back| put_back.range.within(range)).collect()
    }

    /// The latest UNMAP at `start` that looks refused.
    pub(crate) fn refused_at(&self, start: usize) -> Option<Range> {
        self.put_back.iter().map(|put_back| put_back.range).rfind(|range| range.start == start)
    }

    /// Notes an event. False: older events may be newer. `in_turn`: the call had the turn.
    #[must_use]
    pub(crate) fn is_certain(&mut self, event: &Message, in_turn: impl Fn(Range) -> bool, is_alone: impl Fn() -> bool) -> bool {
        let change = |left: Range, to| {
            let in_turn = in_turn(left);
            Change { left, to, in_turn, is_of_many: !in_turn && !is_alone(), has_left: false }
        };
        match *event {
            Message::Remap { from, to, len } => {
                let [left, to] = [from, to].map(|start| Range { start, end: start + len });
                let change = change(left, Some(to));
                let is_certain = self.follows(&change, None, &is_alone);
                self.take_up(change);
                is_certain
            }
            Message::Unmap { start, end } => self.unmaps(change(Range { start, end }, None), &is_alone),
            _ => true,
        }
    }

    fn unmaps(&mut self, change: Change, is_alone: impl Fn() -> bool) -> bool {
        // An UNMAP of the same call, read after its REMAP.
        let own = self.read.iter().position(|earlier| earlier.is_of_the_call(&change));
        let is_certain = self.follows(&change, own, is_alone);
        match own {
            Some(own) => self.read[own].has_left = change.left.start == self.read[own].left.start,
            None => self.take_up(change),
        }
        is_certain
    }

    /// Whether it is newer than all others; `own` is of the same call.
    fn follows(&self, change: &Change, own: Option<usize>, is_alone: impl Fn() -> bool) -> bool {
        let others = self.read.iter().enumerate().filter(|(i, _)| Some(*i) != own).map(|(_, earlier)| earlier);
        let mut doubts = others.filter(|earlier| earlier.makes_doubtful(change)).peekable();
        doubts.peek().is_none() || !change.is_of_many && doubts.all(|earlier| !earlier.is_of_many) && is_alone()
    }

    fn take_up(&mut self, change: Change) {
        if self.read.is_full() {
            self.read.remove(self.read.iter().position(|earlier| earlier.to.is_none()).unwrap_or(0));
        }
        self.read.push(change);
    }
}

impl Change {
    /// The move of that unmapping. Before Linux 6.15 a call that also shortens reports the old
    /// length, and unmaps the end, then the beginning.
    fn is_of_the_call(&self, unmapping: &Change) -> bool {
        let is_part = self.left.covers(unmapping.left)
            && (self.left.start == unmapping.left.start || self.left.end == unmapping.left.end);
        self.to.is_some() && !self.has_left && is_part && self.in_turn == unmapping.in_turn
    }

    fn makes_doubtful(&self, later: &Change) -> bool {
        if self.in_turn && later.in_turn || self.to.is_none() && later.to.is_none() {
            return false;
        }
        self.left.meets(later.left) || self.to.is_some_and(|to| to.meets(later.left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::vec::Vec;

    const PLACES: usize = 6;

    /// A program and its kernel. Each place is a page; all mapped pages are evicted when nothing is
    /// on its way.
    #[derive(Default)]
    struct World {
        mapped: [bool; PLACES],
        registered: [bool; PLACES],
        evicted: [Option<u32>; PLACES],
        under_way: Vec<VecDeque<Message>>,
        has: Vec<Vec<usize>>,
        turn: Option<usize>,
        words: [Option<u32>; PLACES],
        in_regions: [bool; PLACES],
        order: Order,
        next: u32,
        /// Calls may fail after their events, and memory may go without one.
        lies: bool,
        /// lowtide looks up what is registered.
        asks: bool,
    }

    impl World {
        fn new(threads: usize, lies: bool, asks: bool) -> World {
            World {
                lies,
                asks,
                under_way: (0..threads).map(|_| VecDeque::new()).collect(),
                has: std::vec![Vec::new(); threads],
                ..World::default()
            }
        }

        fn call(&mut self, thread: usize, random: &mut fastrand::Rng) {
            let free: Vec<_> = (0..PLACES).filter(|&at| !self.mapped[at]).collect();
            let own = (!self.has[thread].is_empty()).then(|| random.usize(..self.has[thread].len()));
            let unmapped = |at: usize| Message::Unmap { start: at, end: at + 1 };
            let events = match (random.u32(..4), own) {
                (0, Some(own)) if self.lies && random.bool() => {
                    let at = self.has[thread][own];
                    let is_told = self.registered[at];
                    if random.bool() {
                        [is_told.then(|| unmapped(at)), None]
                    } else {
                        self.has[thread].swap_remove(own);
                        self.unmap(at);
                        [None, None]
                    }
                }
                (0, Some(own)) => {
                    let at = self.has[thread].swap_remove(own);
                    let is_told = self.registered[at];
                    self.unmap(at);
                    [is_told.then(|| unmapped(at)), None]
                }
                (1 | 2, Some(own)) if !free.is_empty() => {
                    let to = free[random.usize(..free.len())];
                    let from = core::mem::replace(&mut self.has[thread][own], to);
                    let is_told = self.registered[from];
                    (self.mapped[to], self.registered[to]) = (true, is_told);
                    self.evicted[to] = self.evicted[from];
                    self.unmap(from);
                    [is_told.then_some(Message::Remap { from, to, len: 1 }), is_told.then(|| unmapped(from))]
                }
                _ if !free.is_empty() => {
                    let at = free[random.usize(..free.len())];
                    self.mapped[at] = true;
                    self.has[thread].push(at);
                    self.register(at);
                    [None, None]
                }
                _ => [None, None],
            };
            self.under_way[thread].extend(events.into_iter().flatten());
        }

        fn register(&mut self, at: usize) {
            if self.in_regions[at] && self.asks && !self.registered[at] {
                if self.under_way.iter().any(|events| !events.is_empty()) {
                    return;
                }
                self.in_regions[at] = false;
            }
            if !self.in_regions[at] {
                self.words[at] = None;
            }
            (self.in_regions[at], self.registered[at]) = (true, true);
        }

        fn unmap(&mut self, at: usize) {
            (self.mapped[at], self.registered[at]) = (false, false);
            self.evicted[at] = None;
        }

        fn read(&mut self, thread: usize) -> bool {
            let Some(event) = self.under_way[thread].pop_front() else { return true };
            let in_turn = self.turn == Some(thread);
            let is_certain = self.order.is_certain(&event, |_| in_turn, || false);
            match event {
                Message::Unmap { start: at, .. } if self.asks && self.registered[at] => {}
                Message::Unmap { start: at, .. } => (self.words[at], self.in_regions[at]) = (None, false),
                Message::Remap { from, to, .. } => {
                    self.words[to] = self.words[from].take();
                    self.in_regions[to] = true;
                }
                _ => unreachable!(),
            }
            is_certain
        }

        fn look_and_evict(&mut self) -> bool {
            for at in (0..PLACES).filter(|_| self.asks) {
                if self.in_regions[at] && !self.registered[at] {
                    (self.words[at], self.in_regions[at]) = (None, false);
                }
            }
            let is_right = self.words == self.evicted && (0..PLACES).all(|at| self.mapped[at] || !self.in_regions[at]);
            self.order.all_is_certain();
            for at in 0..PLACES {
                if self.mapped[at] && self.evicted[at].is_none() {
                    self.next += 1;
                    self.register(at);
                    (self.evicted[at], self.words[at]) = (Some(self.next), Some(self.next));
                }
            }
            is_right
        }
    }

    #[derive(Debug, PartialEq, Eq)]
    enum End {
        Right,
        InDoubt,
        Wrong,
    }

    fn run(threads: usize, in_gate: usize, seed: u64) -> End {
        run_in(World::new(threads, false, true), 200, threads, in_gate, seed)
    }

    fn run_in(mut world: World, steps: usize, threads: usize, in_gate: usize, seed: u64) -> End {
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..steps {
            let thread = random.usize(..threads);
            if !world.under_way[thread].is_empty() {
                if !world.read(thread) {
                    return End::InDoubt;
                }
                if world.under_way[thread].is_empty() && world.turn == Some(thread) {
                    world.turn = None;
                }
            } else if thread >= in_gate || world.turn.is_none() {
                world.call(thread, &mut random);
                if thread < in_gate && !world.under_way[thread].is_empty() {
                    world.turn = Some(thread);
                }
            }
            if world.under_way.iter().all(VecDeque::is_empty) && !world.look_and_evict() {
                return End::Wrong;
            }
        }
        End::Right
    }

    #[test]
    fn what_is_certain_is_right() {
        let ends: Vec<_> = (0..20_000).map(|seed| run(2 + seed as usize % 3, seed as usize / 3 % 3, seed)).collect();
        let count = |end| ends.iter().filter(|&each| *each == end).count();
        assert_eq!(count(End::Wrong), 0, "the first: {:?}", ends.iter().position(|end| *end == End::Wrong));
        assert!(count(End::InDoubt) > 1000 && count(End::Right) > 1000, "{} in doubt", count(End::InDoubt));
    }

    #[test]
    fn what_the_kernel_has_not_done_is_not_believed() {
        let ends = |asks, threads: usize, in_gate: usize| -> [usize; 3] {
            let all: Vec<_> =
                (0..5000).map(|seed| run_in(World::new(threads, true, asks), 40, threads, in_gate, seed)).collect();
            [End::Right, End::InDoubt, End::Wrong].map(|end| all.iter().filter(|each| **each == end).count())
        };
        for (threads, in_gate) in [(1, 0), (1, 1), (2, 0), (3, 0), (3, 3), (4, 2)] {
            let [right, _, wrong] = ends(true, threads, in_gate);
            assert!(wrong == 0 && right > 100, "{threads} threads, {in_gate} pass the gate: {wrong} wrong, {right} right");
            let [.., wrong] = ends(false, threads, in_gate);
            assert!(wrong > 100, "without a question {wrong} are wrong");
        }
    }

    #[test]
    fn one_at_a_time_is_never_in_doubt() {
        assert!((0..2000).all(|seed| run(4, 4, seed) == End::Right), "all of them pass the gate");
    }

    #[test]
    fn a_single_thread_is_never_in_doubt() {
        let mut order = Order::default();
        let mut follows = |event| order.is_certain(&event, |_| false, || true);
        assert!(follows(Message::Remap { from: 1, to: 5, len: 1 }));
        assert!(follows(Message::Unmap { start: 1, end: 2 }), "its own");
        assert!(follows(Message::Unmap { start: 5, end: 6 }));
    }

    #[test]
    fn what_a_thread_did_that_has_ended_since_is_in_doubt() {
        // The first thread's move from 5 is read last; the second, which moved something to 5, has
        // ended.
        let mut order = Order::default();
        let raw = |_| false;
        assert!(order.is_certain(&Message::Remap { from: 1, to: 5, len: 1 }, raw, || false));
        assert!(order.is_certain(&Message::Unmap { start: 1, end: 2 }, raw, || false));
        let last = Message::Remap { from: 5, to: 7, len: 1 };
        assert!(!order.is_certain(&last, raw, || true));
        order.all_is_certain();
        assert!(order.is_certain(&last, raw, || false));
    }
}
