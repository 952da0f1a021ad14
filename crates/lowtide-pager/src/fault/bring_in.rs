//! Calls of the library's regions: brings in the missing pages of a registered range.

use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::Range;
use lowtide_sys::clock::now_ns;
use lowtide_sys::uffd::Access;
use rustix::io::Errno;

use crate::fault::Served;
use crate::pagemap::PageState;
use crate::pagemap::ids::PageNo;
use crate::pager::Pager;
use crate::pages::worker::Worker;

/// Pages per look at what is in memory.
const LOOK: usize = 512;

/// Which pages of a range are brought in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BringIn {
    /// Those that were evicted.
    Evicted,
    /// Also those that were never touched.
    All,
}

impl Pager {
    /// Brings in the missing pages of a range, within the limit: the last may evict the first,
    /// unless pinned. False: a page could not be had.
    ///
    /// # Errors
    /// Those of looking at what is in memory.
    pub fn bring_in(&self, range: Range, which: BringIn, worker: &mut Worker) -> Result<bool, Errno> {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at + LOOK * PAGE_SIZE);
            let found = self.present().scan(at, end, 0)?;
            let mut missing = at;
            for (from, to) in found.iter().chain([(found.walk_end, found.walk_end)]) {
                while missing < from {
                    let wanted = which == BringIn::All || self.is_evicted(missing);
                    if wanted && !self.is_there(missing) && !self.bring_in_page(missing, worker) {
                        return Ok(false);
                    }
                    missing += PAGE_SIZE;
                }
                missing = to;
            }
            at = found.walk_end.max(at + PAGE_SIZE);
        }
        Ok(true)
    }

    /// As a neighbour of another page.
    fn is_there(&self, addr: usize) -> bool {
        !self.is_evicted(addr) && self.present().holds_page(addr)
    }

    fn is_evicted(&self, addr: usize) -> bool {
        !matches!(self.pages.map.get(PageNo::of(addr)), PageState::None | PageState::Removing(_) | PageState::Clean(_))
    }

    fn bring_in_page(&self, addr: usize, worker: &mut Worker) -> bool {
        loop {
            match self.serve_within_limit(addr, Access::Write, now_ns(), worker) {
                Served::Done => {
                    self.stage_ahead(worker);
                    return true;
                }
                Served::Lost | Served::Elsewhere => return false,
                Served::EventsFirst => rustix::thread::sched_yield(),
            }
        }
    }
}
