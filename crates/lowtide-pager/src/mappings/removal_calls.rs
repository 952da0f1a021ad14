//! The program's calls that remove pages (madvise, through the hook), from before the system call
//! until they have returned.
//!
//! Pages in memory after that are new and may be evicted, except where another call has not taken
//! its pages yet: evicted, they would be back when it returns. So the end of a call skips what
//! other calls hold, and the last one clears the marks: each leaves the list before it looks at the
//! others. A mark bears the number of calls begun ([`PageState::Removing`]), so new marks are not
//! taken for old ones.
//!
//! Threads of the program run this: no lock, no waiting. A thread that leaves a call by longjmp
//! leaves its place, and marks, behind until it is known to be elsewhere ([`RemovalCalls::of`]), or
//! another call needs the place. (Age proves nothing: clocks run while a process is stopped.)
//! Without a place, and for raw system calls, a mark may go too early.
//!
//! [`PageState::Removing`]: crate::pagemap::PageState::Removing

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use lowtide_sys::Range;

const MOST: usize = 64;
/// Much longer than any such call: its place may be taken.
const FORGOTTEN_US: u64 = 60_000_000;

const FREE: u64 = 0;
/// The owner has not written its call yet.
const TAKEN: u64 = u64::MAX;

/// A call that has begun.
#[derive(Debug)]
#[must_use]
pub struct RemovalCall {
    pub(super) range: Range,
    /// Its place and token; FREE: it has none.
    place: usize,
    token: u64,
}

impl RemovalCall {
    pub(super) fn unknown(range: Range) -> RemovalCall {
        RemovalCall { range, place: 0, token: FREE }
    }
}

#[derive(Debug)]
struct Place {
    token: AtomicU64,
    who: AtomicU32,
    start: AtomicUsize,
    end: AtomicUsize,
    since_us: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct RemovalCalls {
    places: [Place; MOST],
    tokens: AtomicU64,
    begun: AtomicU64,
}

impl Place {
    const fn new() -> Place {
        Place {
            token: AtomicU64::new(FREE),
            who: AtomicU32::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            since_us: AtomicU64::new(0),
        }
    }

    fn take(&self) -> bool {
        self.take_from(FREE)
    }

    fn take_forgotten(&self, now_us: u64) -> bool {
        let token = self.token.load(Ordering::Relaxed);
        let is_old = now_us.saturating_sub(self.since_us.load(Ordering::Relaxed)) > FORGOTTEN_US;
        token != TAKEN && is_old && self.take_from(token)
    }

    fn take_from(&self, token: u64) -> bool {
        // Acquire: pairs with the SeqCst, as a Release, of leaving it.
        self.token.compare_exchange(token, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn range(&self) -> Option<Range> {
        self.call().map(|(_, _, range)| range)
    }

    fn call(&self) -> Option<(u64, u32, Range)> {
        loop {
            // Acquire: pairs with the SeqCst, as a Release, of storing the token.
            let token = self.token.load(Ordering::Acquire);
            if token == FREE || token == TAKEN {
                return None;
            }
            let who = self.who.load(Ordering::Relaxed);
            let range = Range { start: self.start.load(Ordering::Relaxed), end: self.end.load(Ordering::Relaxed) };
            // Acquire: if the token is unchanged, the values above are its own. (The owner stores
            // them after its exchange to TAKEN, on x86-64 a full barrier.)
            fence(Ordering::Acquire);
            if self.token.load(Ordering::Relaxed) == token {
                return Some((token, who, range));
            }
        }
    }
}

impl RemovalCalls {
    pub(crate) const fn new() -> RemovalCalls {
        RemovalCalls { places: [const { Place::new() }; MOST], tokens: AtomicU64::new(FREE), begun: AtomicU64::new(0) }
    }

    pub(super) fn begin(&self, range: Range, who: u32, now_us: u64) -> RemovalCall {
        let free = self.places.iter().position(Place::take);
        let Some(at) = free.or_else(|| self.places.iter().position(|place| place.take_forgotten(now_us))) else {
            return RemovalCall::unknown(range);
        };
        let (place, token) = (&self.places[at], 1 + self.tokens.fetch_add(1, Ordering::Relaxed));
        place.who.store(who, Ordering::Relaxed);
        place.start.store(range.start, Ordering::Relaxed);
        place.end.store(range.end, Ordering::Relaxed);
        place.since_us.store(now_us, Ordering::Relaxed);
        // SeqCst, of both: pairs with the fence in `under_way`. A thread that misses this call has
        // read only smaller numbers than its marks will have.
        place.token.store(token, Ordering::SeqCst);
        self.begun.fetch_add(1, Ordering::SeqCst);
        RemovalCall { range, place: at, token }
    }

    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    pub(super) fn end(&self, call: &RemovalCall) {
        if call.token != FREE {
            // SeqCst: pairs with the fence in `under_way`. Of two calls that end, one finds the
            // other gone. (The place may be another call's by now, or, in a forked child, free.)
            let place = &self.places[call.place].token;
            let _ = place.compare_exchange(call.token, FREE, Ordering::SeqCst, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
    }

    pub(super) fn of(&self, who: u32) -> impl Iterator<Item = RemovalCall> + '_ {
        self.places.iter().enumerate().filter_map(move |(place, it)| {
            it.call().filter(|call| call.1 == who).map(|(token, _, range)| RemovalCall { range, place, token })
        })
    }

    fn under_way(&self) -> impl Iterator<Item = Range> + '_ {
        // SeqCst: pairs with those in `begin` and `end`.
        fence(Ordering::SeqCst);
        self.places.iter().filter_map(Place::range)
    }

    /// Valid after reading the marks there.
    pub(super) fn any(&self, range: Range) -> bool {
        self.under_way().any(|call| call.meets(range))
    }

    /// Whether an event may belong to a call under way.
    pub(crate) fn any_covers(&self, event: Range) -> bool {
        self.under_way().any(|call| call.covers(event))
    }

    pub(crate) fn reset_after_fork(&self) {
        self.places.iter().for_each(|place| place.token.store(FREE, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn r(start: usize, end: usize) -> Range {
        Range { start, end }
    }

    #[test]
    fn calls_are_found_where_they_are_until_they_end() {
        let calls = RemovalCalls::new();
        let (one, other) = (calls.begin(r(10, 20), 5, 1), calls.begin(r(15, 30), 5, 1));
        assert_eq!(calls.begun(), 2);
        let found = [(0, 10), (0, 12), (15, 20), (20, 21), (30, 40)].map(|(start, end)| calls.any(r(start, end)));
        assert_eq!(found, [false, true, true, true, false]);
        calls.end(&one);
        assert!(!calls.any(r(0, 15)) && calls.any(r(0, 16)));
        calls.end(&one);
        assert!(calls.any(r(0, 16)), "that was over before");
        calls.end(&other);
        assert!(!calls.any(r(0, 100)));
    }

    #[test]
    fn who_never_comes_back_keeps_its_place_until_another_needs_it() {
        let calls = RemovalCalls::new();
        let first = calls.begin(r(1, 2), 5, 1);
        let late = 2 + FORGOTTEN_US;
        let rest: std::vec::Vec<_> = (1..MOST).map(|_| calls.begin(r(3, 4), 5, late)).collect();
        assert!(calls.any(r(1, 2)), "it may have been stopped");
        let next = calls.begin(r(7, 8), 5, late);
        assert!(!calls.any(r(1, 2)) && calls.any(r(7, 8)));
        let none = calls.begin(r(5, 6), 5, late);
        assert!(none.token == FREE && !calls.any(r(5, 6)));
        calls.end(&first);
        rest.iter().for_each(|call| calls.end(call));
        assert!(calls.any(r(7, 8)), "what is the next one's stays");
        calls.end(&next);
        calls.end(&none);
        assert!(!calls.any(r(0, 9)));
    }

    #[test]
    fn calls_are_found_by_their_thread() {
        let calls = RemovalCalls::new();
        let (one, _other) = (calls.begin(r(1, 2), 5, 1), calls.begin(r(1, 4), 6, 1));
        let found: std::vec::Vec<_> = calls.of(5).collect();
        assert_eq!((found.len(), found[0].range), (1, r(1, 2)));
        calls.end(&found[0]);
        assert!(calls.of(5).next().is_none() && calls.any(r(1, 2)));
        calls.end(&one);
        assert_eq!(calls.of(6).count(), 1);
    }

    #[test]
    fn a_child_that_forks_in_a_call_comes_out_of_none() {
        let calls = RemovalCalls::new();
        let call = calls.begin(r(1, 2), 5, 1);
        calls.reset_after_fork();
        let own = calls.begin(r(1, 2), 5, 1);
        calls.end(&call);
        assert!(calls.any(r(1, 2)));
        calls.end(&own);
    }
}
