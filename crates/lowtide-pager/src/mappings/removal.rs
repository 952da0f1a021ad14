//! Clears the words of memory that the program has dropped. Large removals are done in parts of
//! some ten milliseconds of the exclusive space lock; `going.rs` keeps the rest.
//!
//! The kernel reports a removal (MADV_DONTNEED, MADV_FREE) *before* it drops the pages. Pages in
//! memory are marked Removing: evicted before the call ends, their old bytes would come back. Pages
//! that are out are gone at once. A fault in between races with the removal, as natively.

use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::Range;
use lowtide_sys::clock::now_us;
use rustix::thread::{Timespec, nanosleep};

use crate::mappings::going::Gone;
use crate::pagemap::ids::PageNo;
use crate::pagemap::{BLOCK_PAGES, Claimant, PageState};
use crate::pager::Pager;
use crate::pages::Operation;
use crate::pages::space::Exclusive;

const BLOCK_BYTES: usize = BLOCK_PAGES * PAGE_SIZE;
/// Blocks for one hold of the space lock (256 MiB that are out: ten milliseconds), and between
/// looks whether others wait. With `faults` tests meet unfinished removals.
const MOST: usize = if cfg!(feature = "faults") { 2 } else { 1024 };
const PART: usize = if cfg!(feature = "faults") { 1 } else { 64 };
const GIVES_WAY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };
/// Holds before a fork, for a TiB, or a 16th of it if others always wait; the rest is then cleared
/// at once: a program that keeps dropping memory past the gate must not delay its fork for ever.
const BEFORE_FORK: usize = 4096;
/// Microseconds: others may drop memory there all the time.
const BEFORE_MOVE_US: u64 = 2_000_000;

impl Pager {
    pub(crate) fn abandon(&self, lock: &Exclusive<'_>, range: Range) {
        self.mappings.regions.remove(lock, range);
        self.gone(lock, range, Gone::Already);
    }

    /// The pages of a range are gone, now or when the call ends: clears as much as this hold has
    /// time for. The rest counts as cleared.
    pub(crate) fn gone(&self, lock: &Exclusive<'_>, range: Range, gone: Gone) {
        // Earlier removals, cleared later, would take this one's marks.
        self.cut_out(lock, range);
        let left = self.let_go_while(lock, range, gone, || lock.spent() < MOST);
        if left.end.saturating_sub(left.start) <= PART * BLOCK_BYTES || !self.mappings.going.push(lock, left, gone) {
            self.let_go_while(lock, left, gone, || true);
        }
    }

    fn cut_out(&self, lock: &Exclusive<'_>, range: Range) {
        if !self.mappings.going.cut(lock, range) {
            for (left, gone) in self.mappings.going.within(lock, range) {
                self.let_go_while(lock, left, gone, || true);
            }
            self.mappings.going.remove(lock, range);
        }
    }

    fn let_go_while(&self, lock: &Exclusive<'_>, range: Range, gone: Gone, goes_on: impl Fn() -> bool) -> Range {
        let mut left = range;
        while left.start < left.end && goes_on() {
            left.start = self.let_go_part(lock, left, gone);
        }
        left
    }

    fn let_go_part(&self, lock: &Exclusive<'_>, range: Range, gone: Gone) -> usize {
        let behind = self.pages.map.behind_blocks(PageNo::of(range.start), PageNo::behind(range.end), PART);
        let mut end = behind.addr().min(range.end);
        let in_memory = (gone == Gone::Soon).then(|| match self.present().scan(range.start, end, PART * BLOCK_PAGES) {
            Ok(found) => found,
            Err(_) => (self.host.fatal)(b"the kernel does not say any more which pages are in memory (PAGEMAP_SCAN)"),
        });
        if let Some(found) = &in_memory {
            end = found.walk_end.clamp(range.start + PAGE_SIZE, end.max(range.start + PAGE_SIZE));
        }
        self.dropped(lock, range.start, end);
        let mut marked = 0;
        for page in
            in_memory.iter().flat_map(|found| found.iter()).flat_map(|(from, to)| PageNo::of(from).up_to(PageNo::of(to)))
        {
            // Loading and Storing are Orphan by now: these pages are not in memory, or only in a
            // frame.
            if self.pages.map.claim(page, PageState::None, self.removing()).is_err() {
                (self.host.fatal)(b"no memory left for lowtide's page map");
            }
            marked += 1;
        }
        lock.spend(((end - range.start) / BLOCK_BYTES).clamp(1, PART) + marked / BLOCK_PAGES);
        end
    }

    /// Clears the words of a range at once. The store tells the budget what it frees.
    pub(crate) fn dropped(&self, lock: &Exclusive<'_>, start: usize, end: usize) {
        let mut freer = self.store(lock).freer();
        self.pages.map.each(PageNo::of(start), PageNo::behind(end), |_, slot| {
            if slot.peek() == PageState::None {
                return;
            }
            match slot.take() {
                PageState::Storing(_) => slot.set(PageState::ORPHAN_OF_STORE),
                PageState::Loading(raw, by) | PageState::Orphan(raw, by) => slot.set(PageState::Orphan(raw, by)),
                other => self.forget(&mut freer, other),
            }
        });
        self.publish_own();
    }

    pub(crate) fn let_go_before_move(&self, lock: &Exclusive<'_>, range: Range) {
        for (left, _) in self.mappings.going.within(lock, range) {
            // None of the old pages is in memory there.
            self.put_aside(lock, left.within(range));
        }
        self.cut_out(lock, range);
    }

    /// Partial blocks, and blocks with threads at work, are cleared at once.
    fn put_aside(&self, lock: &Exclusive<'_>, range: Range) {
        // Frames lead to staged pages, and threads come back to the others.
        let is_quiet = |word| {
            use PageState::*;
            matches!(word, None | Zero | Swapped(_) | Clean(_) | Removing(_))
        };
        let (mut page, end) = (PageNo::of(range.start), PageNo::behind(range.end));
        while let Some((first, behind)) = self.pages.map.next_block(page, end) {
            if behind - first < BLOCK_PAGES || !self.pages.map.set_aside(first, is_quiet) {
                self.dropped(lock, first.addr(), behind.addr());
            }
            page = behind;
        }
        self.mappings.going.has_aside(lock, self.pages.map.has_aside());
    }

    fn let_go_aside(&self, lock: &Exclusive<'_>) -> bool {
        let mut freer = self.store(lock).freer();
        let blocks = self.pages.map.empty_some_aside(|word| {
            // A word claimed all the same (`PageMap::set_aside`) stays until its claimant is gone.
            let said = word.get();
            if !matches!(said, PageState::Loading(..)) && word.swap(said, PageState::None) {
                self.forget(&mut freer, said);
            }
        });
        drop(freer);
        self.mappings.going.has_aside(lock, self.pages.map.has_aside());
        lock.spend(blocks);
        self.publish_own();
        blocks > 0
    }

    /// Clears at least one part, as this hold of the lock and others allow.
    fn let_go_some(&self, lock: &Exclusive<'_>) {
        // While the program forks, the tables don't change and nothing is left.
        if self.forks.held_back.is_on(lock) {
            return;
        }
        let goes_on = || lock.spent() < MOST && !self.pages.space.is_wanted();
        // Removals keep pages of the program; what is aside frees only lowtide's memory.
        loop {
            if let Some((range, gone)) = self.mappings.going.next(lock, |range| self.mappings.regions.overlaps(lock, range)) {
                self.mappings.going.advance(lock, range, self.let_go_part(lock, range, gone));
            } else if !self.let_go_aside(lock) {
                break;
            }
            if !goes_on() {
                break;
            }
        }
        self.mappings.going.has_done(lock, now_us());
    }

    /// By a thread that reads messages; true: call it again soon.
    pub(super) fn let_go_in_turn(&self, lock: &Exclusive<'_>, who: Claimant) -> bool {
        if !self.mappings.going.is_on() || !self.mappings.going.is_turn_of(lock, who, now_us()) {
            return false;
        }
        self.let_go_some(lock);
        self.mappings.going.is_on()
    }

    /// Before `who` takes the lock again, which would starve others.
    pub(super) fn give_way(&self, who: Claimant) {
        if self.mappings.going.is_on() && self.mappings.going.is_done_by(who) && self.pages.space.is_wanted() {
            let _ = nanosleep(&GIVES_WAY);
        }
    }

    /// Before eviction. Pages that came in where memory was dropped are not evicted before this.
    /// True: there was some.
    pub(crate) fn let_go_for_room(&self) -> bool {
        let is_on = self.mappings.going.is_on();
        if is_on {
            self.let_go_some(&self.pages.space.exclusive());
        }
        is_on
    }

    /// Whether something is left of what was dropped.
    pub fn has_removals_left(&self) -> bool {
        self.mappings.going.is_on()
    }

    /// Clears all in parts, for the child's tables. The caller holds no lock.
    pub(crate) fn let_go_before_fork(&self) {
        for _ in 0..BEFORE_FORK {
            if !self.mappings.going.is_on() {
                return;
            }
            self.let_go_some(&self.pages.space.exclusive());
            if self.pages.space.is_wanted() {
                let _ = nanosleep(&GIVES_WAY);
            }
        }
    }

    pub(crate) fn let_go_of_all(&self, lock: &Exclusive<'_>) {
        while let Some((range, gone)) = self.mappings.going.next(lock, |_| true) {
            self.let_go_while(lock, range, gone, || true);
            self.mappings.going.advance(lock, range, range.end);
        }
        while self.let_go_aside(lock) {}
    }

    /// Waits a while for removals in large places between which memory moves: the move would have
    /// to finish them. For host threads; takes nothing.
    pub fn outlast_removals(&self, places: [Range; 2]) {
        let until_us = now_us() + BEFORE_MOVE_US;
        for place in places {
            if place.end - place.start > MOST * BLOCK_BYTES {
                self.mappings.going.outlast(place, until_us);
            }
        }
    }
}

impl Operation<'_> {
    #[cold]
    pub(crate) fn let_go_around(&self, page: PageNo) {
        let lock = self.pages.space.exclusive();
        let first = PageNo::new(page.number() - page.number() % BLOCK_PAGES);
        let block = Range { start: first.addr(), end: (first + BLOCK_PAGES).addr() };
        for (left, _) in self.mappings.going.within(&lock, block) {
            // Pages in memory are marked in their turn; until then nothing there is evicted.
            self.dropped(&lock, left.start.max(block.start), left.end.min(block.end));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mappings::events::tests::{mapping, pager, words};
    use crate::mappings::removed::tests::marked;
    use core::sync::atomic::Ordering;
    use lowtide_sys::uffd::Message;

    const AT: usize = 1 << 40;
    const BLOCKS: usize = 3 * MOST + 5;

    fn zeros_out(pager: &Pager, at: usize, blocks: usize) {
        for page in PageNo::of(at).up_to(PageNo::of(at) + blocks * BLOCK_PAGES) {
            assert_eq!(pager.pages.map.claim(page, PageState::None, PageState::Zero), Ok(true));
        }
        pager.pages.zero_now.fetch_add((blocks * BLOCK_PAGES) as u64, Ordering::Relaxed);
    }

    fn blocks_out(pager: &Pager) -> usize {
        pager.pages.zero_now.load(Ordering::Relaxed) as usize / BLOCK_PAGES
    }

    fn range(blocks: usize) -> Range {
        Range { start: AT, end: AT + blocks * BLOCK_BYTES }
    }

    fn unmap(range: Range) -> Message {
        Message::Unmap { start: range.start, end: range.end }
    }

    #[test]
    fn a_large_removal_is_done_in_parts_by_one_thread() {
        let Some(pager) = pager() else { return };
        zeros_out(&pager, AT, BLOCKS);
        let (one, other) = (Claimant::new(), Claimant::new());
        pager.happened(&pager.pages.space.exclusive(), unmap(range(BLOCKS)));
        let left = blocks_out(&pager);
        assert!((BLOCKS - MOST..BLOCKS).contains(&left), "{left} of {BLOCKS} are left by the first hold");
        assert!(pager.mappings.going.has(PageNo::of(range(BLOCKS).end).back(1)));
        assert!(pager.let_go_in_turn(&pager.pages.space.exclusive(), one));
        assert!(!pager.let_go_in_turn(&pager.pages.space.exclusive(), other), "the first goes on");
        let most = left - blocks_out(&pager);
        assert!((1..=MOST).contains(&most), "{most} in one hold");
        let holds = (1..).take_while(|_| pager.let_go_in_turn(&pager.pages.space.exclusive(), one)).last();
        assert!(holds.is_some_and(|holds| holds < 5) && blocks_out(&pager) == 0 && !pager.mappings.going.is_on());
    }

    #[test]
    fn several_that_are_read_together_are_one_hold() {
        let Some(pager) = pager() else { return };
        zeros_out(&pager, AT, 2 * MOST);
        let lock = pager.pages.space.exclusive();
        for half in [Range { end: AT + MOST * BLOCK_BYTES, ..range(2 * MOST) }, range(2 * MOST)] {
            pager.happened(&lock, unmap(half));
        }
        assert_eq!(blocks_out(&pager), MOST);
    }

    #[test]
    fn others_are_let_in() {
        let Some(pager) = pager() else { return };
        zeros_out(&pager, AT, BLOCKS);
        let lock = pager.pages.space.exclusive();
        pager.happened(&lock, unmap(range(BLOCKS)));
        let left = blocks_out(&pager);
        std::thread::scope(|scope| {
            scope.spawn(|| drop(pager.pages.space.shared()));
            while !pager.pages.space.is_wanted() {
                std::thread::yield_now();
            }
            pager.let_go_some(&lock);
            assert_eq!(left - blocks_out(&pager), PART);
            drop(lock);
        });
    }

    #[test]
    fn more_removals_than_can_be_remembered_are_done() {
        let Some(pager) = pager() else { return };
        const SIZE: usize = PART + 1;
        zeros_out(&pager, AT, 48 * SIZE);
        let lock = pager.pages.space.exclusive();
        lock.spend(MOST);
        for i in 0..48 {
            let start = AT + i * SIZE * BLOCK_BYTES;
            pager.happened(&lock, unmap(Range { start, end: start + SIZE * BLOCK_BYTES }));
        }
        assert_eq!(blocks_out(&pager), 32 * SIZE);
        pager.let_go_of_all(&lock);
        assert!(blocks_out(&pager) == 0 && !pager.mappings.going.is_on());
    }

    #[test]
    fn a_small_removal_is_done_at_once() {
        let Some(pager) = pager() else { return };
        zeros_out(&pager, AT, PART);
        let lock = pager.pages.space.exclusive();
        lock.spend(MOST);
        pager.happened(&lock, unmap(range(PART)));
        assert_eq!((blocks_out(&pager), pager.mappings.going.is_on()), (0, false));
    }

    #[test]
    fn a_move_takes_nothing_along_that_was_dropped() {
        let Some(pager) = pager() else { return };
        let to = mapping(8);
        zeros_out(&pager, AT, 2 * MOST);
        let lock = pager.pages.space.exclusive();
        pager.happened(&lock, Message::Remove { start: AT, end: range(2 * MOST).end });
        let (from, late) = (range(2 * MOST).end - 8 * PAGE_SIZE, range(2 * MOST).end - 64 * PAGE_SIZE);
        assert!(pager.mappings.going.has(PageNo::of(from)));
        pager.happened(&lock, Message::Remap { from, to, len: 8 * PAGE_SIZE });
        assert_eq!(words(&pager, to, 8), [PageState::None; 8], "it was dropped");
        for page in PageNo::of(to).up_to(PageNo::of(to) + 8) {
            assert_eq!(pager.pages.map.claim(page, PageState::None, PageState::Zero), Ok(true));
            pager.pages.zero_now.fetch_add(1, Ordering::Relaxed);
        }
        pager.happened(&lock, Message::Remap { from: to, to: late, len: 8 * PAGE_SIZE });
        pager.let_go_of_all(&lock);
        assert_eq!(words(&pager, late, 8), [PageState::Zero; 8]);
        assert_eq!(pager.pages.zero_now.load(Ordering::Relaxed), 8);
    }

    #[test]
    fn a_move_to_a_large_place_lets_go_of_that_later() {
        let Some(pager) = pager() else { return };
        let (place, from) = (range(BLOCKS), AT + 2 * BLOCKS * BLOCK_BYTES);
        zeros_out(&pager, AT, BLOCKS);
        let moved = BLOCKS * BLOCK_PAGES;
        for page in PageNo::of(from).up_to(PageNo::of(from) + moved) {
            pager.pages.map.populate(page).unwrap();
            pager.pages.map.set(page, PageState::Swapped(page.number() as u64));
        }
        let lock = pager.pages.space.exclusive();
        pager.happened(&lock, unmap(place));
        let left = blocks_out(&pager);
        assert!(left > MOST, "{left} blocks are left");
        let busy = PageNo::of(place.end).back(3 * BLOCK_PAGES);
        pager.pages.map.set(busy, PageState::ORPHAN_OF_STORE);
        pager.happened(&lock, Message::Remap { from, to: AT, len: place.end - place.start });
        assert_eq!(left - blocks_out(&pager), 1);
        let is_moved = |at: usize| {
            PageNo::of(at)
                .up_to(PageNo::of(at) + moved)
                .zip(PageNo::of(from).number()..)
                .all(|(page, entry)| pager.pages.map.get(page) == PageState::Swapped(entry as u64))
        };
        assert!(is_moved(AT) && words(&pager, from, 64) == [PageState::None; 64] && !pager.mappings.going.has(PageNo::of(AT)));
        drop(lock);
        let one = Claimant::new();
        let holds = (1..20).take_while(|_| pager.let_go_in_turn(&pager.pages.space.exclusive(), one)).count();
        assert!((1..10).contains(&holds) && !pager.mappings.going.is_on(), "{holds} holds");
        assert!(blocks_out(&pager) == 0 && is_moved(AT), "what was moved there stays");
    }

    #[test]
    fn an_older_removal_leaves_the_marks_of_a_newer_one() {
        const PAGES: usize = 3 * BLOCK_PAGES;
        let Some(pager) = pager() else { return };
        let at = mapping(PAGES);
        // SAFETY: inside the mapping.
        (0..PAGES).for_each(|i| unsafe { (at as *mut u8).add(i * PAGE_SIZE).write_volatile(1) });
        let lock = pager.pages.space.exclusive();
        let all = Range { start: at, end: at + PAGES * PAGE_SIZE };
        assert!(pager.mappings.going.push(&lock, all, Gone::Already));
        let far = (0..).map(|i| Range { start: AT + 2 * i * PAGE_SIZE, end: AT + (2 * i + 1) * PAGE_SIZE });
        let more = far.take_while(|range| pager.mappings.going.push(&lock, *range, Gone::Already)).count();
        assert!(more > 0);
        pager.happened(&lock, Message::Remove { start: at + PAGE_SIZE, end: at + (PAGES - 1) * PAGE_SIZE });
        assert_eq!(marked(&pager, at, PAGES), PAGES - 2);
        pager.let_go_of_all(&lock);
        assert_eq!((marked(&pager, at, PAGES), pager.mappings.going.is_on()), (PAGES - 2, false));
    }

    #[test]
    fn what_is_in_memory_is_marked() {
        let Some(pager) = pager() else { return };
        let pages = (MOST + 2 * PART) * BLOCK_PAGES;
        let at = mapping(pages);
        // SAFETY: inside the mapping.
        (0..pages).step_by(64).for_each(|i| unsafe { (at as *mut u8).add(i * PAGE_SIZE).write_volatile(1) });
        let lock = pager.pages.space.exclusive();
        zeros_out_between(&pager, at, pages);
        pager.happened(&lock, Message::Remove { start: at, end: at + pages * PAGE_SIZE });
        assert!(pager.mappings.going.is_on());
        pager.let_go_of_all(&lock);
        drop(lock);
        assert!(marked(&pager, at, pages) >= pages / 64 && blocks_out(&pager) == 0);
        pager.removed(at, pages * PAGE_SIZE);
        assert_eq!(marked(&pager, at, pages), 0);
    }

    fn zeros_out_between(pager: &Pager, at: usize, pages: usize) {
        for i in (0..pages).filter(|i| i % 64 != 0) {
            assert_eq!(pager.pages.map.claim(PageNo::of(at) + i, PageState::None, PageState::Zero), Ok(true));
            pager.pages.zero_now.fetch_add(1, Ordering::Relaxed);
        }
    }
}
