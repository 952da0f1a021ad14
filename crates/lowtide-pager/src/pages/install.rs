//! Installs claimed pages: the kernel's answers to COPY, ZEROPAGE and MOVE, and what to do about
//! each. One call stays within a mapping, ends at the first page that is there already, and reports
//! partial progress.

use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::uffd::{Progress, Wake};
use rustix::io::Errno;

use crate::pagemap::ids::{PageNo, StagingFrame};
use crate::pager::Pager;
use crate::pages::Operation;
use crate::pages::staging::Memory;
use crate::pages::worker::Rights;

pub(crate) enum Installed {
    /// Installed: this many pages, from this one.
    Pages(PageNo, usize),
    /// In memory already, and newer than its word.
    WasThere(PageNo),
}

pub(crate) struct Stopped {
    /// The first page that is still claimed.
    pub at: PageNo,
    /// The error for that page. `AGAIN`: an event waits to be read.
    pub why: Errno,
}

/// From COPY and ZEROPAGE, for pages in two mappings of one registered range.
pub(crate) const TWO_MAPPINGS: Option<Errno> = Some(Errno::NOENT);

/// The kernel reports a page as there, its page map does not: try again. (COPY never returns this
/// error.)
pub(crate) const IN_DOUBT: Errno = Errno::BUSY;

/// Installs `pages` claimed pages from `first`. `call` makes one call; `came` gets each page before
/// [`Stopped::at`] once, in order.
pub(crate) fn install_run(
    first: PageNo,
    pages: usize,
    two_mappings: Option<Errno>,
    mut call: impl FnMut(PageNo, usize) -> Progress,
    mut came: impl FnMut(Installed),
) -> Result<(), Stopped> {
    let (mut done, mut most) = (0, pages);
    while done < pages {
        let (at, n) = (first + done, (pages - done).min(most));
        let progress = call(at, n);
        let installed = progress.done / PAGE_SIZE;
        if installed > 0 {
            came(Installed::Pages(at, installed));
            done += installed;
        }
        match progress.error {
            None => {}
            Some(_) if installed > 0 => {}
            Some(Errno::EXIST) => {
                came(Installed::WasThere(at));
                done += 1;
            }
            Some(why) if n > 1 && two_mappings == Some(why) => most = n / 2,
            Some(why) => return Err(Stopped { at, why }),
        }
    }
    Ok(())
}

impl Pager {
    /// Whether a thread with these rights can read the page map.
    pub(crate) fn has_page_map(&self, rights: Rights) -> bool {
        rights.has_devices() || (self.host.has_page_map)()
    }

    /// What a COPY or MOVE to `at` has done, as far as the page map confirms it: a word goes only
    /// when its page is there. `EXIST` is no proof: the kernel also returns it where a huge page
    /// just was (`mfill_atomic`).
    pub(crate) fn borne_out(&self, at: PageNo, rights: Rights, progress: Progress) -> Progress {
        let is_there = |page: PageNo| self.has_page_map(rights) && self.present().holds_page(page.addr());
        match progress {
            Progress { done: 0, error: Some(Errno::EXIST) } if !is_there(at) => Progress { done: 0, error: Some(IN_DOUBT) },
            Progress { done, error: error @ Some(_) } if done > 0 => {
                let pages = at.up_to(at + done / PAGE_SIZE).take_while(|page| is_there(*page)).count();
                Progress { done: pages * PAGE_SIZE, error: if pages > 0 { error } else { Some(IN_DOUBT) } }
            }
            _ => progress,
        }
    }
}

impl Operation<'_> {
    /// Copies a page that can't be moved back from its frame: the frame is shared with a forked
    /// child, the place is not writable now, or the kernel has dropped the page. Returns the
    /// frame's memory afterwards.
    ///
    /// # Errors
    /// Those of COPY; `EXIST`: a page is there already.
    pub(crate) fn copy_from_frame(&self, page: PageNo, frame: StagingFrame, wake: Wake) -> Result<Memory, Errno> {
        // A frame keeps its bytes until its batch is emptied.
        let (source, memory) = match self.is_in_frame(frame) {
            true => (self.pages.staging.addr(frame) as *const u8, Memory::Stays),
            false => (self.faults.zeros.as_ptr().cast_const(), Memory::Went),
        };
        // SAFETY: the word is Moving, so no other thread touches the frame; the page is there, or
        // zeros replace it.
        let progress = unsafe { self.uffd().copy(page.addr(), source, PAGE_SIZE, wake) };
        self.borne_out(page, Rights::Serve, progress).error.map_or(Ok(memory), Err)
    }
}

pub(crate) fn may_be_copied(why: Errno) -> bool {
    matches!(why, Errno::BUSY | Errno::INVAL | Errno::NOENT)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    /// Two mappings, which meet at page 104, and a page at 102.
    fn kernel(at: PageNo, n: usize) -> Progress {
        let (at, end) = (at.raw() as usize, at.raw() as usize + n);
        let stop = |error| Progress { done: 0, error: Some(error) };
        match at {
            102 => stop(Errno::EXIST),
            _ if at < 102 && end > 102 => Progress { done: (102 - at) * PAGE_SIZE, error: Some(Errno::AGAIN) },
            _ if at < 104 && end > 104 => stop(Errno::NOENT),
            110.. => stop(Errno::NOMEM),
            _ if end > 110 => Progress { done: (110 - at) * PAGE_SIZE, error: Some(Errno::AGAIN) },
            _ => Progress { done: n * PAGE_SIZE, error: None },
        }
    }

    #[test]
    fn a_run_goes_on_behind_what_one_call_stops_at() {
        let mut seen = Vec::new();
        let mut came = |installed| match installed {
            Installed::Pages(at, n) => seen.extend((0..n).map(|i| (at.raw() + i as u64, true))),
            Installed::WasThere(at) => seen.push((at.raw(), false)),
        };
        assert!(install_run(PageNo::new(100), 8, TWO_MAPPINGS, kernel, &mut came).is_ok());
        assert_eq!(seen, (100..108).map(|p| (p, p != 102)).collect::<Vec<_>>());
    }

    #[test]
    fn a_run_ends_where_the_kernel_has_another_reason() {
        let mut last = 0;
        let came = |installed| {
            if let Installed::Pages(at, n) = installed {
                last = at.raw() + n as u64;
            }
        };
        let stopped = install_run(PageNo::new(105), 10, TWO_MAPPINGS, kernel, came).err().unwrap();
        assert_eq!((stopped.at.raw(), stopped.why, last), (110, Errno::NOMEM, 110));
    }
}
