//! A model of threads, of the one that moves, and of a kernel that delays any event; and the pager
//! beside it.

use super::*;
use crate::mappings::Changes;
use crate::mappings::event_order::{MOST_PUT_BACK, Order};
use crate::mappings::events::tests::{mapping, pager, words};
use crate::mappings::place_in_child::{CanNotTell, Shift};
use crate::pagemap::PageState;
use crate::pagemap::ids::PageNo;
use crate::sys::uffd::Watched;
use core::sync::atomic::Ordering;
use lowtide_core::vm::PAGE_SIZE;
use std::collections::VecDeque;
use std::vec::Vec;

const PLACES: usize = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    SettlingBefore,
    Clearing,
    Cutting,
    SettlingAfter,
    /// Waiting until it has settled, each time.
    Patience,
    /// Looking where the child of a fork has what has moved.
    Looking,
    /// Hiding from it what lay at the new place.
    Hiding,
    /// Remembering what was registered anew at the old place of a late move.
    Reuse,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kinds {
    Plain,
    AllMoves,
    Forks,
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ask {
    by: usize,
    from: usize,
    len: usize,
    given: Option<usize>,
    leaves: bool,
}

impl Ask {
    fn asked(self) -> Move {
        let from = Range { start: self.from, end: self.from + self.len };
        Move { from, to: self.given.map(place), leaves: self.leaves, len: 1 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mover {
    Waits,
    Asked(Ask),
    Begun(Ask),
    Done(Ask, [Option<usize>; 2]),
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

struct Forked {
    registered: [bool; PLACES],
    evicted: [Option<u32>; PLACES],
    touched: [bool; PLACES],
    /// Places in doubt: unmapped after the cloning, as far as lowtide knows; moved to an untold
    /// place; or mapped again untouched before the UNMAP was read.
    is_free: [bool; PLACES],
    when: usize,
}

enum Event {
    Change(Message, usize),
    Fork(Forked),
}

/// Threads that map and unmap, and have another thread move memory; and a kernel that reports in
/// any order. Each place is a page.
struct World {
    without: Without,
    kinds: Kinds,
    mapped: [bool; PLACES],
    registered: [bool; PLACES],
    evicted: [Option<u32>; PLACES],
    touched: [bool; PLACES],
    calls: usize,
    put_off_at: usize,
    under_way: Vec<VecDeque<Event>>,
    has: Vec<Vec<usize>>,
    mover: Mover,
    words: [Option<u32>; PLACES],
    in_regions: [bool; PLACES],
    order: Order,
    next: u32,
    lacking: bool,
}

fn standing(is_registered: bool) -> Standing {
    if is_registered { Standing::Registered } else { Standing::NotRegistered }
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
            in_regions: [false; PLACES],
            order: Order::default(),
            next: 0,
            lacking: false,
        }
    }

    fn is_settled(&self) -> bool {
        self.under_way.iter().all(VecDeque::is_empty)
    }

    /// How a place stands when nothing is under way. None: not yet; Changing: it goes on
    /// regardless.
    fn settle(&mut self, unless: Without, at: Option<usize>, random: &mut fastrand::Rng) -> Option<Standing> {
        if self.without == unless || self.is_settled() {
            self.order.are_certain(self.order.count());
            return Some(at.map_or(Standing::Registered, |at| standing(self.registered[at])));
        }
        self.gives_up(random).then_some(Standing::Changing)
    }

    fn free(&self, random: &mut fastrand::Rng) -> Option<usize> {
        let free: Vec<_> = (0..PLACES).filter(|&at| !self.mapped[at]).collect();
        (!free.is_empty()).then(|| free[random.usize(..free.len())])
    }

    fn call(&mut self, thread: usize, random: &mut fastrand::Rng) {
        self.calls += 1;
        if matches!(self.kinds, Kinds::Forks | Kinds::All) && random.u32(..8) == 0 {
            if self.registered.contains(&true) {
                let (registered, evicted, touched) = (self.registered, self.evicted, self.touched);
                let mut forked = Forked { registered, evicted, touched, is_free: [false; PLACES], when: self.calls };
                // Nothing is registered at the mover's target before that was read.
                for event in self.under_way[..self.under_way.len() - 1].iter().flatten() {
                    if let Event::Change(Message::Unmap { start, end }, _) = *event {
                        (start..end).for_each(|at| forked.is_free[at] = evicted[at].is_none());
                    }
                }
                // Nobody uses a place that the kernel chose before it is told.
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

    fn unmap(&mut self, places: core::ops::Range<usize>) -> Option<Message> {
        let is_reported = self.registered[places.clone()].contains(&true);
        for at in places.clone() {
            (self.mapped[at], self.registered[at], self.evicted[at], self.touched[at]) = (false, false, None, false);
        }
        is_reported.then_some(Message::Unmap { start: places.start, end: places.end })
    }

    fn gives_up(&self, random: &mut fastrand::Rng) -> bool {
        matches!(self.without, Without::Patience | Without::Reuse) && random.bool()
    }

    fn step(&mut self, random: &mut fastrand::Rng) {
        match self.mover {
            Mover::Asked(ask) => {
                let asked = ask.asked();
                let Some(stood) = self.settle(Without::SettlingBefore, asked.asks_of(), random) else { return };
                self.order.made = Some(MadeMove::new(asked, stood).behind(self.order.made));
                self.mover = Mover::Begun(ask);
            }
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
            Mover::Done(ask, places) if self.under_way.last().unwrap().is_empty() => {
                let put_off: Vec<_> = self.order.made.as_mut().into_iter().flat_map(|made| made.returns(-1)).collect();
                self.forgets_put_off(put_off);
                self.mover = Mover::Returned(ask, places);
            }
            Mover::Returned(ask, places) => {
                let Some(stood) = self.settle(Without::SettlingAfter, None, random) else { return };
                let late = self.order.made.filter(|_| stood == Standing::Changing);
                self.order.made = late.map(|made| MadeMove { is_late: true, ..made });
                self.has[ask.by].extend(places.into_iter().flatten());
                self.mover = Mover::Waits;
            }
            Mover::Waits | Mover::Done(..) => {}
        }
    }

    fn moves(&mut self, ask: Ask, random: &mut fastrand::Rng) -> [Option<usize>; 2] {
        let Ask { from, len, given, leaves, .. } = ask;
        let Some(to) = given.or_else(|| self.free(random)) else { return [Some(from), None] };
        self.calls += 1;
        let cleared = self.unmap(to..to + 1);
        let tail = if len > 1 { self.unmap(from + 1..from + len) } else { None };
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

    fn register(&mut self, random: &mut fastrand::Rng) {
        let at = random.usize(..PLACES);
        if self.mover == Mover::Waits && self.mapped[at] && (!self.registered[at] || !self.in_regions[at]) {
            if !self.in_regions[at] {
                self.words[at] = None;
            } else if random.bool() {
                return;
            }
            (self.registered[at], self.in_regions[at]) = (true, true);
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
            (self.words[at], self.in_regions[at]) = (None, false);
        }
    }

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
                    // A child from before the move has it at the old place.
                    if let Some([from, _]) = moved.filter(|[_, to]| to.meets(*part)) {
                        self.frees(from, when);
                    }
                }
                self.put_off_at = when;
                self.forget(parts);
            }
            Message::Remap { from, to, .. } => {
                let mut made = self.order.made.unwrap();
                if made.has_moved(place(from), place(to)).is_some() && self.without != Without::Clearing {
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
                self.in_regions[to] = true;
                self.forgets_put_off(put_off);
            }
            _ => unreachable!(),
        }
        is_certain
    }

    /// Whether earlier children, whose forks are unread, have that memory is unknown.
    fn frees(&mut self, range: Range, when: usize) {
        for event in self.under_way.iter_mut().flatten() {
            if let Event::Fork(forked) = event
                && forked.when < when
            {
                (range.start..range.end).for_each(|at| forked.is_free[at] = true);
            }
        }
    }

    fn forked(&mut self, child: &Forked) -> bool {
        let in_child = |range: Range| standing(child.registered[range.start]);
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

    fn look_and_evict(&mut self, random: &mut fastrand::Rng) -> bool {
        let is_right = self.words == self.evicted && (0..PLACES).all(|at| self.mapped[at] || !self.in_regions[at]);
        if random.bool() {
            self.order.all_is_certain();
        }
        for at in (0..PLACES).filter(|&at| self.registered[at] && self.in_regions[at]) {
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

fn run(threads: usize, without: Without, kinds: Kinds, seed: u64) -> (End, usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut world = World::new(threads, without, kinds);
    let mut moves = 0;
    for _ in 0..400 {
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

/// Only calls that shorten, or leave the old place mapped, are ever in doubt.
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

#[test]
fn where_it_does_not_settle_nothing_is_wrong() {
    for (kinds, least_right) in [(Kinds::Plain, 1000), (Kinds::Forks, 1000), (Kinds::AllMoves, 1000), (Kinds::All, 100)] {
        let [right, doubt, wrong] = ends(20_000, Without::Patience, kinds);
        assert!(wrong == 0 && doubt > 100 && right > least_right, "{kinds:?}: {right} right, {doubt} in doubt, {wrong} wrong");
    }
}

/// A late UNMAP of the new place is from before the move.
#[test]
fn what_was_unmapped_before_takes_nothing_along() {
    const MOVED: usize = 8;
    let Some(mut pager) = pager() else { return };
    let (from, to) = (mapping(MOVED), mapping(12));
    let range = |start: usize, pages: usize| Range { start, end: start + pages * PAGE_SIZE };
    let (whole, moved) = (range(to, 12), range(to + PAGE_SIZE, MOVED));
    pager.host.turn = || Changes::of(Range { start: 0, end: usize::MAX });
    for page in PageNo::of(from).up_to(PageNo::of(from) + MOVED).chain(PageNo::of(to).up_to(PageNo::of(to) + 12)) {
        assert_eq!(pager.pages.map.claim(page, PageState::None, PageState::Zero), Ok(true));
        pager.pages.zero_now.fetch_add(1, Ordering::Relaxed);
    }
    pager.set_made_move(Some(Move { from: range(from, MOVED), to: None, leaves: false, len: MOVED * PAGE_SIZE }));
    let lock = pager.pages.space.exclusive();
    pager.mappings.regions.insert(&lock, whole);
    let read = |event: Message| {
        pager.look_at_order(&lock, &event);
        pager.happened(&lock, event);
    };
    read(Message::Remap { from, to: moved.start, len: MOVED * PAGE_SIZE });
    read(Message::Unmap { start: whole.start, end: whole.end });
    assert_eq!(words(&pager, moved.start, MOVED), [PageState::Zero; MOVED]);
    assert_eq!(pager.pages.zero_now.load(Ordering::Relaxed), MOVED as u64);
    let gaps: Vec<_> = pager.mappings.regions.gaps(&lock, whole).collect();
    assert_eq!(gaps, [Range { end: moved.start, ..whole }, Range { start: moved.end, ..whole }]);
    drop(lock);
    pager.set_made_move(None);
    let lock = pager.pages.space.exclusive();
    let unmapped = Message::Unmap { start: moved.start, end: moved.end };
    pager.look_at_order(&lock, &unmapped);
    pager.happened(&lock, unmapped);
    assert_eq!(
        (words(&pager, moved.start, MOVED), pager.pages.zero_now.load(Ordering::Relaxed)),
        (std::vec![PageState::None; MOVED], 0)
    );
}

/// Unmaps what was evicted; the mapping of a move is there when that is read.
struct Unmapped {
    pager: Pager,
    from: usize,
    /// What was unmapped, and what is registered of it by now.
    range: Range,
    place: Range,
}

const PAGES_MOVED: usize = 3;

impl Unmapped {
    fn new(from: usize, range: Range, place: Range) -> Option<Unmapped> {
        let mut pager = pager()?;
        pager.host.turn = || Changes::of(Range { start: 0, end: usize::MAX });
        pager.host.is_alone = || false;
        pager.register(place).unwrap();
        for page in PageNo::of(range.start).up_to(PageNo::behind(range.end)) {
            assert_eq!(pager.pages.map.claim(page, PageState::None, PageState::Zero), Ok(true));
            pager.pages.zero_now.fetch_add(1, Ordering::Relaxed);
        }
        pager.mappings.regions.insert(&pager.pages.space.exclusive(), range);
        Some(Unmapped { pager, from, range, place })
    }

    fn begins(&self) {
        let from = Range { start: self.from, end: self.from + PAGES_MOVED * PAGE_SIZE };
        let end = if self.place.start == from.end { self.place.end - from.start } else { self.place.end - self.place.start };
        self.pager.set_made_move(Some(Move { from, to: None, leaves: false, len: end }));
    }

    fn read(&self, event: Message) {
        let lock = self.pager.pages.space.exclusive();
        self.pager.happened(&lock, event);
    }

    fn is_unmapped(&self) {
        self.read(Message::Unmap { start: self.range.start, end: self.range.end });
    }

    fn has_moved(&self) {
        self.read(Message::Remap { from: self.from, to: self.place.start, len: PAGES_MOVED * PAGE_SIZE });
    }

    fn nothing_is_left(&self) {
        let pages = (self.range.end - self.range.start) / PAGE_SIZE;
        assert_eq!(words(&self.pager, self.range.start, pages), std::vec![PageState::None; pages]);
    }
}

/// An UNMAP of the place of a growing move, and of what surrounds that.
#[test]
fn what_was_unmapped_is_not_where_a_mapping_moves_to_and_grows() {
    for unmap_first in [true, false] {
        let (from, to) = (mapping(PAGES_MOVED), mapping(8));
        let place = Range { start: to, end: to + 8 * PAGE_SIZE };
        let range = Range { start: to - 2 * PAGE_SIZE, end: place.end };
        let Some(world) = Unmapped::new(from, range, place) else { return };
        world.begins();
        if unmap_first {
            world.is_unmapped();
        }
        world.has_moved();
        if !unmap_first {
            world.is_unmapped();
        }
        world.nothing_is_left();
    }
}

/// A refused call, and a move into a part of that range.
#[test]
fn what_a_refused_call_has_put_back_stays_around_what_moves_there() {
    let (from, to) = (mapping(PAGES_MOVED), mapping(12));
    let whole = Range { start: to, end: to + 12 * PAGE_SIZE };
    let place = Range { start: to + 4 * PAGE_SIZE, end: to + 9 * PAGE_SIZE };
    let Some(mut world) = Unmapped::new(from, whole, whole) else { return };
    let left = Range { start: from, end: from + PAGES_MOVED * PAGE_SIZE };
    world.pager.host.turn = || Changes::NONE;
    world.is_unmapped();
    world.place = place;
    world.range = place;
    world.is_unmapped();
    world.pager.set_made_move(Some(Move { from: left, to: Some(place), leaves: false, len: place.end - place.start }));
    world.has_moved();
    let expected = [[PageState::Zero; 4].as_slice(), &[PageState::None; 5], &[PageState::Zero; 3]].concat();
    assert_eq!(words(&world.pager, to, 12), expected);
}

/// An UNMAP of what a mapping grows by in its place.
#[test]
fn what_was_unmapped_is_not_where_a_mapping_grows() {
    for unmap_first in [true, false] {
        let at = mapping(PAGES_MOVED + 4);
        let grown = Range { start: at + PAGES_MOVED * PAGE_SIZE, end: at + (PAGES_MOVED + 4) * PAGE_SIZE };
        let Some(mut world) = Unmapped::new(at, grown, grown) else { return };
        world.pager.host.turn = || Changes::NONE;
        world.pager.register(Range { start: at, end: grown.start }).unwrap();
        world.begins();
        if unmap_first {
            world.is_unmapped();
        }
        world.pager.has_made_move(at as isize);
        if !unmap_first {
            world.is_unmapped();
        }
        world.nothing_is_left();
    }
}

/// A refused call over a hole, into which a mapping grows, and over what is behind it.
#[test]
fn what_a_refused_call_has_put_back_stays_behind_what_grows() {
    let at = mapping(PAGES_MOVED + 8);
    let grown = Range { start: at + PAGES_MOVED * PAGE_SIZE, end: at + (PAGES_MOVED + 4) * PAGE_SIZE };
    let refused = Range { end: grown.end + 4 * PAGE_SIZE, ..grown };
    let Some(mut world) = Unmapped::new(at, refused, refused) else { return };
    world.pager.host.turn = || Changes::NONE;
    world.pager.register(Range { start: at, end: grown.start }).unwrap();
    world.place = grown;
    world.begins();
    world.is_unmapped();
    world.pager.has_made_move(at as isize);
    let expected = [[PageState::None; 4], [PageState::Zero; 4]].concat();
    assert_eq!(words(&world.pager, grown.start, 8), expected);
}

#[test]
fn what_looks_refused_is_no_more_once_it_was_unmapped() {
    let mut order = Order::default();
    let range = |start, end| Range { start, end };
    order.is_put_back(range(10, 20), false);
    assert_eq!(order.refused_at(10), Some(range(10, 20)));
    order.was_unmapped(range(8, 14));
    assert_eq!((order.refused_at(10), order.refused_at(14)), (None, Some(range(14, 20))));
    assert!(order.in_doubt(range(0, 100), || true).is_empty(), "no other thread");
    assert_eq!(order.in_doubt(range(0, 16), || false)[..], [range(14, 16)]);
    for at in 0..100 {
        order.is_put_back(range(at, at + 1), true);
    }
    assert_eq!(order.in_doubt(range(0, 100), || true).len(), MOST_PUT_BACK);
    order.are_certain(order.count());
    assert!(order.in_doubt(range(0, 100), || false).is_empty());
}

#[test]
fn what_follows_a_late_move_is_known_to_until_all_was_read() {
    let asked = Move { from: Range::NONE, to: None, leaves: false, len: 0 };
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

#[test]
fn what_has_moved_since_a_fork_is_where_it_was_in_the_child() {
    const PAGES: usize = 8;
    let range = |start: usize| Range { start, end: start + PAGES * PAGE_SIZE };
    for (cloned_before, leaves) in [(true, false), (false, false), (true, true)] {
        let Some(mut pager) = pager() else { return };
        pager.host.turn = || Changes::of(Range { start: 0, end: usize::MAX });
        let (from, to) = (mapping(PAGES), mapping(PAGES));
        let child = (pager.host.open_uffd)().unwrap();
        let there = if cloned_before { from } else { to };
        // SAFETY: nobody touches what is missing there.
        unsafe { child.register(there, PAGES * PAGE_SIZE, Watched::Missing).unwrap() };
        pager.set_made_move(Some(Move { from: range(from), to: None, leaves, len: PAGES * PAGE_SIZE }));
        let lock = pager.pages.space.exclusive();
        pager.happened(&lock, Message::Remap { from, to, len: PAGES * PAGE_SIZE });
        let page_of_child = pager.page_of_child(&lock, &child);
        let last = PAGES - 1;
        assert_eq!(page_of_child(PageNo::of(to) + last), Some(PageNo::of(there) + last), "{cloned_before} {leaves}");
        assert_eq!(page_of_child(PageNo::of(to) + PAGES), Some(PageNo::of(to) + PAGES), "it has not moved");
        pager.mappings.order.lock().made = None;
        assert_eq!(pager.page_of_child(&lock, &child)(PageNo::of(to)), Some(PageNo::of(to)), "all of it is over");
    }
}

#[test]
fn what_moves_to_a_given_place_is_there_in_a_child_cloned_later() {
    const PAGES: usize = 8;
    let range = |start: usize, pages: usize| Range { start, end: start + pages * PAGE_SIZE };
    for (is_after, pages) in [(true, 4), (true, 12), (false, 4), (false, 12)] {
        let Some(mut pager) = pager() else { return };
        pager.host.turn = || Changes::of(Range { start: 0, end: usize::MAX });
        let (from, to) = (mapping(PAGES), mapping(12));
        // SAFETY: nobody touches what is missing there.
        unsafe { pager.uffd().register(from, PAGES * PAGE_SIZE, Watched::Missing).unwrap() };
        let asked = Move { from: range(from, PAGES), to: Some(range(to, pages)), leaves: false, len: pages * PAGE_SIZE };
        pager.set_made_move(Some(asked));
        let child = (pager.host.open_uffd)().unwrap();
        let there = if is_after { range(to, pages) } else { range(from, PAGES) };
        // SAFETY: as above.
        unsafe {
            pager.uffd().unregister(from, PAGES * PAGE_SIZE).unwrap();
            child.register(there.start, there.end - there.start, Watched::Missing).unwrap();
        }
        let lock = pager.pages.space.exclusive();
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

#[test]
fn a_move_that_began_while_changes_were_on_their_way_is_in_doubt() {
    let from = Range { start: 0x1000, end: 0x2000 };
    let asked = Move { from, to: Some(Range { start: 0x5000, end: 0x6000 }), leaves: false, len: from.end - from.start };
    let seen = |stood, standing| MadeMove::new(asked, stood).seen_by_child(|_| standing);
    use Standing::*;
    assert_eq!(seen(Registered, NotRegistered), Ok(Shift::ahead(from, asked.to.unwrap())));
    assert_eq!(seen(NotRegistered, NotRegistered), Ok(Shift::NONE));
    for stood in [Registered, NotRegistered, Changing] {
        assert_eq!(seen(stood, Registered), Ok(Shift::NONE));
    }
    assert_eq!([seen(Changing, NotRegistered), seen(Registered, Changing)], [Err(CanNotTell); 2]);
}

#[test]
fn a_move_that_leaves_its_place_is_in_doubt_where_that_is_registered() {
    const PAGES: usize = 8;
    for (is_registered, seen) in [(true, Err(CanNotTell)), (false, Ok(Shift::NONE))] {
        let Some(pager) = pager() else { return };
        let from = mapping(PAGES);
        if is_registered {
            // SAFETY: nobody touches it.
            unsafe { pager.uffd().register(from, PAGES * PAGE_SIZE, Watched::Missing).unwrap() };
        }
        let from = Range { start: from, end: from + PAGES * PAGE_SIZE };
        pager.set_made_move(Some(Move { from, to: None, leaves: true, len: from.end - from.start }));
        let made = pager.mappings.order.lock().made.unwrap();
        assert_eq!(made.seen_by_child(|_| Standing::Registered), seen);
    }
}

#[test]
fn what_is_registered_where_a_late_move_began_is_remembered() {
    const PAGES: usize = 8;
    let Some(pager) = pager() else { return };
    let [from, other] = [mapping(PAGES), mapping(PAGES)];
    let range = Range { start: from, end: from + PAGES * PAGE_SIZE };
    let asked = Move { from: range, to: None, leaves: false, len: range.end - range.start };
    let moved = Some([range, Range { start: range.start + (1 << 30), end: range.end + (1 << 30) }]);
    let late = MadeMove { is_late: true, has_returned: true, moved, ..MadeMove::new(asked, Standing::Registered) };
    assert!(late.seen_by_child(|_| Standing::Registered).is_ok_and(|shift| shift != Shift::NONE));
    pager.mappings.order.lock().made = Some(late);
    // SAFETY: nobody touches it.
    unsafe { pager.uffd().register(other, PAGES * PAGE_SIZE, Watched::Missing).unwrap() };
    std::thread::scope(|scope| {
        // SAFETY: the test's own.
        scope.spawn(|| unsafe { rustix::mm::munmap(other as *mut _, PAGES * PAGE_SIZE).unwrap() });
        while pager.uffd().standing(from) != Standing::Changing {
            std::thread::yield_now();
        }
        pager.register(range).unwrap();
        let made = pager.mappings.order.lock().made.expect("changes are on their way");
        assert_eq!(made.seen_by_child(|_| Standing::Registered), Err(CanNotTell));
        assert!(matches!(pager.uffd().read(), Ok(Message::Unmap { .. })));
    });
}
