//! A page in the store: loaded with neighbours, by the stream of faults, and installed by COPY.

use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use lowtide_core::slot::Entry;
use lowtide_core::store::{Loaded, StoreError};
use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::Line;
use lowtide_sys::uffd::Wake;
use lowtide_wire::segment::{FaultKind, add};
use rustix::io::Errno;

use super::{Again, Served, Try};
use crate::pagemap::ids::PageNo;
use crate::pagemap::{Claimant, PageState};
use crate::pager::Pager;
use crate::pages::Operation;
use crate::pages::install::{Installed, Stopped, TWO_MAPPINGS, install_run};
use crate::pages::worker::{CHUNK, Worker};

/// Raw entries of consecutive claimed pages; 0: a zero page.
type Claimed = ArrayVec<u64, CHUNK>;

struct Chunk {
    served: Try,
    end: PageNo,
}

struct Bytes {
    from_device: bool,
    missing: u64,
    /// Why the first page, for which a thread waits, is missing.
    lost: Option<(Entry, StoreError)>,
}

struct Batch<'a> {
    first: PageNo,
    claimed: &'a [u64],
    bytes: &'a Bytes,
    /// Where the first page was, for which a thread waits.
    missed: Option<FaultKind>,
}

impl Bytes {
    fn kind(&self) -> FaultKind {
        if self.from_device { FaultKind::Device } else { FaultKind::Pool }
    }
}

impl Operation<'_> {
    pub(super) fn page_in(&self, page: PageNo, worker: &mut Worker) -> Try {
        let (window, (first, end)) = {
            let lock = self.pages.space.shared();
            let mut window = self.faults.loads.window(page);
            if self.accounts.budget.is_coming_down() {
                window.pages = window.pages.min(CHUNK / 4);
            } else if self.accounts.budget.at_limit() {
                window.pages = window.pages.min(CHUNK);
            }
            (window, self.clip(&lock, page, window))
        };
        if end - first > CHUNK && worker.keeps_others() {
            self.is_about_to_wait(worker);
        }
        let chunk = self.load_chunk(page, end.min(page + CHUNK), true, worker);
        if chunk.served != Ok(Served::Done) {
            return chunk.served;
        }
        let (mut low, mut high) = (page, chunk.end);
        let mut whole = true;
        while whole && high < end && !self.accounts.budget.at_limit() {
            let next = (high + CHUNK).min(end);
            let chunk = self.load_chunk(high, next, false, worker);
            high = chunk.end;
            whole = chunk.served == Ok(Served::Done) && high == next;
        }
        while low > first && !self.accounts.budget.at_limit() {
            let next = low.back(CHUNK).max(first);
            let chunk = self.load_chunk(next, low, false, worker);
            if chunk.served != Ok(Served::Done) || chunk.end < low {
                break;
            }
            low = next;
        }
        self.faults.loads.advance(window, low, high);
        add(&self.counters().read_ahead_used, window.used);
        Ok(Served::Done)
    }

    /// Loads and installs swapped and zero pages from `first`, to `end`, to another page, or while
    /// there is room.
    fn load_chunk(&self, first: PageNo, end: PageNo, wanted: bool, worker: &mut Worker) -> Chunk {
        // Until the pages are there, and counted.
        let reserved = self.accounts.budget.reserve(end - first);
        // Pages that nobody waits for come whole or not at all.
        let pages = if wanted || first + reserved.pages == end { reserved.pages } else { 0 };
        let claimed = self.claim_in(first, first + pages, worker.claimant);
        let n = claimed.len();
        if n == 0 {
            return Chunk { served: if wanted { Err(Again::Changed) } else { Ok(Served::Done) }, end: first };
        }
        let bytes = self.load_claimed(first, &claimed, wanted, worker);
        let missed = wanted.then(|| bytes.kind());
        let loaded = Batch { first, claimed: &claimed, bytes: &bytes, missed };
        let (installed, stopped) = self.install_chunk(&loaded, worker);
        let c = self.counters();
        add(&c.pages_in, installed);
        add(&c.pages_loaded, claimed.iter().take(installed).filter(|raw| **raw != 0).count());
        add(&c.read_ahead_pages, installed.saturating_sub(usize::from(wanted)));
        if wanted {
            self.count(bytes.kind(), worker);
        }
        if let Some((entry, why)) = bytes.lost {
            return Chunk { served: Err(Again::Lost(entry, why)), end: first };
        }
        match stopped {
            Some(Stopped { at, why }) if wanted && at == first => Chunk { served: self.failed(first, why), end: first },
            Some(Stopped { at, .. }) => Chunk { served: Ok(Served::Done), end: at },
            None => Chunk { served: Ok(Served::Done), end: first + n },
        }
    }

    /// Installs loaded pages that are still wanted; returns how many, and why it stopped. (Over 70
    /// lines: an arm for each answer of the kernel.)
    fn install_chunk(&self, loaded: &Batch<'_>, worker: &mut Worker) -> (usize, Option<Stopped>) {
        let &Batch { first, claimed, bytes, missed } = loaded;
        let (n, by) = (claimed.len(), worker.claimant);
        let mut freed: Claimed = ArrayVec::new();
        let (mut installed, mut stopped) = (0, None);
        let lock = self.pages.space.shared();
        let mut i = 0;
        while i < n {
            let p = first + i;
            if self.pages.map.get(p) != PageState::Loading(claimed[i], by) {
                // It was dropped (clean up), or moved with its word, or another page moved here
                // after the drop (and cleaned up).
                if self.pages.map.swap(p, PageState::Orphan(claimed[i], by), PageState::None) {
                    freed.push(claimed[i]);
                    self.pages.zero_now.fetch_sub(u64::from(claimed[i] == 0), Ordering::Relaxed);
                }
                self.uffd().wake(p.addr(), PAGE_SIZE);
                i += 1;
                continue;
            }
            if bytes.missing & 1 << i != 0 {
                self.unload(p, &claimed[i..=i]);
                i += 1;
                continue;
            }
            // The thread faults again and clears the word.
            if self.mappings.going.has(p) {
                self.unload(p, &claimed[i..=i]);
                self.uffd().wake(p.addr(), PAGE_SIZE);
                i += 1;
                continue;
            }
            let here = |&j: &usize| {
                let is_claimed = self.pages.map.get(first + j) == PageState::Loading(claimed[j], by);
                is_claimed && bytes.missing & 1 << j == 0 && !self.mappings.going.has(first + j)
            };
            let run = (i..n).take_while(here).count();
            let mut at = i;
            if stopped.is_none() {
                let rights = worker.rights();
                let (buffer, waiters) = worker.buffer_and_waiters();
                let call = |at: PageNo, n: usize| {
                    let source = buffer[at - first].as_ptr();
                    // SAFETY: the buffer holds the evicted bytes, and the words say that they are
                    // current.
                    let progress = unsafe { self.uffd().copy(at.addr(), source, n * PAGE_SIZE, Wake::Later) };
                    self.borne_out(at, rights, progress)
                };
                stopped = install_run(p, run, TWO_MAPPINGS, call, |came| {
                    let (page, pages) = match came {
                        Installed::Pages(page, pages) => {
                            waiters.installed(page, page + pages);
                            installed += pages;
                            self.arrived(pages);
                            (page, pages)
                        }
                        Installed::WasThere(page) => (page, 1),
                    };
                    let from = page - first;
                    at = from + pages;
                    freed
                        .extend((from..at).filter_map(|j| self.loaded(first + j, (claimed[j], by), missed.filter(|_| j == 0))));
                    // Stale: the page in memory is newer.
                    if let Installed::WasThere(page) = came {
                        self.uffd().wake(page.addr(), PAGE_SIZE);
                    }
                })
                .err();
            }
            if at < i + run {
                self.unload(first + at, &claimed[at..i + run]);
            }
            i += run;
        }
        drop(lock);
        self.store().free_all(freed.into_iter().filter_map(Entry::from_raw));
        (installed, stopped)
    }

    fn claim_in(&self, first: PageNo, end: PageNo, by: Claimant) -> Claimed {
        let mut claimed = Claimed::new();
        for page in first.up_to(end).take(CHUNK) {
            let word = self.pages.map.get(page);
            let raw = match word {
                PageState::Swapped(e) => e,
                PageState::Zero => 0,
                _ => break,
            };
            if !self.pages.map.swap(page, word, PageState::Loading(raw, by)) {
                break;
            }
            claimed.push(raw);
        }
        claimed
    }

    /// Loads claimed pages into the worker's buffer. If the wanted one can't be loaded, `lost`
    /// tells: it must never read as other bytes.
    fn load_claimed(&self, first: PageNo, claimed: &[u64], wanted: bool, worker: &mut Worker) -> Bytes {
        let mut bytes = Bytes { from_device: false, missing: 0, lost: None };
        let mut i = 0;
        while i < claimed.len() {
            if claimed[i] == 0 {
                worker.parts(i + 1).0[i].fill(0);
                i += 1;
                continue;
            }
            let entries: ArrayVec<Entry, CHUNK> = claimed[i..].iter().map_while(|raw| Entry::from_raw(*raw)).collect();
            let n = entries.len();
            if n == 0 {
                (self.host.fatal)(b"internal error: a page map word holds no valid swap entry");
            }
            if entries.iter().any(|e| self.store().is_on_device(*e)) {
                self.is_about_to_wait(worker);
            }
            let (buffer, scratch) = worker.parts(i + n);
            let mut results = [const { Err(StoreError::BadEntry) }; CHUNK];
            self.store().load_run(&entries, &mut buffer[i..i + n], &mut results[..n], scratch);
            for (j, result) in results[..n].iter().enumerate() {
                let page = first + i + j;
                match result {
                    Ok(Loaded::Device) if i + j == 0 => bytes.from_device = true,
                    Ok(_) => {}
                    Err(_) if self.pages.map.get(page) != PageState::Loading(claimed[i + j], worker.claimant) => {
                        bytes.missing |= 1 << (i + j)
                    }
                    Err(e) if wanted && page == first => {
                        bytes.lost = Some((entries[j], *e));
                        bytes.missing |= 1;
                    }
                    Err(_) => bytes.missing |= 1 << (i + j),
                }
            }
            i += n;
        }
        bytes
    }

    /// A claimed page is in memory: clears its word, and its copy in the store unless that is kept.
    /// Returns the raw entry to free.
    pub(crate) fn loaded(&self, page: PageNo, (raw, by): (u64, Claimant), missed: Option<FaultKind>) -> Option<u64> {
        let kept = Entry::from_raw(raw).filter(|e| self.store().keep_cached(*e));
        let word = kept.map_or(PageState::None, |e| PageState::Clean(e.raw()));
        // Compare-and-swap: after an mremap there and back, two handlers may have claimed the
        // entry; one frees it.
        if !self.pages.map.swap(page, PageState::Loading(raw, by), word) {
            self.forget(&mut self.store().freer(), word);
            return None;
        }
        self.mark_loaded(page, missed);
        if raw == 0 {
            self.pages.zero_now.fetch_sub(1, Ordering::Relaxed);
        }
        (kept.is_none() && raw != 0).then_some(raw)
    }

    fn unload(&self, first: PageNo, claimed: &[u64]) {
        for (i, &raw) in claimed.iter().enumerate() {
            self.pages.map.set(first + i, if raw == 0 { PageState::Zero } else { PageState::Swapped(raw) });
        }
    }
}

impl Pager {
    /// Ends the run: the bytes of a page are lost.
    pub(crate) fn lose(&self, page: PageNo, entry: Entry, error: StoreError) -> ! {
        let mut text = Line::new();
        self.why_lost(&mut text, page, entry, error);
        (self.host.fatal)(text.bytes())
    }

    pub(super) fn why_lost(&self, text: &mut Line, page: PageNo, entry: Entry, error: StoreError) {
        text.push(b"a page of the program could not be read back: ");
        let device = self.device_of(entry);
        let is_server = device.is_server();
        let offset = match error {
            StoreError::Io { errno, offset } => {
                match errno {
                    Errno::NODATA if is_server => text.push(b"the server has lost it"),
                    Errno::TIMEDOUT if is_server => text.push(b"the server did not answer in time"),
                    _ => text.push(b"error ").number(errno.raw_os_error() as u64),
                };
                offset
            }
            StoreError::Corrupt { offset, .. } => {
                text.push(b"something else than was written there");
                offset
            }
            _ => {
                text.push(b"no such entry (internal error), page ").number(page.raw());
                return;
            }
        };
        match device.kind {
            // The compressed pool: its memory was overwritten.
            "" => text.push(b" in RAM, slot ").number(entry.offset()),
            kind => text.push(b" at offset ").number(offset).push(b" of ").push(kind.as_bytes()).path(device.path),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mappings::events::tests::{mapping, pager, swap_out};
    use crate::pages::worker::Rights;
    use lowtide_sys::uffd::Message;

    /// Meanwhile the page moves away and back, is loaded by another thread, written, and evicted
    /// into the same slot.
    #[test]
    fn a_claim_that_an_mremap_has_undone_is_not_taken_for_the_next() {
        let Some(pager) = pager() else { return };
        let (from, to) = (mapping(4), mapping(4));
        swap_out(&pager, from, 1, 100);
        let page = PageNo::of(from);
        let (mut late, soon) = (Worker::new(Rights::All).unwrap(), Worker::new(Rights::All).unwrap());
        let operation = pager.enter().unwrap();
        let claimed = operation.claim_in(page, page + 1, late.claimant);
        assert_eq!(claimed[..], [100]);
        {
            let lock = pager.pages.space.exclusive();
            pager.happened(&lock, Message::Remap { from, to, len: PAGE_SIZE });
            pager.happened(&lock, Message::Remap { from: to, to: from, len: PAGE_SIZE });
        }
        assert_eq!(pager.pages.map.get(page), PageState::Swapped(100), "it is back, and nobody's");
        assert_eq!(operation.claim_in(page, page + 1, soon.claimant)[..], [100]);
        let bytes = Bytes { from_device: false, missing: 0, lost: None };
        let loaded = Batch { first: page, claimed: &claimed, bytes: &bytes, missed: None };
        let (installed, stopped) = operation.install_chunk(&loaded, &mut late);
        assert!(installed == 0 && stopped.is_none());
        assert_eq!(pager.pages.map.get(page), PageState::Loading(100, soon.claimant), "the other's claim stands");
    }
}
