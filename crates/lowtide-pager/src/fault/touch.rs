//! A page that reads as zero: zeros come in by COPY, with untouched neighbours; for zeros that are
//! only read see `zero_page.rs`.

use core::sync::atomic::Ordering;

use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::uffd::{Access, Wake};
use lowtide_wire::segment::{FaultKind, add};
use rustix::io::Errno;

use super::{Again, Served, Try};
use crate::fault::stream::MAX_WINDOW;
use crate::pagemap::ids::PageNo;
use crate::pagemap::{Claimant, PageState};
use crate::pager::Pager;
use crate::pages::Operation;
use crate::pages::install::{Installed, TWO_MAPPINGS, install_run};
use crate::pages::worker::{CHUNK, Worker};

/// Why a try ended without the page.
enum Missed {
    Page(Again),
    /// An error of a page before it.
    Neighbour,
}

impl From<Again> for Missed {
    fn from(again: Again) -> Missed {
        Missed::Page(again)
    }
}

impl Operation<'_> {
    pub(super) fn touch(&self, page: PageNo, word: PageState, access: Access, worker: &mut Worker) -> Try {
        if self.pages.map.populate(page).is_err() {
            return self.touch_without_word(page, worker);
        }
        let is_mapped = word == PageState::Zero && self.faults.zero_page.is_for(access);
        for alone in [false, true] {
            match self.touch_around(page, word, is_mapped, alone, worker) {
                Ok(served) => return Ok(served),
                Err(Missed::Page(again)) => return Err(again),
                Err(Missed::Neighbour) => {}
            }
        }
        Err(Again::Changed)
    }

    /// `is_mapped`: the kernel's zero page is. Claims each page first: zeros must not cover a page
    /// that came in and was evicted again since its word was read. (Over 70 lines: steps in order,
    /// under one lock.)
    fn touch_around(
        &self,
        page: PageNo,
        word: PageState,
        is_mapped: bool,
        alone: bool,
        worker: &mut Worker,
    ) -> Result<Served, Missed> {
        let lock = self.pages.space.shared();
        let streams = if word == PageState::Zero { &self.faults.loads } else { &self.faults.touches };
        let mut window = (!is_mapped && !alone).then(|| streams.window(page));
        if let Some(window) = window.as_mut().filter(|_| self.accounts.budget.is_near_limit()) {
            window.pages = window.pages.min(CHUNK);
        }
        // Until the pages are there, and counted.
        let wanted = window.map_or(1, |window| window.pages);
        let reserved = (!is_mapped).then(|| self.accounts.budget.reserve(wanted));
        if let (Some(window), Some(reserved)) = (&mut window, &reserved) {
            window.pages = reserved.pages;
        }
        let (low, high) = match window {
            _ if alone => (page, page + 1),
            None => self.zeros_around(&lock, page),
            Some(window) => self.clip(&lock, page, window),
        };
        // A single page needs no look where there are no guards.
        if !is_mapped && (high - low > 1 || self.mappings.guards.any()) && !self.has_page_map(worker.rights()) {
            return Ok(Served::Elsewhere);
        }
        let guards = self.mappings.guards.begin_look();
        // ZEROPAGE stops at guards.
        let between = if is_mapped { Ok(Some((low, high))) } else { self.between_markers(page, low, high) };
        let between = between.map_err(Again::NoMemory)?;
        let Some((low, high)) = between else {
            self.uffd().wake(page.addr(), PAGE_SIZE);
            return Ok(Served::Done);
        };
        let Some((claims, first, end)) = Claims::around(self, page, low, high) else { return Err(Again::Changed.into()) };
        let mut installed = 0;
        let call = |at: PageNo, n| match is_mapped {
            true => self.map_zero_page(at, n),
            // SAFETY: pages with these words read as zero while they are missing, and they are
            // claimed; `zeros` is never written.
            false => unsafe { self.uffd().copy(at.addr(), self.faults.zeros.as_ptr(), n * PAGE_SIZE, Wake::Later) },
        };
        let result = install_run(first, end - first, TWO_MAPPINGS, call, |came| match came {
            Installed::Pages(at, n) => {
                worker.installed(at, at + n);
                for p in at.up_to(at + n) {
                    let was_zero = claims.done(self, low, p);
                    add(&self.counters().pages_in, usize::from(was_zero && (!is_mapped || p == page)));
                }
                installed += n;
            }
            Installed::WasThere(at) => {
                claims.undo(self, low, at);
                self.uffd().wake(at.addr(), PAGE_SIZE);
            }
        });
        self.mappings.guards.end_look(guards);
        let at = result.as_ref().map_or_else(|stopped| stopped.at, |()| end);
        for p in at.up_to(end) {
            claims.undo(self, low, p);
        }
        if !is_mapped {
            self.arrived(installed);
        }
        // A thread that waits for another page claimed here has a handler that looks at it again:
        // no wake-up. A thread woken for nothing faults again, and the kernel reports faults before
        // events.
        if let Err(stopped) = result.as_ref()
            && at <= page
        {
            return if at < page { Err(Missed::Neighbour) } else { Ok(self.failed(page, stopped.why)?) };
        }
        self.count(if word == PageState::Zero { FaultKind::Zero } else { FaultKind::FirstTouch }, worker);
        if let Some(window) = window {
            add(&self.counters().read_ahead_pages, installed.saturating_sub(1));
            add(&self.counters().read_ahead_used, window.used);
            streams.advance(window, first, at);
        }
        Ok(Served::Done)
    }

    /// The part of `low .. high` around `page` without guards, which COPY would replace (Linux
    /// 6.18; ZEROPAGE and MOVE would not). None: one is at `page`.
    ///
    /// # Errors
    /// Those of the scan: guards may be anywhere.
    fn between_markers(&self, page: PageNo, low: PageNo, high: PageNo) -> Result<Option<(PageNo, PageNo)>, Errno> {
        let is_one = high - low == 1;
        if is_one && !self.mappings.guards.any() {
            return Ok(Some((low, high)));
        }
        let markers = self.present().scan_markers(low.addr(), high.addr())?;
        let seen = if is_one { high } else { high.min(PageNo::of(markers.walk_end)) };
        if seen <= page {
            return self.between_markers(page, page, page + 1);
        }
        let gap = markers.gap(page.addr(), (low.addr(), seen.addr()));
        Ok(gap.map(|(low, high)| (PageNo::of(low), PageNo::of(high))))
    }

    /// No memory for the page's word, so it was never out. With the lock alone: no thread gives it
    /// a word meanwhile.
    #[cold]
    fn touch_without_word(&self, page: PageNo, worker: &mut Worker) -> Try {
        let _lock = self.pages.space.exclusive();
        if self.pages.map.slot(page).is_some() {
            return Err(Again::Changed);
        }
        // SAFETY: a page without a word reads as zero while it is missing.
        let p = unsafe { self.uffd().copy(page.addr(), self.faults.zeros.as_ptr(), PAGE_SIZE, Wake::Now) };
        match p.error {
            None => self.arrived(1),
            Some(Errno::EXIST) => self.uffd().wake(page.addr(), PAGE_SIZE),
            Some(e) => return self.failed(page, e),
        }
        self.count(FaultKind::FirstTouch, worker);
        Ok(Served::Done)
    }
}

#[derive(Default)]
struct Claims {
    zero: [u64; MAX_WINDOW / 64],
    removing: [u64; MAX_WINDOW / 64],
}

impl Claims {
    /// Claims `page` and its neighbours that read as zero; the first, and the end. None: `page`
    /// does not read as zero any more.
    fn around(pager: &Pager, page: PageNo, low: PageNo, high: PageNo) -> Option<(Claims, PageNo, PageNo)> {
        let mut claims = Claims::default();
        let mut end = page;
        while end < high && claims.claim(pager, low, end) {
            end += 1;
        }
        if end == page {
            return None;
        }
        let mut first = page;
        while first > low && claims.claim(pager, low, first.back(1)) {
            first = first.back(1);
        }
        Some((claims, first, end))
    }

    /// Claims `p`, of a window from `low`.
    fn claim(&mut self, pager: &Pager, low: PageNo, p: PageNo) -> bool {
        let word = pager.pages.map.get(p);
        if !matches!(word, PageState::None | PageState::Removing(_) | PageState::Zero)
            || pager.pages.map.claim(p, word, PageState::Loading(0, Claimant::ONE_HOLD)) != Ok(true)
        {
            return false;
        }
        let (i, bit) = ((p - low) / 64, 1 << ((p - low) % 64));
        match word {
            PageState::Zero => self.zero[i] |= bit,
            PageState::Removing(_) => self.removing[i] |= bit,
            _ => {}
        }
        true
    }

    /// True: it had left as zeros. (A removal is proven: the page was missing.)
    fn done(&self, pager: &Pager, low: PageNo, p: PageNo) -> bool {
        pager.pages.map.set(p, PageState::None);
        pager.mark_loaded(p, None);
        let was_zero = self.zero[(p - low) / 64] & 1 << ((p - low) % 64) != 0;
        pager.pages.zero_now.fetch_sub(u64::from(was_zero), Ordering::Relaxed);
        was_zero
    }

    fn undo(&self, pager: &Pager, low: PageNo, p: PageNo) {
        let (i, bit) = ((p - low) / 64, 1 << ((p - low) % 64));
        let word = match (self.zero[i] & bit != 0, self.removing[i] & bit != 0) {
            (true, _) => PageState::Zero,
            // For the same calls, and later ones.
            (_, true) => pager.removing(),
            _ => PageState::None,
        };
        pager.pages.map.set(p, word);
    }
}
