//! Zeros that are only read: the kernel's zero page is mapped there and takes no memory. The limit
//! must see writes, so these places are write-protected: the write faults, then the kernel copies.
//!
//! Watching writes slows forks, so it begins when zeros are read often. A page read and then
//! written costs two faults; where that is frequent, zeros come in as own pages (`touch.rs`).

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use lowtide_core::vm::{self, PAGE_SIZE};
use lowtide_sys::clock::now_ns;
use lowtide_sys::uffd::{Access, Progress, Standing, Watched};
use lowtide_wire::segment::{FaultKind, add};
use rustix::io::Errno;

use super::Served;
use crate::pagemap::PageState;
use crate::pagemap::ids::PageNo;
use crate::pager::Pager;
use crate::pages::space::Shared;
use crate::pages::worker::{CHUNK, Worker};

/// Reads of zeros less writes, from which writes are watched.
const WORTHWHILE: i32 = 256;
/// Until another try after some places were missed, ...
const AGAIN_NS: u64 = 1_000_000_000;
/// ... or if it could not begin because mappings change.
const LATER_NS: u64 = 10_000_000;
/// Pages let through in one block at most, ...
const BLOCK: usize = CHUNK;
/// ... and before a stream of writes shows.
const NEW_STREAM: usize = 4;
const AROUND: usize = 32;
const WRITE: i32 = 4;
const MEMORY: i32 = 64;

/// Any thread may call anything: a race loses a guess.
#[derive(Debug, Default)]
pub(crate) struct ZeroPage {
    score: AtomicI32,
    /// New registrations watch writes.
    is_watched: AtomicBool,
    /// All registered memory does, and places are protected.
    is_mapped: AtomicBool,
    is_refused: AtomicBool,
    missed_some: AtomicBool,
    not_before_ns: AtomicU64,
}

impl ZeroPage {
    pub(super) fn is_for(&self, access: Access) -> bool {
        let score = self.score.load(Ordering::Relaxed);
        let most = if self.is_mapped.load(Ordering::Relaxed) { MEMORY } else { WORTHWHILE };
        let next = if access == Access::Read { score + 1 } else { score - 1 };
        if access == Access::Read || !self.is_mapped.load(Ordering::Relaxed) {
            self.score.store(next.clamp(-MEMORY, most), Ordering::Relaxed);
        }
        access == Access::Read && self.is_worth_it()
    }

    fn is_to_be_mapped(&self) -> bool {
        !self.is_mapped.load(Ordering::Relaxed) && self.score.load(Ordering::Relaxed) >= WORTHWHILE
    }

    fn is_worth_it(&self) -> bool {
        self.is_mapped.load(Ordering::Relaxed) && self.score.load(Ordering::Relaxed) >= 0
    }

    fn is_written(&self) {
        let score = self.score.load(Ordering::Relaxed);
        self.score.store((score - WRITE).max(-MEMORY), Ordering::Relaxed);
    }
}

impl Pager {
    pub(crate) fn watched(&self) -> Watched {
        if self.faults.zero_page.is_watched.load(Ordering::Relaxed) { Watched::Writes } else { Watched::Missing }
    }

    /// Whether places with the zero page are write-protected, instead of sentinels between them.
    pub fn protects(&self) -> bool {
        self.watched() == Watched::Writes
    }

    /// Whether [`Pager::watch_writes`] has something to do: for zeros, or for places that were
    /// missed.
    pub fn wants_writes_watched(&self) -> bool {
        let zero_page = &self.faults.zero_page;
        let is = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        let has_reason = zero_page.is_to_be_mapped() || is(&zero_page.is_watched) && is(&zero_page.missed_some);
        has_reason && self.can_watch_writes() && now_ns() > zero_page.not_before_ns.load(Ordering::Relaxed)
    }

    fn can_watch_writes(&self) -> bool {
        !self.faults.zero_page.is_refused.load(Ordering::Relaxed)
    }

    /// Postpones the next try.
    pub fn watch_writes_later(&self) {
        self.faults.zero_page.not_before_ns.store(now_ns() + LATER_NS, Ordering::Relaxed);
    }

    /// Watches writes in all registered memory. By the registering thread, while hooks change no
    /// mappings; without a lock.
    pub fn watch_writes(&self) {
        let Some(_operation) = self.enter() else { return };
        let zero_page = &self.faults.zero_page;
        zero_page.missed_some.store(false, Ordering::Relaxed);
        let missed = || zero_page.missed_some.store(true, Ordering::Relaxed);
        zero_page.not_before_ns.store(now_ns() + AGAIN_NS, Ordering::Relaxed);
        // First, for ranges registered meanwhile.
        zero_page.is_watched.store(true, Ordering::Relaxed);
        let mut at = 0;
        loop {
            let next = self.mappings.regions.next(&self.pages.space.shared(), at);
            let Some(range) = next else { break };
            let lock = self.pages.space.exclusive();
            if !self.mappings.regions.covers(&lock, range) {
                continue;
            }
            // The mapping may have grown in place without an event; registered in part, it would
            // split, and the kernel refuse `mremap`. Before Linux 6.11 a lookup takes the whole
            // list: there only the range.
            let whole = self.present().mappings.around(range).unwrap_or(range);
            // SAFETY: it is registered already, so its missing pages, and those it has grown by,
            // are served.
            let register = || unsafe { self.uffd().register(whole.start, whole.end - whole.start, Watched::Writes) };
            match vm::unless_own(whole.start, whole.end, register) {
                Some(Ok(())) => {}
                // Mappings change past the hooks: another time.
                _ if self.uffd().standing(range.start) != Standing::Registered => return missed(),
                None => return missed(),
                Some(Err(_)) => {
                    zero_page.is_refused.store(true, Ordering::Relaxed);
                    zero_page.is_watched.store(false, Ordering::Relaxed);
                    zero_page.is_mapped.store(false, Ordering::Relaxed);
                    return;
                }
            }
            self.needs_sentinels(&lock, range);
            at = range.end;
        }
        if zero_page.is_to_be_mapped() {
            zero_page.is_mapped.store(true, Ordering::Relaxed);
            zero_page.score.store(MEMORY, Ordering::Relaxed);
        }
    }

    /// Whether the fault needs no memory. A write to a page that is no zero page by now, or is
    /// gone, makes room in vain: rare.
    pub(super) fn takes_no_room(&self, page: PageNo, access: Access) -> bool {
        match access {
            Access::Read => self.faults.zero_page.is_worth_it() && self.pages.map.get(page) == PageState::Zero,
            Access::Write | Access::Protected => false,
        }
    }

    pub(super) fn zeros_around(&self, lock: &Shared<'_>, page: PageNo) -> (PageNo, PageNo) {
        let is_zero = |page: PageNo| self.pages.map.get(page) == PageState::Zero;
        let Some(region) = self.mappings.regions.find(lock, page.addr()) else { return (page, page + 1) };
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

    pub(super) fn map_zero_page(&self, at: PageNo, pages: usize) -> Progress {
        let mapped = self.uffd().zero_page(at.addr(), pages * PAGE_SIZE);
        if mapped.done > 0 && self.uffd().protect(at.addr(), mapped.done).is_err() {
            self.faults.zero_page.missed_some.store(true, Ordering::Relaxed);
        }
        mapped
    }

    /// Lets a thread write to the zero page. Works while the program forks, too: no word changes.
    /// Lets a stream's next pages through, but never the first page of a [`BLOCK`]: a later write
    /// there is seen.
    pub(super) fn serve_protected(&self, page: PageNo, worker: &mut Worker) -> Served {
        let lock = self.pages.space.shared();
        let mut window = self.faults.touches.window(page);
        let most = if window.used > 0 { BLOCK } else { NEW_STREAM };
        window.pages = if self.accounts.budget.is_near_limit() { 1 } else { window.pages.min(most) };
        let reserved = self.accounts.budget.reserve(window.pages);
        window.pages = reserved.pages;
        let (low, high) = self.clip(&lock, page, window);
        let (mut low, mut high) = within_block(page, low, high);
        let mut done = self.uffd().let_write(low.addr(), (high - low) * PAGE_SIZE);
        if done.is_err_and(|error| error != Errno::AGAIN) && high - low > 1 {
            // Something else is beside it by now.
            (low, high) = (page, page + 1);
            done = self.uffd().let_write(page.addr(), PAGE_SIZE);
        }
        match done {
            Ok(()) => {
                // All may be written now without a fault; the next measurement corrects the count.
                self.arrived(high - low);
                self.faults.touches.advance(window, low, high);
                self.faults.zero_page.is_written();
            }
            Err(Errno::AGAIN) => return Served::EventsFirst,
            // It is gone, or no longer watched.
            Err(_) => self.uffd().wake(page.addr(), PAGE_SIZE),
        }
        add(self.counters().faults(FaultKind::FirstTouch), 1);
        worker.counted = Some(FaultKind::FirstTouch);
        Served::Done
    }
}

/// The part of `low .. high` in the block of `page`, without the block's first page unless that is
/// `page`.
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
        let mapped = (0..1000).filter(|_| zero_page.is_for(Access::Read)).inspect(|_| zero_page.is_written()).count();
        assert!(mapped < 300, "{mapped} of 1000");
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
