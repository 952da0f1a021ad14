//! Giving memory back to the program for good: it wants to do something with it that lowtide is in the way of, such as
//! registering it with a userfaultfd of its own.

use rustix::io::Errno;
use rustix::mm::Advice;

use crate::mappings::regions::Range;
use crate::mappings::space::Exclusive;
use crate::pagemap::PageState;
use crate::pagemap::ids::PageNo;
use crate::pager::Pager;

/// How often pages that were evicted again meanwhile are brought in again.
const ROUNDS: usize = 4;

impl Pager {
    /// Brings in all pages of the adopted parts of `range`, and lets go of these. Called by a thread that may wait for faults,
    /// without any lock held. What a monitor evicts again and again under a tight limit stays adopted.
    ///
    /// # Errors
    /// `BUSY`: some of it could not be brought in and is still adopted.
    pub fn release(&self, range: Range) -> Result<(), Errno> {
        let mut at = range.start;
        loop {
            let next = self.regions.next(&self.space.shared(), at);
            let Some(part) = next.filter(|part| part.start < range.end) else { return Ok(()) };
            let part = Range { start: part.start, end: part.end.min(range.end) };
            self.release_part(part)?;
            at = part.end;
        }
    }

    fn release_part(&self, part: Range) -> Result<(), Errno> {
        // Else the next to make room evicts again what has come in.
        let is_pinned = self.pin(part);
        let released = self.release_pinned(part);
        if is_pinned {
            self.unpin(part);
        }
        released
    }

    fn release_pinned(&self, part: Range) -> Result<(), Errno> {
        for _ in 0..ROUNDS {
            // Words of pages that were served by copies while the program forked: they are in memory, and populating brings
            // nothing in.
            self.forget_all_stale(part);
            let lock = self.space.exclusive();
            let Some(out) = self.first_out(&lock, part) else {
                self.abandon(&lock, part);
                // SAFETY: no page of it is in lowtide's hands: each is in memory, or was never touched.
                return unsafe { self.uffd().unregister(part.start, part.end - part.start) };
            };
            drop(lock);
            // SAFETY: populating changes no bytes, whatever is mapped there now.
            let _ = unsafe { rustix::mm::madvise(out as *mut _, part.end - out, Advice::LinuxPopulateRead) };
        }
        Err(Errno::BUSY)
    }

    /// The address of the first page whose bytes are not in its place, and that was not dropped. With the space lock held alone
    /// until it is made use of, so that this stays so.
    fn first_out(&self, _: &Exclusive<'_>, part: Range) -> Option<usize> {
        let mut first = None;
        self.map.each(PageNo::of(part.start), PageNo::of(part.end), |page, slot| {
            let word = slot.get();
            let here = matches!(
                word,
                PageState::None | PageState::Removing(_) | PageState::Clean(_) | PageState::Zero | PageState::Loading(0, _)
            );
            if !here && first.is_none() && !self.going.has(page) {
                first = Some(page.addr());
            }
        });
        first
    }
}
