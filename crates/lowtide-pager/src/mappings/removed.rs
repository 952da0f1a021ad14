//! The end of a call that removes pages: what is in memory there is about to go no more, and may be evicted again.

use arrayvec::ArrayVec;
use lowtide_core::vm::PAGE_SIZE;

use crate::mappings::regions::Range;
use crate::mappings::removal_calls::RemovalCall;
use crate::pagemap::ids::PageNo;
use crate::pagemap::{END, PageState, PageWord};
use crate::pager::Pager;
use crate::sys::clock::now_us;

/// What such a call removes: its length is rounded up. (Above what a program can have it fails.)
fn whole_pages(start: usize, len: usize) -> Range {
    let end = start.saturating_add(len).checked_next_multiple_of(PAGE_SIZE).unwrap_or(usize::MAX);
    Range { start: start.min(END.addr()), end: end.min(END.addr()) }
}

/// Pages whose marks were read, and with which number. (On the stack of a thread of the program, so not many.)
type Marked<'a> = ArrayVec<(PageNo, &'a PageWord, u64), 32>;

impl Pager {
    /// The mark of what is in memory and about to go.
    pub(crate) fn removing(&self) -> PageState {
        PageState::Removing(self.removal_calls.begun())
    }

    /// A call of thread `who` is about to remove the pages of a range: before the system call. By host threads; it takes nothing.
    pub fn removal_begins(&self, start: usize, len: usize, who: u32) -> RemovalCall {
        self.removal_calls.begin(whole_pages(start, len), who, now_us())
    }

    /// A thread is in none of its calls any more, though they have not ended: a signal handler has left them by longjmp. Their
    /// marks stay for the next fault to take away, as those of raw calls: should the thread be in one of them all the same, it
    /// drops its pages yet. By host threads and the reclaimer; it takes nothing.
    pub fn forget_removals_of(&self, who: u32) {
        self.removal_calls.of(who).for_each(|call| self.removal_calls.end(&call));
    }

    /// It has returned, and has removed what is mapped there, or has failed: what is in memory there now is new, but for what
    /// other calls are about to remove, of which the last takes the marks away. Called by host threads (the hook of madvise),
    /// hence without a lock: each word is one compare-and-swap. The call returned when its event was read; whoever read it may
    /// not have marked the pages yet, and has the space lock until then, or has left some for later. (Marks that came later would
    /// stay: what MADV_FREE leaves in memory could never be evicted again.) What is held back, or left for later, where a call
    /// has failed is another's, or of what it did before it failed: then what is marked later stays in memory.
    pub fn removal_ends(&self, call: &RemovalCall, has_removed: bool) {
        let range = call.range;
        self.removal_calls.end(call);
        self.space.outlast_exclusive();
        if has_removed {
            if self.held_back.has_ended(range) {
                // Whoever applies it may have looked before.
                self.space.outlast_exclusive();
            }
            self.going.outlast(range, u64::MAX);
        }
        (self.host.undisturbed)(&mut || self.walks.walk(|| self.unmark_all(range)));
    }

    fn unmark_all(&self, range: Range) {
        let mut marked = Marked::new();
        self.map.each(PageNo::of(range.start), PageNo::behind(range.end), |page, word| {
            if let PageState::Removing(calls) = word.get() {
                marked.push((page, word, calls));
                if marked.is_full() {
                    self.unmark(&mut marked);
                }
            }
        });
        self.unmark(&mut marked);
    }

    /// The same of one that has not failed, where nobody has said that it begins.
    pub fn removed(&self, start: usize, len: usize) {
        self.removal_ends(&RemovalCall::unknown(whole_pages(start, len)), true);
    }

    /// Takes away marks that have been read, as far as no call is on its way there.
    fn unmark(&self, marked: &mut Marked<'_>) {
        let (Some((first, ..)), Some((last, ..))) = (marked.first(), marked.last()) else { return };
        let block = Range { start: first.addr(), end: (*last + 1).addr() };
        let others = self.removal_calls.any(block);
        for (page, word, calls) in marked.drain(..) {
            let page = Range { start: page.addr(), end: (page + 1).addr() };
            if !others || !self.removal_calls.any(page) {
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
    use crate::sys::uffd::Message;

    /// How many pages are about to go.
    pub(crate) fn marked(pager: &Pager, at: usize, pages: usize) -> usize {
        words(pager, at, pages).iter().filter(|word| matches!(word, PageState::Removing(_))).count()
    }

    /// Of two calls that overlap, what is in memory is about to go until the second has returned.
    #[test]
    fn the_last_of_several_calls_takes_the_marks_away() {
        let Some(pager) = pager() else { return };
        let at = mapping(200);
        // SAFETY: inside the mapping.
        (0..200).for_each(|i| unsafe { (at as *mut u8).add(i * PAGE_SIZE).write_volatile(1) });
        let parts = [(at, 120 * PAGE_SIZE), (at + 80 * PAGE_SIZE, 120 * PAGE_SIZE)];
        let calls = parts.map(|(start, len)| {
            let call = pager.removal_begins(start, len, 5);
            pager.happened(&pager.space.exclusive(), Message::Remove { start, end: start + len });
            call
        });
        assert_eq!(marked(&pager, at, 200), 200);
        pager.removal_ends(&calls[0], true);
        assert_eq!([marked(&pager, at, 80), marked(&pager, parts[1].0, 120)], [0, 120], "the other is on its way");
        pager.removal_ends(&calls[1], true);
        assert_eq!(marked(&pager, at, 200), 0);
    }

    /// What is marked for a call that began after the list was looked at is not taken for what was marked before.
    #[test]
    fn a_mark_of_a_later_call_is_another() {
        let Some(pager) = pager() else { return };
        let at = mapping(2);
        // SAFETY: inside the mapping.
        (0..2).for_each(|i| unsafe { (at as *mut u8).add(i * PAGE_SIZE).write_volatile(1) });
        let pages = [PageNo::of(at), PageNo::of(at) + 1];
        // Off the list, as one that has ended, or has not begun yet, when that is looked at.
        let remove = |page: PageNo| {
            let call = pager.removal_begins(page.addr(), PAGE_SIZE, 5);
            pager.happened(&pager.space.exclusive(), Message::Remove { start: page.addr(), end: (page + 1).addr() });
            pager.removal_calls.end(&call);
        };
        pages.into_iter().for_each(remove);
        let mut read = Marked::new();
        pager.map.each(pages[0], pages[1] + 1, |page, word| match word.get() {
            PageState::Removing(calls) => read.push((page, word, calls)),
            other => panic!("{other:?}"),
        });
        remove(pages[1]);
        pager.unmark(&mut read);
        assert_eq!(words(&pager, at, 2), [PageState::None, pager.removing()]);
    }

    /// It takes its marks away, and waits for no other removal. (No call that has a length like this succeeds.)
    #[test]
    fn a_call_that_fails_ends() {
        let Some(pager) = pager() else { return };
        let pager: &Pager = std::boxed::Box::leak(std::boxed::Box::new(pager));
        let at = mapping(1);
        // SAFETY: inside the mapping.
        unsafe { (at as *mut u8).write_volatile(1) };
        pager.happened(&pager.space.exclusive(), Message::Remove { start: at, end: at + PAGE_SIZE });
        assert!(pager.going.push(&pager.space.exclusive(), whole_pages(PAGE_SIZE, 1), Gone::Already));
        let (ended, ends) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let call = pager.removal_begins(0, usize::MAX, 5);
            assert_eq!(call.range, Range { start: 0, end: END.addr() });
            pager.removal_ends(&call, false);
            ended.send(()).unwrap();
        });
        assert!(ends.recv_timeout(std::time::Duration::from_secs(60)).is_ok(), "it waits");
        assert_eq!((marked(pager, at, 1), pager.removal_calls.any(whole_pages(0, usize::MAX))), (0, false));
    }
}
