//! Visits: program threads inside calls that lowtide makes for them, with their stack addresses at
//! entry.
//!
//! A visit may end without its call: by a signal handler's longjmp, or the end of its thread or
//! vfork child. Proofs of its end:
//!
//! - The thread enters again at or above the old entry, not on a signal stack.
//! - The call's mark at the entry is overwritten or unmapped. (A present mark proves nothing.)
//! - The thread has ended.
//!
//! No locks, no waiting, no allocation: program threads run this.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Thread ids are smaller (PID_MAX_LIMIT of the kernel).
pub(crate) const WHO_BITS: u32 = 22;
/// A thread of another process that shares this memory; not unique.
pub const STRANGER: u32 = 0;
/// Marks begin at multiples of this.
pub const ALIGN: usize = 1 << ALIGN_BITS;
const ALIGN_BITS: u32 = 6;
/// In a place's word: being forgotten ([`Visits::forget`]).
const FORGETTING: u64 = 1 << (u64::BITS - 1);
/// Higher places are unknown: five-level page tables, where stacks rarely lie.
const END: usize = 1 << (u64::BITS - 1 - WHO_BITS + ALIGN_BITS);

const GROUPS: usize = if IS_MODEL { 1 } else { 64 };
/// A group fills a cache line.
const PLACES: usize = if IS_MODEL { 2 } else { 4 };
const IS_MODEL: bool = cfg!(any(feature = "loom", feature = "shuttle"));

/// A thread and its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visit(u64);

impl Visit {
    /// A visit of thread `who`, or a [`STRANGER`], with its mark at `at`.
    pub fn new(who: u32, at: usize) -> Visit {
        let at = if at < END { at >> ALIGN_BITS } else { 0 };
        Visit((at as u64) << WHO_BITS | u64::from(who) & ((1 << WHO_BITS) - 1))
    }

    /// From [`Visit::word`]; None: no visit.
    pub fn of_word(word: u64) -> Option<Visit> {
        (word != 0).then_some(Visit(word))
    }

    /// 0 only of a stranger with an unknown place.
    pub fn word(self) -> u64 {
        self.0
    }

    /// The thread.
    pub fn who(self) -> u32 {
        (self.0 & ((1 << WHO_BITS) - 1)) as u32
    }

    /// Address of its mark; None: unknown.
    pub fn at(self) -> Option<usize> {
        let at = (self.0 >> WHO_BITS) as usize;
        (at != 0).then_some(at << ALIGN_BITS)
    }

    /// The mark's value, unlikely by chance.
    pub fn mark(self) -> u32 {
        (self.0 >> WHO_BITS) as u32 ^ 0x6c77_7469
    }

    /// Whether a new visit `now` of the same thread proves this one over. `has_mark`: the mark is
    /// still there. `is_elsewhere`: the thread is on a signal stack without it.
    pub fn is_over(self, now: Visit, has_mark: impl FnOnce() -> bool, is_elsewhere: impl FnOnce() -> bool) -> bool {
        match (self.at(), now.at()) {
            (Some(at), Some(now)) => at == now || !has_mark() || at < now && !is_elsewhere(),
            _ => false,
        }
    }
}

#[derive(Debug)]
struct Place {
    /// The visit's word; 0: free.
    visit: AtomicU64,
    /// Visits that took the place or tried to; wraps.
    count: AtomicU32,
    /// The `count` of a visit given up.
    given_up: AtomicU32,
}

#[derive(Debug)]
#[repr(align(64))]
struct Group([Place; PLACES]);

/// Outcome of a visit's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// It has a place.
    At(usize),
    /// The place of the thread's older visit, now over.
    After(usize),
    /// In a signal handler inside the older visit: no place.
    Within,
    /// No place is free.
    Full,
}

/// A visit in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Where.
    pub place: usize,
    /// Whose.
    pub visit: Visit,
    /// Tells visits of one place apart.
    pub count: u32,
    /// See [`Visits::give_up`].
    pub is_given_up: bool,
}

/// The visits of a process.
#[derive(Debug)]
pub struct Visits([Group; GROUPS]);

impl Place {
    #[cfg(not(any(feature = "loom", feature = "shuttle")))]
    const fn new() -> Place {
        Place { visit: AtomicU64::new(0), count: AtomicU32::new(0), given_up: AtomicU32::new(0) }
    }

    #[cfg(any(feature = "loom", feature = "shuttle"))]
    fn new() -> Place {
        Place { visit: AtomicU64::new(0), count: AtomicU32::new(0), given_up: AtomicU32::new(0) }
    }

    fn load(&self) -> Option<Visit> {
        // SeqCst: pairs with the exchange in `begins`: after closing the gate, a load finds the
        // visits inside.
        Visit::of_word(self.visit.load(Ordering::SeqCst) & !FORGETTING)
    }

    fn change(&self, from: u64, to: u64) -> bool {
        // SeqCst: pairs with the load above: a visit's effects precede its end.
        self.visit.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Only for the visit's thread.
    fn replace(&self, visit: Visit, to: u64) -> bool {
        let word = visit.word();
        while self.load() == Some(visit) {
            if self.change(word, to) || self.change(word | FORGETTING, to) {
                return true;
            }
        }
        false
    }

    fn begins(&self, after: Option<Visit>, visit: Visit) -> bool {
        // Relaxed, before the exchange, whose value other threads read first.
        self.count.fetch_add(1, Ordering::Relaxed);
        match after {
            Some(older) => self.replace(older, visit.word()),
            None => self.change(0, visit.word()),
        }
    }
}

impl Visits {
    /// No visits.
    #[cfg(not(any(feature = "loom", feature = "shuttle")))]
    pub const fn new() -> Visits {
        Visits([const { Group([const { Place::new() }; PLACES]) }; GROUPS])
    }

    /// No visits.
    #[cfg(any(feature = "loom", feature = "shuttle"))]
    pub fn new() -> Visits {
        Visits(core::array::from_fn(|_| Group(core::array::from_fn(|_| Place::new()))))
    }

    fn place(&self, number: usize) -> &Place {
        &self.0[number / PLACES % GROUPS].0[number % PLACES]
    }

    /// Begins a visit. `is_over`: whether the thread's older one is over.
    pub fn begin(&self, visit: Visit, is_over: impl FnOnce(Visit) -> bool) -> Begun {
        // In the thread's group, unless it was full.
        let first = visit.who() as usize % GROUPS * PLACES;
        let older = |number: &usize| self.place(*number).load().filter(|older| older.who() == visit.who()).is_some();
        if visit.who() != STRANGER
            && let Some(number) = (first..first + PLACES).find(older)
            && let Some(older) = self.place(number).load()
        {
            if !is_over(older) {
                return Begun::Within;
            }
            if self.place(number).begins(Some(older), visit) {
                return Begun::After(number);
            }
        }
        let free = |number: &usize| self.place(*number).load().is_none() && self.place(*number).begins(None, visit);
        let all = (first..first + GROUPS * PLACES).map(|number| number % (GROUPS * PLACES));
        all.into_iter().find(free).map_or(Begun::Full, Begun::At)
    }

    /// Ends a visit, unless it was forgotten.
    pub fn end(&self, place: usize, visit: Visit) {
        self.place(place).replace(visit, 0);
    }

    /// The visits in progress.
    pub fn seen(&self) -> impl Iterator<Item = Seen> + '_ {
        (0..GROUPS * PLACES).filter_map(|place| {
            let it = self.place(place);
            let (visit, count) = (it.load()?, it.count.load(Ordering::Relaxed));
            Some(Seen { place, visit, count, is_given_up: it.given_up.load(Ordering::Relaxed) == count })
        })
    }

    /// Forgets a visit that is over. False: it has ended by itself. No signal handler may leave
    /// this call for good.
    pub fn forget(&self, seen: Seen) -> bool {
        let (place, word) = (self.place(seen.place), seen.visit.word());
        // The same word may be a later visit's. This bit holds the visit, whose number is older.
        if place.count.load(Ordering::Relaxed) != seen.count || !place.change(word, word | FORGETTING) {
            return false;
        }
        let is_it = place.count.load(Ordering::Relaxed) == seen.count;
        place.change(word | FORGETTING, if is_it { 0 } else { word }) && is_it
    }

    /// Stops waiting for a visit not proven over.
    pub fn give_up(&self, seen: Seen) {
        self.place(seen.place).given_up.store(seen.count, Ordering::Relaxed);
    }

    /// In a forked child: forgets all visits.
    pub fn reset_after_fork(&self) {
        self.0.iter().flat_map(|group| &group.0).for_each(|place| place.visit.store(0, Ordering::SeqCst));
    }
}

impl Default for Visits {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(any(feature = "loom", feature = "shuttle"))))]
mod tests {
    use super::*;

    const AT: usize = 0x7ffc_1234_5000;

    fn whos(visits: &Visits) -> std::vec::Vec<u32> {
        visits.seen().map(|seen| seen.visit.who()).collect()
    }

    #[test]
    fn a_word_says_who_and_where() {
        for (who, at) in [(1, AT), ((1 << WHO_BITS) - 1, END - ALIGN), (7, ALIGN)] {
            let visit = Visit::new(who, at);
            assert_eq!((visit.who(), visit.at()), (who, Some(at)));
            assert_eq!(Visit::of_word(visit.word()), Some(visit));
        }
        assert_eq!(Visit::new(3, END).at(), None);
        assert_eq!(Visit::of_word(0), None);
        assert_ne!(Visit::new(3, AT).mark(), Visit::new(3, AT + ALIGN).mark());
    }

    #[test]
    fn what_proves_that_a_visit_is_over() {
        let is_over = |now, has_mark: bool, is_elsewhere: bool| {
            Visit::new(5, AT).is_over(Visit::new(5, now), || has_mark, || is_elsewhere)
        };
        assert!(!is_over(AT - 4096, true, false), "a signal handler");
        assert!(is_over(AT - 4096, false, false), "its frame is overwritten");
        assert!(is_over(AT, true, true), "two frames are not at one place");
        assert!(is_over(AT + 4096, true, false), "its frame was left");
        assert!(!is_over(AT + 4096, true, true), "a signal handler on a stack of its own");
        assert!(is_over(AT + 4096, false, true), "one on a stack of its own, left and come again");
        assert!(!is_over(END, false, false), "it is not known where");
    }

    #[test]
    fn visits_begin_and_end() {
        let visits = Visits::new();
        let (one, other) = (Visit::new(5, AT), Visit::new(5 + GROUPS as u32, AT));
        let (Begun::At(first), Begun::At(second)) = (visits.begin(one, |_| true), visits.begin(other, |_| true)) else {
            panic!()
        };
        assert_eq!(visits.begin(Visit::new(5, AT - 64), |older| older != one), Begun::Within);
        assert_eq!(whos(&visits), [5, 5 + GROUPS as u32]);
        visits.end(first, one);
        visits.end(first, one);
        assert_eq!(whos(&visits), [5 + GROUPS as u32]);
        visits.end(second, other);
        assert_eq!(whos(&visits), []);
    }

    #[test]
    fn who_was_left_behind_is_replaced_or_forgotten() {
        let visits = Visits::new();
        let (old, new) = (Visit::new(5, AT), Visit::new(5, AT + 64));
        let Begun::At(place) = visits.begin(old, |_| true) else { panic!() };
        let seen = visits.seen().next().unwrap();
        assert_eq!(visits.begin(new, |older| older == old), Begun::After(place));
        assert!(!visits.forget(seen), "that is another one");
        visits.end(place, old);
        assert_eq!(whos(&visits), [5], "who comes back late ends no visit but its own");
        visits.end(place, new);
        assert_eq!(visits.begin(old, |_| true), Begun::At(place));
        assert!(!visits.forget(seen) && visits.forget(visits.seen().next().unwrap()));
        assert_eq!(whos(&visits), []);
    }

    #[test]
    fn each_stranger_has_a_place() {
        let visits = Visits::new();
        let visit = Visit::new(STRANGER, AT);
        let places = [(); 3].map(|()| match visits.begin(visit, |_| panic!("nobody knows whose that is")) {
            Begun::At(place) => place,
            other => panic!("{other:?}"),
        });
        places.into_iter().for_each(|place| visits.end(place, visit));
        assert_eq!(whos(&visits), []);
    }

    #[test]
    fn who_was_given_up_may_be_found_to_be_over() {
        let visits = Visits::new();
        let visit = Visit::new(5, AT);
        for _ in 0..2 {
            let Begun::At(_) = visits.begin(visit, |_| true) else { panic!() };
            let seen = visits.seen().next().unwrap();
            assert!(!seen.is_given_up);
            visits.give_up(seen);
            assert!(visits.seen().all(|seen| seen.is_given_up) && visits.forget(seen));
        }
    }

    #[test]
    fn a_full_group_has_the_places_of_others() {
        let visits = Visits::new();
        let all = GROUPS * PLACES;
        let places: std::vec::Vec<_> = (0..all)
            .map(|i| match visits.begin(Visit::new(1 + (i * GROUPS) as u32, AT), |_| true) {
                Begun::At(place) => place,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(places.iter().collect::<std::collections::HashSet<_>>().len(), all);
        assert_eq!(visits.begin(Visit::new(2, AT), |_| true), Begun::Full);
        visits.end(places[9], Visit::new(1 + 9 * GROUPS as u32, AT));
        assert_eq!(visits.begin(Visit::new(2, AT), |_| true), Begun::At(places[9]));
        visits.reset_after_fork();
        assert_eq!(whos(&visits), []);
    }
}

/// One thread closes the gate and looks for visits; the other begins one and checks the gate.
#[cfg(all(test, feature = "loom"))]
mod models {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::thread;
    use std::sync::Arc;

    /// Used by a closer without visits inside, or by a visit.
    #[derive(Default)]
    struct Shared {
        visits: Visits,
        gate: AtomicU32,
        used: UnsafeCell<u32>,
    }

    impl Shared {
        fn is_open(&self) -> bool {
            self.gate.fetch_add(0, Ordering::SeqCst) == 0
        }

        fn uses(&self) {
            // SAFETY: loom detects races.
            self.used.with_mut(|used| unsafe { *used += 1 });
        }

        fn visits(&self, visit: Visit) {
            let Begun::At(place) = self.visits.begin(visit, |_| false) else { panic!() };
            if self.is_open() {
                self.uses();
            }
            self.visits.end(place, visit);
        }

        fn visits_after_a_look(&self, visit: Visit) {
            if self.is_open() {
                let Begun::At(place) = self.visits.begin(visit, |_| false) else { panic!() };
                self.uses();
                self.visits.end(place, visit);
            }
        }

        fn closes(&self) {
            self.gate.fetch_add(1, Ordering::SeqCst);
            if self.visits.seen().next().is_none() {
                self.uses();
            }
        }
    }

    // SAFETY: loom detects races.
    unsafe impl Sync for Shared {}
    // SAFETY: as above.
    unsafe impl Send for Shared {}

    fn closed_beside(visits: fn(&Shared, Visit)) {
        loom::model(move || {
            let shared = Arc::new(Shared::default());
            let other = shared.clone();
            let visitor = thread::spawn(move || visits(&other, Visit::new(1, 64)));
            shared.closes();
            visitor.join().unwrap();
            assert_eq!(shared.visits.seen().count(), 0);
        });
    }

    #[test]
    fn who_closes_sees_who_is_inside() {
        closed_beside(Shared::visits);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn one_that_looks_before_it_goes_in_is_found() {
        closed_beside(Shared::visits_after_a_look);
    }

    #[test]
    fn only_the_visit_that_was_seen_is_forgotten() {
        loom::model(|| {
            let shared = Arc::new(Shared::default());
            let visit = Visit::new(1, 64);
            let Begun::At(first) = shared.visits.begin(visit, |_| false) else { panic!() };
            let seen = shared.visits.seen().next().unwrap();
            let other = shared.clone();
            let visitor = thread::spawn(move || {
                other.visits.end(first, visit);
                let Begun::At(second) = other.visits.begin(visit, |_| false) else { panic!() };
                assert!(other.visits.seen().any(|seen| seen.visit == visit), "it is inside");
                other.visits.end(second, visit);
            });
            shared.visits.forget(seen);
            visitor.join().unwrap();
            assert_eq!(shared.visits.seen().count(), 0);
        });
    }

    #[test]
    fn places_are_those_of_one_visit() {
        loom::model(|| {
            let shared = Arc::new(Shared::default());
            let other = shared.clone();
            let visitor = thread::spawn(move || {
                let (first, second) = (Visit::new(1, 64), Visit::new(1, 128));
                let (Begun::At(_), Begun::At(place) | Begun::After(place)) =
                    (other.visits.begin(first, |_| true), other.visits.begin(second, |older| older == first))
                else {
                    panic!()
                };
                other.visits.end(place, second);
            });
            let own = Visit::new(2, 64);
            let Begun::At(place) = shared.visits.begin(own, |_| true) else { panic!() };
            if let Some(seen) = shared.visits.seen().find(|seen| seen.visit == Visit::new(1, 64)) {
                shared.visits.forget(seen);
            }
            assert!(shared.visits.seen().any(|seen| seen.visit == own));
            shared.visits.end(place, own);
            visitor.join().unwrap();
            assert_eq!(shared.visits.seen().count(), 0);
        });
    }
}
