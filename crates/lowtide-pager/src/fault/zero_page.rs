//! Zeros that are only read: the kernel's one zero page is mapped in their places, and takes no memory. A write there must be
//! seen (or nobody would hold the program back at its limit), so these places are write-protected: the write is a fault, too,
//! and then the kernel makes the copy.
//!
//! That the kernel tells of writes costs forks time, so it is asked to only when zeros are read often. And a page that is read
//! and then written costs two faults: while that happens to many, zeros come in as pages of their own (`touch.rs`).

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use lowtide_core::vm::{self, PAGE_SIZE};
use rustix::io::Errno;

use super::Served;
use crate::fault::worker::{CHUNK, Worker};
use crate::mappings::space::Shared;
use crate::pagemap::PageState;
use crate::pagemap::ids::PageNo;
use crate::pager::{Pager, add};
use crate::segment::FaultKind;
use crate::sys::clock::now_ns;
use crate::sys::uffd::{Access, Progress, Standing, Watched};

/// This many faults that read zeros, more than that wrote them, are reason to have writes watched.
const WORTHWHILE: i32 = 256;
/// Where that could not be done for all, it is done again, but not before this long; ...
const AGAIN_NS: u64 = 1_000_000_000;
/// ... and where it could not be begun, because mappings change, after this long.
const LATER_NS: u64 = 10_000_000;
/// Writes are let through in blocks of this many pages at most, ...
const BLOCK: usize = CHUNK;
/// ... and while nothing tells that they are a stream, this many.
const NEW_STREAM: usize = 4;
/// This many pages on each side are mapped with one, if they are zeros as well.
const AROUND: usize = 32;
/// A write to a page that is mapped so weighs as much as this many reads, ...
const WRITE: i32 = 4;
/// ... and all of it is forgotten after this many.
const MEMORY: i32 = 64;

/// Whether the zero page is mapped. Any thread may call anything: what is lost by a race is a guess.
#[derive(Debug, Default)]
pub(crate) struct ZeroPage {
    /// Reads less writes.
    score: AtomicI32,
    /// What is registered from now on tells of writes.
    is_watched: AtomicBool,
    /// All adopted memory does, and places are protected.
    is_mapped: AtomicBool,
    /// The kernel would not.
    is_refused: AtomicBool,
    /// Some places could not be protected.
    missed_some: AtomicBool,
    /// When the next try may be.
    not_before_ns: AtomicU64,
}

impl ZeroPage {
    /// A fault on zeros; whether the zero page is to be mapped.
    pub(super) fn is_for(&self, access: Access) -> bool {
        let score = self.score.load(Ordering::Relaxed);
        let most = if self.is_mapped.load(Ordering::Relaxed) { MEMORY } else { WORTHWHILE };
        let next = if access == Access::Read { score + 1 } else { score - 1 };
        if access == Access::Read || !self.is_mapped.load(Ordering::Relaxed) {
            self.score.store(next.clamp(-MEMORY, most), Ordering::Relaxed);
        }
        access == Access::Read && self.is_worth_it()
    }

    /// It is worth while to map the zero page, and that is not done.
    fn is_to_be_mapped(&self) -> bool {
        !self.is_mapped.load(Ordering::Relaxed) && self.score.load(Ordering::Relaxed) >= WORTHWHILE
    }

    fn is_worth_it(&self) -> bool {
        self.is_mapped.load(Ordering::Relaxed) && self.score.load(Ordering::Relaxed) >= 0
    }

    /// A page that is mapped so is about to be written.
    fn is_written(&self) {
        let score = self.score.load(Ordering::Relaxed);
        self.score.store((score - WRITE).max(-MEMORY), Ordering::Relaxed);
    }
}

impl Pager {
    /// What memory that is registered now is to tell of. Where it tells of accesses it can't tell of writes: zeros come in as
    /// pages of their own there, however often they are read.
    pub(crate) fn watched(&self) -> Watched {
        if self.uffd().has_accessed_bits() {
            Watched::Accesses
        } else if self.zero_page.is_watched.load(Ordering::Relaxed) {
            Watched::Writes
        } else {
            Watched::Missing
        }
    }

    /// Whether places with the zero page are write-protected, instead of sentinels between them.
    pub fn protects(&self) -> bool {
        self.watched() == Watched::Writes
    }

    /// Whether [`Pager::watch_writes`] has something to do: it is worth while, for zeros or for what forks share, and not done; or
    /// some places could not be protected.
    pub fn wants_writes_watched(&self) -> bool {
        let zero_page = &self.zero_page;
        let is = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        let has_reason = zero_page.is_to_be_mapped()
            || !is(&zero_page.is_watched) && self.shared_writes.is_wanted()
            || is(&zero_page.is_watched) && is(&zero_page.missed_some);
        has_reason && self.can_watch_writes() && now_ns() > zero_page.not_before_ns.load(Ordering::Relaxed)
    }

    /// Whether the kernel tells of writes where it is asked to, as far as is known.
    pub(crate) fn can_watch_writes(&self) -> bool {
        !self.zero_page.is_refused.load(Ordering::Relaxed) && !self.uffd().has_accessed_bits()
    }

    /// It can't be done now.
    pub fn watch_writes_later(&self) {
        self.zero_page.not_before_ns.store(now_ns() + LATER_NS, Ordering::Relaxed);
    }

    /// Has writes watched in all adopted memory. By the thread that adopts, while nobody changes mappings through a hook;
    /// without a lock.
    pub fn watch_writes(&self) {
        let Some(_operation) = self.enter() else { return };
        let zero_page = &self.zero_page;
        // Until all of it has been gone through; what is missed meanwhile may be among what has been.
        zero_page.missed_some.store(false, Ordering::Relaxed);
        let missed = || zero_page.missed_some.store(true, Ordering::Relaxed);
        zero_page.not_before_ns.store(now_ns() + AGAIN_NS, Ordering::Relaxed);
        // First, so that what is adopted meanwhile is watched as well.
        zero_page.is_watched.store(true, Ordering::Relaxed);
        let mut at = 0;
        loop {
            let next = self.regions.next(&self.space.shared(), at);
            let Some(range) = next else { break };
            let lock = self.space.exclusive();
            if !self.regions.covers(&lock, range) {
                continue;
            }
            // Mappings have grown in place since, perhaps, which no event tells, and were a part of one registered otherwise
            // than the rest, the kernel would make two of it, and refuse to move it (`mremap`). Before Linux 6.11 it takes the
            // whole list to find a mapping: there only the range.
            let whole = self.present().mappings.around(range).unwrap_or(range);
            // SAFETY: it is adopted, so its missing pages are served, and so are those of what it has grown by.
            let register = || unsafe { self.uffd().register(whole.start, whole.end - whole.start, Watched::Writes) };
            match vm::unless_own(whole.start, whole.end, register) {
                Some(Ok(())) => {}
                // Mappings change past the hooks: another time.
                _ if self.uffd().standing(range.start) != Standing::Registered => return missed(),
                None => return missed(),
                Some(Err(_)) => {
                    zero_page.is_refused.store(true, Ordering::Relaxed);
                    zero_page.is_watched.store(false, Ordering::Relaxed);
                    // Writes to what is protected are still told of.
                    zero_page.is_mapped.store(false, Ordering::Relaxed);
                    return;
                }
            }
            // What is there by now of it.
            self.needs_sentinels(&lock, range);
            at = range.end;
        }
        if zero_page.is_to_be_mapped() {
            zero_page.is_mapped.store(true, Ordering::Relaxed);
            zero_page.score.store(MEMORY, Ordering::Relaxed);
        }
    }

    /// Whether a fault brings in nothing that takes memory.
    pub(super) fn takes_no_room(&self, page: PageNo, access: Access, worker: &Worker) -> bool {
        match access {
            Access::Read => self.zero_page.is_worth_it() && self.map.get(page) == PageState::Zero,
            Access::Write => false,
            // The zero page is as good as shared there.
            Access::Protected => self.can_look(worker) && self.present().shared(page.addr(), 1).all == 0,
        }
    }

    /// The zeros that are out around one of them: they cost nothing.
    pub(super) fn zeros_around(&self, lock: &Shared<'_>, page: PageNo) -> (PageNo, PageNo) {
        let is_zero = |page: PageNo| self.map.get(page) == PageState::Zero;
        let Some(region) = self.regions.find(lock, page.addr()) else { return (page, page + 1) };
        let least = page.back(AROUND).max(PageNo::of(region.start));
        let most = (page + 1 + AROUND).min(PageNo::of(region.end));
        let (mut low, mut high) = (page, page + 1);
        while low > least && is_zero(low.back(1)) {
            low = low.back(1);
        }
        while high < most && is_zero(high) {
            high += 1;
        }
        (low, high)
    }

    /// Maps the zero page in this many places that are missing and read as zeros.
    pub(super) fn map_zero_page(&self, at: PageNo, pages: usize) -> Progress {
        let mapped = self.uffd().zero_page(at.addr(), pages * PAGE_SIZE);
        // Fails where the program changes its mappings this moment.
        if mapped.done > 0 && self.uffd().protect(at.addr(), mapped.done).is_err() {
            self.zero_page.missed_some.store(true, Ordering::Relaxed);
        }
        mapped
    }

    /// A thread is about to write to the zero page. Also while the program forks: no word is changed.
    ///
    /// What follows in a stream of writes is let through with it, but never a page with which a block of [`BLOCK`] begins:
    /// however much of this is not written after all, a later write there is seen.
    pub(super) fn let_write(&self, page: PageNo, worker: &mut Worker) -> Served {
        let lock = self.space.shared();
        let mut window = self.touches.window(page);
        let most = if window.used > 0 { BLOCK } else { NEW_STREAM };
        window.pages = if self.budget.is_near_limit() { 1 } else { window.pages.min(most) };
        // Until they are counted.
        let reserved = self.budget.reserve(window.pages);
        window.pages = reserved.pages;
        let (low, high) = self.clip(&lock, page, window);
        let (mut low, mut high) = within_block(page, low, high);
        let mut done = self.uffd().let_write(low.addr(), (high - low) * PAGE_SIZE);
        if done.is_err_and(|error| error != Errno::AGAIN) && high - low > 1 {
            // There is something else beside it by now.
            (low, high) = (page, page + 1);
            done = self.uffd().let_write(page.addr(), PAGE_SIZE);
        }
        match done {
            Ok(()) => {
                // All of them may be written now without another fault. At most so many take memory then: what does not is put
                // right by the next measurement.
                self.arrived(high - low);
                self.touches.advance(window, low, high);
                self.zero_page.is_written();
            }
            Err(Errno::AGAIN) => return Served::EventsFirst,
            // It is gone, or nobody is told of writes any more.
            Err(_) => self.uffd().wake(page.addr(), PAGE_SIZE),
        }
        add(self.counters().faults(FaultKind::FirstTouch), 1);
        worker.counted = Some(FaultKind::FirstTouch);
        Served::Done
    }
}

/// The part of `low .. high`, which begins or ends with `page`, that is in the block of `page`; without its first page, but if
/// that is `page`.
fn within_block(page: PageNo, low: PageNo, high: PageNo) -> (PageNo, PageNo) {
    let block = PageNo::new(page.number() - page.number() % BLOCK);
    (low.max(block + 1).min(page), high.min(block + BLOCK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_zero_page_is_mapped_where_zeros_are_read_and_not_where_they_are_written_next() {
        let zero_page = ZeroPage::default();
        for _ in 0..2 * WORTHWHILE {
            assert!(!zero_page.is_for(Access::Read), "nobody watches writes");
        }
        assert_eq!(zero_page.score.load(Ordering::Relaxed), WORTHWHILE);
        zero_page.is_mapped.store(true, Ordering::Relaxed);
        assert!(zero_page.is_for(Access::Read) && !zero_page.is_for(Access::Write));
        // Each page that is read is written next.
        let mapped = (0..1000).filter(|_| zero_page.is_for(Access::Read)).inspect(|_| zero_page.is_written()).count();
        assert!(mapped < 300, "{mapped} of 1000");
        // One in ten is.
        let mut mapped = 0;
        for i in 0..1000 {
            if zero_page.is_for(Access::Read) {
                mapped += 1;
                if i % 10 == 0 {
                    zero_page.is_written();
                }
            }
        }
        assert!(mapped > 800, "{mapped} of 1000");
    }

    #[test]
    fn no_write_goes_on_into_another_block() {
        let cut = |page, low, high| {
            let (low, high) = within_block(PageNo::new(page), PageNo::new(low), PageNo::new(high));
            (low.number(), high.number())
        };
        assert_eq!(cut(128, 128, 192), (128, 192));
        assert_eq!(cut(130, 130, 194), (130, 192));
        assert_eq!(cut(130, 100, 131), (129, 131));
        assert_eq!(cut(128, 100, 129), (128, 129));
        assert_eq!(cut(191, 191, 192), (191, 192));
    }

    #[test]
    fn where_zeros_are_written_nobody_watches() {
        let zero_page = ZeroPage::default();
        for _ in 0..10 * WORTHWHILE {
            zero_page.is_for(Access::Write);
            zero_page.is_for(Access::Read);
        }
        assert!(zero_page.score.load(Ordering::Relaxed) < WORTHWHILE);
    }
}
