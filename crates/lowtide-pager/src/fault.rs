//! A page comes in: what a monitor does with one fault.
//!
//! While the program forks (the pager is paused) a page is served by copying and nothing is changed, so that the child's copy of
//! all tables is consistent. That leaves pages that are in memory and still have a word: the word is stale, and is forgotten
//! when the page is evicted or dropped.

use core::sync::atomic::Ordering;

use lowtide_core::slot::Entry;
use lowtide_core::store::{Loaded, StoreError};
use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;

use crate::pagemap::Word;
use crate::pager::{BATCH, Pager, Worker, add};
use crate::space::Shared;
use crate::staging::Memory;
use crate::stream::{MAX_WINDOW, Window};

/// Pages that one fault takes back from staging at most.
const MAX_UNSTAGED: usize = 64;

/// What became of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// The thread that waited runs on.
    Done,
    /// An event waits to be read: read it, then serve this fault again.
    EventsFirst,
}

impl Pager {
    /// Serves a fault at `addr`. Called by monitors without any lock held; never waits for another fault or for an event.
    pub fn serve(&self, addr: usize, worker: &mut Worker) -> Served {
        let page = addr / PAGE_SIZE;
        let mut spins = 0u32;
        add(&self.counters().faults_total, 1);
        loop {
            let operation = self.enter();
            if operation.is_none() {
                return self.serve_paused(page, worker);
            }
            let served = match self.map.get(page) {
                word @ (Word::None | Word::Removing | Word::Zero) => self.touch(page, word),
                Word::Staged(frame) => self.unstage(page, frame),
                Word::Swapped(_) => self.page_in(page, worker),
                word @ Word::Clean(_) => {
                    // Missing although it was never evicted: the program dropped it, which its event says or will say.
                    if self.map.swap(page, word, Word::None) {
                        self.forget(word);
                    }
                    None
                }
                Word::Storing(frame) => self.copy_back(page, frame),
                // Another monitor is bringing it in and wakes all who wait for it; it may have been done when it looked, hence
                // once more from here.
                Word::Loading(_) | Word::Moving(_) | Word::Orphan => None,
            };
            if let Some(served) = served {
                self.publish_own();
                return served;
            }
            drop(operation);
            spins += 1;
            if spins < 20 {
                core::hint::spin_loop();
            } else {
                rustix::thread::sched_yield();
            }
        }
    }

    /// First touch of a page, or a page that was zero: zeros, for its untouched neighbours too. Each page is claimed first: a page
    /// that came in and was evicted again since its word was read must not be covered by zeros.
    fn touch(&self, page: usize, word: Word) -> Option<Served> {
        let lock = self.space.shared();
        let streams = if word == Word::Zero { &self.loads } else { &self.touches };
        let mut window = streams.window(page);
        if self.budget.above_high() {
            window.pages = window.pages.min(BATCH);
        }
        let (low, high) = self.clip(&lock, page, window);
        if self.map.populate(page).is_err() || self.map.populate(low).is_err() || self.map.populate(high - 1).is_err() {
            return None; // no memory now: try again
        }
        let mut claims = Claims::default();
        let mut end = page;
        while end < high && claims.claim(self, low, end) {
            end += 1;
        }
        if end == page {
            return None; // changed hands meanwhile
        }
        let mut first = page;
        while first > low && claims.claim(self, low, first - 1) {
            first -= 1;
        }
        let (mut at, mut installed, mut error) = (first, 0, None);
        let mut most = MAX_WINDOW;
        while at < end && error.is_none() {
            let n = (end - at).min(most);
            // SAFETY: pages with these words read as zero while they are missing, and they are claimed; `zeros` is never written.
            let p = unsafe { self.uffd().copy(at * PAGE_SIZE, self.zeros.as_ptr(), n * PAGE_SIZE) };
            let done = p.done / PAGE_SIZE;
            for p in at..at + done {
                claims.done(self, low, p);
            }
            at += done;
            installed += done;
            match p.error {
                None => {}
                Some(Errno::AGAIN) if done > 0 => {}
                Some(Errno::EXIST) => {
                    // In memory already: nothing to do but to let go.
                    claims.undo(self, low, at);
                    self.uffd().wake(at * PAGE_SIZE, PAGE_SIZE);
                    at += 1;
                }
                // The pages lie in two mappings (of one adopted range): one call does one mapping.
                Some(Errno::NOENT) if n > 1 => most = n / 2,
                Some(e) => error = Some(e),
            }
        }
        for p in at..end {
            claims.undo(self, low, p);
        }
        self.budget.add_pages(installed as isize);
        // Whoever waits for another page that was claimed here has a monitor that looks at it again and again: nobody is woken,
        // because a thread that is woken for nothing faults again, and the kernel reports faults before it reports events.
        if let Some(e) = error.filter(|_| at <= page) {
            return self.failed(page, e);
        }
        let c = self.counters();
        add(if word == Word::Zero { &c.faults_zero } else { &c.faults_first_touch }, 1);
        add(&c.read_ahead_pages, installed.saturating_sub(1));
        streams.advance(page, first, at);
        Some(Served::Done)
    }

    /// Marks the block of a page as young: the clock hand passes it by in this round.
    fn stamp(&self, page: usize) {
        if let Some(age) = self.map.age(page) {
            age.store(self.round.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// The page is in staging: take it back, and with it, as far as the stream of faults suggests, the pages behind it that were
    /// detached together.
    fn unstage(&self, page: usize, frame: u32) -> Option<Served> {
        let _lock = self.space.shared();
        let window = self.loads.window(page).pages.min(MAX_UNSTAGED);
        let mut n = 0;
        while n < window
            && self.staging.same_segment(frame, frame + n as u32)
            && self.map.swap(page + n, Word::Staged(frame + n as u32), Word::Moving(frame + n as u32))
        {
            n += 1;
        }
        if n == 0 {
            return None;
        }
        for i in 0..n {
            if self.staging.owner(frame + i as u32).load(Ordering::Acquire) != (page + i) as u64 {
                self.broken(b"a staged page does not own its frame", page + i, frame + i as u32);
            }
        }
        let mut error = None;
        let mut done = 0;
        while done < n && error.is_none() {
            let (at, from) = (page + done, frame + done as u32);
            // SAFETY: the words say Moving, so nobody else touches the pages or the frames.
            let p = unsafe { self.uffd().move_pages(at * PAGE_SIZE, self.staging.addr(from), (n - done) * PAGE_SIZE) };
            let moved = p.done / PAGE_SIZE;
            for i in done..done + moved {
                self.finish_unstage(page + i, frame + i as u32, Memory::Went);
            }
            done += moved;
            match p.error {
                None => {}
                Some(Errno::AGAIN) if moved > 0 => {}
                // The frame is shared with a forked child, or the place may not be written just now: copy instead of moving.
                Some(Errno::BUSY | Errno::INVAL) => {
                    let (at, from) = (page + done, frame + done as u32);
                    // SAFETY: a frame whose word says Moving and that was staged before is populated.
                    let p = unsafe { self.uffd().copy(at * PAGE_SIZE, self.staging.addr(from) as *const u8, PAGE_SIZE) };
                    match p.error {
                        None => {
                            // The frame keeps its bytes until its segment is emptied; until then it is counted twice.
                            self.budget.add_pages(1);
                            self.finish_unstage(at, from, Memory::Stays);
                            done += 1;
                        }
                        Some(Errno::EXIST) => {
                            self.stale_in_staging(at, from);
                            done += 1;
                        }
                        Some(e) => error = Some(e),
                    }
                }
                Some(Errno::EXIST) => {
                    self.stale_in_staging(page + done, frame + done as u32);
                    done += 1;
                }
                Some(e) => error = Some(e),
            }
        }
        for i in done..n {
            self.map.set(page + i, Word::Staged(frame + i as u32));
        }
        match error {
            Some(e) if done == 0 => self.failed(page, e),
            _ => {
                self.loads.advance(page, page, page + done);
                add(&self.counters().faults_staged, 1);
                add(&self.counters().pages_in, done);
                Some(Served::Done)
            }
        }
    }

    /// The page is being stored, which may take as long as a write to a disk: a copy of the bytes in the frame, which nobody changes
    /// and which stay until the drainer has seen that this is done.
    fn copy_back(&self, page: usize, frame: u32) -> Option<Served> {
        let _lock = self.space.shared();
        if !self.map.swap(page, Word::Storing(frame), Word::Moving(frame)) {
            return None;
        }
        // SAFETY: a frame that is being stored is populated.
        let p = unsafe { self.uffd().copy(page * PAGE_SIZE, self.staging.addr(frame) as *const u8, PAGE_SIZE) };
        match p.error {
            None => self.budget.add_pages(1),
            // What is in memory is newer.
            Some(Errno::EXIST) => self.uffd().wake(page * PAGE_SIZE, PAGE_SIZE),
            Some(e) => {
                self.map.set(page, Word::Storing(frame));
                return self.failed(page, e);
            }
        }
        self.staging.left(frame, Memory::Stays);
        self.map.set(page, Word::None);
        self.stamp(page);
        add(&self.counters().faults_staged, 1);
        add(&self.counters().pages_in, 1);
        Some(Served::Done)
    }

    fn finish_unstage(&self, page: usize, frame: u32, memory: Memory) {
        let word = self.staging_to_place(frame);
        self.staging.left(frame, memory);
        self.map.set(page, word);
        self.stamp(page);
    }

    /// The page is in memory although its word said that it is staged: what is in memory is newer.
    fn stale_in_staging(&self, page: usize, frame: u32) {
        self.leave(frame, Memory::Stays);
        self.map.set(page, Word::None);
        self.uffd().wake(page * PAGE_SIZE, PAGE_SIZE);
    }

    /// The page is in the store: load it and its neighbours, as far as the stream of faults suggests.
    fn page_in(&self, page: usize, worker: &mut Worker) -> Option<Served> {
        let (first, end) = {
            let lock = self.space.shared();
            let mut window = self.loads.window(page);
            if self.budget.at_limit() {
                window.pages = window.pages.min(BATCH);
            }
            self.clip(&lock, page, window)
        };
        // The faulting page's batch first; then the rest of the window, while it goes well.
        let forward = page..end.min(page + BATCH);
        let (mut low, mut high) = (page, page);
        let served = self.load_batch(forward.start, forward.end, Some(page), worker, &mut high);
        if served != Some(Served::Done) {
            return served;
        }
        let mut at = high;
        while at < end && at == high {
            let next = (at + BATCH).min(end);
            if self.load_batch(at, next, None, worker, &mut high) != Some(Served::Done) || high < next {
                break;
            }
            at = high;
        }
        while low > first {
            let next = low.saturating_sub(BATCH).max(first);
            let mut reached = next;
            if self.load_batch(next, low, None, worker, &mut reached) != Some(Served::Done) || reached < low {
                break;
            }
            low = next;
        }
        self.loads.advance(page, low, high);
        Some(Served::Done)
    }

    /// Loads the swapped (and zero) pages from `first` on, up to `end` or the first page that is neither, and installs them.
    /// `reached` is set to the end of what came in. `wanted` is the faulting page (`first`), if it is in this batch.
    fn load_batch(
        &self,
        first: usize,
        end: usize,
        wanted: Option<usize>,
        worker: &mut Worker,
        reached: &mut usize,
    ) -> Option<Served> {
        let mut claimed = [0u64; BATCH];
        let mut n = 0;
        while first + n < end && n < BATCH {
            let (p, word) = (first + n, self.map.get(first + n));
            let raw = match word {
                Word::Swapped(e) => e,
                Word::Zero => 0,
                _ => break,
            };
            if !self.map.swap(p, word, Word::Loading(raw)) {
                break;
            }
            claimed[n] = raw;
            n += 1;
        }
        *reached = first + n;
        if n == 0 {
            return if wanted.is_some() { None } else { Some(Served::Done) };
        }
        let (from_device, missing) = self.load_claimed(first, &claimed[..n], wanted, worker);
        let mut freed = [0u64; BATCH];
        let (mut installed, mut most) = (0, BATCH);
        let mut error = None;
        {
            let _lock = self.space.shared();
            let mut i = 0;
            while i < n {
                let p = first + i;
                if self.map.get(p) != Word::Loading(claimed[i]) {
                    // Dropped (clean up) or moved elsewhere by mremap (the word went along) while it was loaded.
                    if self.map.swap(p, Word::Orphan, Word::None) {
                        freed[i] = claimed[i];
                        self.zero_now.fetch_sub(u64::from(claimed[i] == 0), Ordering::Relaxed);
                    }
                    self.uffd().wake(p * PAGE_SIZE, PAGE_SIZE);
                    i += 1;
                    continue;
                }
                if missing & 1 << i != 0 {
                    self.unload(p, &claimed[i..=i]);
                    i += 1;
                    continue;
                }
                let here = |&j: &usize| missing & 1 << j == 0 && self.map.get(first + j) == Word::Loading(claimed[j]);
                let run = (i..n).take_while(here).count().min(most);
                if error.is_some() {
                    self.unload(first + i, &claimed[i..i + run]);
                    i += run;
                    continue;
                }
                let (buffer, _) = worker.parts();
                // SAFETY: the buffer holds what the pages held when they were evicted, and the words say that this is still so.
                let progress = unsafe { self.uffd().copy(p * PAGE_SIZE, buffer[i].as_ptr(), run * PAGE_SIZE) };
                let done = progress.done / PAGE_SIZE;
                for j in i..i + done {
                    self.loaded(first + j, claimed[j], &mut freed[j]);
                }
                installed += done;
                self.budget.add_pages(done as isize);
                i += done;
                match progress.error {
                    None => {}
                    Some(Errno::AGAIN) if done > 0 => {}
                    Some(Errno::EXIST) => {
                        // Stale: what is in memory is newer.
                        self.loaded(first + i, claimed[i], &mut freed[i]);
                        self.uffd().wake((first + i) * PAGE_SIZE, PAGE_SIZE);
                        i += 1;
                    }
                    // The pages lie in two mappings.
                    Some(Errno::NOENT) if run > 1 => most = run / 2,
                    Some(e) => error = Some((i, e)),
                }
            }
        }
        for raw in freed {
            if let Some(entry) = Entry::from_raw(raw) {
                self.store.free(entry);
            }
        }
        let c = self.counters();
        add(&c.pages_in, installed);
        add(&c.read_ahead_pages, installed.saturating_sub(usize::from(wanted.is_some())));
        if wanted.is_some() {
            add(if from_device { &c.faults_device } else { &c.faults_pool }, 1);
        }
        match error {
            Some((i, e)) if wanted.is_some() && i == 0 => self.failed(first, e),
            Some((i, _)) => {
                *reached = first + i;
                Some(Served::Done)
            }
            None => Some(Served::Done),
        }
    }

    /// Loads claimed pages into the worker's buffer. A page other than the wanted one that can't be loaded is let go; the wanted
    /// one ends the run: it must never read as anything but what was stored. Returns whether the first came from a device, and a bit
    /// for each page that could not be loaded.
    fn load_claimed(&self, first: usize, claimed: &[u64], wanted: Option<usize>, worker: &mut Worker) -> (bool, u64) {
        let (buffer, scratch) = worker.parts();
        let (mut from_device, mut missing) = (false, 0u64);
        let mut i = 0;
        while i < claimed.len() {
            if claimed[i] == 0 {
                buffer[i].fill(0);
                i += 1;
                continue;
            }
            let Some(entry) = Entry::from_raw(claimed[i]) else {
                (self.host.fatal)(b"internal error: a page map word holds no valid swap entry");
            };
            let mut list = [entry; BATCH];
            let mut n = 1;
            while i + n < claimed.len()
                && let Some(entry) = Entry::from_raw(claimed[i + n])
            {
                list[n] = entry;
                n += 1;
            }
            let mut results = [const { Err(StoreError::BadEntry) }; BATCH];
            self.store.load_run(&list[..n], &mut buffer[i..i + n], &mut results[..n], scratch);
            for (j, result) in results[..n].iter().enumerate() {
                let page = first + i + j;
                match result {
                    Ok(Loaded::Device) if i + j == 0 => from_device = true,
                    Ok(_) => {}
                    // Dropped or moved by the program meanwhile: the bytes will not be used.
                    Err(_) if self.map.get(page) != Word::Loading(claimed[i + j]) => missing |= 1 << (i + j),
                    Err(e) if wanted == Some(page) => self.lost(page, list[j], *e),
                    // Not needed now: whoever needs it will be told.
                    Err(_) => missing |= 1 << (i + j),
                }
            }
            i += n;
        }
        (from_device, missing)
    }

    /// A claimed page is in memory: its word and its copy in the store go.
    fn loaded(&self, page: usize, raw: u64, freed: &mut u64) {
        let kept = Entry::from_raw(raw).filter(|e| self.store.keep_cached(*e));
        let word = kept.map_or(Word::None, |e| Word::Clean(e.raw()));
        // By compare-and-swap: after an mremap there and back two monitors may have claimed the same entry; one of them frees it.
        if !self.map.swap(page, Word::Loading(raw), word) {
            self.forget(word);
            return;
        }
        self.stamp(page);
        if kept.is_some() {
            return;
        }
        if raw == 0 {
            self.zero_now.fetch_sub(1, Ordering::Relaxed);
        } else {
            *freed = raw;
        }
    }

    /// Claimed pages were not installed after all.
    fn unload(&self, first: usize, claimed: &[u64]) {
        for (i, &raw) in claimed.iter().enumerate() {
            self.map.set(first + i, if raw == 0 { Word::Zero } else { Word::Swapped(raw) });
        }
    }

    /// Installing a page failed. AGAIN: an event is pending.
    fn failed(&self, page: usize, error: Errno) -> Option<Served> {
        match error {
            Errno::AGAIN => Some(Served::EventsFirst),
            // The mapping is gone (its event may be on the way), or the process is ending: the thread finds out by itself.
            Errno::NOENT | Errno::SRCH | Errno::FAULT | Errno::INVAL => {
                self.uffd().wake(page * PAGE_SIZE, PAGE_SIZE);
                Some(Served::Done)
            }
            // No memory now: try again.
            _ => None,
        }
    }

    /// The bytes of a page can't be had any more.
    fn lost(&self, page: usize, entry: Entry, error: StoreError) -> ! {
        let mut text = crate::line::Line::new();
        text.push(b"a page of the program could not be read back: ");
        let offset = match error {
            StoreError::Io { errno, offset } => {
                text.push(b"error ").number(errno.raw_os_error() as u64);
                offset
            }
            StoreError::Corrupt { offset, .. } => {
                text.push(b"something else than was written there");
                offset
            }
            _ => {
                text.push(b"no such entry (internal error), page ").number(page as u64);
                (self.host.fatal)(text.bytes())
            }
        };
        let device = self.store.device_of(entry);
        match device.kind {
            // The compressed pool: its memory was overwritten.
            "" => text.push(b" in RAM, slot ").number(entry.offset()),
            kind => text.push(b" at offset ").number(offset).push(b" of ").push(kind.as_bytes()).path(device.path),
        };
        (self.host.fatal)(text.bytes())
    }

    /// The window around `page`, cut to the adopted range that holds it (or the page alone).
    fn clip(&self, lock: &Shared<'_>, page: usize, window: Window) -> (usize, usize) {
        let Some(region) = self.regions.find(lock, page * PAGE_SIZE) else {
            self.must_not_be_own(page * PAGE_SIZE);
            return (page, page + 1);
        };
        if window.backwards {
            ((page + 1).saturating_sub(window.pages).max(region.start / PAGE_SIZE), page + 1)
        } else {
            (page, (page + window.pages).min(region.end / PAGE_SIZE))
        }
    }

    /// lowtide must never wait for itself. (A page outside of the adopted ranges is rare, so this costs nothing.)
    ///
    /// An old message may name a page that the program has unmapped since (the thread that waited was woken with a neighbour of
    /// the page that another monitor brought in), and where lowtide has mapped something of its own by now: that is not
    /// registered, and nobody waits there.
    #[cold]
    fn must_not_be_own(&self, addr: usize) {
        lowtide_core::vm::own_ranges(|start, end, _| {
            // SAFETY: where the copy succeeds, a page of lowtide's own was missing, and this process ends.
            let registered = || unsafe { self.uffd().copy(addr, self.zeros.as_ptr(), PAGE_SIZE) }.error != Some(Errno::NOENT);
            if (start..end).contains(&addr) && registered() {
                let mut text = crate::line::Line::new();
                let staging = if self.staging.contains(addr) { &b" (staging)"[..] } else { b"" };
                text.push(b"internal error: a page of lowtide's own was missing, offset ").number((addr - start) as u64);
                text.push(b" of ").number((end - start) as u64).push(staging);
                (self.host.fatal)(text.bytes());
            }
        });
    }

    /// Serves a fault while the program forks: a copy of the page, and no change to any table. Alone: operations that began before may
    /// still be under way, and what a word says holds only while none of them can set it.
    fn serve_paused(&self, page: usize, worker: &mut Worker) -> Served {
        let _lock = self.space.exclusive();
        let progress = self.copy_to(self.uffd(), page, worker);
        match progress {
            Ok(()) => Served::Done,
            Err(Errno::AGAIN) => Served::EventsFirst,
            Err(_) => {
                self.uffd().wake(page * PAGE_SIZE, PAGE_SIZE);
                Served::Done
            }
        }
    }

    /// Copies what belongs at `page` to there, through `uffd` (this process's or a forked child's), changing nothing here.
    pub(crate) fn copy_to(&self, uffd: &crate::uffd::Uffd, page: usize, worker: &mut Worker) -> Result<(), Errno> {
        let source = match self.map.get(page) {
            Word::Staged(frame) | Word::Storing(frame) => self.staging.addr(frame) as *const u8,
            Word::Swapped(raw) | Word::Loading(raw) if raw != 0 => {
                let Some(entry) = Entry::from_raw(raw) else { return Err(Errno::INVAL) };
                let (buffer, scratch) = worker.parts();
                if let Err(e) = self.store.load(entry, &mut buffer[0], scratch) {
                    self.lost(page, entry, e);
                }
                buffer[0].as_ptr()
            }
            _ => self.zeros.as_ptr(),
        };
        // SAFETY: the source is a populated frame, the buffer or the zeros, none of which is ever missing.
        match unsafe { uffd.copy(page * PAGE_SIZE, source, PAGE_SIZE) }.error {
            None => {
                self.budget.add_pages(1);
                Ok(())
            }
            Some(Errno::EXIST) => {
                uffd.wake(page * PAGE_SIZE, PAGE_SIZE);
                Ok(())
            }
            Some(e) => Err(e),
        }
    }
}

/// Pages claimed for zeros, and what their words were.
#[derive(Default)]
struct Claims {
    zero: [u64; MAX_WINDOW / 64],
    removing: [u64; MAX_WINDOW / 64],
}

impl Claims {
    /// Claims page `p` (of a window that begins at `low`) if it reads as zero.
    fn claim(&mut self, pager: &Pager, low: usize, p: usize) -> bool {
        let word = pager.map.get(p);
        if !matches!(word, Word::None | Word::Removing | Word::Zero) || !pager.map.swap(p, word, Word::Loading(0)) {
            return false;
        }
        let (i, bit) = ((p - low) / 64, 1 << ((p - low) % 64));
        match word {
            Word::Zero => self.zero[i] |= bit,
            Word::Removing => self.removing[i] |= bit,
            _ => {}
        }
        true
    }

    /// Page `p` is in memory. (One that was about to be removed was missing, so its removal is proven.)
    fn done(&self, pager: &Pager, low: usize, p: usize) {
        pager.map.set(p, Word::None);
        pager.stamp(p);
        if self.zero[(p - low) / 64] & 1 << ((p - low) % 64) != 0 {
            pager.zero_now.fetch_sub(1, Ordering::Relaxed);
            add(&pager.counters().pages_in, 1);
        }
    }

    /// Page `p` was not installed.
    fn undo(&self, pager: &Pager, low: usize, p: usize) {
        let (i, bit) = ((p - low) / 64, 1 << ((p - low) % 64));
        let word = match (self.zero[i] & bit != 0, self.removing[i] & bit != 0) {
            (true, _) => Word::Zero,
            (_, true) => Word::Removing,
            _ => Word::None,
        };
        pager.map.set(p, word);
    }
}
