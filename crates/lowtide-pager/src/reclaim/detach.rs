//! From their places into staging: pages that the hand has found are detached by UFFDIO_MOVE, window by window.
//!
//! What a MOVE costs is the interrupt that makes other CPUs forget the pages, if threads of the program run there, and the
//! call. So a window is moved with its holes: what is missing in it stays missing in staging, where it is but address space.
//! The space lock is taken alone for a window: nobody may bring a page in between the look and the MOVE, which would take it
//! along.

use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;
use rustix::mm::Advice;
use rustix::thread::{Timespec, nanosleep};

use crate::fault::worker::{Reach, Worker};
use crate::mappings::regions::Range;
use crate::mappings::space::Exclusive;
use crate::pagemap::ids::{PageNo, StagingFrame};
use crate::pagemap::{Mark, PageState};
use crate::pager::{Operation, add};
use crate::reclaim::victims::Found;
use crate::sys::maps::{Mapping, Protection};
use crate::sys::present::Kind;
use crate::sys::uffd::{Holes, Wake};

/// Most pages from the first to the last of a window.
const WINDOW: usize = 128;
/// Missing pages in a row that end a window.
const MOST_MISSING: usize = 16;
/// While an event must be read first, it is tried so often, with so much time in between, to take write protection away.
const LET_WRITE_TRIES: usize = 20;
const LET_WRITE_NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };

/// What became of pages that were found.
pub(crate) enum Detached {
    /// This many frames are used up, by this many pages.
    Pages {
        frames: usize,
        pages: usize,
    },
    EventsFirst,
    /// Nothing, because pages are shared or pinned, which this thread can't do anything about.
    Busy,
}

/// Runs of pages that the kernel would not move because they are shared or pinned, as addresses; this many are dealt with at a
/// time.
type Busy = ArrayVec<(usize, usize), 16>;

/// Pages of a window that are claimed, by their distance from its first.
type Claimed = u128;

/// One call to detach what was found.
struct Detaching<'a> {
    found: &'a Found,
    /// The next free frame, and how many are free from there on.
    frame: StagingFrame,
    room: usize,
    pages: usize,
    spares_accessed: bool,
    /// Whether this thread can ask the list of mappings.
    knows_mappings: bool,
    /// What the kernel would not move. None: such pages are passed by, more of them at a time the more there are.
    busy: Option<Busy>,
    passed: usize,
    /// Stale words, from the first to behind the last, as addresses.
    stale: Option<(usize, usize)>,
    events_first: bool,
    /// Some of a window is not registered.
    is_unregistered: bool,
}

impl Detaching<'_> {
    fn is_over(&self) -> bool {
        self.room == 0 || self.events_first
    }
}

impl Operation<'_> {
    /// Moves the pages that were found into the frames from `first` on, `room` of them.
    pub(crate) fn detach(&self, found: &Found, first: StagingFrame, room: usize, worker: &mut Worker) -> Detached {
        if self.all_must_stay() {
            return Detached::Pages { frames: 0, pages: 0 };
        }
        let mut work = Detaching {
            found,
            frame: first,
            room,
            pages: 0,
            spares_accessed: found.spares_accessed,
            knows_mappings: worker.reach() == Reach::Everything,
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
        // (The zero page is nobody's; what is busy in its place was written this moment.)
        let busy = work.busy.take().filter(|_| found.kind == Kind::Page).unwrap_or_default();
        if !busy.is_empty() && !worker.may_fault && work.pages == 0 {
            return Detached::Busy;
        }
        for (start, end) in busy.into_iter().filter(|_| worker.may_fault) {
            if work.is_over() {
                break;
            }
            if !self.unshare(start, end) {
                // Others would be refused, too.
                work.events_first = true;
                break;
            }
            // That was an access.
            work.spares_accessed = false;
            let before = work.pages;
            // Once more. What is still busy is pinned, and stays: the hand goes on, or it would come to nothing else.
            self.detach_ranges([(start, end)].into_iter(), &mut work);
            // What was moved were copies, which nobody has counted: nothing has become less. (Alone, it is pages that were busy
            // otherwise, for a device, say, and what lies beside them.)
            if self.sharers() > 0 {
                self.budget.add_pages((work.pages - before) as isize);
            }
        }
        // If soft-dirty bits were cleared meanwhile, who drains what has left puts it back.
        self.all_must_stay();
        if work.pages == 0 && work.events_first {
            return Detached::EventsFirst;
        }
        if found.kind == Kind::Page {
            self.hand.lock().detached(work.pages);
        }
        Detached::Pages { frames: room - work.room, pages: work.pages }
    }

    /// Windows are made of ranges that are near each other, if nothing that lies between them must stay.
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

    /// Moves the pages `first .. end`, but for those that are to stay.
    fn detach_window(&self, first: PageNo, end: PageNo, work: &mut Detaching<'_>) {
        let alone = self.space.exclusive();
        // It was found without the lock: the program may have something else there by now that is not adopted.
        let window = range_of(first, end);
        if !self.regions.covers(&alone, window) {
            return;
        }
        self.detach_pages(&alone, first, end, work);
        if core::mem::take(&mut work.is_unregistered) {
            // Where an event is on its way that says so, it is known when that is read.
            let _ = self.forget_unregistered(&alone, window);
        }
    }

    /// The same of a window that is adopted.
    fn detach_pages(&self, alone: &Exclusive<'_>, first: PageNo, end: PageNo, work: &mut Detaching<'_>) {
        let window = range_of(first, end);
        // A MOVE takes all that there is, also what is in the kernel's own swap: only what is missing altogether is a hole.
        let pinned = self.pinned.overlaps(alone, window);
        self.see_held();
        let kept = self.kept();
        let Ok(all) = self.present().scan_all(window.start, window.end, work.spares_accessed) else { return };
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
                || pinned && self.pinned.overlaps(alone, range_of(page, page + 1));
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

    /// Whether a page stays this time. A thread that evicts what it tried before asks nothing.
    fn is_spared(&self, page: PageNo, found: &Found) -> bool {
        if found.spares_none {
            return false;
        }
        let Some(mark) = self.map.mark(page) else { return false };
        let spared = Mark::from_bits(mark.load(Ordering::Relaxed)).spared();
        if let Some(rest) = spared {
            mark.store(rest.bits(), Ordering::Relaxed);
        }
        spared.is_some()
    }

    /// Claims a page for the way out that is in memory. A word that holds bytes is not taken for stale before others have been
    /// kept away. A page that can't have a word stays.
    fn claim_out(&self, _: &Exclusive<'_>, page: PageNo, frame: StagingFrame, work: &mut Detaching<'_>) -> bool {
        if self.going.keeps(page) {
            return false;
        }
        let word = self.map.get(page);
        let clean = match word {
            PageState::None | PageState::Zero => 0,
            PageState::Clean(raw) => raw,
            PageState::Swapped(_) | PageState::Staged(_) => {
                work.stale.get_or_insert((page.addr(), 0)).1 = (page + 1).addr();
                return false;
            }
            _ => return false,
        };
        if self.map.claim(page, word, PageState::Moving(frame)) != Ok(true) {
            return false;
        }
        self.staging.set_clean(frame, clean);
        if word == PageState::Zero {
            // If the page is not there, then None says the same.
            self.forget(&mut self.store().freer(), word);
        }
        true
    }

    /// Moves the claimed pages of a window that begins at `first` into frames; the words of those that stay are what they were.
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
                    // One call does one mapping.
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
                    self.map.set(run.page + i, self.staging_to_place(run.frame + i));
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

    /// How many pages the mapping of a run has from its first one on. If that is all of the run, the mapping can't be moved. None:
    /// that can't be told.
    fn left_of_mapping(&self, run: &Run, work: &Detaching<'_>) -> Option<usize> {
        let Mapping { range, protection, .. } = work.knows_mappings.then(|| self.present().mappings.at(run.page.addr()))??;
        let left = (range.end - run.page.addr()) / PAGE_SIZE;
        if left >= run.len {
            self.hand.lock().passes_by(range);
            if protection == Protection::Less {
                self.sees_unwritable();
            }
        }
        Some(left)
    }

    /// One MOVE of a run: how far it came, and why no further if it did not do all of its work.
    fn move_run(&self, run: &Run, work: &mut Detaching<'_>) -> (usize, Option<Errno>) {
        if !self.can_be_missed(run.page.addr()) {
            work.is_unregistered = true;
            return (0, Some(Errno::FAULT));
        }
        let pages = (run.claimed & mask(run.len)).count_ones() as usize;
        self.moving.fetch_add(pages, Ordering::Relaxed);
        self.publish_own();
        // SAFETY: the words of all pages that are there say Moving: a fault on these pages waits until they say more.
        let progress = unsafe {
            let (to, from) = (self.staging.addr(run.frame), run.page.addr());
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
            if !self.staging.arrived(frame, page) {
                self.broken(b"a frame was given out twice", page, frame);
            }
            self.map.set(page, PageState::Staged(frame));
            self.mark_leaving(page);
            moved += 1;
        }
        self.moving.fetch_sub(pages, Ordering::Relaxed);
        // What was the shared zero page took no memory. (If it was written this moment, the next measurement tells.)
        let of_program = if work.found.kind == Kind::Page { moved } else { 0 };
        self.budget.moved_to_staging(moved, of_program, self.uncounted());
        work.pages += moved;
        (done, progress.error)
    }

    /// How many frames of a run, which were empty, hold a page after a MOVE that did not do all of its work: up to the last one
    /// that does. (The shared zero page is one too: parts of a huge page that was split can be that.) The kernel's own count
    /// can't be relied on then: on Linux 6.18 a MOVE that has to split a huge page on its way has been seen to report fewer
    /// pages than it moved. All are looked at: the program may have dropped the first this moment.
    fn landed(&self, run: &Run) -> usize {
        self.present().pages_to_last(self.staging.addr(run.frame), run.len)
    }

    /// Gives the program its own copies of pages that it shares with a forked child, dead or alive: only those can be moved.
    /// No lock may be held: if the program drops a page meanwhile, this waits for a monitor, so it is not for one
    /// ([`Worker::may_fault`]). False: an event must be read first.
    fn unshare(&self, start: usize, end: usize) -> bool {
        // What is protected would be a fault of each block, for which a monitor makes room first. A fork waits for this meanwhile.
        let mut tries = 0;
        while self.may_protect() && self.let_write_shared(Range { start, end }) == Err(Errno::AGAIN) {
            tries += 1;
            if tries == LET_WRITE_TRIES || self.paused() {
                return false;
            }
            let _ = nanosleep(&LET_WRITE_NAP);
        }
        // SAFETY: populating for write changes no bytes, whatever is mapped there now; errors (nothing mapped) are fine.
        let _ = unsafe { rustix::mm::madvise(start as *mut _, end - start, Advice::LinuxPopulateWrite) };
        true
    }
}

/// Claimed pages that one MOVE is to take.
struct Run {
    page: PageNo,
    frame: StagingFrame,
    len: usize,
    /// Which are claimed, from `page` on, also behind the run.
    claimed: Claimed,
}

/// What becomes of a run of which a MOVE took nothing.
enum Stays {
    /// It is tried again with fewer pages.
    Fewer,
    /// This many pages stay where they are.
    Pages(usize),
    /// Those up to the end of the mapping do, if it has all of the run. If it has not, it is tried with what it has.
    Mapping,
}

/// What the kernel's answer to a MOVE that took nothing means for the run, behind whose beginning the window has `left` pages.
fn why_it_stays(why: Errno, run: &Run, left: usize, work: &mut Detaching<'_>) -> Stays {
    match why {
        Errno::AGAIN => {
            work.events_first = true;
            Stays::Pages(left)
        }
        // Not there any more, or between two mappings.
        Errno::NOENT if run.len > 1 => Stays::Fewer,
        Errno::NOENT => Stays::Pages(1),
        Errno::INVAL if run.len == 1 && run.claimed & 1 == 0 => Stays::Pages(1),
        // The pages lie in two mappings, or theirs is locked, read-only or otherwise immovable.
        Errno::INVAL => Stays::Mapping,
        // Shared or pinned.
        Errno::BUSY => {
            let missing = run.claimed.trailing_zeros() as usize;
            let pages = (run.claimed >> missing).trailing_ones() as usize;
            let start = run.page + missing;
            let passed = match &mut work.busy {
                // The rest of these is likely to be shared as well: after a fork all of it is.
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

/// The addresses of the pages `first .. end`.
fn range_of(first: PageNo, end: PageNo) -> Range {
    Range { start: first.addr(), end: end.addr() }
}

/// The lowest `n` bits.
fn mask(n: usize) -> Claimed {
    if n >= Claimed::BITS as usize { Claimed::MAX } else { (1 << n) - 1 }
}
