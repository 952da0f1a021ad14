//! Changes of mappings while the program forks.
//!
//! The kernel copies lowtide's tables page by page; one that changed meanwhile would arrive torn.
//! So from when the memory may be cloned until the child serves itself, events are read (an unread
//! one blocks installation) and kept here. Faults are served as if they were applied
//! ([`HeldBack::in_tables`]); all are applied, in order, when the child is ready. Which came before
//! the cloning, the child's userfaultfd shows (`parent.rs`).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use arrayvec::ArrayVec;
use lowtide_core::table::Table;
use lowtide_core::vm::OnFork;
use lowtide_sys::Range;
use lowtide_sys::uffd::Message;
use rustix::io::Errno;
use rustix::thread::futex;

use crate::pagemap::ids::PageNo;
use crate::pages::space::Exclusive;

/// Few: calls that pass the gate wait, unless the child takes long ([`HeldBack::is_nearly_full`]).
pub(super) const MOST: usize = 480;
const SPARE: usize = 128;

const NONE: u32 = 0;
/// The memory may be cloned, or was, and its event is unread.
const ANNOUNCED: u32 = 1;
const CLONED: u32 = 2;

const WORDS: usize = 4;
const UNMAP: u64 = 1;
const REMOVE: u64 = 2;
const REMAP: u64 = 3;
const KIND: u64 = 3;
/// It came before the cloning.
const CHILDS: u64 = 1 << 2;
/// A removal whose call has returned: new pages may be in memory.
const ENDED: u64 = 1 << 3;

/// Some of the parent's changes came too late for the child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// This process's.
    Parents,
    /// The forked child's.
    Childs,
}

/// Changed under the exclusive space lock, except for `ENDED`.
pub(crate) struct HeldBack {
    phase: AtomicU32,
    len: AtomicU32,
    events: Table<AtomicU64>,
}

#[derive(Clone, Copy)]
struct Event<'a>(&'a [AtomicU64]);

impl Event<'_> {
    fn is(self) -> u64 {
        // SeqCst: pairs with the mark that `has_ended` sets.
        self.0[0].load(Ordering::SeqCst)
    }

    fn word(self, i: usize) -> usize {
        self.0[i].load(Ordering::Relaxed) as usize
    }

    fn counts_for(self, whose: Whose) -> bool {
        whose == Whose::Parents || self.is() & CHILDS != 0
    }

    fn left(self) -> Range {
        Range { start: self.word(1), end: self.word(2) }
    }

    fn to(self) -> Option<Range> {
        let left = self.left();
        (self.is() & KIND == REMAP).then(|| Range { start: self.word(3), end: self.word(3) + (left.end - left.start) })
    }

    /// None: in a forked child's older copy.
    fn message(self) -> Option<Message> {
        let Range { start, end } = self.left();
        Some(match self.is() & KIND {
            UNMAP => Message::Unmap { start, end },
            REMOVE => Message::Remove { start, end },
            REMAP => Message::Remap { from: start, to: self.word(3), len: end - start },
            _ => return None,
        })
    }
}

fn holds(range: Range, page: PageNo) -> bool {
    (range.start..range.end).contains(&page.addr())
}

fn moved(page: PageNo, from: Range, to: Range) -> PageNo {
    PageNo::of(page.addr() - from.start + to.start)
}

impl HeldBack {
    /// No events.
    ///
    /// # Errors
    /// `NOMEM`.
    pub(crate) fn new() -> Result<HeldBack, Errno> {
        let events = Table::new(MOST * WORDS, OnFork::Copy)?;
        Ok(HeldBack { phase: AtomicU32::new(NONE), len: AtomicU32::new(0), events })
    }

    pub(super) fn announce(&self, _: &Exclusive<'_>) {
        self.phase.store(ANNOUNCED, Ordering::Relaxed);
    }

    /// A fork event was read. False: the fork was not announced.
    pub(crate) fn begins_with_child(&self, _: &Exclusive<'_>) -> bool {
        let is_announced = self.phase.load(Ordering::Relaxed) == ANNOUNCED;
        if is_announced {
            self.phase.store(CLONED, Ordering::Relaxed);
        }
        is_announced
    }

    pub(super) fn was_cloned(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == CLONED
    }

    pub(super) fn outlast_child(&self) {
        while self.was_cloned() {
            let _ = futex::wait(&self.phase, futex::Flags::PRIVATE, CLONED, None);
        }
    }

    pub(crate) fn is_on(&self, _: &Exclusive<'_>) -> bool {
        self.phase.load(Ordering::Relaxed) != NONE
    }

    fn all(&self) -> impl DoubleEndedIterator<Item = Event<'_>> + ExactSizeIterator {
        let len = self.len.load(Ordering::Acquire) as usize;
        self.events[..len.min(MOST) * WORDS].chunks_exact(WORDS).map(Event)
    }

    /// False: no room. Ignores faults and forks.
    pub(crate) fn push(&self, _: &Exclusive<'_>, event: &Message) -> bool {
        let words = match *event {
            Message::Unmap { start, end } => [UNMAP, start as u64, end as u64, 0],
            Message::Remove { start, end } => [REMOVE, start as u64, end as u64, 0],
            Message::Remap { from, to, len } => [REMAP, from as u64, (from + len) as u64, to as u64],
            Message::Fault { .. } | Message::Fork(_) => return true,
        };
        let len = self.len.load(Ordering::Relaxed) as usize;
        let Some(at) = self.events.chunks_exact(WORDS).nth(len) else { return false };
        for (at, word) in at.iter().zip(words) {
            at.store(word, Ordering::Relaxed);
        }
        // Release: pairs with the Acquire in `all`: `has_ended` finds the event whole.
        self.len.store(len as u32 + 1, Ordering::Release);
        true
    }

    pub(super) fn is_nearly_full(&self, _: &Exclusive<'_>) -> bool {
        self.all().len() >= MOST - SPARE
    }

    /// Where the tables have the page that is at `page` in memory. None: it is new.
    pub(crate) fn in_tables(&self, _: &Exclusive<'_>, whose: Whose, page: PageNo) -> Option<PageNo> {
        self.all().rev().filter(|event| event.counts_for(whose)).try_fold(page, |page, event| match event.to() {
            Some(to) if holds(to, page) => Some(moved(page, to, event.left())),
            _ if holds(event.left(), page) => None,
            _ => Some(page),
        })
    }

    /// Where in memory the page is that the tables have at `page`. None: it is gone.
    pub(super) fn in_memory(&self, _: &Exclusive<'_>, whose: Whose, page: PageNo) -> Option<PageNo> {
        self.all().filter(|event| event.counts_for(whose)).try_fold(page, |page, event| match event.to() {
            Some(to) if holds(event.left(), page) => Some(moved(page, event.left(), to)),
            Some(to) if holds(to, page) => None,
            None if holds(event.left(), page) => None,
            _ => Some(page),
        })
    }

    /// Marks events from before the cloning. `came_before` gets each event, and the later ones.
    pub(super) fn tell_childs(&self, _: &Exclusive<'_>, mut came_before: impl FnMut(&Message, &[Message]) -> bool) {
        let all: ArrayVec<Message, MOST> = self.all().filter_map(Event::message).collect();
        for (i, event) in self.all().filter(|event| event.message().is_some()).enumerate() {
            if came_before(&all[i], &all[i + 1..]) {
                event.0[0].fetch_or(CHILDS, Ordering::Relaxed);
            }
        }
    }

    /// Whether the order of moves is unknown.
    pub(super) fn have_moves_that_meet(&self, _: &Exclusive<'_>) -> bool {
        let moves = || self.all().filter_map(|event| Some([event.left(), event.to()?])).enumerate();
        moves().any(|(i, one)| moves().skip(i + 1).any(|(_, other)| one.iter().any(|a| other.iter().any(|b| a.meets(*b)))))
    }

    /// A call that removes pages of `range` has returned; true: its event is held back. By host
    /// threads.
    pub(crate) fn has_ended(&self, range: Range) -> bool {
        let mut any = false;
        for event in self.all().filter(|event| event.is() & KIND == REMOVE && range.covers(event.left())) {
            // SeqCst: pairs with the load in `is`.
            event.0[0].fetch_or(ENDED, Ordering::SeqCst);
            any = true;
        }
        any
    }

    /// Takes all out and calls `f` with each; true: a removal whose call has returned.
    pub(super) fn end(&self, _: &Exclusive<'_>, mut f: impl FnMut(&Message, bool)) {
        for event in self.all() {
            let has_ended = event.is() & ENDED != 0;
            event.message().iter().for_each(|message| f(message, has_ended));
            // In the next child's copy `len` may be newer than the events.
            event.0[0].store(0, Ordering::Relaxed);
        }
        self.len.store(0, Ordering::Release);
        self.phase.store(NONE, Ordering::Relaxed);
        let _ = futex::wake(&self.phase, futex::Flags::PRIVATE, i32::MAX as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::space::SpaceLock;
    use std::vec::Vec;

    const PAGES: usize = 12;

    fn addr(page: usize) -> usize {
        PageNo::new(page).addr()
    }

    #[test]
    fn what_is_held_back_is_as_if_it_had_been_applied() {
        let mut random = fastrand::Rng::with_seed(1);
        let space = SpaceLock::new();
        for _ in 0..500 {
            let (lock, held) = (space.exclusive(), HeldBack::new().unwrap());
            let mut now: Vec<Option<usize>> = (0..PAGES).map(Some).collect();
            for _ in 0..random.usize(..8) {
                let len = 1 + random.usize(..3);
                let from = random.usize(..PAGES - len);
                match random.u32(..3) {
                    0 => assert!(held.push(&lock, &Message::Unmap { start: addr(from), end: addr(from + len) })),
                    1 => assert!(held.push(&lock, &Message::Remove { start: addr(from), end: addr(from + len) })),
                    _ => {
                        let to = random.usize(..PAGES - len);
                        if from < to + len && to < from + len {
                            continue;
                        }
                        assert!(held.push(&lock, &Message::Unmap { start: addr(to), end: addr(to + len) }));
                        assert!(held.push(&lock, &Message::Remap { from: addr(from), to: addr(to), len: addr(len) }));
                        let moved = now[from..from + len].to_vec();
                        now[to..to + len].copy_from_slice(&moved);
                    }
                }
                now[from..from + len].fill(None);
            }
            for (page, is) in now.iter().enumerate() {
                assert_eq!(held.in_tables(&lock, Whose::Parents, PageNo::new(page)), is.map(PageNo::new));
                assert_eq!(held.in_tables(&lock, Whose::Childs, PageNo::new(page)), Some(PageNo::new(page)));
                let to = now.iter().position(|at| *at == Some(page)).map(PageNo::new);
                assert_eq!(held.in_memory(&lock, Whose::Parents, PageNo::new(page)), to);
            }
        }
    }

    #[test]
    fn of_a_removal_that_has_ended_that_is_said() {
        let (space, held) = (SpaceLock::new(), HeldBack::new().unwrap());
        let lock = space.exclusive();
        for page in [1, 3] {
            assert!(held.push(&lock, &Message::Remove { start: addr(page), end: addr(page + 1) }));
        }
        assert!(held.push(&lock, &Message::Unmap { start: addr(3), end: addr(4) }));
        assert!(!held.has_ended(Range { start: addr(4), end: addr(9) }));
        assert!(held.has_ended(Range { start: addr(2), end: addr(9) }));
        let mut said = Vec::new();
        held.end(&lock, |_, has_ended| said.push(has_ended));
        assert_eq!(said, [false, true, false]);
        held.end(&lock, |_, _| panic!("all are taken out"));
    }

    #[test]
    fn nothing_is_left_for_a_child_whose_copy_is_torn() {
        let (space, held) = (SpaceLock::new(), HeldBack::new().unwrap());
        let lock = space.exclusive();
        let push = |page| assert!(held.push(&lock, &Message::Remove { start: addr(page), end: addr(page + 1) }));
        push(1);
        assert!(held.has_ended(Range { start: addr(1), end: addr(2) }));
        held.end(&lock, |_, has_ended| assert!(has_ended));
        held.len.store(1, Ordering::Relaxed);
        held.end(&lock, |_, _| panic!("that was of the fork before"));
    }

    #[test]
    fn each_event_is_asked_about_with_those_that_came_after_it() {
        let (space, held) = (SpaceLock::new(), HeldBack::new().unwrap());
        let lock = space.exclusive();
        assert!(held.push(&lock, &Message::Unmap { start: addr(4), end: addr(5) }));
        assert!(held.push(&lock, &Message::Remap { from: addr(1), to: addr(4), len: addr(1) }));
        let mut asked = Vec::new();
        held.tell_childs(&lock, |event, later| {
            asked.push((matches!(event, Message::Unmap { .. }), later.len()));
            !later.is_empty()
        });
        assert_eq!(asked, [(true, 1), (false, 0)]);
        assert_eq!(held.in_tables(&lock, Whose::Childs, PageNo::new(4)), None, "the first came before");
        assert_eq!(held.in_tables(&lock, Whose::Childs, PageNo::new(1)), Some(PageNo::new(1)));
    }

    #[test]
    fn moves_that_meet_are_found() {
        let (space, held) = (SpaceLock::new(), HeldBack::new().unwrap());
        let lock = space.exclusive();
        let push = |from, to| assert!(held.push(&lock, &Message::Remap { from: addr(from), to: addr(to), len: addr(2) }));
        push(0, 10);
        push(20, 30);
        assert!(held.push(&lock, &Message::Unmap { start: addr(0), end: addr(2) }));
        assert!(!held.have_moves_that_meet(&lock));
        push(31, 40);
        assert!(held.have_moves_that_meet(&lock));
    }

    #[test]
    fn when_there_is_no_room_that_is_said() {
        let (space, held) = (SpaceLock::new(), HeldBack::new().unwrap());
        let lock = space.exclusive();
        let event = Message::Unmap { start: addr(1), end: addr(2) };
        let taken = (0..=MOST).filter(|i| held.push(&lock, &event) && held.is_nearly_full(&lock) == (i + 1 >= MOST - SPARE));
        assert_eq!(taken.count(), MOST);
    }
}
