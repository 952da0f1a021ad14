//! Writes to pages that a fork has left shared. The kernel copies such a page when it is written, and no userfaultfd tells of it:
//! two processes that both overwrite what they share would pass the limit at the speed of memory.
//!
//! So where the copies could pass the limit, the reclaimer write-protects all that is shared, shortly after a fork: a child that
//! executes something else at once costs nothing. From then on the first write to each block of pages is a fault
//! (`fault/shared_writes.rs`), which waits at the limit like any other. All pages are protected and not one here and there: that
//! is one call for a whole range, in which hardly anything changes for the CPUs (after a fork the pages are read-only anyway),
//! and what is let through is known.
//!
//! When nothing is shared any more, the reclaimer takes all protection away.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;

use crate::fault::stream::Streams;
use crate::mappings::regions::Range;
use crate::pagemap::ids::PageNo;
use crate::pager::Pager;
use crate::reclaim::victims::next_reach;
use crate::sys::clock::now_ns;
use crate::sys::present::Kind;

/// Nothing is protected before a fork is over for this long, in microseconds: many children execute something else by then.
const AFTER_FORK_US: u64 = 2_000;
/// Copies of less than this part of the limit are what its reserve is for.
const LEAST_PART: u64 = 64;
/// So much is protected at a time, from a multiple of it on: some tens of microseconds, in which no fault is served.
const PIECE: usize = 8 << 20;
/// What lies further apart is protected by calls of its own: to look through what is missing takes time, too.
const FAR: usize = 2 << 20;
/// A step takes this long.
const STEP_NS: u64 = 1_000_000;
/// How far one scan looks at least.
const LEAST_REACH: usize = 64 << 20;
/// When an event must be read first, or the program forks, the reclaimer goes on after this; ...
const LATER_US: u64 = 50;
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
    forks: AtomicU32,
    /// ... when the last one was over, in microseconds; ...
    forked_us: AtomicU64,
    /// ... how many there had been when protecting began, up to where that has come, and how many when it was last done (the
    /// reclaimer's).
    begun: AtomicU32,
    protected_to: AtomicUsize,
    done: AtomicU32,
    /// Up to where protection was taken away (the reclaimer's).
    released_to: AtomicUsize,
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
            forks: AtomicU32::new(1),
            forked_us: AtomicU64::new(0),
            begun: AtomicU32::new(0),
            protected_to: AtomicUsize::new(0),
            done: AtomicU32::new(0),
            released_to: AtomicUsize::new(0),
            is_on: AtomicBool::new(false),
            is_wanted: AtomicBool::new(false),
            streams: Streams::new(1, 25),
        }
    }

    /// This process has forked, and its child needs it no more: what was let through so far is shared again.
    pub(crate) fn forked(&self, now_us: u64) {
        self.forked_us.store(now_us, Ordering::Relaxed);
        // Release: pairs with the Acquire in `Pager::protect_shared`.
        self.forks.fetch_add(1, Ordering::Release);
    }

    /// The same in the child, whose memory was registered anew: nothing is protected there.
    pub(crate) fn forked_here(&self, now_us: u64) {
        self.is_on.store(false, Ordering::Relaxed);
        self.is_wanted.store(false, Ordering::Relaxed);
        self.forked(now_us);
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
}

impl Pager {
    /// Whether pages may be write-protected because they are shared.
    pub fn protects_shared(&self) -> bool {
        self.shared_writes.is_on.load(Ordering::Relaxed)
    }

    /// One step of protecting what the program shares, or of taking that away, if there is reason. `begins` is called before
    /// the first step after a fork. In how many microseconds there may be more to do. By the reclaimer, without a lock.
    pub fn protect_shared(&self, shared: Sharing, now_us: u64, begins: impl FnOnce()) -> u64 {
        let state = &self.shared_writes;
        if shared.others == 0 {
            return if self.protects_shared() { self.release_step() } else { u64::MAX };
        }
        // Acquire: pairs with the Release in `forked`.
        let forks = state.forks.load(Ordering::Acquire);
        if forks == state.done.load(Ordering::Relaxed)
            || !self.can_watch_writes()
            || !is_worth_it(shared, self.budget.now(), self.budget.limit())
        {
            return u64::MAX;
        }
        let due_us = state.forked_us.load(Ordering::Relaxed) + AFTER_FORK_US;
        if now_us < due_us {
            return due_us - now_us;
        }
        if !self.protects() {
            state.is_wanted.store(true, Ordering::Relaxed);
            return WATCHED_US;
        }
        if state.begun.swap(forks, Ordering::Relaxed) != forks {
            begins();
            state.protected_to.store(0, Ordering::Relaxed);
            state.released_to.store(0, Ordering::Relaxed);
        }
        self.protect_step(forks)
    }

    fn protect_step(&self, forks: u32) -> u64 {
        let Some(_operation) = self.enter() else { return LATER_US };
        let state = &self.shared_writes;
        // Before the first page.
        state.is_on.store(true, Ordering::Relaxed);
        match self.walk(&state.protected_to, |_| true, |piece| self.protect_piece(piece)) {
            Walked::All => {
                state.done.store(forks, Ordering::Relaxed);
                u64::MAX
            }
            Walked::APart => 0,
            Walked::EventsFirst => LATER_US,
        }
    }

    fn release_step(&self) -> u64 {
        let Some(_operation) = self.enter() else { return LATER_US };
        let state = &self.shared_writes;
        // The zero page is protected for reasons of its own.
        match self.walk(&state.released_to, |kind| kind != Kind::ZeroPage, |piece| self.release_piece(piece)) {
            Walked::All => {
                state.released_to.store(0, Ordering::Relaxed);
                state.is_on.store(false, Ordering::Relaxed);
                u64::MAX
            }
            Walked::APart => 0,
            Walked::EventsFirst => LATER_US,
        }
    }

    /// Goes on from `to` through what is there of adopted memory, as far as there is time, and calls `f` with pieces of it in
    /// which nothing is that is not `wanted`. What is missing may be in them.
    fn walk(&self, to: &AtomicUsize, wanted: impl Fn(Kind) -> bool, mut f: impl FnMut(Range) -> Result<(), Errno>) -> Walked {
        let (started, mut reach) = (now_ns(), LEAST_REACH);
        loop {
            let began = now_ns();
            if began > started + STEP_NS {
                return Walked::APart;
            }
            let next = self.regions.next(&self.space.shared(), to.load(Ordering::Relaxed));
            let Some(range) = next else { return Walked::All };
            let end = range.end.min(range.start.saturating_add(reach));
            // Without the lock: what changes meanwhile is seen by `f`.
            let Ok(found) = self.present().scan_all(range.start, end, false) else {
                to.store(end, Ordering::Relaxed);
                continue;
            };
            reach = next_reach(reach, LEAST_REACH, now_ns() - began, end == range.start + reach);
            for piece in runs(found.kinds(), &wanted).flat_map(pieces) {
                match f(piece) {
                    Err(Errno::AGAIN) => return Walked::EventsFirst,
                    // Something that can't be protected is there by now, or nothing.
                    _ => to.store(piece.end, Ordering::Relaxed),
                }
            }
            to.store(found.walk_end.max(range.start + PAGE_SIZE), Ordering::Relaxed);
        }
    }

    /// Protects a piece, but for the pages for which nobody could wait: those that the kernel uses when a thread ends, and those
    /// that are kept or pinned.
    fn protect_piece(&self, piece: Range) -> Result<(), Errno> {
        let alone = self.space.exclusive();
        self.see_held();
        let kept = self.kept();
        let mut at = piece.start;
        while let Some(part) = self.regions.first_in(&alone, Range { start: at, end: piece.end }) {
            let pinned = self.pinned.overlaps(&alone, part);
            let is_pinned = |page: PageNo| self.pinned.overlaps(&alone, Range { start: page.addr(), end: (page + 1).addr() });
            let stays = |page: &PageNo| kept.contains(page) || self.is_held(*page) || pinned && is_pinned(*page);
            let (mut from, end) = (PageNo::of(part.start), PageNo::of(part.end));
            for page in from.up_to(end).filter(stays) {
                self.protect_pages(from, page)?;
                from = page + 1;
            }
            self.protect_pages(from, end)?;
            at = part.end;
        }
        Ok(())
    }

    fn protect_pages(&self, first: PageNo, end: PageNo) -> Result<(), Errno> {
        let protect = |start, end| if start < end { self.uffd().protect(start, end - start) } else { Ok(()) };
        match protect(first.addr(), end.addr()) {
            Err(Errno::NOENT) => {}
            done => return done,
        }
        // Of some mapping there nobody is told of writes: it was missed when they came to be watched.
        let mut at = first.addr();
        while let Ok(Some(mapping)) = self.present().mappings.next(at)
            && mapping.start < end.addr()
        {
            match protect(mapping.start.max(at), mapping.end.min(end.addr())) {
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
            match self.uffd().let_write(part.start, at - part.start) {
                Ok(()) | Err(Errno::NOENT) => {}
                other => return other,
            }
        }
        Ok(())
    }

    /// What is shared there may be written without a fault of lowtide's, as far as that can be said now.
    pub(crate) fn let_write_shared(&self, range: Range) {
        if self.protects_shared() {
            let _ = self.uffd().let_write(range.start, range.end - range.start);
        }
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
        state.done.store(1, Ordering::Relaxed);
        state.forked_here(5);
        assert!(!state.is_on.load(Ordering::Relaxed));
        assert_ne!(state.forks.load(Ordering::Relaxed), state.done.load(Ordering::Relaxed));
    }
}
