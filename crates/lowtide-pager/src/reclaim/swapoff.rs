//! swapoff: the pages that this process has in a swap area of the run go elsewhere, to the pool or another area, or into memory
//! as far as the limit allows; a step at a time, while the program goes on.
//!
//! Whose page a slot holds is looked up in a table of owners, of a window of slots at a time, for which the page map is gone
//! through once, a part in each step. A window has as many slots as a small part of the limit allows, so the number of passes
//! goes by how many times the limit is out. The table may be out of date when it is used, and need not be right: a word is changed
//! only if it still names the slot. (A reference back from each slot at all times would cost every page that is ever stored.)
//! Pages that have moved, or were on their way in or out, are found in the next pass; when a pass finds nothing that names the
//! area, it is gone.
//!
//! Nothing is claimed while a page is read and stored again: a fault takes it from where it is, and then the new copy is
//! dropped.

use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use lowtide_core::slot::Entry;
use lowtide_core::store::{Page, StoreError, Stored};
use lowtide_core::table::Table;
use lowtide_core::vm::{self, Mapping, OnFork, PAGE_SIZE};
use rustix::io::Errno;

use crate::fault::worker::{Reach, Worker};
use crate::pagemap::ids::PageNo;
use crate::pagemap::{Claimant, END, PageState};
use crate::pager::{Operation, Pager};
use crate::sys::uffd::Wake;

/// Most pages of a step: those of one long read. More would keep faults that need the same device waiting for longer.
const STEP: usize = 128;
/// The same, once a page could not be read.
const FEW: usize = 8;
/// Slots of a window of the table of owners, at least; and the part of the limit that the table may take where that is more.
const LEAST_WINDOW: usize = 1 << 15;
const WINDOW_SHARE: usize = 256;
/// Slots that are looked through in one step, for one with which a window begins, or for those of a window that have owners.
const SLOTS_LOOKED_AT: u64 = 1 << 20;
/// Leaves of the page map that are looked through in one step: 256 MiB of pages that are out, half a millisecond.
const LEAVES: usize = 1024;

/// What a step came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There is more to do.
    More,
    /// Nothing can be moved now: there is no room, or what is left can't be read, or is on its way in or out. Try again in a
    /// while.
    Stuck,
    /// The area is gone.
    Done,
    /// Not now: the program forks.
    Later,
}

/// What stands in the way, as of the latest pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Obstacles {
    /// Pages for which there is no room elsewhere.
    pub homeless: u64,
    /// Pages that could not be read ...
    pub unreadable: u64,
    /// ... and the address of the first.
    pub unreadable_at: usize,
}

/// A swapoff of this process, under way. Dropping it leaves the area closed, with what is still there: see
/// [`Pager::reopen_area`].
#[derive(Debug)]
pub struct Swapoff {
    /// The run's number of the area.
    number: u8,
    /// [`STEP`] pages.
    pages: Mapping,
    /// By slot of the window, the page that had it, raw; 0: none, as for all slots that have been dealt with.
    owners: Table<u64>,
    window: Option<Window>,
    /// The owners of that window have been looked for up to this page.
    looked: Option<PageNo>,
    /// The entry number of the area, and the slot, from which on the next window is looked for.
    next: (u16, u64),
    moved: u64,
    /// There was no room for a page of this pass: no others are read for nothing.
    full: bool,
    now: Obstacles,
    latest: Obstacles,
    passes: u64,
}

/// Slots of one area.
#[derive(Debug, Clone, Copy)]
struct Window {
    id: u8,
    first: u64,
    /// How many slots it has, and how many have been dealt with.
    len: usize,
    done: usize,
}

/// Something for each page of a step.
type Each<T> = ArrayVec<T, STEP>;

impl Swapoff {
    /// Begins with the run's area `number`: this process puts nothing there any more. `None` while the program forks.
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
        let most = pager.budget.asked() as usize / WINDOW_SHARE / size_of::<u64>();
        let owners = Table::new(slots.min(most).max(LEAST_WINDOW), OnFork::Copy)?;
        let pages = vm::map(STEP * PAGE_SIZE, OnFork::Copy)?;
        let (now, latest) = (Obstacles::default(), Obstacles::default());
        let (window, looked, next) = (None, None, (0, 0));
        Ok(Some(Swapoff { number, pages, owners, window, looked, next, moved: 0, full: false, now, latest, passes: 0 }))
    }

    /// The number of the area.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// What stood in the way in the latest pass.
    pub fn obstacles(&self) -> Obstacles {
        self.latest
    }

    /// How often the page map has been gone through, or begun to be.
    pub fn passes(&self) -> u64 {
        self.passes
    }

    /// Moves some pages, or looks for them. To be called by the reclaimer, whose files the swap files are.
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
        // What can't be read is tried page by page, and a disk that fails takes its time: nobody is to wait for all of a long
        // run.
        let most = if self.now.unreadable > 0 { FEW } else { STEP };
        let end = window.len.min(window.done + SLOTS_LOOKED_AT as usize);
        while window.done < end && entries.len() < most {
            let owner = PageNo::from_raw(self.owners[window.done]);
            let entry = Entry::new(window.id, window.first + window.done as u64);
            window.done += 1;
            let (Some(entry), Some(owner)) = (entry, owner) else { continue };
            // Where there was none, nothing is written: that would make memory of a part of the table that never had one.
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

    /// Looks for the next window, which begins with a page of this process. False: there is none.
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

    /// Notes whose the slots of a window are, of some of the pages from `from` on. Up to which it looked; None: it was all.
    fn find_owners(&mut self, operation: &Operation<'_>, window: &Window, from: PageNo) -> Option<PageNo> {
        let (first, end) = (window.first, window.first + window.len as u64);
        let owners = &mut *self.owners;
        let last = operation.map.behind_blocks(from, END, LEAVES);
        operation.map.each(from, last, |page, word| {
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

    /// All windows have been dealt with.
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
            // No page is moved elsewhere by mremap meanwhile.
            let _lock = operation.space.shared();
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
                    // The page that had the slot is gone, or it was about another one.
                    Err(_) if operation.map.get(*owner) != old => {}
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
        // SAFETY: the mapping has STEP pages, lives as long as this, and only `move_out` asks for them, which keeps them to
        // itself.
        unsafe { core::slice::from_raw_parts_mut(self.pages.as_ptr().cast(), STEP) }
    }
}

impl Drop for Swapoff {
    fn drop(&mut self) {
        // SAFETY: what `pages` hands out does not outlive the method that asked for it.
        unsafe { self.pages.retire() }
    }
}

/// What became of a page for which no tier has room.
enum Brought {
    /// It is in memory; the entry to free.
    In(Option<Entry>),
    /// The limit does not allow it.
    NoRoom,
    /// It changed meanwhile, or an event waits to be read.
    NotNow,
}

impl Operation<'_> {
    /// A page is somewhere else in the store. False: its word has changed. With the space lock shared.
    fn replace(&self, page: PageNo, old: PageState, new: Stored) -> bool {
        match new {
            Stored::Entry(entry) => self.map.swap(page, old, PageState::Swapped(entry.raw())),
            Stored::Zero => {
                // Counted before it can be seen.
                self.zero_now.fetch_add(1, Ordering::Relaxed);
                let done = self.map.swap(page, old, PageState::Zero);
                self.zero_now.fetch_sub(u64::from(!done), Ordering::Relaxed);
                done
            }
        }
    }

    /// Puts a page, whose bytes these are, into its place, if the limit allows. With the space lock shared.
    fn bring_in(&self, page: PageNo, entry: Entry, bytes: &Page) -> Brought {
        if self.budget.now() >= self.budget.watermarks().low() {
            return Brought::NoRoom;
        }
        if self.going.has(page) {
            return Brought::NotNow;
        }
        if !self.map.swap(page, PageState::Swapped(entry.raw()), PageState::Loading(entry.raw(), Claimant::ONE_HOLD)) {
            return Brought::NotNow;
        }
        // SAFETY: these are the bytes that the page had when it was evicted, and the word says that this is still so.
        let progress = unsafe { self.uffd().copy(page.addr(), bytes.as_ptr(), PAGE_SIZE, Wake::Now) };
        match self.borne_out(page, Reach::Everything, progress).error {
            None => {
                self.arrived(1);
                Brought::In(self.loaded(page, (entry.raw(), Claimant::ONE_HOLD), None).and_then(Entry::from_raw))
            }
            // Stale: what is in memory is newer.
            Some(Errno::EXIST) => {
                let old = self.loaded(page, (entry.raw(), Claimant::ONE_HOLD), None).and_then(Entry::from_raw);
                self.uffd().wake(page.addr(), PAGE_SIZE);
                Brought::In(old)
            }
            Some(error) => {
                self.map.swap(page, PageState::Loading(entry.raw(), Claimant::ONE_HOLD), PageState::Swapped(entry.raw()));
                // A thread that has faulted on it meanwhile waits for the word to change.
                self.uffd().wake(page.addr(), PAGE_SIZE);
                if error == Errno::NOMEM { Brought::NoRoom } else { Brought::NotNow }
            }
        }
    }
}

impl Pager {
    /// Pages are put again into the run's area `number`, which a swapoff has closed. False: this process has none of that
    /// number; `None` while the program forks.
    pub fn reopen_area(&self, number: u8) -> Option<bool> {
        Some(self.enter()?.store().reopen_area(number))
    }

    /// Bytes of pages that this process has in areas of that number.
    pub fn left_in_area(&self, number: u8) -> u64 {
        self.enter().map_or(0, |operation| operation.store().pages_left(number) * PAGE_SIZE as u64)
    }
}
