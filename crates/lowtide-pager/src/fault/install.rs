//! A claimed run of pages is installed: what the kernel answers to COPY, ZEROPAGE and MOVE, and what to do about it, stands
//! here.
//!
//! One call does one mapping, ends at the first page that is there already, and reports what it did in part; so a run takes a
//! call, or a few.

use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;

use crate::fault::worker::Reach;
use crate::pagemap::ids::{PageNo, StagingFrame};
use crate::pager::{Operation, Pager};
use crate::reclaim::staging::Memory;
use crate::sys::uffd::{Progress, Wake};

/// What has become of pages of a run.
pub(crate) enum Installed {
    /// This many, from this one on, were installed.
    Pages(PageNo, usize),
    /// A page was in memory already, which is newer than what its word said.
    WasThere(PageNo),
}

/// Why a run was not installed to its end.
pub(crate) struct Stopped {
    /// The first page that is still claimed.
    pub at: PageNo,
    /// What the kernel said of that page. `AGAIN`: an event waits to be read.
    pub why: Errno,
}

/// What the kernel says of COPY and ZEROPAGE where the pages lie in two mappings (of one registered range): one call does one.
pub(crate) const TWO_MAPPINGS: Option<Errno> = Some(Errno::NOENT);

/// The kernel says that a page is there, and its page map does not: to be tried again. (COPY never answers so, and what MOVE does not
/// move may be copied.)
pub(crate) const IN_DOUBT: Errno = Errno::BUSY;

/// Installs the `pages` claimed ones from `first` on. `call` does one call for as many pages as it is told, from the one that
/// it is told; `came` hears of each page once, in order, but for those from [`Stopped::at`] on.
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
            // Done in part: the true reason comes when the rest is tried again.
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
    /// What a COPY or MOVE to `at` has done, as far as the page map bears that out: a word goes only when its page is there. `EXIST`
    /// is no proof. The kernel also answers so where a huge page was this moment (`mfill_atomic`). `reach`: the caller's.
    pub(crate) fn borne_out(&self, at: PageNo, reach: Reach, progress: Progress) -> Progress {
        let is_there = |page: PageNo| self.can_look_within(reach) && self.present().holds_page(page.addr());
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
    /// Copies a page to its place that can't be moved there from its frame: the frame is shared with a forked child, or the
    /// place may not be written just now, or the kernel has dropped the page from the frame. What is behind the frame then.
    /// The page's word says Moving.
    ///
    /// # Errors
    /// Those of COPY; `EXIST`: a page is there already.
    pub(crate) fn copy_from_frame(&self, page: PageNo, frame: StagingFrame, wake: Wake) -> Result<Memory, Errno> {
        // A frame keeps its bytes until its batch is emptied.
        let (source, memory) = match self.is_in_frame(frame) {
            true => (self.staging.addr(frame) as *const u8, Memory::Stays),
            false => (self.zeros.as_ptr().cast_const(), Memory::Went),
        };
        // SAFETY: the word says Moving, so nobody else touches the frame; the page is there, or zeros stand for it.
        let progress = unsafe { self.uffd().copy(page.addr(), source, PAGE_SIZE, wake) };
        self.borne_out(page, Reach::Everything, progress).error.map_or(Ok(memory), Err)
    }
}

/// Whether a MOVE failed because the page can't be moved while its bytes may be copied.
pub(crate) fn may_be_copied(why: Errno) -> bool {
    matches!(why, Errno::BUSY | Errno::INVAL | Errno::NOENT)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    /// A kernel that has two mappings, which meet at page 104, and a page at 102.
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
