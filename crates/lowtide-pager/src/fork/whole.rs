//! Gives a child all of its memory at once: it can't serve itself, is not ready in time, or was
//! forked unannounced.

use arrayvec::ArrayVec;
use lowtide_core::slot::Entry;
use lowtide_core::store::StoreError;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_sys::clock::now_us;
use lowtide_sys::uffd::{Message, Progress, Standing, Uffd, Wake};
use lowtide_sys::{Line, Range};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::thread::{Timespec, nanosleep};

use super::Whose;
use super::handover::UNDONE;
use super::wiped::{Wiped, wiped};
use crate::pagemap::PageState;
use crate::pagemap::ids::PageNo;
use crate::pager::Pager;
use crate::pages::install::{IN_DOUBT, Installed, Stopped, TWO_MAPPINGS, install_run};
use crate::pages::patience::{NO_MEMORY_SECONDS, Patience};
use crate::pages::space::Exclusive;
use crate::pages::worker::{CHUNK, Worker};

/// Between batches, handlers serve the parent's faults, which would wait for seconds behind
/// gigabytes.
pub(super) const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };
const MOST_DROPPED: usize = 32;

/// The run may pass its limit by this part before the pool is written out: a child that executes
/// another program is gone soon, and its parent wants the pool as it was.
const TOLERATED_PART: u64 = 8;
/// Vain attempts to shrink the pool for a child, and their time, in which no fault of the parent is
/// served.
const TRIES: u32 = 16;
const SHRINKS_FOR_US: u64 = 100_000;

const NOT_HELD: &[u8] =
    b"the program forked by a raw system call, and lowtide had no descriptor to hold it until the child's memory is whole: if the \
      parent ends before that, the rest reads as zeros";

type Batch = ArrayVec<(PageNo, PageState), CHUNK>;

struct Filling<'a> {
    child: &'a Uffd,
    /// The parent's tables apply to a child that nobody sees yet.
    whose: Whose,
    is_alive: bool,
    dropped: ArrayVec<Range, MOST_DROPPED>,
    wiped: Option<Wiped>,
    /// Vain attempts left to shrink the pool: another thread may be at it.
    tries: u32,
    shrunk_us: u64,
}

impl Filling<'_> {
    fn has_dropped(&self, page: PageNo) -> bool {
        self.dropped.iter().chain(self.wiped.iter().flatten()).any(|range| (range.start..range.end).contains(&page.addr()))
    }
}

fn is_out(word: PageState) -> bool {
    match word {
        PageState::Loading(raw, _) => raw != 0,
        PageState::Staged(_) | PageState::Storing(_) | PageState::Swapped(_) => true,
        _ => false,
    }
}

impl Pager {
    /// Fills the child of an unannounced fork; [`Pager::let_be_born`] follows.
    pub(crate) fn forked_unannounced(&self, lock: &mut Exclusive<'_>, child: Uffd, worker: &mut Worker) {
        if !self.will_report_again(lock, &child) {
            (self.host.warn)(NOT_HELD);
        }
        self.was_forked_unannounced();
        self.fill_child(lock, &child, Whose::Parents, worker);
    }

    /// The child gets all of its memory, and no references; false: it is dead.
    pub(super) fn make_whole(&self, lock: &mut Exclusive<'_>, child: &Uffd, worker: &mut Worker) -> bool {
        let handover = self.handover();
        lock.while_free(|| self.is_about_to_wait(worker));
        let alive = self.fill_child(lock, child, Whose::Childs, worker);
        // Release: after the filling. A child with references frees them itself.
        if alive && handover.claim_references(UNDONE) {
            self.store(lock).fork_child_died();
        }
        alive
    }

    fn fill_child(&self, lock: &mut Exclusive<'_>, child: &Uffd, whose: Whose, worker: &mut Worker) -> bool {
        // A child with a copy of the pool frees nothing by shrinking.
        let tries = if whose == Whose::Parents && self.store(lock).keeps_pool_from_children() { TRIES } else { 0 };
        // Only operations under way change words: the exclusive lock is held, or the pager is
        // paused and events are held back. A page being stored or loaded is still where its word
        // says.
        let mut filling = Filling { child, whose, is_alive: true, dropped: ArrayVec::new(), wiped: None, tries, shrunk_us: 0 };
        let mut batch = Batch::new();
        self.pages.map.each_used(|page, slot| {
            let word = slot.get();
            if !filling.is_alive || !is_out(word) || self.mappings.going.has(page) {
                return;
            }
            filling.wiped.get_or_insert_with(|| self.wiped_for(lock, whose));
            let to = self.forks.held_back.in_memory(lock, whose, page).filter(|page| !filling.has_dropped(*page));
            let Some(page) = to else { return };
            batch.push((page, word));
            if batch.is_full() {
                self.fill(lock, &mut filling, &batch, worker);
                batch.clear();
                self.make_room_for(lock, &mut filling, worker);
                if whose == Whose::Childs && !self.forks.held_back.is_nearly_full(lock) {
                    lock.while_free(|| drop(nanosleep(&PAUSE)));
                }
            }
        });
        if filling.is_alive {
            self.fill(lock, &mut filling, &batch, worker);
        }
        filling.is_alive
    }

    /// What the child does not get. Of an announced fork nothing of that is out (`LeftAlone`).
    fn wiped_for(&self, lock: &Exclusive<'_>, whose: Whose) -> Wiped {
        if whose == Whose::Childs {
            return Wiped::new();
        }
        let smaps = self.present().smaps.as_ref().ok_or(Errno::ACCESS);
        let found = smaps.and_then(|smaps| wiped(smaps.as_fd(), |mapping| self.mappings.regions.overlaps(lock, mapping)));
        found.unwrap_or_else(|error| {
            let mut text = Line::new();
            text.push(b"the program forked by a raw system call, and /proc/self/smaps does not tell which memory is wiped in the child \
                        (MADV_WIPEONFORK), error ");
            text.number(error.raw_os_error() as u64);
            (self.host.fatal)(text.bytes())
        })
    }

    /// Nobody can evict pages of a child that nobody sees. Far above the limit, about as many leave
    /// the pool for a device.
    fn make_room_for(&self, lock: &Exclusive<'_>, filling: &mut Filling<'_>, worker: &mut Worker) {
        let limit = self.accounts.budget.ceiling();
        if filling.tries > 0 && self.accounts.budget.now() > limit + limit / TOLERATED_PART {
            let began = now_us();
            let shrunk = self.store(lock).shrink(CHUNK * PAGE_SIZE, worker.scratch());
            filling.shrunk_us += now_us().saturating_sub(began);
            let is_over = shrunk.failed || filling.shrunk_us > SHRINKS_FOR_US;
            filling.tries = if is_over { 0 } else { filling.tries - u32::from(shrunk.pages == 0) };
        }
    }

    fn fill(&self, lock: &Exclusive<'_>, filling: &mut Filling<'_>, batch: &Batch, worker: &mut Worker) {
        self.read_batch(lock, batch, worker);
        let (bytes, _) = worker.buffer_and_waiters();
        let whose = filling.whose;
        let (mut i, mut patience) = (0, Patience::new());
        let mut doubted = None;
        while i < batch.len() && filling.is_alive {
            let first = batch[i].0;
            if filling.has_dropped(first) {
                i += 1;
                continue;
            }
            let follows = |(n, (page, _)): &(usize, &(PageNo, PageState))| *page == first + *n && !filling.has_dropped(*page);
            let run = batch[i..].iter().enumerate().take_while(follows).count();
            let call = |at: PageNo, n: usize| {
                let source = bytes[i + (at - first)].as_ptr();
                // SAFETY: the buffer is never missing, and holds the bytes of these pages.
                let progress = unsafe { filling.child.copy(at.addr(), source, n * PAGE_SIZE, Wake::Now) };
                // Without the child's page map, an answer that the kernel gives twice counts as
                // true ([`Pager::borne_out`]).
                let is_new =
                    matches!(progress, Progress { done: 0, error: Some(Errno::EXIST) }) && doubted.replace(at) != Some(at);
                if is_new { Progress { error: Some(IN_DOUBT), ..progress } } else { progress }
            };
            let came = |installed| match installed {
                Installed::Pages(_, n) if whose == Whose::Parents => self.arrived_unborn(n),
                Installed::Pages(_, n) => self.arrived(n),
                // Perhaps the zero page, about to be written.
                Installed::WasThere(page) => {
                    if filling.child.let_write(page.addr(), PAGE_SIZE).is_err() {
                        filling.child.wake(page.addr(), PAGE_SIZE);
                    }
                }
            };
            match install_run(first, run, TWO_MAPPINGS, call, came) {
                Ok(()) => i += run,
                Err(Stopped { why: Errno::SRCH, .. }) => filling.is_alive = false,
                // The child has not inherited that.
                Err(Stopped { at, why: Errno::INVAL | Errno::FAULT }) => i += at - first + 1,
                Err(Stopped { at, why: Errno::NOENT }) if filling.child.standing(at.addr()) == Standing::NotRegistered => {
                    i += at - first + 1
                }
                Err(Stopped { at, why }) => {
                    i += at - first;
                    let has_heard = self.hear(filling);
                    if !has_heard && !patience.wait(NO_MEMORY_SECONDS) {
                        let mut text = Line::new();
                        text.push(b"no memory for a forked child, error ").number(why.raw_os_error() as u64);
                        (self.host.fatal)(text.bytes());
                    }
                }
            }
        }
    }

    fn hear(&self, filling: &mut Filling<'_>) -> bool {
        let mut has_heard = false;
        while let Ok(message) = filling.child.read() {
            has_heard = true;
            match message {
                Message::Fault { .. } => {}
                Message::Unmap { start, end } | Message::Remove { start, end } if !filling.dropped.is_full() => {
                    filling.dropped.push(Range { start, end })
                }
                _ => (self.host.fatal)(b"a forked child changed its mappings before lowtide could follow"),
            }
        }
        has_heard
    }

    /// Reads a batch into the worker's buffer; neighbours in the store together.
    fn read_batch(&self, lock: &Exclusive<'_>, batch: &Batch, worker: &mut Worker) {
        let mut i = 0;
        while i < batch.len() {
            let entries: ArrayVec<Entry, CHUNK> = batch[i..].iter().map_while(|(_, word)| self.entry_of(*word)).collect();
            let n = entries.len();
            let (buffer, scratch) = worker.parts(batch.len());
            if n > 0 {
                let mut results = [const { Err(StoreError::BadEntry) }; CHUNK];
                self.store(lock).load_run(&entries, &mut buffer[i..i + n], &mut results[..n], scratch);
                for (j, result) in results[..n].iter().enumerate() {
                    if let Err(why) = result {
                        self.lose(batch[i + j].0, entries[j], *why);
                    }
                }
                i += n;
                continue;
            }
            match batch[i].1 {
                PageState::Staged(frame) | PageState::Storing(frame) if self.is_in_frame(frame) => {
                    // SAFETY: a populated frame, which nobody writes.
                    buffer[i]
                        .copy_from_slice(unsafe { &*(self.pages.staging.addr(frame) as *const lowtide_core::store::Page) });
                }
                _ => buffer[i].fill(0),
            }
            i += 1;
        }
    }

    /// None: the page is in staging.
    fn entry_of(&self, word: PageState) -> Option<Entry> {
        let (PageState::Swapped(raw) | PageState::Loading(raw, _)) = word else { return None };
        match Entry::from_raw(raw) {
            None => (self.host.fatal)(b"internal error: a page map word holds no valid swap entry"),
            entry => entry,
        }
    }
}
