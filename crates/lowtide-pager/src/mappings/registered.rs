//! What is registered, by events, tables and the kernel. The kernel's state is the truth; events
//! are hints:
//!
//! - An UNMAP may report a call that the kernel has refused. Since Linux 6.12 it prepares events
//!   before it checks limits (overcommit, RLIMIT_AS, RLIMIT_DATA) and seals, puts the mappings
//!   back, and sends the events all the same.
//! - shmat(SHM_REMAP) unmaps memory without an event.

use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::uffd::{Message, Standing};
use lowtide_sys::{Line, Range};
use rustix::io::Errno;

use crate::pagemap::PageState;
use crate::pagemap::ids::PageNo;
use crate::pager::Pager;
use crate::pages::space::Exclusive;

impl Pager {
    /// Calls `f` with the parts of a just read UNMAP that no refused call has put back.
    ///
    /// A refused call cuts the mappings at the start of its range, so what it puts back begins
    /// there or later, unless merged with the mapping below. A mapping that has moved there since
    /// looks put back until its own event is read ([`Pager::happened`]).
    pub(super) fn each_unmapped(&self, lock: &Exclusive<'_>, range: Range, mut f: impl FnMut(Range)) {
        let mappings = &self.present().mappings;
        // Kernels without lookups of mappings send no events of refused calls.
        let next = mappings.next_or_none(range.start);
        if !self.mappings.regions.overlaps(lock, range) || next.is_none_or(|next| next.start >= range.end) {
            return f(range);
        }
        let mut at = range.start;
        while at < range.end {
            let next = mappings.next_or_none(at).filter(|next| next.start < range.end);
            let mapping = next.unwrap_or(Range { start: range.end, end: range.end });
            let part = Range { start: mapping.start.max(at), end: mapping.end.min(range.end) };
            if at < part.start {
                f(Range { start: at, end: part.start });
            }
            if part.start < part.end {
                let gone = self.not_put_back(range, mapping, part);
                if gone.start < gone.end {
                    f(gone);
                }
                for kept in part.without(gone) {
                    self.mappings.order.lock().is_put_back(kept, !self.was_alone(kept));
                }
            }
            at = part.end;
        }
    }

    /// What of `part` was unmapped although `mapping` is there.
    fn not_put_back(&self, range: Range, mapping: Range, part: Range) -> Range {
        if !self.uffd().is_registered(part.start) {
            return part;
        }
        if mapping.start >= range.start {
            return Range::NONE;
        }
        // Merged, or grown from below. Grown pages are missing until the event is read.
        if self.present().bytes(part.start, part.end).is_ok_and(|bytes| bytes > 0) {
            return Range::NONE;
        }
        // Calls that grow mappings wait for the turn, or the only thread makes them.
        if (self.host.turn)().covers(range) || self.was_alone(part) {
            return Range::NONE;
        }
        self.must_hold_nothing_unmapped(part);
        part
    }

    /// Whether no other thread than the one that unmapped `part` can have enlarged a mapping there.
    /// The one that unmapped may have ended since the event was read (a thread that unmaps its own
    /// stack): then the program looks single-threaded, but a hook knows what has grown.
    fn was_alone(&self, part: Range) -> bool {
        (self.host.is_alone)() && !(self.host.may_have_grown)(part)
    }

    /// Ends the run if lowtide holds bytes where an UNMAP may have been refused.
    pub(super) fn must_hold_nothing_unmapped(&self, range: Range) {
        if let Some(page) = self.first_held(range) {
            let mut text = Line::new();
            text.push(b"memory at ").hex(range.start).push(b" to ").hex(range.end);
            text.push(b" was unmapped, says an event, and to the kernel it is registered: several threads change mappings there by raw \
                        system calls, and lowtide can't tell whether the page at ");
            (self.host.fatal)(text.hex(page).push(b" is old").bytes())
        }
    }

    fn first_held(&self, range: Range) -> Option<usize> {
        let mut held = None;
        self.pages.map.each(PageNo::of(range.start), PageNo::behind(range.end), |page, slot| {
            let has_bytes = match slot.get() {
                PageState::Staged(_) | PageState::Storing(_) | PageState::Swapped(_) => true,
                PageState::Loading(raw, _) => raw != 0,
                _ => false,
            };
            if has_bytes && !self.mappings.going.has(page) {
                held.get_or_insert(page.addr());
            }
        });
        held
    }

    /// Something else was mapped at `addr` without an UNMAP.
    pub fn unmapped_without_event(&self, addr: usize) {
        let lock = self.pages.space.exclusive();
        let Ok(Some(Range { start, end })) = self.present().mappings.find(addr) else { return };
        self.pass_or_hold_back(&lock, Message::Unmap { start, end });
    }

    /// The mapping at `addr`, or the next; `NONE` also if the kernel does not tell.
    pub fn mapping_at(&self, addr: usize) -> Range {
        self.present().mappings.next(addr).ok().flatten().unwrap_or(Range::NONE)
    }

    /// Abandons the parts of a range that are registered in the tables only: they were unmapped
    /// without an event.
    ///
    /// # Errors
    /// `AGAIN`: an event on its way may tell more. Those of reading the mappings.
    pub(crate) fn forget_unregistered(&self, lock: &Exclusive<'_>, range: Range) -> Result<(), Errno> {
        let mut at = range.start;
        while let Some(region) = self.mappings.regions.first_in(lock, Range { start: at, ..range }) {
            // Before Linux 6.11 each answer would take the whole list.
            if self.present().mappings.is_one(region) != Some(false) && self.uffd().is_registered(region.start) {
                at = region.end;
                continue;
            }
            let mapping = self.present().mappings.next_mapping(region.start)?.filter(|next| next.range.start < region.end);
            let mapped = mapping.map_or(Range { start: region.end, end: region.end }, |mapping| mapping.range);
            let part = mapped.within(region);
            let is_registered = part.start < part.end && self.uffd().is_registered(part.start);
            let gone = Range { start: region.start, end: if is_registered { part.start } else { part.end } };
            if gone.start < gone.end {
                if self.may_change(lock) {
                    return Err(Errno::AGAIN);
                }
                if !is_registered && part.start < part.end && mapping.is_some_and(|mapping| mapping.is_anonymous) {
                    self.must_hold_nothing(part);
                }
                self.abandon(lock, gone);
            }
            at = part.end;
        }
        Ok(())
    }

    fn may_change(&self, lock: &Exclusive<'_>) -> bool {
        self.forks.held_back.is_on(lock) || self.uffd().standing(self.pages.staging.addresses().start) == Standing::Changing
    }

    /// Ends the run if lowtide holds bytes of unregistered anonymous memory: a raw call has mapped
    /// new memory there, or unregistered the old.
    fn must_hold_nothing(&self, range: Range) {
        if let Some(page) = self.first_held(range) {
            let mut text = Line::new();
            text.push(b"memory at ").hex(range.start).push(b" to ").hex(range.end);
            text.push(b": lowtide holds the page at ").hex(page);
            text.push(
                b", and to the kernel it is not registered (userfaultfd): a raw system call (shmat, UFFDIO_UNREGISTER) of the \
                        program has taken it away",
            );
            (self.host.fatal)(text.bytes())
        }
    }

    /// Ends the run if the kernel counts a change of mappings as under way that is over: it would
    /// never install a page again. `is_lost`: also if that can't be told. The caller holds no lock.
    pub(crate) fn must_be_changing(&self, is_lost: bool) {
        let is_changing =
            || !self.uffd().is_readable() && self.uffd().standing(self.pages.staging.addresses().start) == Standing::Changing;
        if is_changing() && !self.forks.hold.is_owed() && (is_lost || (self.host.changes_are_over)()) && is_changing() {
            (self.host.fatal)(
                b"the kernel counts a change of mappings as under way that is over, and brings in no page any more: it has refused \
                  to shrink the program's break (brk), of which a part is sealed (mseal)",
            )
        }
    }

    /// Before an eviction: a fault on an unregistered page would not be reported.
    pub(crate) fn can_be_missed(&self, addr: usize) -> bool {
        self.uffd().standing(addr & !(PAGE_SIZE - 1)) != Standing::NotRegistered
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mappings::Changes;
    use crate::mappings::events::tests::{mapping, pager, swap_out, words};
    use core::sync::atomic::Ordering;
    use lowtide_core::vm::PAGE_SIZE;

    fn pages(at: usize, first: usize, end: usize) -> Range {
        Range { start: at + first * PAGE_SIZE, end: at + end * PAGE_SIZE }
    }

    fn unmap(pager: &Pager, range: Range) {
        pager.happened(&pager.pages.space.exclusive(), Message::Unmap { start: range.start, end: range.end });
    }

    fn unregister(pager: &Pager, range: Range) {
        // SAFETY: nobody touches it.
        unsafe { pager.uffd().unregister(range.start, range.end - range.start) }.unwrap();
    }

    #[test]
    fn what_a_refused_call_has_put_back_stays() {
        let Some(pager) = pager() else { return };
        let at = mapping(8);
        pager.register(pages(at, 0, 8)).unwrap();
        swap_out(&pager, at, 8, 100);
        unmap(&pager, pages(at, 0, 9));
        assert_eq!(words(&pager, at, 8), (100..108).map(PageState::Swapped).collect::<std::vec::Vec<_>>());
        assert!(pager.has_registered(at));
    }

    #[test]
    fn what_is_not_registered_any_more_is_gone() {
        let Some(mut pager) = pager() else { return };
        pager.host.is_alone = || false;
        let at = mapping(8);
        pager.register(pages(at, 0, 8)).unwrap();
        for page in PageNo::of(at).up_to(PageNo::of(at) + 8) {
            assert_eq!(pager.pages.map.claim(page, PageState::None, PageState::Zero), Ok(true));
            pager.pages.zero_now.fetch_add(1, Ordering::Relaxed);
        }
        unregister(&pager, pages(at, 0, 4));
        unmap(&pager, pages(at, 0, 4));
        assert_eq!(words(&pager, at, 5), [[PageState::None; 4].as_slice(), &[PageState::Zero]].concat());
        assert!(!pager.has_registered(at) && pager.has_registered(at + 4 * PAGE_SIZE));
        unmap(&pager, pages(at, 7, 8));
        // Alone by now, but the mapping below has grown.
        (pager.host.is_alone, pager.host.may_have_grown) = (|| true, |_| true);
        unmap(&pager, pages(at, 6, 7));
        let left = [PageState::Zero, PageState::None, PageState::None];
        assert_eq!(words(&pager, at + 5 * PAGE_SIZE, 3), left);
        // Alone: put back, and merged with the mapping below.
        pager.host.may_have_grown = |_| false;
        unmap(&pager, pages(at, 5, 6));
        assert_eq!(words(&pager, at + 5 * PAGE_SIZE, 3), left);
        // With the turn: put back, and merged with the mapping below.
        pager.host.is_alone = || false;
        pager.host.turn = || Changes::of(Range { start: 0, end: usize::MAX });
        unmap(&pager, pages(at, 5, 6));
        assert_eq!(words(&pager, at + 5 * PAGE_SIZE, 1), [PageState::Zero]);
    }

    /// The UNMAP of a growing move is read when its pages are there already.
    #[test]
    fn the_place_of_a_move_is_cleared_to_its_end() {
        let Some(pager) = pager() else { return };
        let (from, to) = (mapping(4), mapping(8));
        pager.register(pages(to, 0, 8)).unwrap();
        swap_out(&pager, to, 8, 100);
        swap_out(&pager, from, 4, 200);
        unmap(&pager, pages(to, 0, 8));
        pager.happened(&pager.pages.space.exclusive(), Message::Remap { from, to, len: 4 * PAGE_SIZE });
        let moved = (200..204).map(PageState::Swapped).chain([PageState::None; 4]);
        assert_eq!(words(&pager, to, 8), moved.collect::<std::vec::Vec<_>>());
    }

    #[test]
    fn what_is_registered_again_has_no_words_of_what_went_without_an_event() {
        let Some(pager) = pager() else { return };
        let at = mapping(8);
        pager.register(pages(at, 0, 8)).unwrap();
        assert_eq!(pager.pages.map.claim(PageNo::of(at), PageState::None, PageState::Zero), Ok(true));
        pager.pages.zero_now.fetch_add(1, Ordering::Relaxed);
        unregister(&pager, pages(at, 0, 8));
        assert!(!pager.can_be_missed(at));
        pager.register(pages(at, 0, 8)).unwrap();
        assert_eq!(words(&pager, at, 1), [PageState::None]);
        assert!(pager.can_be_missed(at) && pager.has_registered(at));
    }
}
