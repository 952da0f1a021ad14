//! Faults while the program forks (the pager is paused): pages are served by copying and no word
//! changes, so that the child's copy of all tables is consistent. The stale words left behind are
//! cleared when the page is evicted or dropped.

use lowtide_core::slot::Entry;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::uffd::{Uffd, Wake};
use rustix::io::Errno;

use super::Whose;
use crate::fault::Served;
use crate::pagemap::PageState;
use crate::pagemap::ids::PageNo;
use crate::pager::Pager;
use crate::pages::space::Exclusive;
use crate::pages::worker::Worker;

impl Pager {
    /// Serves a fault by copying. With the lock alone: words hold only while no older operation can
    /// set them. None: the pager is not paused any more.
    pub(crate) fn serve_paused(&self, page: PageNo, worker: &mut Worker) -> Option<Served> {
        let lock = self.pages.space.exclusive();
        if !self.paused() {
            return None;
        }
        self.copied();
        Some(match self.copy_to(&lock, self.uffd(), Whose::Parents, page, worker) {
            Ok(()) => Served::Done,
            Err(Errno::AGAIN) => Served::EventsFirst,
            Err(_) => {
                self.uffd().wake(page.addr(), PAGE_SIZE);
                Served::Done
            }
        })
    }

    /// Copies the bytes that belong at `page` to there through `uffd`, of this process or a child
    /// (`whose`). Changes no table.
    pub(crate) fn copy_to(
        &self,
        lock: &Exclusive<'_>,
        uffd: &Uffd,
        whose: Whose,
        page: PageNo,
        worker: &mut Worker,
    ) -> Result<(), Errno> {
        let page_of_tables = self.forks.held_back.in_tables(lock, whose, page).filter(|page| !self.mappings.going.has(*page));
        let source = match page_of_tables.map_or(PageState::None, |page| self.pages.map.get(page)) {
            PageState::Staged(frame) | PageState::Storing(frame) if self.is_in_frame(frame) => {
                self.pages.staging.addr(frame) as *const u8
            }
            PageState::Swapped(raw) | PageState::Loading(raw, _) if raw != 0 => {
                let Some(entry) = Entry::from_raw(raw) else { return Err(Errno::INVAL) };
                let (buffer, scratch) = worker.parts(1);
                if let Err(e) = self.store(lock).load(entry, &mut buffer[0], scratch) {
                    self.lose(page, entry, e);
                }
                buffer[0].as_ptr()
            }
            _ => self.faults.zeros.as_ptr(),
        };
        // SAFETY: the source is a populated frame, the buffer or the zeros, none of which is ever
        // missing.
        match unsafe { uffd.copy(page.addr(), source, PAGE_SIZE, Wake::Now) }.error {
            None => {
                self.arrived(1);
                Ok(())
            }
            Some(Errno::EXIST) => {
                // Perhaps the zero page, about to be written.
                if uffd.let_write(page.addr(), PAGE_SIZE).is_err() {
                    uffd.wake(page.addr(), PAGE_SIZE);
                }
                Ok(())
            }
            Some(e) => Err(e),
        }
    }
}
