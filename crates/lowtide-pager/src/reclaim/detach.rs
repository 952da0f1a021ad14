//! Detaches pages into staging by UFFDIO_MOVE, window by window.
//!
//! A MOVE costs a system call and TLB shootdowns. So a window moves with its holes, mere address
//! space in staging. It needs the exclusive space lock: a page brought in since the look would move
//! too.

use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::Range;
use lowtide_sys::maps::{Mapping, Protection};
use lowtide_sys::present::Kind;
use lowtide_sys::uffd::{Holes, Wake};
use lowtide_wire::segment::add;
use rustix::io::Errno;
use rustix::mm::Advice;
use rustix::thread::{Timespec, nanosleep};

use crate::pagemap::ids::{PageNo, StagingFrame};
use crate::pagemap::{Mark, PageState};
use crate::pages::Operation;
use crate::pages::space::Exclusive;
use crate::pages::worker::Worker;
use crate::reclaim::victims::Found;

/// Pages spanned by a window.
const WINDOW: usize = 128;
/// Longest hole within a window.
const MOST_MISSING: usize = 16;
/// Tries to remove write protection while an event is pending, and their interval.
const LET_WRITE_TRIES: usize = 20;
const LET_WRITE_NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };

/// Result of detaching.
pub(crate) enum Detached {
    /// Frames used, by this many pages.
    Pages {
        frames: usize,
        pages: usize,
    },
    EventsFirst,
    /// Shared or pinned pages, which this thread can't copy.
    Busy,
}

/// Address ranges of shared or pinned pages.
type Busy = ArrayVec<(usize, usize), 16>;

/// Claimed pages, by distance from the window's first.
type Claimed = u128;

struct Detaching<'a> {
    found: &'a Found,
    /// The next free frame, and free ones from it.
    frame: StagingFrame,
    room: usize,
    pages: usize,
    /// Whether this thread can read the mappings.
    knows_mappings: bool,
    /// Pages the kernel would not move. None: skip them, in doubling steps.
    busy: Option<Busy>,
    passed: usize,
    /// Address range of stale words.
    stale: Option<(usize, usize)>,
    events_first: bool,
    is_unregistered: bool,
}

impl Detaching<'_> {
    fn is_over(&self) -> bool {
        self.room == 0 || self.events_first
    }
}

impl Operation<'_> {
    /// Moves found pages into the `room` frames from `first`.
    pub(crate) fn detach(&self, found: &Found, first: StagingFrame, room: usize, worker: &mut Worker) -> Detached {
        if self.soft_dirty_is_read() {
            return Detached::Pages { frames: 0, pages: 0 };
        }
        let mut work = Detaching {
            found,
            frame: first,
            room,
            pages: 0,
            knows_mappings: worker.rights().has_devices(),
            busy: Some(Busy::new()),
            passed: 1,
            stale: None,
            events_first: false,
            is_unregistered: false,
        };
        self.detach_ranges(found.ranges.iter(), &mut work);
        if let Some((start, end)) = work.stale.take() {
            self.forget_stale(start, end);
        }
        // Zero pages are never busy; one that is has just been written.
        let busy = work.busy.take().filter(|_| found.kind == Kind::Page).unwrap_or_default();
        if !busy.is_empty() && !worker.rights().may_wait() && work.pages == 0 {
            return Detached::Busy;
        }
        for (start, end) in busy.into_iter().filter(|_| worker.rights().may_wait()) {
            if work.is_over() {
                break;
            }
            if !self.unshare(start, end) {
                work.events_first = true;
                break;
            }
            let before = work.pages;
            // Retry once: pages still busy are pinned, and the hand moves on.
            self.detach_ranges([(start, end)].into_iter(), &mut work);
            // Moved copies were never counted. (Without sharers the pages were busy with device
            // I/O, say.)
            if self.sharers() > 0 {
                self.accounts.budget.add_pages((work.pages - before) as isize);
            }
        }
        // Soft-dirty bits cleared meanwhile: the drainer puts pages back.
        self.soft_dirty_is_read();
        if work.pages == 0 && work.events_first {
            return Detached::EventsFirst;
        }
        if found.kind == Kind::Page {
            self.reclaim.hand.lock().detached(work.pages);
        }
        Detached::Pages { frames: room - work.room, pages: work.pages }
    }

    /// Joins nearby ranges if no page between must stay.
    fn detach_ranges(&self, ranges: impl Iterator<Item = (usize, usize)>, work: &mut Detaching<'_>) {
        let nearest = if work.found.is_complete { MOST_MISSING } else { 0 };
        let mut window: Option<(PageNo, PageNo)> = None;
        for (start, end) in ranges {
            let (mut start, end) = (PageNo::of(start), PageNo::of(end));
            while start < end && !work.is_over() {
                let most = WINDOW.min(work.room);
                match window {
                    Some((first, last)) if start - last <= nearest && start - first < most => {
                        let stop = end.min(first + most);
                        window = Some((first, stop));
                        start = stop;
                    }
                    Some((first, last)) => {
                        self.detach_window(first, last, work);
                        window = None;
                    }
                    None => window = Some((start, start)),
                }
            }
        }
        if let Some((first, last)) = window
            && !work.is_over()
        {
            self.detach_window(first, last.min(first + work.room), work);
        }
    }

    fn detach_window(&self, first: PageNo, end: PageNo, work: &mut Detaching<'_>) {
        let alone = self.pages.space.exclusive();
        // Scanned without the lock: unregistered memory may be here now.
        let window = range_of(first, end);
        if !self.mappings.regions.covers(&alone, window) {
            return;
        }
        self.detach_pages(&alone, first, end, work);
        if core::mem::take(&mut work.is_unregistered) {
            // A pending event does the rest.
            let _ = self.forget_unregistered(&alone, window);
        }
    }

    fn detach_pages(&self, alone: &Exclusive<'_>, first: PageNo, end: PageNo, work: &mut Detaching<'_>) {
        let window = range_of(first, end);
        // Only missing pages are holes: a MOVE takes pages from the kernel's swap too.
        let pinned = self.mappings.pinned.overlaps(alone, window);
        self.see_held();
        let kept = self.kept();
        let Ok(all) = self.present().scan_all(window.start, window.end) else { return };
        let (mut at, mut claimed): (PageNo, Claimed) = (first, 0);
        let pages =
            all.kinds().flat_map(|(from, to, kind)| PageNo::of(from).up_to(PageNo::of(to)).map(move |page| (page, kind)));
        for (page, kind) in pages {
            if claimed == 0 {
                at = page;
            }
            let frame = work.frame + (page - at);
            let stays = kind != work.found.kind
                || kept.contains(&page)
                || pinned && self.mappings.pinned.overlaps(alone, range_of(page, page + 1));
            if !stays && !self.is_spared(page, work.found) && !self.is_held(page) && self.claim_out(alone, page, frame, work) {
                claimed |= 1 << (page - at);
            } else if claimed != 0 {
                self.move_out(alone, at, core::mem::take(&mut claimed), work);
                if work.is_over() {
                    return;
                }
            }
        }
        if claimed != 0 {
            self.move_out(alone, at, claimed, work);
        }
    }

    /// Whether a page is spared; lowers its mark.
    fn is_spared(&self, page: PageNo, found: &Found) -> bool {
        if found.spares_none {
            return false;
        }
        let Some(mark) = self.pages.map.mark(page) else { return false };
        let spared = Mark::from_bits(mark.load(Ordering::Relaxed)).spared();
        if let Some(rest) = spared {
            mark.store(rest.bits(), Ordering::Relaxed);
        }
        spared.is_some()
    }

    /// Claims a present page. A word that holds bytes is only noted as stale; without a word a page
    /// stays.
    fn claim_out(&self, _: &Exclusive<'_>, page: PageNo, frame: StagingFrame, work: &mut Detaching<'_>) -> bool {
        if self.mappings.going.keeps(page) {
            return false;
        }
        let word = self.pages.map.get(page);
        let clean = match word {
            PageState::None | PageState::Zero => 0,
            PageState::Clean(raw) => raw,
            PageState::Swapped(_) | PageState::Staged(_) => {
                work.stale.get_or_insert((page.addr(), 0)).1 = (page + 1).addr();
                return false;
            }
            _ => return false,
        };
        if self.pages.map.claim(page, word, PageState::Moving(frame)) != Ok(true) {
            return false;
        }
        self.pages.staging.set_clean(frame, clean);
        if word == PageState::Zero {
            // If the page is missing, None means the same.
            self.forget(&mut self.store().freer(), word);
        }
        true
    }

    /// Moves a window's claimed pages; restores the words of others.
    fn move_out(&self, _: &Exclusive<'_>, first: PageNo, mut claimed: Claimed, work: &mut Detaching<'_>) {
        let (base, span) = (work.frame, (Claimed::BITS - claimed.leading_zeros()) as usize);
        let mut used = 0;
        let (mut at, mut most) = (0, span);
        while at < span && claimed >> at != 0 {
            let len = (span - at).min(most);
            let run = Run { page: first + at, frame: base + at, len, claimed: claimed >> at };
            let (done, error) = self.move_run(&run, work);
            if run.claimed & mask(done) != 0 {
                used = at + done;
                most = span;
                work.passed = 1;
            }
            let mut behind = done;
            if done == 0
                && let Some(why) = error
            {
                behind = match why_it_stays(why, &run, span - at, work) {
                    Stays::Fewer => {
                        most = len / 2;
                        0
                    }
                    Stays::Pages(pages) => pages,
                    // One call handles one mapping.
                    Stays::Mapping => match self.left_of_mapping(&run, work) {
                        Some(left) if left < len => {
                            most = left;
                            0
                        }
                        Some(left) => {
                            most = span;
                            left.min(span - at)
                        }
                        None if len > 1 => {
                            most = len / 2;
                            0
                        }
                        None => span - at,
                    },
                };
                for i in (0..behind).filter(|i| run.claimed >> i & 1 != 0) {
                    self.pages.map.set(run.page + i, self.staging_to_place(run.frame + i));
                }
            }
            if behind > 0 {
                claimed &= !(mask(behind) << at);
                at += behind;
            }
        }
        work.frame += used;
        work.room -= used;
    }

    /// Pages left of the run's mapping. If they cover the run, it is immovable. None: unknown.
    fn left_of_mapping(&self, run: &Run, work: &Detaching<'_>) -> Option<usize> {
        let Mapping { range, protection, .. } = work.knows_mappings.then(|| self.present().mappings.at(run.page.addr()))??;
        let left = (range.end - run.page.addr()) / PAGE_SIZE;
        if left >= run.len {
            self.reclaim.hand.lock().passes_by(range);
            if protection == Protection::Less {
                self.sees_unwritable();
            }
        }
        Some(left)
    }

    /// MOVEs a run: pages done, and the error.
    fn move_run(&self, run: &Run, work: &mut Detaching<'_>) -> (usize, Option<Errno>) {
        if !self.can_be_missed(run.page.addr()) {
            work.is_unregistered = true;
            return (0, Some(Errno::FAULT));
        }
        let pages = (run.claimed & mask(run.len)).count_ones() as usize;
        self.pages.moving.fetch_add(pages, Ordering::Relaxed);
        self.publish_own();
        // SAFETY: the words of present pages are Moving, so faults on them wait.
        let progress = unsafe {
            let (to, from) = (self.pages.staging.addr(run.frame), run.page.addr());
            self.uffd().move_pages(to, from, run.len * PAGE_SIZE, Holes::Pass, Wake::Later)
        };
        add(&self.counters().moved_calls, 1);
        let done = match progress.error {
            None => run.len,
            Some(_) => self.landed(run).max(progress.done / PAGE_SIZE).min(run.len),
        };
        let mut moved = 0;
        for i in (0..done).filter(|i| run.claimed >> i & 1 != 0) {
            let (page, frame) = (run.page + i, run.frame + i);
            if !self.pages.staging.arrived(frame, page) {
                self.broken(b"a frame was given out twice", page, frame);
            }
            self.pages.map.set(page, PageState::Staged(frame));
            self.mark_leaving(page);
            moved += 1;
        }
        self.pages.moving.fetch_sub(pages, Ordering::Relaxed);
        // Zero pages took no memory. (The next measurement counts one just written.)
        let of_program = if work.found.kind == Kind::Page { moved } else { 0 };
        self.accounts.budget.moved_to_staging(moved, of_program, self.uncounted());
        work.pages += moved;
        (done, progress.error)
    }

    /// Pages up to the run's last populated frame after an incomplete MOVE, zero pages of split
    /// huge pages included. The kernel's count is unreliable: Linux 6.18 has reported fewer pages
    /// than moved on splitting a huge page. Looks at all: the program may have dropped the first.
    fn landed(&self, run: &Run) -> usize {
        self.present().pages_to_last(self.pages.staging.addr(run.frame), run.len)
    }

    /// Copies pages shared with a forked child, dead or alive: only exclusive pages can move. Hold
    /// no lock. Not for handlers ([`may_wait`]): it may wait for one. False: an event comes first.
    ///
    /// [`may_wait`]: crate::pages::Rights::may_wait
    fn unshare(&self, start: usize, end: usize) -> bool {
        // Otherwise each protected block faults and waits for room. A fork waits meanwhile.
        let mut tries = 0;
        while self.protects() && self.let_write_all(Range { start, end }) == Err(Errno::AGAIN) {
            tries += 1;
            if tries == LET_WRITE_TRIES || self.paused() {
                return false;
            }
            let _ = nanosleep(&LET_WRITE_NAP);
        }
        // SAFETY: populating for write changes no bytes; errors (nothing mapped) are harmless.
        let _ = unsafe { rustix::mm::madvise(start as *mut _, end - start, Advice::LinuxPopulateWrite) };
        true
    }

    /// Ends write-protection of the zero page in a range, mapping by mapping where some are not
    /// registered for writes: the kernel stops at the first of these.
    ///
    /// # Errors
    /// `AGAIN`: an event must be read first.
    fn let_write_all(&self, range: Range) -> Result<(), Errno> {
        let let_write = |part: Range| self.uffd().let_write(part.start, part.end - part.start);
        match let_write(range) {
            Err(Errno::NOENT) => {}
            done => return done,
        }
        self.present().mappings.each_part(range, |part| match let_write(part) {
            Err(Errno::NOENT) => Ok(()),
            done => done,
        })
    }
}

struct Run {
    page: PageNo,
    frame: StagingFrame,
    len: usize,
    /// Bits from `page` on, beyond the run too.
    claimed: Claimed,
}

/// What a MOVE that moved nothing implies.
enum Stays {
    Fewer,
    Pages(usize),
    /// Leave the mapping if it covers the run; otherwise retry its part.
    Mapping,
}

fn why_it_stays(why: Errno, run: &Run, left: usize, work: &mut Detaching<'_>) -> Stays {
    match why {
        Errno::AGAIN => {
            work.events_first = true;
            Stays::Pages(left)
        }
        // Gone, or spans two mappings.
        Errno::NOENT if run.len > 1 => Stays::Fewer,
        Errno::NOENT => Stays::Pages(1),
        Errno::INVAL if run.len == 1 && run.claimed & 1 == 0 => Stays::Pages(1),
        // Spans two mappings, or one is locked, read-only or the like.
        Errno::INVAL => Stays::Mapping,
        // Shared or pinned.
        Errno::BUSY => {
            let missing = run.claimed.trailing_zeros() as usize;
            let pages = (run.claimed >> missing).trailing_ones() as usize;
            let start = run.page + missing;
            let passed = match &mut work.busy {
                // After a fork the rest is shared too.
                Some(busy) => {
                    let _ = busy.try_push((start.addr(), (start + pages).addr()));
                    pages
                }
                None => {
                    let passed = work.passed.min(pages);
                    work.passed = (work.passed * 2).min(WINDOW);
                    passed
                }
            };
            Stays::Pages(missing + passed)
        }
        // Otherwise immovable.
        _ => Stays::Pages(left),
    }
}

fn range_of(first: PageNo, end: PageNo) -> Range {
    Range { start: first.addr(), end: end.addr() }
}

fn mask(n: usize) -> Claimed {
    if n >= Claimed::BITS as usize { Claimed::MAX } else { (1 << n) - 1 }
}
