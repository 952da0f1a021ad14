//! Ranges that the program has dropped, whose words are not cleared yet.
//!
//! Clearing the words of 64 GiB takes seconds, too long for one hold of the exclusive space lock.
//! So `removal.rs` clears large removals in parts, and the rest is listed here. Others see it as
//! done:
//!
//! - No page comes in from such a word: threads that install, move back or copy a page check
//!   [`Going::has`] under the space lock. A fault first clears the words around it.
//! - No page there is evicted, so all words are older than the removal: clearing is right at any
//!   time.
//! - A move takes no such words along or in: its places are cut out first, and their words set
//!   aside (`pagemap/aside.rs`).
//! - Before a fork all is finished; during it, events are held back.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use arrayvec::ArrayVec;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::Range;
use lowtide_sys::clock::now_us;
use rustix::thread::{Timespec, nanosleep};

use crate::pagemap::Claimant;
use crate::pagemap::ids::PageNo;
use crate::pages::space::Exclusive;

const MOST: usize = 32;
/// A thread that has cleared nothing for this long is waiting; another goes on.
const ABSENT_US: u64 = 20_000;
const NAP_NS: i64 = 500_000;

/// What is in memory of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gone {
    /// Nothing, or new pages only.
    Already,
    /// Pages that the program's call will drop: they are marked [`PageState::Removing`].
    ///
    /// [`PageState::Removing`]: crate::pagemap::PageState::Removing
    Soon,
}

type All = ArrayVec<(Range, Gone), MOST>;

#[derive(Debug, Default)]
struct Entry {
    start: AtomicUsize,
    end: AtomicUsize,
    soon: AtomicU32,
}

impl Entry {
    const fn new() -> Entry {
        Entry { start: AtomicUsize::new(0), end: AtomicUsize::new(0), soon: AtomicU32::new(0) }
    }
}

/// Changed under the exclusive space lock.
#[derive(Debug)]
pub(crate) struct Going {
    /// Odd during a change, for threads without the lock.
    version: AtomicU32,
    len: AtomicU32,
    entries: [Entry; MOST],
    aside: AtomicBool,
    in_the_way: AtomicBool,
    /// The thread that clears words, and when it last did.
    doer: AtomicU32,
    done_us: AtomicU64,
}

impl Going {
    pub(crate) const fn new() -> Going {
        Going {
            version: AtomicU32::new(0),
            len: AtomicU32::new(0),
            entries: [const { Entry::new() }; MOST],
            aside: AtomicBool::new(false),
            in_the_way: AtomicBool::new(false),
            doer: AtomicU32::new(0),
            done_us: AtomicU64::new(0),
        }
    }

    /// Without the lock, perhaps out of date.
    pub(crate) fn is_on(&self) -> bool {
        self.len.load(Ordering::Relaxed) > 0 || self.aside.load(Ordering::Relaxed)
    }

    pub(crate) fn has_aside(&self, _: &Exclusive<'_>, any: bool) {
        self.aside.store(any, Ordering::Relaxed);
    }

    fn all(&self) -> impl Iterator<Item = (Range, Gone)> + '_ {
        let len = self.len.load(Ordering::Relaxed) as usize;
        self.entries[..len.min(MOST)].iter().map(|entry| {
            let [start, end] = [&entry.start, &entry.end].map(|at| at.load(Ordering::Relaxed));
            let gone = if entry.soon.load(Ordering::Relaxed) == 0 { Gone::Already } else { Gone::Soon };
            (Range { start, end }, gone)
        })
    }

    /// Whether the word of a page is void. Stable under the space lock; else a hint.
    pub(crate) fn has(&self, page: PageNo) -> bool {
        self.is_on() && self.all().any(|(range, _)| range.meets(Range { start: page.addr(), end: page.addr() + PAGE_SIZE }))
    }

    pub(crate) fn keeps(&self, page: PageNo) -> bool {
        let has = self.has(page);
        if has {
            self.in_the_way.store(true, Ordering::Relaxed);
        }
        has
    }

    pub(crate) fn was_in_the_way(&self) -> bool {
        self.in_the_way.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn within(&self, _: &Exclusive<'_>, range: Range) -> impl Iterator<Item = (Range, Gone)> + '_ {
        self.all().filter(move |(left, _)| left.meets(range))
    }

    pub(crate) fn next(&self, _: &Exclusive<'_>, is_preferred: impl Fn(Range) -> bool) -> Option<(Range, Gone)> {
        self.all().find(|(range, _)| is_preferred(*range)).or_else(|| self.all().next())
    }

    fn change<R>(&self, _: &Exclusive<'_>, f: impl FnOnce(&mut All) -> R) -> R {
        let mut all: All = self.all().collect();
        let result = f(&mut all);
        // Release, of the fence: pairs with the Acquire fence in `meets_now`: a thread that sees a
        // store below sees the odd version.
        self.version.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        for (entry, (range, gone)) in self.entries.iter().zip(&all) {
            entry.start.store(range.start, Ordering::Relaxed);
            entry.end.store(range.end, Ordering::Relaxed);
            entry.soon.store(u32::from(*gone == Gone::Soon), Ordering::Relaxed);
        }
        self.len.store(all.len() as u32, Ordering::Relaxed);
        // Release: pairs with the Acquire in `meets_now`.
        self.version.fetch_add(1, Ordering::Release);
        result
    }

    /// False: no room.
    #[must_use]
    pub(crate) fn push(&self, lock: &Exclusive<'_>, range: Range, gone: Gone) -> bool {
        self.change(lock, |all| all.try_push((range, gone)).is_ok())
    }

    pub(crate) fn advance(&self, lock: &Exclusive<'_>, of: Range, to: usize) {
        self.change(lock, |all| {
            let Some(at) = all.iter().position(|(range, _)| *range == of) else { return };
            if to < of.end {
                all[at].0.start = to;
            } else {
                all.remove(at);
            }
        });
    }

    /// False: too many pieces; nothing has changed.
    #[must_use]
    pub(crate) fn cut(&self, lock: &Exclusive<'_>, range: Range) -> bool {
        if !self.all().any(|(left, _)| left.meets(range)) {
            return true;
        }
        self.change(lock, |all| {
            let mut pieces = All::new();
            for &(left, gone) in all.iter() {
                let before = Range { start: left.start, end: left.end.min(range.start) };
                let behind = Range { start: left.start.max(range.end), end: left.end };
                for piece in [before, behind].into_iter().filter(|piece| piece.start < piece.end) {
                    if pieces.try_push((piece, gone)).is_err() {
                        return false;
                    }
                }
            }
            *all = pieces;
            true
        })
    }

    pub(crate) fn remove(&self, lock: &Exclusive<'_>, range: Range) {
        self.change(lock, |all| all.retain(|(left, _)| !left.meets(range)));
    }

    pub(crate) fn is_turn_of(&self, _: &Exclusive<'_>, who: Claimant, now_us: u64) -> bool {
        let is_away = now_us.saturating_sub(self.done_us.load(Ordering::Relaxed)) > ABSENT_US;
        let is_turn = is_away || self.is_done_by(who);
        if is_turn {
            self.doer.store(who.number(), Ordering::Relaxed);
        }
        is_turn
    }

    pub(crate) fn is_done_by(&self, who: Claimant) -> bool {
        self.doer.load(Ordering::Relaxed) == who.number()
    }

    pub(crate) fn has_done(&self, _: &Exclusive<'_>, now_us: u64) {
        self.done_us.store(now_us, Ordering::Relaxed);
    }

    /// Waits until nothing of a range is left, or until a time. For host threads: takes nothing.
    /// Sees the work of earlier holds of the space lock.
    pub(crate) fn outlast(&self, range: Range, until_us: u64) {
        while self.meets_now(range) && now_us() < until_us {
            let _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec: NAP_NS });
        }
    }

    fn meets_now(&self, range: Range) -> bool {
        // Acquire: pairs with the Release at the end of `change`.
        let version = self.version.load(Ordering::Acquire);
        let meets = self.all().any(|(left, _)| left.meets(range));
        // Acquire: pairs with the fence in `change`.
        fence(Ordering::Acquire);
        meets || version % 2 == 1 || self.version.load(Ordering::Relaxed) != version
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::space::SpaceLock;
    use std::vec::Vec;

    fn r(first: usize, end: usize) -> Range {
        Range { start: first * PAGE_SIZE, end: end * PAGE_SIZE }
    }

    fn left(going: &Going) -> Vec<(Range, Gone)> {
        going.all().collect()
    }

    #[test]
    fn what_is_done_or_cut_out_is_left_no_more() {
        let (space, going) = (SpaceLock::new(), Going::new());
        let lock = space.exclusive();
        assert!(going.push(&lock, r(10, 20), Gone::Soon) && going.push(&lock, r(15, 30), Gone::Already));
        assert!(going.has(PageNo::new(10)) && going.has(PageNo::new(29)) && !going.has(PageNo::new(30)));
        assert!(going.cut(&lock, r(12, 16)));
        assert_eq!(left(&going), [(r(10, 12), Gone::Soon), (r(16, 20), Gone::Soon), (r(16, 30), Gone::Already)]);
        assert!(!going.has(PageNo::new(12)) && !going.has(PageNo::new(15)));
        going.advance(&lock, r(10, 12), 11 * PAGE_SIZE);
        going.advance(&lock, r(11, 12), 12 * PAGE_SIZE);
        assert_eq!(going.next(&lock, |_| false), Some((r(16, 20), Gone::Soon)));
        assert_eq!(going.next(&lock, |range| range.meets(r(25, 26))), Some((r(16, 30), Gone::Already)));
        going.remove(&lock, r(18, 19));
        assert!(!going.is_on() && !going.has(PageNo::new(18)));
    }

    #[test]
    fn when_there_is_no_room_nothing_is_lost() {
        let (space, going) = (SpaceLock::new(), Going::new());
        let lock = space.exclusive();
        assert!((0..MOST).all(|i| going.push(&lock, r(10 * i, 10 * i + 5), Gone::Already)));
        assert!(!going.push(&lock, r(900, 901), Gone::Already));
        assert!(!going.cut(&lock, r(2, 3)), "that would be one more");
        assert_eq!(left(&going).len(), MOST);
        assert!(going.has(PageNo::new(2)));
        assert!(going.cut(&lock, r(0, 3)));
        assert!(going.has(PageNo::new(3)) && !going.has(PageNo::new(2)));
    }

    #[test]
    fn one_thread_at_a_time_goes_on_and_another_where_that_is_away() {
        let (space, going) = (SpaceLock::new(), Going::new());
        let (lock, one, other) = (space.exclusive(), Claimant::new(), Claimant::new());
        assert!(going.is_turn_of(&lock, one, 1_000_000));
        going.has_done(&lock, 1_000_000);
        assert!(!going.is_turn_of(&lock, other, 1_000_001) && going.is_turn_of(&lock, one, 1_000_001));
        assert!(going.is_turn_of(&lock, other, 1_000_001 + ABSENT_US) && !going.is_done_by(one));
    }

    #[test]
    fn the_end_of_a_call_waits_for_its_own_range_only() {
        let (space, going) = (SpaceLock::new(), Going::new());
        assert!(going.push(&space.exclusive(), r(10, 20), Gone::Soon));
        going.outlast(r(20, 30), u64::MAX);
        going.outlast(r(0, 11), now_us() + 2000);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| going.outlast(r(0, 11), u64::MAX));
            std::thread::sleep(std::time::Duration::from_millis(5));
            assert!(!waits.is_finished());
            going.advance(&space.exclusive(), r(10, 20), 20 * PAGE_SIZE);
        });
    }
}
