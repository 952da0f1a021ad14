//! The end of a call that removes pages: pages in memory there may be evicted again.

use arrayvec::ArrayVec;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::Range;
use lowtide_sys::clock::now_us;

use crate::mappings::removal_calls::RemovalCall;
use crate::pagemap::ids::PageNo;
use crate::pagemap::{END, PageState, PageWord};
use crate::pager::Pager;

/// The length is rounded up. Beyond the program's addresses the call fails.
fn whole_pages(start: usize, len: usize) -> Range {
    let end = start.saturating_add(len).checked_next_multiple_of(PAGE_SIZE).unwrap_or(usize::MAX);
    Range { start: start.min(END.addr()), end: end.min(END.addr()) }
}

/// With the marks' numbers. Few: this is on a stack of the program.
type Marked<'a> = ArrayVec<(PageNo, &'a PageWord, u64), 32>;

impl Pager {
    pub(crate) fn removing(&self) -> PageState {
        PageState::Removing(self.mappings.removal_calls.begun())
    }

    /// Before a system call of thread `who` that removes the pages of a range. By host threads;
    /// takes nothing.
    pub fn removal_begins(&self, start: usize, len: usize, who: u32) -> RemovalCall {
        self.mappings.removal_calls.begin(whole_pages(start, len), who, now_us())
    }

    /// A thread has left its calls by longjmp. Their marks stay until the next fault: should the
    /// thread be in a call after all, that still drops its pages. By host threads and the
    /// reclaimer; takes nothing.
    pub fn forget_removals_of(&self, who: u32) {
        self.mappings.removal_calls.of(who).for_each(|call| self.mappings.removal_calls.end(&call));
    }

    /// The call has returned. Pages in memory are new, except those that other calls are about to
    /// remove; the last call clears the marks. Host threads call this, so it takes no lock: each
    /// word is one compare-and-swap.
    ///
    /// The event was read before the call returned, but its reader may still be marking pages,
    /// under the space lock, or have left some for later. This waits for that: marks that came
    /// later would stay, and pages that MADV_FREE leaves in memory could never be evicted. If the
    /// call has failed, it waits for the reader only: what is left for later is then another
    /// call's, or of what this one did before it failed.
    pub fn removal_ends(&self, call: &RemovalCall, has_removed: bool) {
        let range = call.range;
        self.mappings.removal_calls.end(call);
        self.pages.space.outlast_exclusive();
        if has_removed {
            if self.forks.held_back.has_ended(range) {
                // Its reader may have looked before.
                self.pages.space.outlast_exclusive();
            }
            self.mappings.going.outlast(range, u64::MAX);
        }
        (self.host.undisturbed)(&mut || self.mappings.walks.walk(|| self.unmark_all(range)));
    }

    fn unmark_all(&self, range: Range) {
        let mut marked = Marked::new();
        self.pages.map.each(PageNo::of(range.start), PageNo::behind(range.end), |page, word| {
            if let PageState::Removing(calls) = word.get() {
                marked.push((page, word, calls));
                if marked.is_full() {
                    self.unmark(&mut marked);
                }
            }
        });
        self.unmark(&mut marked);
    }

    /// The same for a call that has succeeded, whose begin was not reported.
    pub fn removed(&self, start: usize, len: usize) {
        self.removal_ends(&RemovalCall::unknown(whole_pages(start, len)), true);
    }

    fn unmark(&self, marked: &mut Marked<'_>) {
        let (Some((first, ..)), Some((last, ..))) = (marked.first(), marked.last()) else { return };
        let block = Range { start: first.addr(), end: (*last + 1).addr() };
        let others = self.mappings.removal_calls.any(block);
        for (page, word, calls) in marked.drain(..) {
            let page = Range { start: page.addr(), end: (page + 1).addr() };
            if !others || !self.mappings.removal_calls.any(page) {
                word.swap(PageState::Removing(calls), PageState::None);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::mappings::events::tests::{mapping, pager, words};
    use crate::mappings::going::Gone;
    use lowtide_sys::uffd::Message;

    pub(crate) fn marked(pager: &Pager, at: usize, pages: usize) -> usize {
        words(pager, at, pages).iter().filter(|word| matches!(word, PageState::Removing(_))).count()
    }

    #[test]
    fn the_last_of_several_calls_takes_the_marks_away() {
        let Some(pager) = pager() else { return };
        let at = mapping(200);
        // SAFETY: inside the mapping.
        (0..200).for_each(|i| unsafe { (at as *mut u8).add(i * PAGE_SIZE).write_volatile(1) });
        let parts = [(at, 120 * PAGE_SIZE), (at + 80 * PAGE_SIZE, 120 * PAGE_SIZE)];
        let calls = parts.map(|(start, len)| {
            let call = pager.removal_begins(start, len, 5);
            pager.happened(&pager.pages.space.exclusive(), Message::Remove { start, end: start + len });
            call
        });
        assert_eq!(marked(&pager, at, 200), 200);
        pager.removal_ends(&calls[0], true);
        assert_eq!([marked(&pager, at, 80), marked(&pager, parts[1].0, 120)], [0, 120], "the other is on its way");
        pager.removal_ends(&calls[1], true);
        assert_eq!(marked(&pager, at, 200), 0);
    }

    #[test]
    fn a_mark_of_a_later_call_is_another() {
        let Some(pager) = pager() else { return };
        let at = mapping(2);
        // SAFETY: inside the mapping.
        (0..2).for_each(|i| unsafe { (at as *mut u8).add(i * PAGE_SIZE).write_volatile(1) });
        let pages = [PageNo::of(at), PageNo::of(at) + 1];
        // Off the list, like a call that has ended or not begun.
        let remove = |page: PageNo| {
            let call = pager.removal_begins(page.addr(), PAGE_SIZE, 5);
            pager.happened(&pager.pages.space.exclusive(), Message::Remove { start: page.addr(), end: (page + 1).addr() });
            pager.mappings.removal_calls.end(&call);
        };
        pages.into_iter().for_each(remove);
        let mut read = Marked::new();
        pager.pages.map.each(pages[0], pages[1] + 1, |page, word| match word.get() {
            PageState::Removing(calls) => read.push((page, word, calls)),
            other => panic!("{other:?}"),
        });
        remove(pages[1]);
        pager.unmark(&mut read);
        assert_eq!(words(&pager, at, 2), [PageState::None, pager.removing()]);
    }

    /// It clears its marks, and waits for no other removal.
    #[test]
    fn a_call_that_fails_ends() {
        let Some(pager) = pager() else { return };
        let pager: &Pager = std::boxed::Box::leak(std::boxed::Box::new(pager));
        let at = mapping(1);
        // SAFETY: inside the mapping.
        unsafe { (at as *mut u8).write_volatile(1) };
        pager.happened(&pager.pages.space.exclusive(), Message::Remove { start: at, end: at + PAGE_SIZE });
        assert!(pager.mappings.going.push(&pager.pages.space.exclusive(), whole_pages(PAGE_SIZE, 1), Gone::Already));
        let (ended, ends) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let call = pager.removal_begins(0, usize::MAX, 5);
            assert_eq!(call.range, Range { start: 0, end: END.addr() });
            pager.removal_ends(&call, false);
            ended.send(()).unwrap();
        });
        assert!(ends.recv_timeout(std::time::Duration::from_secs(60)).is_ok(), "it waits");
        assert_eq!((marked(pager, at, 1), pager.mappings.removal_calls.any(whole_pages(0, usize::MAX))), (0, false));
    }
}
