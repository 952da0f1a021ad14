//! A child that gets all of its memory at once: one that can't serve itself, is not ready in time, or was forked unannounced.

use arrayvec::ArrayVec;
use lowtide_core::slot::Entry;
use lowtide_core::store::StoreError;
use lowtide_core::vm::PAGE_SIZE;
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::thread::{Timespec, nanosleep};

use super::Whose;
use super::handover::UNDONE;
use super::wiped::{Wiped, wiped};
use crate::fault::install::{IN_DOUBT, Installed, Stopped, TWO_MAPPINGS, install_run};
use crate::fault::patience::{NO_MEMORY_SECONDS, Patience};
use crate::fault::worker::{CHUNK, Worker};
use crate::mappings::regions::Range;
use crate::mappings::space::Exclusive;
use crate::pagemap::PageState;
use crate::pagemap::ids::PageNo;
use crate::pager::Pager;
use crate::sys::Line;
use crate::sys::clock::now_us;
use crate::sys::uffd::{Message, Progress, Standing, Uffd, Wake};

/// After each batch those have a turn who serve the parent's faults: without this they would wait for seconds where gigabytes
/// are out. Long enough for one who sleeps to wake.
pub(super) const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };
/// Ranges that a child drops before it is whole.
const MOST_DROPPED: usize = 32;

/// By this part of its limit the run may pass it before the pool is written out: a child that only executes something else is gone
/// soon, and its parent wants the pool as it was.
const TOLERATED_PART: u64 = 8;
/// How often the pool may be shrunk in vain for one child, and how long in all: no fault of the parent is served meanwhile.
const TRIES: u32 = 16;
const SHRINKS_FOR_US: u64 = 100_000;

/// Said where a fork can't be held.
const NOT_HELD: &[u8] =
    b"the program forked by a raw system call, and lowtide had no descriptor to hold it until the child's memory is whole: if the \
      parent ends before that, the rest reads as zeros";

/// Pages that are brought in together: where the child is to have each, and its word.
type Batch = ArrayVec<(PageNo, PageState), CHUNK>;

/// A child that is being filled.
struct Filling<'a> {
    child: &'a Uffd,
    /// Whose tables say what it gets: its parent's, if it was not announced and nobody sees it yet.
    whose: Whose,
    is_alive: bool,
    /// What it has dropped meanwhile.
    dropped: ArrayVec<Range, MOST_DROPPED>,
    /// What it does not get, once that is asked.
    wiped: Option<Wiped>,
    /// How often the pool of who fills it may still be shrunk in vain: another thread may be at it just then, or there is nothing to
    /// be written.
    tries: u32,
    /// How long that has taken.
    shrunk_us: u64,
}

impl Filling<'_> {
    fn has_dropped(&self, page: PageNo) -> bool {
        self.dropped.iter().chain(self.wiped.iter().flatten()).any(|range| (range.start..range.end).contains(&page.addr()))
    }
}

/// Whether a page with this word is in lowtide's hands, and no zeros.
fn is_out(word: PageState) -> bool {
    match word {
        PageState::Loading(raw, _) => raw != 0,
        PageState::Staged(_) | PageState::Storing(_) | PageState::Swapped(_) => true,
        _ => false,
    }
}

impl Pager {
    /// A fork event was read of which nobody had said a word. When no more messages are in hand, its child is to be
    /// [let be born](Pager::let_be_born).
    pub(crate) fn forked_unannounced(&self, lock: &mut Exclusive<'_>, child: Uffd, worker: &mut Worker) {
        if !self.will_report_again(lock, &child) {
            (self.host.warn)(NOT_HELD);
        }
        // (`lowtide run` enters the child, or says why not.)
        self.was_forked_unannounced();
        self.fill_child(lock, &child, Whose::Parents, worker);
        self.shared_writes.forked(now_us());
    }

    /// The child gets all of its memory, and no references; false: it is dead.
    pub(super) fn make_whole(&self, lock: &mut Exclusive<'_>, child: &Uffd, worker: &mut Worker) -> bool {
        let handover = self.handover();
        lock.while_free(|| self.is_about_to_wait(worker));
        let alive = self.fill_child(lock, child, Whose::Childs, worker);
        // Release: what was filled comes before. If the child has them already, it frees what it refers to by itself.
        if alive && handover.claim_references(UNDONE) {
            self.store(lock).fork_child_died();
        }
        alive
    }

    /// Brings in all of a child's pages that are in lowtide's hands; false: it is dead.
    fn fill_child(&self, lock: &mut Exclusive<'_>, child: &Uffd, whose: Whose, worker: &mut Worker) -> bool {
        // Elsewhere the child has a copy of the pool, and nothing would come free.
        let tries = if whose == Whose::Parents && self.store(lock).keeps_pool_from_children() { TRIES } else { 0 };
        // SAFETY of the data: no word changes but by operations under way, for the exclusive lock is held throughout, or the
        // pager is paused and events are held back. A page that one of them is storing or loading is still readable where its
        // word says.
        let mut filling = Filling { child, whose, is_alive: true, dropped: ArrayVec::new(), wiped: None, tries, shrunk_us: 0 };
        let mut batch = Batch::new();
        let page_of_child = self.page_of_child(lock, child);
        self.map.each_used(|page, slot| {
            let word = slot.get();
            // (What the parent drops is no child's.)
            if !filling.is_alive || !is_out(word) || self.going.has(page) {
                return;
            }
            filling.wiped.get_or_insert_with(|| self.wiped_for(lock, whose));
            let to =
                self.held_back.in_memory(lock, whose, page).and_then(&page_of_child).filter(|page| !filling.has_dropped(*page));
            let Some(page) = to else { return };
            batch.push((page, word));
            if batch.is_full() {
                self.fill(lock, &mut filling, &batch, worker);
                batch.clear();
                self.make_room_for(lock, &mut filling, worker);
                if whose == Whose::Childs && !self.held_back.is_nearly_full(lock) {
                    lock.while_free(|| drop(nanosleep(&PAUSE)));
                }
            }
        });
        if filling.is_alive {
            self.fill(lock, &mut filling, &batch, worker);
        }
        filling.is_alive
    }

    /// What a child does not get of its parent's memory. Of one that was announced the hooks have told (`LeftAlone`), and nothing of
    /// that is out.
    fn wiped_for(&self, lock: &Exclusive<'_>, whose: Whose) -> Wiped {
        if whose == Whose::Childs {
            return Wiped::new();
        }
        let smaps = self.present().smaps.as_ref().ok_or(Errno::ACCESS);
        let found = smaps.and_then(|smaps| wiped(smaps.as_fd(), |mapping| self.regions.overlaps(lock, mapping)));
        found.unwrap_or_else(|error| {
            let mut text = Line::new();
            text.push(b"the program forked by a raw system call, and /proc/self/smaps does not tell which memory is wiped in the child \
                        (MADV_WIPEONFORK), error ");
            text.number(error.raw_os_error() as u64);
            (self.host.fatal)(text.bytes())
        })
    }

    /// What came in for a child that nobody sees yet nobody can evict. Where the run is far above its limit because of that, pages
    /// leave the pool for a device, about as many as came.
    fn make_room_for(&self, lock: &Exclusive<'_>, filling: &mut Filling<'_>, worker: &mut Worker) {
        let limit = self.budget.ceiling();
        if filling.tries > 0 && self.budget.now() > limit + limit / TOLERATED_PART {
            let began = now_us();
            let shrunk = self.store(lock).shrink(CHUNK * PAGE_SIZE, worker.scratch());
            filling.shrunk_us += now_us().saturating_sub(began);
            let is_over = shrunk.failed || filling.shrunk_us > SHRINKS_FOR_US;
            filling.tries = if is_over { 0 } else { filling.tries - u32::from(shrunk.pages == 0) };
        }
    }

    /// Brings in a batch. The words still hold: the lock is held since they were read.
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
                // SAFETY: the buffer is never missing, and holds what the words say that these pages hold.
                let progress = unsafe { filling.child.copy(at.addr(), source, n * PAGE_SIZE, Wake::Now) };
                // Its page map is not to be had: what the kernel says twice is taken for true ([`Pager::borne_out`]).
                let is_new =
                    matches!(progress, Progress { done: 0, error: Some(Errno::EXIST) }) && doubted.replace(at) != Some(at);
                if is_new { Progress { error: Some(IN_DOUBT), ..progress } } else { progress }
            };
            let came = |installed| match installed {
                Installed::Pages(_, n) if whose == Whose::Parents => self.arrived_unborn(n),
                Installed::Pages(_, n) => self.arrived(n),
                // The zero page, perhaps, which is to be written.
                Installed::WasThere(page) => {
                    if filling.child.let_write(page.addr(), PAGE_SIZE).is_err() {
                        filling.child.wake(page.addr(), PAGE_SIZE);
                    }
                }
            };
            match install_run(first, run, TWO_MAPPINGS, call, came) {
                Ok(()) => i += run,
                Err(Stopped { why: Errno::SRCH, .. }) => filling.is_alive = false,
                // It has not inherited that.
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

    /// Reads what a child has to say that is being filled; false: nothing.
    fn hear(&self, filling: &mut Filling<'_>) -> bool {
        let mut has_heard = false;
        while let Ok(message) = filling.child.read() {
            has_heard = true;
            match message {
                // It is woken when its page comes, or at the end.
                Message::Fault { .. } => {}
                Message::Unmap { start, end } | Message::Remove { start, end } if !filling.dropped.is_full() => {
                    filling.dropped.push(Range { start, end })
                }
                _ => (self.host.fatal)(b"a forked child changed its mappings before lowtide could follow"),
            }
        }
        has_heard
    }

    /// Reads the pages of a batch into the worker's buffer: those that are in the store side by side together.
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
                    buffer[i].copy_from_slice(unsafe { &*(self.staging.addr(frame) as *const lowtide_core::store::Page) });
                }
                _ => buffer[i].fill(0),
            }
            i += 1;
        }
    }

    /// Where in the store a page is; None: it is in staging.
    fn entry_of(&self, word: PageState) -> Option<Entry> {
        let (PageState::Swapped(raw) | PageState::Loading(raw, _)) = word else { return None };
        match Entry::from_raw(raw) {
            None => (self.host.fatal)(b"internal error: a page map word holds no valid swap entry"),
            entry => entry,
        }
    }
}
