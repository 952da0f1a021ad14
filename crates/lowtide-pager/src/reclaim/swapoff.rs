//! swapoff: moves pages off a swap area, to the pool, another area or memory within the limit, in
//! steps while the program runs.
//!
//! A table maps one window of slots to pages, filled by a pass over the page map. A window takes a
//! small part of the limit, so passes grow with the ratio of swap to limit. Stale entries are
//! harmless: a word changes only if it names the slot. (Permanent back references would cost memory
//! for every page.) The next pass finds pages that moved or were in transit; a pass that finds none
//! ends the area.
//!
//! Pages are not claimed while copied: a fault uses the old copy, and the new one is dropped.

use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use lowtide_core::slot::Entry;
use lowtide_core::store::{Page, StoreError, Stored};
use lowtide_core::table::Table;
use lowtide_core::vm::{self, Mapping, OnFork, PAGE_SIZE};
use lowtide_sys::uffd::Wake;
use rustix::io::Errno;

use crate::pagemap::ids::PageNo;
use crate::pagemap::{Claimant, END, PageState};
use crate::pager::Pager;
use crate::pages::Operation;
use crate::pages::worker::{Rights, Worker};

/// Pages of a step. More would delay faults on the device.
const STEP: usize = 128;
/// The same after a read error.
const FEW: usize = 8;
/// Least slots of a window, and a larger table's part of the limit.
const LEAST_WINDOW: usize = 1 << 15;
const WINDOW_SHARE: usize = 256;
/// Slots searched in one step.
const SLOTS_LOOKED_AT: u64 = 1 << 20;
/// Leaves searched in a step: 256 MiB of evicted pages, half a millisecond.
const LEAVES: usize = 1024;

/// Result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There is more to do.
    More,
    /// Blocked: no room, unreadable pages or pages in transit.
    Stuck,
    /// The area is gone.
    Done,
    /// The program forks.
    Later,
}

/// Obstacles of the latest pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Obstacles {
    /// Pages without room elsewhere.
    pub homeless: u64,
    /// Unreadable pages.
    pub unreadable: u64,
    /// Address of the first unreadable page.
    pub unreadable_at: usize,
}

/// A swapoff in progress. Dropped early, it leaves the area closed: see [`Pager::reopen_area`].
#[derive(Debug)]
pub struct Swapoff {
    number: u8,
    /// [`STEP`] pages.
    pages: Mapping,
    /// By slot, the raw page; 0: none or done.
    owners: Table<u64>,
    window: Option<Window>,
    /// Page to continue the search for owners.
    looked: Option<PageNo>,
    /// Area entry and slot to continue the search for windows.
    next: (u16, u64),
    moved: u64,
    /// No room in this pass: read no more.
    full: bool,
    now: Obstacles,
    latest: Obstacles,
    passes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Window {
    id: u8,
    first: u64,
    /// Slots, and those done.
    len: usize,
    done: usize,
}

type Each<T> = ArrayVec<T, STEP>;

impl Swapoff {
    /// Closes area `number` and starts. `None` during a fork.
    ///
    /// # Errors
    /// `NOMEM`.
    pub fn begin(pager: &Pager, number: u8) -> Result<Option<Swapoff>, Errno> {
        let Some(operation) = pager.enter() else { return Ok(None) };
        let store = operation.store();
        store.close_area(number);
        let areas =
            core::iter::successors(store.next_emptying(number, 0), |area| store.next_emptying(number, u16::from(area.id) + 1));
        let slots = areas.map(|area| area.slots).max().unwrap_or(0) as usize;
        let most = pager.accounts.budget.asked() as usize / WINDOW_SHARE / size_of::<u64>();
        let owners = Table::new(slots.min(most).max(LEAST_WINDOW), OnFork::Copy)?;
        let pages = vm::map(STEP * PAGE_SIZE, OnFork::Copy)?;
        let (now, latest) = (Obstacles::default(), Obstacles::default());
        let (window, looked, next) = (None, None, (0, 0));
        Ok(Some(Swapoff { number, pages, owners, window, looked, next, moved: 0, full: false, now, latest, passes: 0 }))
    }

    /// The area number.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Obstacles of the latest pass.
    pub fn obstacles(&self) -> Obstacles {
        self.latest
    }

    /// Passes begun.
    pub fn passes(&self) -> u64 {
        self.passes
    }

    /// One step, for the reclaimer, which owns the swap files.
    pub fn step(&mut self, pager: &Pager, worker: &mut Worker) -> Step {
        let Some(operation) = pager.enter() else { return Step::Later };
        let Some(mut window) = self.window else {
            let there_is_more = self.next_window(&operation);
            return if there_is_more { Step::More } else { self.end_pass(&operation) };
        };
        if let Some(page) = self.looked {
            self.looked = self.find_owners(&operation, &window, page);
            return Step::More;
        }
        let (mut entries, mut owners) = (Each::<Entry>::new(), Each::<PageNo>::new());
        // Errors force single reads, slow on a failing disk: keep the run short.
        let most = if self.now.unreadable > 0 { FEW } else { STEP };
        let end = window.len.min(window.done + SLOTS_LOOKED_AT as usize);
        while window.done < end && entries.len() < most {
            let owner = PageNo::from_raw(self.owners[window.done]);
            let entry = Entry::new(window.id, window.first + window.done as u64);
            window.done += 1;
            let (Some(entry), Some(owner)) = (entry, owner) else { continue };
            // Writing zero would populate untouched parts of the table.
            self.owners[window.done - 1] = 0;
            if self.full && operation.store().is_on_device(entry) {
                self.now.homeless += 1;
            } else {
                entries.push(entry);
                owners.push(owner);
            }
        }
        self.window = (window.done < window.len).then_some(window);
        if !entries.is_empty() {
            self.move_out(&operation, &entries, &owners, worker);
            operation.publish_own();
        }
        Step::More
    }

    /// Finds a window that begins with a page of this process.
    fn next_window(&mut self, operation: &Operation<'_>) -> bool {
        let store = operation.store();
        let (from, slot) = self.next;
        let Some(area) = store.next_emptying(self.number, from) else { return false };
        let first = if u16::from(area.id) == from { slot } else { 0 };
        if first >= area.slots {
            self.next = (u16::from(area.id) + 1, 0);
            return true;
        }
        let end = area.slots.min(first + SLOTS_LOOKED_AT);
        self.next = (area.id.into(), end);
        if let Some(first) = store.first_page_in(area.id, first, end) {
            let end = area.slots.min(first + self.owners.len() as u64);
            self.next = (area.id.into(), end);
            self.window = Some(Window { id: area.id, first, len: (end - first) as usize, done: 0 });
            self.looked = Some(PageNo::new(0));
            self.passes += 1;
        }
        true
    }

    /// Records owners among some pages from `from`; returns where to continue.
    fn find_owners(&mut self, operation: &Operation<'_>, window: &Window, from: PageNo) -> Option<PageNo> {
        let (first, end) = (window.first, window.first + window.len as u64);
        let owners = &mut *self.owners;
        let last = operation.pages.map.behind_blocks(from, END, LEAVES);
        operation.pages.map.each(from, last, |page, word| {
            let (PageState::Swapped(raw) | PageState::Loading(raw, _)) = word.get() else {
                return;
            };
            let Some(entry) = Entry::from_raw(raw).filter(|entry| entry.area() == window.id) else { return };
            if (first..end).contains(&entry.offset()) {
                owners[(entry.offset() - first) as usize] = page.raw();
            }
        });
        (last < END).then_some(last)
    }

    fn end_pass(&mut self, operation: &Operation<'_>) -> Step {
        if operation.store().remove_area(self.number) {
            return Step::Done;
        }
        self.next = (0, 0);
        self.full = false;
        self.latest = core::mem::take(&mut self.now);
        if core::mem::take(&mut self.moved) > 0 { Step::More } else { Step::Stuck }
    }

    fn move_out(&mut self, operation: &Operation<'_>, entries: &[Entry], owners: &[PageNo], worker: &mut Worker) {
        let mut results = [const { Err(StoreError::BadEntry) }; STEP];
        let results = &mut results[..entries.len()];
        let pages = self.pages();
        operation.store().move_out(entries, pages, results, worker.scratch());
        let mut unused = Each::<Entry>::new();
        {
            // Keeps mremap from moving pages.
            let _lock = operation.pages.space.shared();
            for (i, (entry, owner)) in entries.iter().zip(owners).enumerate() {
                let old = PageState::Swapped(entry.raw());
                match &results[i] {
                    Ok(stored) => {
                        let done = operation.replace(*owner, old, *stored);
                        self.moved += u64::from(done);
                        match stored {
                            _ if done => unused.push(*entry),
                            Stored::Entry(new) => unused.push(*new),
                            Stored::Zero => {}
                        }
                    }
                    Err(StoreError::Full) => match operation.bring_in(*owner, *entry, &pages[i]) {
                        Brought::In(old) => {
                            self.moved += 1;
                            unused.extend(old);
                        }
                        Brought::NoRoom => {
                            self.full = true;
                            self.now.homeless += 1;
                        }
                        Brought::NotNow => {}
                    },
                    // The slot has changed hands.
                    Err(_) if operation.pages.map.get(*owner) != old => {}
                    Err(StoreError::NoMemory) => self.now.homeless += 1,
                    Err(_) => {
                        if self.now.unreadable == 0 {
                            self.now.unreadable_at = owner.addr();
                        }
                        self.now.unreadable += 1;
                    }
                }
            }
        }
        operation.store().free_all(unused);
    }

    fn pages(&self) -> &'static mut [Page] {
        // SAFETY: STEP pages that live as long as `self`. Only `move_out` calls this, and keeps the
        // slice local.
        unsafe { core::slice::from_raw_parts_mut(self.pages.as_ptr().cast(), STEP) }
    }
}

impl Drop for Swapoff {
    fn drop(&mut self) {
        // SAFETY: no slice from `pages` outlives its method.
        unsafe { self.pages.retire() }
    }
}

/// Result for a page without room in any tier.
enum Brought {
    /// In memory; the entry to free.
    In(Option<Entry>),
    /// The limit forbids it.
    NoRoom,
    /// Changed, or an event is pending.
    NotNow,
}

impl Operation<'_> {
    /// Changes a page's place, under the shared space lock. False: its word differs.
    fn replace(&self, page: PageNo, old: PageState, new: Stored) -> bool {
        match new {
            Stored::Entry(entry) => self.pages.map.swap(page, old, PageState::Swapped(entry.raw())),
            Stored::Zero => {
                // Count before the word is visible.
                self.pages.zero_now.fetch_add(1, Ordering::Relaxed);
                let done = self.pages.map.swap(page, old, PageState::Zero);
                self.pages.zero_now.fetch_sub(u64::from(!done), Ordering::Relaxed);
                done
            }
        }
    }

    /// Installs a page if the limit allows, under the shared space lock.
    fn bring_in(&self, page: PageNo, entry: Entry, bytes: &Page) -> Brought {
        if self.accounts.budget.now() >= self.accounts.budget.watermarks().low() {
            return Brought::NoRoom;
        }
        if self.mappings.going.has(page) {
            return Brought::NotNow;
        }
        if !self.pages.map.swap(page, PageState::Swapped(entry.raw()), PageState::Loading(entry.raw(), Claimant::ONE_HOLD)) {
            return Brought::NotNow;
        }
        // SAFETY: the word says that the evicted bytes are current.
        let progress = unsafe { self.uffd().copy(page.addr(), bytes.as_ptr(), PAGE_SIZE, Wake::Now) };
        match self.borne_out(page, Rights::Serve, progress).error {
            None => {
                self.arrived(1);
                Brought::In(self.loaded(page, (entry.raw(), Claimant::ONE_HOLD), None).and_then(Entry::from_raw))
            }
            // Memory is newer.
            Some(Errno::EXIST) => {
                let old = self.loaded(page, (entry.raw(), Claimant::ONE_HOLD), None).and_then(Entry::from_raw);
                self.uffd().wake(page.addr(), PAGE_SIZE);
                Brought::In(old)
            }
            Some(error) => {
                self.pages.map.swap(page, PageState::Loading(entry.raw(), Claimant::ONE_HOLD), PageState::Swapped(entry.raw()));
                // Faults since wait for the word.
                self.uffd().wake(page.addr(), PAGE_SIZE);
                if error == Errno::NOMEM { Brought::NoRoom } else { Brought::NotNow }
            }
        }
    }
}

impl Pager {
    /// Reopens an area closed by a swapoff. False: no such area. `None` during a fork.
    pub fn reopen_area(&self, number: u8) -> Option<bool> {
        Some(self.enter()?.store().reopen_area(number))
    }

    /// Bytes of this process on the area.
    pub fn left_in_area(&self, number: u8) -> u64 {
        self.enter().map_or(0, |operation| operation.store().pages_left(number) * PAGE_SIZE as u64)
    }
}
