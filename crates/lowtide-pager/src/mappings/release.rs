//! Gives memory back to the program for good, such as for a userfaultfd of its own.

use lowtide_sys::Range;
use rustix::io::Errno;
use rustix::mm::Advice;

use crate::pagemap::PageState;
use crate::pagemap::ids::PageNo;
use crate::pager::Pager;
use crate::pages::space::Exclusive;

/// Pages may be evicted again meanwhile.
const ROUNDS: usize = 4;

impl Pager {
    /// Brings in the registered parts of `range`, and unregisters them. By a thread that may wait
    /// for faults, without a lock.
    ///
    /// # Errors
    /// `BUSY`: a tight limit evicts pages again and again; their part stays registered.
    pub fn release(&self, range: Range) -> Result<(), Errno> {
        let mut at = range.start;
        loop {
            let next = self.mappings.regions.next(&self.pages.space.shared(), at);
            let Some(part) = next.filter(|part| part.start < range.end) else { return Ok(()) };
            let part = Range { start: part.start, end: part.end.min(range.end) };
            self.release_part(part)?;
            at = part.end;
        }
    }

    fn release_part(&self, part: Range) -> Result<(), Errno> {
        // Else making room evicts the new pages again.
        let is_pinned = self.pin(part);
        let released = self.release_pinned(part);
        if is_pinned {
            self.unpin(part);
        }
        released
    }

    fn release_pinned(&self, part: Range) -> Result<(), Errno> {
        for _ in 0..ROUNDS {
            // Their pages are in memory, so populating would bring nothing in.
            self.forget_all_stale(part);
            let lock = self.pages.space.exclusive();
            let Some(out) = self.first_out(&lock, part) else {
                self.abandon(&lock, part);
                // SAFETY: lowtide holds no page of it: each is in memory, or was never touched.
                return unsafe { self.uffd().unregister(part.start, part.end - part.start) };
            };
            drop(lock);
            // SAFETY: populating changes no bytes, whatever is mapped there now.
            let _ = unsafe { rustix::mm::madvise(out as *mut _, part.end - out, Advice::LinuxPopulateRead) };
        }
        Err(Errno::BUSY)
    }

    /// The first page that is out. True while the caller holds the lock.
    fn first_out(&self, _: &Exclusive<'_>, part: Range) -> Option<usize> {
        let mut first = None;
        self.pages.map.each(PageNo::of(part.start), PageNo::of(part.end), |page, slot| {
            let word = slot.get();
            let here = matches!(
                word,
                PageState::None | PageState::Removing(_) | PageState::Clean(_) | PageState::Zero | PageState::Loading(0, _)
            );
            if !here && first.is_none() && !self.mappings.going.has(page) {
                first = Some(page.addr());
            }
        });
        first
    }
}
