//! A page that reads as zero: its first touch, or one that was all zero when it was evicted. Zeros are installed by COPY, for
//! untouched neighbours too, but for what is read again and again (`zero_page.rs`).

use core::sync::atomic::Ordering;

use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;

use super::install::{Installed, TWO_MAPPINGS, install_run};
use super::{Again, Served, Try};
use crate::fault::stream::MAX_WINDOW;
use crate::fault::worker::{CHUNK, Worker};
use crate::pagemap::ids::PageNo;
use crate::pagemap::{Claimant, PageState};
use crate::pager::{Operation, Pager, add};
use crate::segment::FaultKind;
use crate::sys::uffd::{Access, Wake};

impl Operation<'_> {
    /// Installs zeros at `page`, whose word was `word`, and around it. Each page is claimed first: a page that came in and was
    /// evicted again since its word was read must not be covered by zeros.
    pub(super) fn touch(&self, page: PageNo, word: PageState, access: Access, worker: &mut Worker) -> Try {
        if self.map.populate(page).is_err() {
            return self.touch_without_word(page, worker);
        }
        let lock = self.space.shared();
        let streams = if word == PageState::Zero { &self.loads } else { &self.touches };
        let is_mapped = word == PageState::Zero && self.zero_page.is_for(access);
        let mut window = (!is_mapped).then(|| streams.window(page));
        if let Some(window) = window.as_mut().filter(|_| self.budget.is_near_limit()) {
            window.pages = window.pages.min(CHUNK);
        }
        // Until the pages are there, and counted.
        let reserved = window.map(|window| self.budget.reserve(window.pages));
        if let (Some(window), Some(reserved)) = (&mut window, &reserved) {
            window.pages = reserved.pages;
        }
        let (low, high) = match window {
            None => self.zeros_around(&lock, page),
            Some(window) => self.clip(&lock, page, window),
        };
        // A single page needs no look where there are no guards.
        if !is_mapped && (high - low > 1 || self.guards.any()) && !self.can_look(worker) {
            return Ok(Served::Elsewhere);
        }
        let guards = self.guards.begin_look();
        // ZEROPAGE stops at guards.
        let between = if is_mapped { Ok(Some((low, high))) } else { self.between_markers(page, low, high) };
        let between = between.map_err(Again::NoMemory)?;
        let Some((low, high)) = between else {
            // A guard came since: its thread finds that out by itself.
            self.uffd().wake(page.addr(), PAGE_SIZE);
            return Ok(Served::Done);
        };
        let Some((claims, first, end)) = Claims::around(self, page, low, high) else { return Err(Again::Changed) };
        let mut installed = 0;
        let call = |at: PageNo, n| match is_mapped {
            true => self.map_zero_page(at, n),
            // SAFETY: pages with these words read as zero while they are missing, and they are claimed; `zeros` is never
            // written.
            false => unsafe { self.uffd().copy(at.addr(), self.zeros.as_ptr(), n * PAGE_SIZE, Wake::Later) },
        };
        let result = install_run(first, end - first, TWO_MAPPINGS, call, |came| match came {
            Installed::Pages(at, n) => {
                worker.installed(at, at + n);
                for p in at.up_to(at + n) {
                    let was_zero = claims.done(self, low, p);
                    // Of places that the zero page is mapped in, only the one that was asked for counts as brought in.
                    add(&self.counters().pages_in, usize::from(was_zero && (!is_mapped || p == page)));
                }
                installed += n;
            }
            // In memory already: nothing to do but to let go.
            Installed::WasThere(at) => {
                claims.undo(self, low, at);
                self.uffd().wake(at.addr(), PAGE_SIZE);
            }
        });
        self.guards.end_look(guards);
        let at = result.as_ref().map_or_else(|stopped| stopped.at, |()| end);
        for p in at.up_to(end) {
            claims.undo(self, low, p);
        }
        if !is_mapped {
            self.arrived(installed);
        }
        // Whoever waits for another page that was claimed here has a monitor that looks at it again and again: nobody is woken,
        // because a thread that is woken for nothing faults again, and the kernel reports faults before it reports events.
        if let Err(stopped) = result.as_ref()
            && at <= page
        {
            return self.failed(page, stopped.why);
        }
        self.count(if word == PageState::Zero { FaultKind::Zero } else { FaultKind::FirstTouch }, worker);
        if let Some(window) = window {
            add(&self.counters().read_ahead_pages, installed.saturating_sub(1));
            add(&self.counters().read_ahead_used, window.used);
            streams.advance(window, first, at);
        }
        Ok(Served::Done)
    }

    /// The part of `low .. high` around `page` in which there are no guards: a COPY would put pages in their place. (Linux
    /// 6.18; ZEROPAGE and MOVE would not.) None: there is one where the page is missing.
    ///
    /// # Errors
    /// Those of the scan: then there may be guards anywhere.
    fn between_markers(&self, page: PageNo, low: PageNo, high: PageNo) -> Result<Option<(PageNo, PageNo)>, Errno> {
        let is_one = high - low == 1;
        if is_one && !self.guards.any() {
            return Ok(Some((low, high)));
        }
        let markers = self.present().scan_markers(low.addr(), high.addr())?;
        let seen = if is_one { high } else { high.min(PageNo::of(markers.walk_end)) };
        if seen <= page {
            // There were more of them than one scan tells.
            return self.between_markers(page, page, page + 1);
        }
        let gap = markers.gap(page.addr(), (low.addr(), seen.addr()));
        Ok(gap.map(|(low, high)| (PageNo::of(low), PageNo::of(high))))
    }

    /// There is no memory for the word of a page, so it was never out. Alone, so that nobody gives it one and evicts it
    /// meanwhile.
    #[cold]
    fn touch_without_word(&self, page: PageNo, worker: &mut Worker) -> Try {
        let _lock = self.space.exclusive();
        if self.map.slot(page).is_some() {
            return Err(Again::Changed);
        }
        // SAFETY: a page without a word reads as zero while it is missing.
        let p = unsafe { self.uffd().copy(page.addr(), self.zeros.as_ptr(), PAGE_SIZE, Wake::Now) };
        match p.error {
            None => self.arrived(1),
            Some(Errno::EXIST) => self.uffd().wake(page.addr(), PAGE_SIZE),
            Some(e) => return self.failed(page, e),
        }
        self.count(FaultKind::FirstTouch, worker);
        Ok(Served::Done)
    }
}

/// Pages claimed for zeros, and what their words were.
#[derive(Default)]
struct Claims {
    zero: [u64; MAX_WINDOW / 64],
    removing: [u64; MAX_WINDOW / 64],
}

impl Claims {
    /// Claims `page` and, up to `low` and `high`, its neighbours that read as zero too; the first that is claimed, and the
    /// first behind the last. None: `page` does not read as zero any more.
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

    /// Claims page `p` (of a window that begins at `low`) if it reads as zero, and has or can have a word.
    fn claim(&mut self, pager: &Pager, low: PageNo, p: PageNo) -> bool {
        let word = pager.map.get(p);
        if !matches!(word, PageState::None | PageState::Removing(_) | PageState::Zero)
            || pager.map.claim(p, word, PageState::Loading(0, Claimant::ONE_HOLD)) != Ok(true)
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

    /// Page `p` is in memory; whether it had left as zeros. (One that was about to be removed was missing, so its removal is
    /// proven.)
    fn done(&self, pager: &Pager, low: PageNo, p: PageNo) -> bool {
        pager.map.set(p, PageState::None);
        pager.mark_loaded(p, None);
        let was_zero = self.zero[(p - low) / 64] & 1 << ((p - low) % 64) != 0;
        pager.zero_now.fetch_sub(u64::from(was_zero), Ordering::Relaxed);
        was_zero
    }

    /// Page `p` was not installed.
    fn undo(&self, pager: &Pager, low: PageNo, p: PageNo) {
        let (i, bit) = ((p - low) / 64, 1 << ((p - low) % 64));
        let word = match (self.zero[i] & bit != 0, self.removing[i] & bit != 0) {
            (true, _) => PageState::Zero,
            // For the same calls, and more of them.
            (_, true) => pager.removing(),
            _ => PageState::None,
        };
        pager.map.set(p, word);
    }
}
