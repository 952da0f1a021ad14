//! A write to a page that a fork has left shared, where it is write-protected (`fork/protect.rs`): the kernel makes a copy next.
//!
//! A page that no other process has any more is let through with all of its kind around it, and makes no room first.

use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;

use super::Served;
use crate::fault::worker::{CHUNK, Worker};
use crate::pagemap::ids::PageNo;
use crate::pager::{Pager, add};
use crate::segment::FaultKind;

/// Writes are let through in blocks of this many pages; a stream of them, where there is room, in blocks of [`CHUNK`].
const BLOCK: usize = 16;
/// What is not shared is let through in blocks of up to this many pages: those of a huge page, which stays one.
const HUGE: usize = 512;

/// Pages from the first to behind the last.
type Pages = (PageNo, PageNo);

impl Pager {
    /// A thread is about to write to a page that is shared, or was. Also while the program forks: no word is changed. None: it
    /// is the zero page.
    pub(super) fn let_copy(&self, page: PageNo, worker: &mut Worker) -> Option<Served> {
        let lock = self.space.shared();
        let adopted = self.regions.find(&lock, page.addr());
        let adopted = adopted.map_or((page, page + 1), |range| (PageNo::of(range.start), PageNo::of(range.end)));
        let near = self.between_zero_pages(page, block(page, CHUNK, adopted))?;
        let shared = self.present().shared(near.0.addr(), near.1 - near.0);
        let window = (shared.all >> (page - near.0) & 1 != 0).then(|| self.shared_writes.streams.window(page));
        let is_near_limit = self.budget.is_near_limit();
        let ((mut low, mut high), mut copies) = match window {
            None => (self.own_around(page, near, shared.all, adopted), 0),
            Some(window) => let_through(page, near, shared.protected, window.used > 0, is_near_limit),
        };
        // Until they are counted.
        let reserved = (copies > 0).then(|| self.budget.reserve(copies));
        if let Some(reserved) = reserved.as_ref().filter(|reserved| reserved.pages < copies) {
            copies = reserved.pages;
            (low, high) = (page, fewer(page, (near.0, high), shared.protected, copies));
        }
        let mut done = self.uffd().let_write(low.addr(), (high - low) * PAGE_SIZE);
        if done.is_err_and(|error| error != Errno::AGAIN) && high - low > 1 {
            // There is something else beside it by now.
            (low, high, copies) = (page, page + 1, copies.min(1));
            done = self.uffd().let_write(page.addr(), PAGE_SIZE);
        }
        match (done, window) {
            (Ok(()), Some(window)) => {
                self.arrived(copies);
                self.shared_writes.streams.advance(window, low, high);
                add(&self.counters().faults_shared_writes, 1);
            }
            (Ok(()), None) => {}
            (Err(Errno::AGAIN), _) => return Some(Served::EventsFirst),
            // It is gone, or nobody is told of writes any more.
            (Err(_), _) => self.uffd().wake(page.addr(), PAGE_SIZE),
        }
        add(self.counters().faults(FaultKind::FirstTouch), 1);
        worker.counted = Some(FaultKind::FirstTouch);
        Some(Served::Done)
    }

    /// The part of a block around `page` in which there is no zero page: writes to that are seen by `zero_page.rs`, as long as
    /// nobody lets them through. None: it is at `page`. (The page's word does not say: zeros that came in as the zero page have
    /// that of any page in memory, and pages that came in during a fork may have that of zeros.)
    fn between_zero_pages(&self, page: PageNo, (low, high): Pages) -> Option<Pages> {
        let Ok(found) = self.present().scan_zero_page(low.addr(), high.addr(), 0) else { return Some((page, page + 1)) };
        let (low, high) = found.gap(page.addr(), (low.addr(), high.addr()))?;
        Some((PageNo::of(low), PageNo::of(high)))
    }

    /// The pages around one that are not shared either: in its block `near`, of which `shared` are, and if that is all of it,
    /// up to a huge page. They are let through together.
    fn own_around(&self, page: PageNo, near: Pages, shared: u64, adopted: Pages) -> Pages {
        let is_own = |page: PageNo| shared >> (page - near.0) & 1 == 0;
        let (mut low, mut high) = (page, page + 1);
        while low > near.0 && is_own(low.back(1)) {
            low = low.back(1);
        }
        while high < near.1 && is_own(high) {
            high += 1;
        }
        if (low, high) == near {
            let huge = block(page, HUGE, adopted);
            let are_own = |(low, high): Pages| self.present().shared(low.addr(), high - low).all == 0;
            while low > huge.0 && are_own(block(low.back(1), CHUNK, huge)) {
                low = block(low.back(1), CHUNK, huge).0;
            }
            while high < huge.1 && are_own(block(high, CHUNK, huge)) {
                high = block(high, CHUNK, huge).1;
            }
        }
        (low, high)
    }
}

/// The block of so many pages in which `page` is, from a multiple of that number on, as far as it is in `within`.
fn block(page: PageNo, pages: usize, within: Pages) -> Pages {
    let first = PageNo::new(page.number() - page.number() % pages);
    (first.max(within.0), (first + pages).min(within.1))
}

/// What is let through with a write to a shared page, and of how many pages copies are to be expected before the next
/// measurement: where writes are a stream, or little is left, of all that are `copied` (the others are not shared, or have been
/// let through and counted before), else of the one. `near` is the page's block of [`CHUNK`], as far as it goes.
fn let_through(page: PageNo, near: Pages, copied: u64, is_stream: bool, is_near_limit: bool) -> (Pages, usize) {
    let (low, high) = if is_stream && !is_near_limit { near } else { block(page, BLOCK, near) };
    let copies = low.up_to(high).filter(|page| is_in(copied, *page, near.0)).count();
    ((low, high), if is_stream || is_near_limit { copies } else { copies.min(1) })
}

/// Whether the bit of a page is set, where the lowest one is that of `first`.
fn is_in(bits: u64, page: PageNo, first: PageNo) -> bool {
    bits >> (page - first) & 1 != 0
}

/// Up to where pages from `page` on can be let through, in `near`, of which these are copied, if there is room for so many.
fn fewer(page: PageNo, near: Pages, copied: u64, room: usize) -> PageNo {
    let (mut end, mut copies) = (page + 1, usize::from(is_in(copied, page, near.0)));
    while end < near.1 && copies + usize::from(is_in(copied, end, near.0)) <= room {
        copies += usize::from(is_in(copied, end, near.0));
        end += 1;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_let_through_is_a_block_and_a_stream_s_is_larger_where_there_is_room() {
        let page = PageNo::new(64 * 7 + 20);
        let near = (PageNo::new(64 * 7), PageNo::new(64 * 8));
        let of = |first: usize, n: usize| (PageNo::new(64 * 7 + first), PageNo::new(64 * 7 + first + n));
        assert_eq!(let_through(page, near, u64::MAX, false, false), (of(16, 16), 1));
        assert_eq!(let_through(page, near, u64::MAX, false, true), (of(16, 16), 16), "all of it may be written unseen");
        assert_eq!(let_through(page, near, u64::MAX, true, true), (of(16, 16), 16));
        assert_eq!(let_through(page, near, u64::MAX, true, false), (of(0, 64), 64));
        assert_eq!(let_through(page, near, 1 << 20 | 1 << 63, true, false), (of(0, 64), 2));
        assert_eq!(let_through(page, near, 1 << 20 | 1 << 63, true, true), (of(16, 16), 1));
        assert_eq!(let_through(page, near, 0, false, false), (of(16, 16), 0), "it was let through before");
        // The memory begins and ends in the middle of a block.
        let near = (PageNo::new(64 * 7 + 18), PageNo::new(64 * 7 + 21));
        assert_eq!(let_through(page, near, 0b111, true, false), ((near.0, near.1), 3));
        assert_eq!(block(page, CHUNK, (PageNo::new(64 * 7 + 18), PageNo::new(64 * 7 + 21))), near);
    }

    #[test]
    fn where_there_is_room_for_few_copies_few_pages_are_let_through() {
        let near = (PageNo::new(64), PageNo::new(64 + 16));
        let end = |first: usize, copied, room| fewer(PageNo::new(64 + first), near, copied, room) - near.0;
        assert_eq!(end(4, u64::MAX, 1), 5, "its own page");
        assert_eq!(end(4, u64::MAX, 3), 7);
        assert_eq!(end(4, u64::MAX, 50), 16);
        assert_eq!(end(4, 1 << 4 | 1 << 9 | 1 << 10, 2), 10, "what is not copied takes no room");
        assert_eq!(end(15, u64::MAX, 3), 16);
    }
}
