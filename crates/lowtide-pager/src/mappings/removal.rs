//! Memory that the program has dropped: what its words stood for is let go of. A large removal is done in parts, with the space
//! lock held alone for some ten milliseconds at a time; what is left meanwhile is in `going.rs`, which says what holds for it.
//!
//! A removal (MADV_DONTNEED, MADV_FREE) is reported *before* the pages are dropped. What is in memory then must not be evicted
//! until the call has ended, or the old bytes would come back after it: it is marked Removing. What was out is gone at once;
//! what comes in by a fault between the two is dropped or not, as natively, and is the program's race.

use lowtide_core::vm::PAGE_SIZE;
use rustix::thread::{Timespec, nanosleep};

use crate::mappings::going::Gone;
use crate::mappings::regions::Range;
use crate::mappings::space::Exclusive;
use crate::pagemap::ids::PageNo;
use crate::pagemap::{BLOCK_PAGES, Claimant, PageState};
use crate::pager::{Operation, Pager};
use crate::sys::clock::now_us;

const BLOCK_BYTES: usize = BLOCK_PAGES * PAGE_SIZE;
/// Blocks that are let go of in one hold of the space lock: 256 MiB that are out, some ten milliseconds; and between two looks
/// whether others wait for it: a millisecond. (As good as none where tests want to know what meets a removal that is not done.)
const MOST: usize = if cfg!(feature = "faults") { 2 } else { 1024 };
const PART: usize = if cfg!(feature = "faults") { 1 } else { 64 };
/// Long enough for one who sleeps to wake and have the lock.
const GIVES_WAY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };
/// Holds before a fork: a TiB, or a 16th of it where others always wait. After that it is done at once: a program that drops
/// memory past the gate all the time is not to keep its fork waiting for ever.
const BEFORE_FORK: usize = 4096;
/// How long a thread that is about to move memory waits, in microseconds. (Others may drop memory there all the time.)
const BEFORE_MOVE_US: u64 = 2_000_000;

impl Pager {
    /// Forgets a range that is mapped no more.
    pub(crate) fn abandon(&self, lock: &Exclusive<'_>, range: Range) {
        self.regions.remove(lock, range);
        self.gone(lock, range, Gone::Already);
    }

    /// The pages of a range are gone for good, or will be when the call ends: lets go of what their words stood for, as far as
    /// there is time for it in this hold of the lock, or a millisecond's work. To all others the rest is as if it had been done.
    pub(crate) fn gone(&self, lock: &Exclusive<'_>, range: Range, gone: Gone) {
        // What was left of earlier removals there is done by this one. Were it done later, the marks of this one would go.
        self.cut_out(lock, range);
        let left = self.let_go_while(lock, range, gone, || lock.spent() < MOST);
        // (What is small is not worth one of the few entries, nor another hold.)
        if left.end.saturating_sub(left.start) <= PART * BLOCK_BYTES || !self.going.push(lock, left, gone) {
            self.let_go_while(lock, left, gone, || true);
        }
    }

    /// Nothing of a range is left from here on. Where there is no room for the pieces, what has a part in it is done at once.
    fn cut_out(&self, lock: &Exclusive<'_>, range: Range) {
        if !self.going.cut(lock, range) {
            for (left, gone) in self.going.within(lock, range) {
                self.let_go_while(lock, left, gone, || true);
            }
            self.going.remove(lock, range);
        }
    }

    /// Lets go of a range from its beginning as long as it `goes_on`; what is left.
    fn let_go_while(&self, lock: &Exclusive<'_>, range: Range, gone: Gone, goes_on: impl Fn() -> bool) -> Range {
        let mut left = range;
        while left.start < left.end && goes_on() {
            left.start = self.let_go_part(lock, left, gone);
        }
        left
    }

    /// Lets go of the first part of a range; where that ends.
    fn let_go_part(&self, lock: &Exclusive<'_>, range: Range, gone: Gone) -> usize {
        let behind = self.map.behind_blocks(PageNo::of(range.start), PageNo::behind(range.end), PART);
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
            // Loading and Storing are Orphan by now: those are not in memory, or only in a frame.
            if self.map.claim(page, PageState::None, self.removing()).is_err() {
                (self.host.fatal)(b"no memory left for lowtide's page map");
            }
            marked += 1;
        }
        lock.spend(((end - range.start) / BLOCK_BYTES).clamp(1, PART) + marked / BLOCK_PAGES);
        end
    }

    /// The pages of a range are gone for good: lets go of what their words stood for, at once. Memory that is given back on the
    /// way is counted no more from then on: the store tells the budget.
    pub(crate) fn dropped(&self, lock: &Exclusive<'_>, start: usize, end: usize) {
        let mut freer = self.store(lock).freer();
        self.map.each(PageNo::of(start), PageNo::behind(end), |_, slot| {
            if slot.peek() == PageState::None {
                return;
            }
            match slot.take() {
                // Whoever is at work finds this and cleans up.
                PageState::Storing(_) => slot.set(PageState::ORPHAN_OF_STORE),
                PageState::Loading(raw, by) | PageState::Orphan(raw, by) => slot.set(PageState::Orphan(raw, by)),
                other => self.forget(&mut freer, other),
            }
        });
        self.publish_own();
    }

    /// A move takes away what is in a range, or puts something there: what is left of removals in it is nowhere from here on.
    pub(crate) fn let_go_before_move(&self, lock: &Exclusive<'_>, range: Range) {
        for (left, _) in self.going.within(lock, range) {
            // Nothing that was there is in memory there any more.
            self.put_aside(lock, Range { start: left.start.max(range.start), end: left.end.min(range.end) });
        }
        self.cut_out(lock, range);
    }

    /// Sets the words of a range aside, to be let go of when there is time. What is not a whole block, or what a thread is at
    /// work on, is let go of at once.
    fn put_aside(&self, lock: &Exclusive<'_>, range: Range) {
        // Staged pages are found by their frames, and the others by a thread that comes back to them.
        let is_quiet = |word| {
            use PageState::*;
            matches!(word, None | Zero | Swapped(_) | Clean(_) | Removing(_))
        };
        let (mut page, end) = (PageNo::of(range.start), PageNo::behind(range.end));
        while let Some((first, behind)) = self.map.next_block(page, end) {
            if behind - first < BLOCK_PAGES || !self.map.set_aside(first, is_quiet) {
                self.dropped(lock, first.addr(), behind.addr());
            }
            page = behind;
        }
        self.going.has_aside(lock, self.map.has_aside());
    }

    /// Lets go of a part of what is aside; false: there is nothing.
    fn let_go_aside(&self, lock: &Exclusive<'_>) -> bool {
        let mut freer = self.store(lock).freer();
        let blocks = self.map.empty_some_aside(|word| {
            // One that is claimed all the same (`PageMap::set_aside`), before this or just now, stays until whoever has claimed it
            // is gone.
            let said = word.get();
            if !matches!(said, PageState::Loading(..)) && word.swap(said, PageState::None) {
                self.forget(&mut freer, said);
            }
        });
        drop(freer);
        self.going.has_aside(lock, self.map.has_aside());
        lock.spend(blocks);
        self.publish_own();
        blocks > 0
    }

    /// As much of what is left as there is time for in this hold of the lock, and as others let it; something in any case.
    fn let_go_some(&self, lock: &Exclusive<'_>) {
        // While the program forks the tables don't change, and nothing is left.
        if self.held_back.is_on(lock) {
            return;
        }
        let goes_on = || lock.spent() < MOST && !self.space.is_wanted();
        // Before what gives nothing but memory of lowtide's back, where pages of the program stay until it is done.
        loop {
            if let Some((range, gone)) = self.going.next(lock, |range| self.regions.overlaps(lock, range)) {
                self.going.advance(lock, range, self.let_go_part(lock, range, gone));
            } else if !self.let_go_aside(lock) {
                break;
            }
            if !goes_on() {
                break;
            }
        }
        self.going.has_done(lock, now_us());
    }

    /// By one who reads messages, which that one is to do again soon if this is true.
    pub(super) fn let_go_in_turn(&self, lock: &Exclusive<'_>, who: Claimant) -> bool {
        if !self.going.is_on() || !self.going.is_turn_of(lock, who, now_us()) {
            return false;
        }
        self.let_go_some(lock);
        self.going.is_on()
    }

    /// Before the lock is taken again by who lets go in turns: others would come to nothing beside it.
    pub(super) fn give_way(&self, who: Claimant) {
        if self.going.is_on() && self.going.is_done_by(who) && self.space.is_wanted() {
            let _ = nanosleep(&GIVES_WAY);
        }
    }

    /// Before pages are evicted: what has been dropped gives memory back first, and what has come in since where it was is not
    /// evicted before that is done. Whether there was any.
    pub(crate) fn let_go_for_room(&self) -> bool {
        let is_on = self.going.is_on();
        if is_on {
            self.let_go_some(&self.space.exclusive());
        }
        is_on
    }

    /// Whether something is left of what was dropped.
    pub fn has_removals_left(&self) -> bool {
        self.going.is_on()
    }

    /// Lets go of all that is left, in parts. Before a fork: a child's tables must say nothing that is not so. No lock may be
    /// held.
    pub(crate) fn let_go_before_fork(&self) {
        for _ in 0..BEFORE_FORK {
            if !self.going.is_on() {
                return;
            }
            self.let_go_some(&self.space.exclusive());
            if self.space.is_wanted() {
                let _ = nanosleep(&GIVES_WAY);
            }
        }
    }

    /// The same at once.
    pub(crate) fn let_go_of_all(&self, lock: &Exclusive<'_>) {
        while let Some((range, gone)) = self.going.next(lock, |_| true) {
            self.let_go_while(lock, range, gone, || true);
            self.going.advance(lock, range, range.end);
        }
        while self.let_go_aside(lock) {}
    }

    /// Before memory is moved from and to these places: waits for a while until nothing is left of what was dropped there, where
    /// that may be much, since it would have to be done at once. For host threads: it takes nothing.
    pub fn outlast_removals(&self, places: [Range; 2]) {
        let until_us = now_us() + BEFORE_MOVE_US;
        for place in places {
            if place.end - place.start > MOST * BLOCK_BYTES {
                self.going.outlast(place, until_us);
            }
        }
    }
}

impl Operation<'_> {
    /// A page has been dropped, and its word is still to be let go of: does so, with those around it. Without the lock.
    #[cold]
    pub(crate) fn let_go_around(&self, page: PageNo) {
        let lock = self.space.exclusive();
        let first = PageNo::new(page.number() - page.number() % BLOCK_PAGES);
        let block = Range { start: first.addr(), end: (first + BLOCK_PAGES).addr() };
        for (left, _) in self.going.within(&lock, block) {
            // What is in memory is marked when its turn comes; until then nothing is evicted there.
            self.dropped(&lock, left.start.max(block.start), left.end.min(block.end));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mappings::events::tests::{mapping, pager, words};
    use crate::mappings::removed::tests::marked;
    use crate::sys::uffd::Message;
    use core::sync::atomic::Ordering;

    /// Where nothing is mapped.
    const AT: usize = 1 << 40;
    const BLOCKS: usize = 3 * MOST + 5;

    /// So many blocks of zeros are out from `at` on.
    fn zeros_out(pager: &Pager, at: usize, blocks: usize) {
        for page in PageNo::of(at).up_to(PageNo::of(at) + blocks * BLOCK_PAGES) {
            assert_eq!(pager.map.claim(page, PageState::None, PageState::Zero), Ok(true));
        }
        pager.zero_now.fetch_add((blocks * BLOCK_PAGES) as u64, Ordering::Relaxed);
    }

    fn blocks_out(pager: &Pager) -> usize {
        pager.zero_now.load(Ordering::Relaxed) as usize / BLOCK_PAGES
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
        pager.happened(&pager.space.exclusive(), unmap(range(BLOCKS)));
        let left = blocks_out(&pager);
        assert!((BLOCKS - MOST..BLOCKS).contains(&left), "{left} of {BLOCKS} are left by the first hold");
        assert!(pager.going.has(PageNo::of(range(BLOCKS).end).back(1)));
        assert!(pager.let_go_in_turn(&pager.space.exclusive(), one));
        assert!(!pager.let_go_in_turn(&pager.space.exclusive(), other), "the first goes on");
        let most = left - blocks_out(&pager);
        assert!((1..=MOST).contains(&most), "{most} in one hold");
        let holds = (1..).take_while(|_| pager.let_go_in_turn(&pager.space.exclusive(), one)).last();
        assert!(holds.is_some_and(|holds| holds < 5) && blocks_out(&pager) == 0 && !pager.going.is_on());
    }

    #[test]
    fn several_that_are_read_together_are_one_hold() {
        let Some(pager) = pager() else { return };
        zeros_out(&pager, AT, 2 * MOST);
        let lock = pager.space.exclusive();
        for half in [Range { end: AT + MOST * BLOCK_BYTES, ..range(2 * MOST) }, range(2 * MOST)] {
            pager.happened(&lock, unmap(half));
        }
        assert_eq!(blocks_out(&pager), MOST);
    }

    /// Who waits for the lock has it after a part.
    #[test]
    fn others_are_let_in() {
        let Some(pager) = pager() else { return };
        zeros_out(&pager, AT, BLOCKS);
        let lock = pager.space.exclusive();
        pager.happened(&lock, unmap(range(BLOCKS)));
        let left = blocks_out(&pager);
        std::thread::scope(|scope| {
            scope.spawn(|| drop(pager.space.shared()));
            while !pager.space.is_wanted() {
                std::thread::yield_now();
            }
            pager.let_go_some(&lock);
            assert_eq!(left - blocks_out(&pager), PART);
            drop(lock);
        });
    }

    /// Where there is no room for what is left, it is done at once.
    #[test]
    fn more_removals_than_can_be_remembered_are_done() {
        let Some(pager) = pager() else { return };
        const SIZE: usize = PART + 1;
        zeros_out(&pager, AT, 48 * SIZE);
        let lock = pager.space.exclusive();
        lock.spend(MOST);
        for i in 0..48 {
            let start = AT + i * SIZE * BLOCK_BYTES;
            pager.happened(&lock, unmap(Range { start, end: start + SIZE * BLOCK_BYTES }));
        }
        assert_eq!(blocks_out(&pager), 32 * SIZE);
        pager.let_go_of_all(&lock);
        assert!(blocks_out(&pager) == 0 && !pager.going.is_on());
    }

    #[test]
    fn a_small_removal_is_done_at_once() {
        let Some(pager) = pager() else { return };
        zeros_out(&pager, AT, PART);
        let lock = pager.space.exclusive();
        lock.spend(MOST);
        pager.happened(&lock, unmap(range(PART)));
        assert_eq!((blocks_out(&pager), pager.going.is_on()), (0, false));
    }

    /// What was dropped does not go where memory is moved to, and what is moved to where something was dropped stays.
    #[test]
    fn a_move_takes_nothing_along_that_was_dropped() {
        let Some(pager) = pager() else { return };
        let to = mapping(8);
        zeros_out(&pager, AT, 2 * MOST);
        let lock = pager.space.exclusive();
        pager.happened(&lock, Message::Remove { start: AT, end: range(2 * MOST).end });
        let (from, late) = (range(2 * MOST).end - 8 * PAGE_SIZE, range(2 * MOST).end - 64 * PAGE_SIZE);
        assert!(pager.going.has(PageNo::of(from)));
        pager.happened(&lock, Message::Remap { from, to, len: 8 * PAGE_SIZE });
        assert_eq!(words(&pager, to, 8), [PageState::None; 8], "it was dropped");
        // What comes back is not dropped later.
        for page in PageNo::of(to).up_to(PageNo::of(to) + 8) {
            assert_eq!(pager.map.claim(page, PageState::None, PageState::Zero), Ok(true));
            pager.zero_now.fetch_add(1, Ordering::Relaxed);
        }
        pager.happened(&lock, Message::Remap { from: to, to: late, len: 8 * PAGE_SIZE });
        pager.let_go_of_all(&lock);
        assert_eq!(words(&pager, late, 8), [PageState::Zero; 8]);
        assert_eq!(pager.zero_now.load(Ordering::Relaxed), 8);
    }

    /// A call that moves to a given place unmaps that first: what was out there is let go of in parts, and not when the move is
    /// applied, which nobody can wait for.
    #[test]
    fn a_move_to_a_large_place_lets_go_of_that_later() {
        let Some(pager) = pager() else { return };
        let (place, from) = (range(BLOCKS), AT + 2 * BLOCKS * BLOCK_BYTES);
        zeros_out(&pager, AT, BLOCKS);
        let moved = BLOCKS * BLOCK_PAGES;
        for page in PageNo::of(from).up_to(PageNo::of(from) + moved) {
            pager.map.populate(page).unwrap();
            pager.map.set(page, PageState::Swapped(page.number() as u64));
        }
        let lock = pager.space.exclusive();
        pager.happened(&lock, unmap(place));
        let left = blocks_out(&pager);
        assert!(left > MOST, "{left} blocks are left");
        // A worker is at one of them.
        let busy = PageNo::of(place.end).back(3 * BLOCK_PAGES);
        pager.map.set(busy, PageState::ORPHAN_OF_STORE);
        pager.happened(&lock, Message::Remap { from, to: AT, len: place.end - place.start });
        // As many words were let go of as that worker's block has.
        assert_eq!(left - blocks_out(&pager), 1);
        let is_moved = |at: usize| {
            PageNo::of(at)
                .up_to(PageNo::of(at) + moved)
                .zip(PageNo::of(from).number()..)
                .all(|(page, entry)| pager.map.get(page) == PageState::Swapped(entry as u64))
        };
        assert!(is_moved(AT) && words(&pager, from, 64) == [PageState::None; 64] && !pager.going.has(PageNo::of(AT)));
        drop(lock);
        let one = Claimant::new();
        let holds = (1..20).take_while(|_| pager.let_go_in_turn(&pager.space.exclusive(), one)).count();
        assert!((1..10).contains(&holds) && !pager.going.is_on(), "{holds} holds");
        assert!(blocks_out(&pager) == 0 && is_moved(AT), "what was moved there stays");
    }

    /// Of two removals, what is left of the older one takes no marks of the newer one away, though its pieces find no room.
    #[test]
    fn an_older_removal_leaves_the_marks_of_a_newer_one() {
        const PAGES: usize = 3 * BLOCK_PAGES;
        let Some(pager) = pager() else { return };
        let at = mapping(PAGES);
        // SAFETY: inside the mapping.
        (0..PAGES).for_each(|i| unsafe { (at as *mut u8).add(i * PAGE_SIZE).write_volatile(1) });
        let lock = pager.space.exclusive();
        let all = Range { start: at, end: at + PAGES * PAGE_SIZE };
        assert!(pager.going.push(&lock, all, Gone::Already));
        let far = (0..).map(|i| Range { start: AT + 2 * i * PAGE_SIZE, end: AT + (2 * i + 1) * PAGE_SIZE });
        let more = far.take_while(|range| pager.going.push(&lock, *range, Gone::Already)).count();
        assert!(more > 0);
        pager.happened(&lock, Message::Remove { start: at + PAGE_SIZE, end: at + (PAGES - 1) * PAGE_SIZE });
        assert_eq!(marked(&pager, at, PAGES), PAGES - 2);
        pager.let_go_of_all(&lock);
        assert_eq!((marked(&pager, at, PAGES), pager.going.is_on()), (PAGES - 2, false));
    }

    /// What is in memory when it is to go stays there until it has gone, in whichever part it is.
    #[test]
    fn what_is_in_memory_is_marked() {
        let Some(pager) = pager() else { return };
        let pages = (MOST + 2 * PART) * BLOCK_PAGES;
        let at = mapping(pages);
        // SAFETY: inside the mapping.
        (0..pages).step_by(64).for_each(|i| unsafe { (at as *mut u8).add(i * PAGE_SIZE).write_volatile(1) });
        let lock = pager.space.exclusive();
        zeros_out_between(&pager, at, pages);
        pager.happened(&lock, Message::Remove { start: at, end: at + pages * PAGE_SIZE });
        assert!(pager.going.is_on());
        pager.let_go_of_all(&lock);
        drop(lock);
        assert!(marked(&pager, at, pages) >= pages / 64 && blocks_out(&pager) == 0);
        pager.removed(at, pages * PAGE_SIZE);
        assert_eq!(marked(&pager, at, pages), 0);
    }

    fn zeros_out_between(pager: &Pager, at: usize, pages: usize) {
        for i in (0..pages).filter(|i| i % 64 != 0) {
            assert_eq!(pager.map.claim(PageNo::of(at) + i, PageState::None, PageState::Zero), Ok(true));
            pager.zero_now.fetch_add(1, Ordering::Relaxed);
        }
    }
}
