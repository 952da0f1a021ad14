//! Writes to pages that a fork has left shared. The kernel copies such a page when it is written, and no userfaultfd tells of it:
//! two processes that both overwrite what they share would pass the limit at the speed of memory.
//!
//! So where the copies could pass the limit, the reclaimer write-protects all that is shared, shortly after a fork: a child that
//! executes something else at once costs nothing. From then on the first write to each block of pages is a fault
//! (`fault/shared_writes.rs`), which waits at the limit like any other. All pages are protected and not one here and there: that
//! is one call for a whole range, in which hardly anything changes for the CPUs (after a fork the pages are read-only anyway),
//! and what is let through is known. What is this process's alone is left out: there is nothing to copy, and it is what the
//! kernel may be about to write to where it can't wait (PI futexes, the end of a thread), for the program has just written there.
//!
//! When nothing is shared any more, the reclaimer takes all protection away.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;

use crate::fault::stream::Streams;
use crate::mappings::regions::Range;
use crate::mappings::space::Exclusive;
use crate::pagemap::ids::PageNo;
use crate::pager::Pager;
use crate::reclaim::victims::next_reach;
use crate::sys::clock::{now_ns, now_us};
use crate::sys::present::Kind;
use crate::sys::uffd::Standing;

/// Nothing is protected before a fork is over for this long, in microseconds: many children execute something else by then.
const AFTER_FORK_US: u64 = 2_000;
/// Copies of less than this part of the limit are what its reserve is for.
const LEAST_PART: u64 = 64;
/// So much is protected at a time, from a multiple of it on: some tens of microseconds, in which no fault is served (up to a
/// millisecond where every other page is the process's alone). With less at a time, to wait for the space lock takes most of it
/// where many threads fault.
const PIECE: usize = 8 << 20;
/// What lies further apart is protected by calls of its own: to look through what is missing takes time, too.
const FAR: usize = 2 << 20;
/// A step takes this long.
const STEP_NS: u64 = 1_000_000;
/// All of memory is gone through again after this many times as long as that took.
const REST: u64 = 10;
/// How far one scan looks at least.
const LEAST_REACH: usize = 64 << 20;
/// When an event must be read first, the reclaimer goes on after this, ...
const EVENT_US: u64 = 50;
/// ... but no more often than this many times: it takes long, then.
const SOON: u32 = 16;
/// When it takes long, or the program forks, or the kernel refuses, it goes on after this; ...
const LATER_US: u64 = 1_000;
/// ... when the kernel refuses again, after twice as long, up to so many times; ...
const MOST_DOUBLED: u32 = 8;
/// ... when pages were moved to where it had been, after this; ...
const MOVED_US: u64 = 10_000;
/// ... and it looks after this whether writes are watched by now.
const WATCHED_US: u64 = 2_000;

/// What a process shares with others, as it was last measured.
#[derive(Debug, Clone, Copy)]
pub struct Sharing {
    /// With how many others it may have pages in common.
    pub others: u64,
    /// Bytes of pages that it may come to have copies of.
    pub may_copy: u64,
}

/// Whether the copies that may be made could pass the limit, in a run that uses so much.
fn is_worth_it(shared: Sharing, used: u64, limit: u64) -> bool {
    let all = shared.may_copy.saturating_mul(shared.others);
    shared.others > 0 && shared.may_copy >= limit / LEAST_PART && used.saturating_add(all) > limit
}

/// What is protected. Whatever is not said to be the reclaimer's, any thread may ask and tell.
pub(crate) struct SharedWrites {
    /// Forks so far, one for all of those that this process comes from; ...
    forks: AtomicU64,
    /// ... when the first one was over that no walk knows of, in microseconds (0: there is none, or it is long ago).
    waiting_us: AtomicU64,
    /// How many forks there had been when the walk under way began (0: none is), up to where it has come, and how long it took so
    /// far; how many when the last one began that has come to its end (0: what was protected is not any more), and when the next
    /// one may begin (the reclaimer's).
    begun: AtomicU64,
    protected_to: AtomicUsize,
    took_ns: AtomicU64,
    done: AtomicU64,
    not_before_us: AtomicU64,
    /// Up to where protection was taken away, up to where was asked what is there, ...
    released_to: AtomicUsize,
    asked_to: AtomicUsize,
    /// ... and whether what may be protected has been moved to below that (all with the space lock).
    is_moved: AtomicBool,
    /// How often in a row an event had to be read first (the reclaimer's).
    refused: AtomicU32,
    /// Something may be protected.
    is_on: AtomicBool,
    /// Writes are to be watched.
    is_wanted: AtomicBool,
    /// Streams of writes.
    pub streams: Streams,
}

impl SharedWrites {
    /// Nothing is protected, and there may be something to protect.
    pub(crate) const fn new() -> SharedWrites {
        SharedWrites {
            forks: AtomicU64::new(1),
            waiting_us: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            protected_to: AtomicUsize::new(0),
            took_ns: AtomicU64::new(0),
            done: AtomicU64::new(0),
            not_before_us: AtomicU64::new(0),
            released_to: AtomicUsize::new(0),
            asked_to: AtomicUsize::new(0),
            is_moved: AtomicBool::new(false),
            refused: AtomicU32::new(0),
            is_on: AtomicBool::new(false),
            is_wanted: AtomicBool::new(false),
            streams: Streams::new(1, 25),
        }
    }

    /// This process has forked, and its child needs it no more: what was let through so far is shared again.
    pub(crate) fn forked(&self, now_us: u64) {
        // However many follow: or a program that forks all the time would never have anything protected.
        let _ = self.waiting_us.compare_exchange(0, now_us, Ordering::Relaxed, Ordering::Relaxed);
        // Release: pairs with the Acquires in `protect_shared` and `begin`.
        self.forks.fetch_add(1, Ordering::Release);
    }

    /// The same in the child, whose memory was registered anew: nothing is protected there.
    pub(crate) fn forked_here(&self, now_us: u64) {
        self.is_on.store(false, Ordering::Relaxed);
        self.is_wanted.store(false, Ordering::Relaxed);
        self.nothing_is_done();
        self.not_before_us.store(0, Ordering::Relaxed);
        self.waiting_us.store(0, Ordering::Relaxed);
        self.forked(now_us);
    }

    /// Whatever was protected counts as if it were not. (The reclaimer's.)
    fn nothing_is_done(&self) {
        self.begun.store(0, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
    }

    /// A walk begins for all forks so far, if none is under way. (The reclaimer's.)
    fn begin(&self) {
        if self.begun.load(Ordering::Relaxed) == 0 {
            // Before the forks are counted: one that comes in between is waited for no longer than it should be.
            self.waiting_us.store(0, Ordering::Relaxed);
            self.begun.store(self.forks.load(Ordering::Acquire), Ordering::Relaxed);
            self.protected_to.store(0, Ordering::Relaxed);
            self.took_ns.store(0, Ordering::Relaxed);
        }
    }

    /// The walk that was begun has come to its end; whether there are forks that it did not know of. (The reclaimer's.)
    fn end(&self, now_us: u64) -> bool {
        let begun = self.begun.swap(0, Ordering::Relaxed);
        self.done.store(begun, Ordering::Relaxed);
        self.not_before_us.store(now_us + self.took_ns.load(Ordering::Relaxed) / 1000 * REST, Ordering::Relaxed);
        self.forks.load(Ordering::Relaxed) != begun
    }

    /// The program has moved memory. With the space lock alone.
    pub(crate) fn moved(&self, _: &Exclusive<'_>, from: usize, to: usize, len: usize) {
        if from + len > self.released_to.load(Ordering::Relaxed) && to < self.asked_to.load(Ordering::Relaxed) {
            self.is_moved.store(true, Ordering::Relaxed);
        }
    }

    /// Whether writes are to be watched for the sake of this.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }
}

/// How far a walk through memory has come.
enum Walked {
    All,
    APart,
    /// An event must be read first.
    EventsFirst,
    /// The kernel would not: once more from there, later.
    Refused,
}

impl Pager {
    /// Whether pages may be write-protected because they are shared.
    pub fn protects_shared(&self) -> bool {
        self.shared_writes.is_on.load(Ordering::Relaxed)
    }

    /// Whether there may be pages that are write-protected, for whatever reason. (What the kernel has in its own swap keeps that
    /// in staging, and comes back so after the end of all protection.)
    pub fn may_protect(&self) -> bool {
        self.protects() || self.protects_shared()
    }

    /// How many forks there have been so far, one for all of those that this process comes from: those of which the next step of
    /// [`Pager::protect_shared`] knows.
    pub fn forks_so_far(&self) -> u64 {
        // Acquire: as there.
        self.shared_writes.forks.load(Ordering::Acquire)
    }

    /// One step of protecting what the program shares, or of taking that away, if there is reason. `looks` is called before
    /// each step of protecting: what the kernel is to write to without waiting must be held by then. In how many microseconds
    /// there may be more to do. By the reclaimer, without a lock.
    pub fn protect_shared(&self, shared: Sharing, now_us: u64, looks: impl FnOnce()) -> u64 {
        let state = &self.shared_writes;
        if shared.others == 0 {
            state.is_wanted.store(false, Ordering::Relaxed);
            return if self.protects_shared() { self.release_step() } else { u64::MAX };
        }
        // Acquire: pairs with the Release in `forked`.
        if state.forks.load(Ordering::Acquire) == state.done.load(Ordering::Relaxed)
            || !self.can_watch_writes()
            || !is_worth_it(shared, self.budget.now(), self.budget.limit())
        {
            state.is_wanted.store(false, Ordering::Relaxed);
            return u64::MAX;
        }
        if state.begun.load(Ordering::Relaxed) == 0 {
            let not_before_us = state.not_before_us.load(Ordering::Relaxed);
            let due_us = not_before_us.max(state.waiting_us.load(Ordering::Relaxed) + AFTER_FORK_US);
            if now_us < due_us {
                return due_us - now_us;
            }
        }
        if !self.protects() {
            state.is_wanted.store(true, Ordering::Relaxed);
            return WATCHED_US;
        }
        if self.paused() {
            return LATER_US;
        }
        // Before it is asked what threads there are.
        let forks = self.forks_so_far();
        state.begin();
        looks();
        self.protect_step(forks)
    }

    /// The same; `forks`: how many there had been before threads were looked at.
    fn protect_step(&self, forks: u64) -> u64 {
        let Some(_operation) = self.enter() else { return LATER_US };
        let state = &self.shared_writes;
        // The program has forked since, and threads that nobody has looked at share theirs.
        if self.forks_so_far() != forks {
            return 0;
        }
        // Before the first page.
        state.is_on.store(true, Ordering::Relaxed);
        // What was released is protected again.
        state.released_to.store(0, Ordering::Relaxed);
        let started = now_ns();
        let walked = self.walk(
            &state.protected_to,
            |_| true,
            |piece| {
                match self.protect_piece(piece) {
                    Err(Errno::AGAIN) => return Err(Errno::AGAIN),
                    // Something that can't be protected is there by now, or nothing.
                    _ => state.protected_to.store(piece.end, Ordering::Relaxed),
                }
                Ok(())
            },
        );
        state.took_ns.fetch_add(now_ns() - started, Ordering::Relaxed);
        match walked {
            Walked::All => {
                if state.end(now_us()) {
                    0
                } else {
                    u64::MAX
                }
            }
            other => self.goes_on_in(other),
        }
    }

    fn release_step(&self) -> u64 {
        let Some(_operation) = self.enter() else { return LATER_US };
        let state = &self.shared_writes;
        // If others should come to be there without a fork after all.
        state.nothing_is_done();
        if state.released_to.load(Ordering::Relaxed) == 0 {
            let _lock = self.space.shared();
            state.asked_to.store(0, Ordering::Relaxed);
            state.is_moved.store(false, Ordering::Relaxed);
        }
        // The zero page is protected for reasons of its own.
        match self.walk(&state.released_to, |kind| kind != Kind::ZeroPage, |piece| self.release_piece(piece)) {
            Walked::All => {
                state.released_to.store(0, Ordering::Relaxed);
                // What was above where this was, and is protected, may be below by now, or its event is on its way.
                let is_changing = self.uffd().standing(self.staging.addresses().start) == Standing::Changing;
                if is_changing || state.is_moved.load(Ordering::Relaxed) {
                    return MOVED_US;
                }
                state.is_on.store(false, Ordering::Relaxed);
                u64::MAX
            }
            other => self.goes_on_in(other),
        }
    }

    /// In how many microseconds a walk goes on that has not come to its end.
    fn goes_on_in(&self, walked: Walked) -> u64 {
        let refused = &self.shared_writes.refused;
        match walked {
            Walked::EventsFirst if refused.fetch_add(1, Ordering::Relaxed) < SOON => EVENT_US,
            Walked::EventsFirst => LATER_US,
            // Perhaps for good.
            Walked::Refused => LATER_US << refused.fetch_add(1, Ordering::Relaxed).min(MOST_DOUBLED),
            Walked::All | Walked::APart => {
                refused.store(0, Ordering::Relaxed);
                0
            }
        }
    }

    /// Goes on from `to` through what is there of adopted memory, as far as there is time, and calls `f` with pieces of it in
    /// which nothing is that is not `wanted`; `f` says in `to` that it has done one. What is missing may be in them.
    fn walk(&self, to: &AtomicUsize, wanted: impl Fn(Kind) -> bool, mut f: impl FnMut(Range) -> Result<(), Errno>) -> Walked {
        let (started, mut reach) = (now_ns(), LEAST_REACH);
        loop {
            let began = now_ns();
            if began > started + STEP_NS {
                return Walked::APart;
            }
            let (range, end) = {
                let lock = self.space.shared();
                let Some(range) = self.regions.next(&lock, to.load(Ordering::Relaxed)) else { return Walked::All };
                let end = range.end.min(range.start.saturating_add(reach));
                self.shared_writes.asked_to.store(end, Ordering::Relaxed);
                (range, end)
            };
            // Without the lock: what changes meanwhile is seen by `f`.
            let Ok(found) = self.present().scan_all(range.start, end, false) else { return Walked::Refused };
            reach = next_reach(reach, LEAST_REACH, now_ns() - began, end == range.start + reach);
            for piece in runs(found.kinds(), &wanted).flat_map(pieces) {
                match f(piece) {
                    Ok(()) => {}
                    Err(Errno::AGAIN) => return Walked::EventsFirst,
                    Err(_) => return Walked::Refused,
                }
            }
            to.store(found.walk_end.max(range.start + PAGE_SIZE), Ordering::Relaxed);
        }
    }

    /// Protects what is shared of a piece, but for the pages for which nobody could wait: those that the kernel uses when a thread
    /// ends, and those that are kept or pinned.
    fn protect_piece(&self, piece: Range) -> Result<(), Errno> {
        let alone = self.space.exclusive();
        self.see_held();
        let kept = self.kept();
        let mut at = piece.start;
        while let Some(part) = self.regions.first_in(&alone, Range { start: at, end: piece.end }) {
            let pinned = self.pinned.overlaps(&alone, part);
            let is_pinned = |page: PageNo| self.pinned.overlaps(&alone, Range { start: page.addr(), end: (page + 1).addr() });
            let stays = |page: &PageNo| kept.contains(page) || self.is_held(*page) || pinned && is_pinned(*page);
            self.present().each_shared(part.start, part.end, |start, end| {
                let (mut from, end) = (PageNo::of(start), PageNo::of(end));
                for page in from.up_to(end).filter(stays) {
                    self.protect_pages(from, page)?;
                    from = page + 1;
                }
                self.protect_pages(from, end)
            })?;
            at = part.end;
        }
        Ok(())
    }

    fn protect_pages(&self, first: PageNo, end: PageNo) -> Result<(), Errno> {
        let range = Range { start: first.addr(), end: end.addr() };
        if range.start < range.end { self.where_watched(range, |start, len| self.uffd().protect(start, len)) } else { Ok(()) }
    }

    /// Calls `f` for a range, as one, or, if in some mapping there nobody is told of writes (it was missed when they came to be
    /// watched, or came later), for each of its mappings: the kernel stops at the first of these.
    fn where_watched(&self, range: Range, f: impl Fn(usize, usize) -> Result<(), Errno>) -> Result<(), Errno> {
        match f(range.start, range.end - range.start) {
            Err(Errno::NOENT) => {}
            done => return done,
        }
        let mut at = range.start;
        while let Some(mapping) = self.present().mappings.next(at)?
            && mapping.start < range.end
        {
            let (start, end) = (mapping.start.max(at), mapping.end.min(range.end));
            match f(start, end - start) {
                Ok(()) | Err(Errno::NOENT) => at = mapping.end,
                other => return other,
            }
        }
        Ok(())
    }

    fn release_piece(&self, piece: Range) -> Result<(), Errno> {
        let lock = self.space.shared();
        let mut at = piece.start;
        while let Some(part) = self.regions.next(&lock, at).filter(|part| part.start < piece.end) {
            at = part.end.min(piece.end);
            self.let_write_shared(Range { start: part.start, end: at })?;
        }
        // With the lock: what is moved from above to below this is found out.
        self.shared_writes.released_to.store(piece.end, Ordering::Relaxed);
        Ok(())
    }

    /// What is shared there may be written without a fault of lowtide's.
    ///
    /// # Errors
    /// `AGAIN`: an event must be read first. What is there is protected still, or was never.
    pub(crate) fn let_write_shared(&self, range: Range) -> Result<(), Errno> {
        self.where_watched(range, |start, len| self.uffd().let_write(start, len))
    }
}

/// Runs of what is `wanted`, from the first byte to behind the last, with what is missing in between if it is not much.
fn runs(found: impl Iterator<Item = (usize, usize, Kind)>, wanted: impl Fn(Kind) -> bool) -> impl Iterator<Item = Range> {
    let mut found = found.peekable();
    core::iter::from_fn(move || {
        let (start, mut end, _) = found.find(|(.., kind)| wanted(*kind))?;
        while let Some((_, next_end, _)) = found.next_if(|(next, _, kind)| wanted(*kind) && next - end <= FAR) {
            end = next_end;
        }
        Some(Range { start, end })
    })
}

/// A run in pieces that are not too large.
fn pieces(run: Range) -> impl Iterator<Item = Range> {
    let mut at = run.start;
    core::iter::from_fn(move || {
        let start = at;
        at = run.end.min((start / PIECE + 1) * PIECE);
        (start < run.end).then_some(Range { start, end: at })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn nothing_is_done_where_copies_can_t_pass_the_limit() {
        let is = |others, may_copy, used| is_worth_it(Sharing { others, may_copy: may_copy * MIB }, used * MIB, 256 * MIB);
        assert!(!is(0, 128, 250), "it shares nothing");
        assert!(is(1, 128, 130) && is(1, 128, 129));
        assert!(!is(1, 128, 128), "all of it copied is just the limit");
        assert!(is(2, 64, 129) && is(80, 96, 100), "each of many makes copies");
        assert!(!is(1, 3, 255), "so little the reserve is for");
        assert!(is(1, 4, 255));
        assert!(is_worth_it(Sharing { others: u64::MAX, may_copy: u64::MAX }, u64::MAX, MIB), "whatever others write there");
    }

    #[test]
    fn runs_go_over_small_holes_and_end_at_what_is_not_wanted() {
        const FAR_PAGES: usize = FAR / PAGE_SIZE;
        let page = |n: usize| n * PAGE_SIZE;
        let found = [
            (page(10), page(20), Kind::Page),
            (page(20), page(21), Kind::ZeroPage),
            (page(22), page(30), Kind::Page),
            (page(30 + FAR_PAGES), page(31 + FAR_PAGES), Kind::Page),
            (page(32 + 2 * FAR_PAGES), page(33 + 2 * FAR_PAGES), Kind::Other),
        ];
        let all = |wanted: fn(Kind) -> bool| {
            let runs = runs(found.into_iter(), wanted).map(|run| (run.start / PAGE_SIZE, run.end / PAGE_SIZE));
            runs.collect::<std::vec::Vec<_>>()
        };
        assert_eq!(all(|_| true), [(10, 31 + FAR_PAGES), (32 + 2 * FAR_PAGES, 33 + 2 * FAR_PAGES)]);
        assert_eq!(
            all(|kind| kind != Kind::ZeroPage),
            [(10, 20), (22, 31 + FAR_PAGES), (32 + 2 * FAR_PAGES, 33 + 2 * FAR_PAGES)]
        );
        assert_eq!(all(|kind| kind == Kind::Accessed), []);
    }

    #[test]
    fn pieces_begin_where_huge_pages_do() {
        let cut = |start, end| pieces(Range { start, end }).map(|p| (p.start, p.end)).collect::<std::vec::Vec<_>>();
        assert_eq!(cut(3, 7), [(3, 7)]);
        assert_eq!(cut(PIECE - 1, 2 * PIECE + 5), [(PIECE - 1, PIECE), (PIECE, 2 * PIECE), (2 * PIECE, 2 * PIECE + 5)]);
        assert_eq!(cut(PIECE, PIECE), []);
    }

    #[test]
    fn a_child_has_nothing_protected_and_its_turn_comes() {
        let state = SharedWrites::new();
        state.is_on.store(true, Ordering::Relaxed);
        state.begin();
        assert!(!state.end(1));
        state.forked(2);
        state.begin();
        state.forked_here(5);
        assert!(!state.is_on.load(Ordering::Relaxed));
        assert_eq!(state.begun.load(Ordering::Relaxed), 0, "a walk of the parent's is not its own");
        assert_eq!((state.done.load(Ordering::Relaxed), state.waiting_us.load(Ordering::Relaxed)), (0, 5));
    }

    /// It would take the CPU for which a child waits.
    #[test]
    fn while_the_program_forks_the_reclaimer_naps() {
        let Some(pager) = crate::mappings::events::tests::pager() else { return };
        pager.shared_writes.is_on.store(true, Ordering::Relaxed);
        pager.pause();
        let wait = || pager.protect_shared(Sharing { others: 0, may_copy: 0 }, 0, || {});
        assert_eq!(wait(), LATER_US);
        pager.resume();
        assert_eq!((wait(), pager.protects_shared()), (u64::MAX, false));
        // An event that is not read for long.
        let waits: u64 = (0..100).map(|_| pager.goes_on_in(Walked::EventsFirst)).sum();
        assert_eq!(waits, u64::from(SOON) * EVENT_US + (100 - u64::from(SOON)) * LATER_US);
        assert_eq!((pager.goes_on_in(Walked::APart), pager.goes_on_in(Walked::EventsFirst)), (0, EVENT_US));
        // What the kernel never does.
        pager.goes_on_in(Walked::APart);
        let waits: std::vec::Vec<u64> = (0..20).map(|_| pager.goes_on_in(Walked::Refused)).collect();
        assert_eq!((waits[..3].to_vec(), waits[19]), ([1, 2, 4].map(|n| n * LATER_US).to_vec(), 256 * LATER_US));
    }

    /// Who looked at threads before it must look again.
    #[test]
    fn nothing_is_protected_after_a_fork_that_came_since_threads_were_looked_at() {
        let Some(pager) = crate::mappings::events::tests::pager() else { return };
        let before = pager.forks_so_far();
        pager.shared_writes.begin();
        pager.shared_writes.forked(1);
        assert_eq!((pager.protect_step(before), pager.protects_shared()), (0, false));
        assert_eq!(
            (pager.protect_step(before + 1), pager.protects_shared()),
            (0, true),
            "for the later fork there is another walk"
        );
    }

    #[test]
    fn who_forks_all_the_time_is_waited_for_once_and_walks_come_to_their_end() {
        let state = SharedWrites::new();
        let waiting = || state.waiting_us.load(Ordering::Relaxed);
        (10..1000).for_each(|us| state.forked(us));
        assert_eq!(waiting(), 10, "the oldest one counts");
        state.begin();
        let begun = state.begun.load(Ordering::Relaxed);
        state.protected_to.store(77, Ordering::Relaxed);
        assert_eq!(waiting(), 0);
        (1000..1005).for_each(|us| state.forked(us));
        // The next steps.
        state.begin();
        state.took_ns.fetch_add(7_000, Ordering::Relaxed);
        state.begin();
        assert_eq!((state.protected_to.load(Ordering::Relaxed), state.begun.load(Ordering::Relaxed)), (77, begun));
        assert!(state.end(2000), "for the later ones there is another walk");
        assert_eq!((waiting(), state.not_before_us.load(Ordering::Relaxed)), (1000, 2000 + 7 * REST));
        state.begin();
        assert_eq!(state.protected_to.load(Ordering::Relaxed), 0);
        assert!(!state.end(3000));
        assert_eq!(state.done.load(Ordering::Relaxed), state.forks.load(Ordering::Relaxed));
    }
}
