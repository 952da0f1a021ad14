//! A page comes in: what a monitor does with one fault. Where the page is says which way it comes: `touch.rs` (nowhere: it
//! reads as zero; where it is only read `zero_page.rs`), `staged.rs` (in staging), `load.rs` (in the store). While the program
//! forks, all ways are `paused.rs`. What is there and write-protected is the zero page, or shared (`shared_writes.rs`).

mod growing;
pub(crate) mod install;
mod load;
pub(crate) mod monitor;
pub(crate) mod patience;
mod paused;
pub(crate) mod sentinels;
mod shared_writes;
mod staged;
pub(crate) mod stream;
mod touch;
pub(crate) mod worker;
mod workers;
mod zero_page;

use core::sync::atomic::Ordering;

use lowtide_core::slot::Entry;
use lowtide_core::store::StoreError;
use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;

use crate::fault::install::IN_DOUBT;
use crate::fault::patience::NO_MEMORY_SECONDS;
use crate::fault::stream::Window;
use crate::mappings::space::Shared;
use crate::pagemap::PageState;
use crate::pagemap::ids::PageNo;
use crate::pager::{Operation, Pager, add};
use crate::reclaim::evicted::Evicted;
use crate::segment::{FaultKind, latency_bucket};
use crate::sys::clock::now_ns;
use crate::sys::uffd::{Access, Standing};

pub use monitor::{Monitor, Turn};
pub use patience::{IN_HAND_SECONDS, Patience};
pub use worker::{Fault, Reach, Worker};
pub use workers::Workers;
pub(crate) use zero_page::ZeroPage;

/// What became of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// The thread that waited runs on.
    Done,
    /// An event waits to be read: read it, then serve this fault again.
    EventsFirst,
    /// The page can't be had, which was said ([`crate::pager::Host::lost`]). It is as before; who tries again may be luckier.
    Lost,
    /// This takes what the worker may not use ([`Reach::Memory`]): a fault handler thread has to serve it.
    Elsewhere,
}

/// Why a page did not come in this time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Again {
    /// Its word changed meanwhile, or another thread is at work on it: look again.
    Changed,
    /// The kernel had no memory for it, or contradicts itself.
    NoMemory(Errno),
    /// The store does not have its bytes.
    Lost(Entry, StoreError),
}

/// What one try to serve a fault came to.
type Try = Result<Served, Again>;

impl Pager {
    /// Serves a fault at `addr` that is known since `known_ns`, at the limit after some memory has been freed for it, and
    /// counts how long it took until the page was there. As [`Pager::serve`] but for that.
    pub fn serve_within_limit(&self, addr: usize, access: Access, known_ns: u64, worker: &mut Worker) -> Served {
        let start = now_ns();
        let (proc, counters) = (self.proc(), self.counters());
        if self.budget.lacks_room() && !self.takes_no_room(PageNo::of(addr), access, worker) {
            // What is evicted may go to a device.
            if worker.reach() == Reach::Memory {
                return Served::Elsewhere;
            }
            self.make_room(worker);
        }
        worker.counted = None;
        let served = self.serve(addr, access, worker);
        if served == Served::Elsewhere {
            return served;
        }
        // Before the thread is woken, which may run in place of this one from then on.
        let now = now_ns();
        counters.stall_some_us.fetch_add((now - start) / 1000, Ordering::Relaxed);
        if served == Served::EventsFirst {
            // The page is not there: its time is counted when it is.
            return served;
        }
        let took = now.saturating_sub(known_ns);
        proc.latency[latency_bucket(took)].fetch_add(1, Ordering::Relaxed);
        counters.latency_max_ns.fetch_max(took, Ordering::Relaxed);
        if let Some(kind) = worker.counted {
            counters.service_ns[kind as usize].fetch_add(took, Ordering::Relaxed);
        }
        served
    }

    /// Evicts until what this fault brings in has room below the limit, as far as there is something to evict. One step may
    /// free less than a fault brings in: pages that compress badly leave most of themselves in the pool, and a step that only
    /// fills staging frees nothing. One that only let go of what was dropped is none: then there may be more to evict.
    fn make_room(&self, worker: &mut Worker) {
        let mut steps = 0;
        while steps < self.host.steps {
            let (evicted, only_let_go) = self.evict_for_fault(worker);
            if evicted != Evicted::Progress {
                return;
            }
            if !only_let_go {
                add(&self.counters().evictions_direct, 1);
                steps += 1;
            }
            if !self.budget.at_limit() {
                return;
            }
        }
    }

    /// Serves a fault at `addr`. Called without any lock held; never waits for another fault or for an event. A page that can't
    /// be had, for a long time or for ever, is [`Served::Lost`], or ends the run, as the host likes. The threads that waited
    /// are woken by [`Worker::wake`], when nothing is held any more; a thread that waits to write to what is protected is woken
    /// at once.
    pub fn serve(&self, addr: usize, access: Access, worker: &mut Worker) -> Served {
        let page = PageNo::of(addr);
        let served = match access {
            Access::Protected if self.protects_shared() && !self.can_look(worker) => Served::Elsewhere,
            Access::Protected => {
                let copied = if self.protects_shared() { self.let_copy(page, worker) } else { None };
                copied.unwrap_or_else(|| self.let_write(page, worker))
            }
            _ => self.serve_missing(page, access, worker),
        };
        // Otherwise it is served once more, and counted then.
        if matches!(served, Served::Done | Served::Lost) {
            add(&self.counters().faults_total, 1);
        }
        served
    }

    /// The same for a page that is missing.
    fn serve_missing(&self, page: PageNo, access: Access, worker: &mut Worker) -> Served {
        let (mut in_hand, mut no_memory) = (Patience::new(), Patience::new());
        let keeps_to_memory = worker.reach() == Reach::Memory;
        loop {
            let Some(operation) = self.enter() else {
                if keeps_to_memory {
                    return Served::Elsewhere;
                }
                match self.serve_paused(page, worker) {
                    Some(served) => return served,
                    None => continue,
                }
            };
            let served = operation.serve(page, access, worker);
            drop(operation);
            if served.is_err() {
                // Somebody else is at work on the page, or there is no memory: that may take long.
                self.is_about_to_wait(worker);
            }
            let goes_on = match served {
                Ok(served) => {
                    self.publish_own();
                    return served;
                }
                // Whoever may use everything finds out what it means.
                Err(Again::NoMemory(_) | Again::Lost(..)) if keeps_to_memory => return Served::Elsewhere,
                // Others wait for its worker, and a device may have the page.
                Err(Again::Changed) if keeps_to_memory && !in_hand.wait(0) => return Served::Elsewhere,
                Err(Again::Changed) if keeps_to_memory => true,
                Err(Again::Changed) => in_hand.wait(IN_HAND_SECONDS),
                Err(Again::NoMemory(_)) => no_memory.wait(NO_MEMORY_SECONDS),
                Err(Again::Lost(..)) => false,
            };
            if !goes_on {
                self.give_up(page, served);
                return Served::Lost;
            }
        }
    }

    /// The calling monitor, which has this worker, is about to wait: others are to look after the program's faults.
    pub(crate) fn is_about_to_wait(&self, worker: &mut Worker) {
        // It looks after no faults but its own.
        if worker.reach() == Reach::Memory {
            return;
        }
        worker.is_about_to_wait(self.uffd());
        (self.host.waits)();
    }

    /// Whether the thread that has this worker can ask the page map.
    pub(crate) fn can_look(&self, worker: &Worker) -> bool {
        self.can_look_within(worker.reach())
    }

    fn can_look_within(&self, reach: Reach) -> bool {
        reach == Reach::Everything || (self.host.has_page_map)()
    }

    /// A fault can't be served: without its page the program can't go on.
    #[cold]
    fn give_up(&self, page: PageNo, last: Try) {
        let mut text = crate::sys::Line::new();
        match last {
            Err(Again::Lost(entry, error)) => self.why_lost(&mut text, page, entry, error),
            Err(Again::NoMemory(IN_DOUBT)) => {
                text.push(b"the kernel says that a page of the program is in memory, and its page map does not");
            }
            Err(Again::NoMemory(Errno::NOENT)) => {
                text.push(b"the kernel says that memory of the program is registered, and that it is not");
            }
            Err(Again::NoMemory(errno)) => {
                text.push(b"the kernel gives no memory for a page of the program, error ").number(errno.raw_os_error() as u64);
                text.push(b": this machine, or the program's memory cgroup, is out of memory");
            }
            _ => {
                text.push(b"a page of the program has been on its way for ten minutes (a swap device that hangs?), word ");
                text.number(self.map.get(page).bits());
            }
        }
        (self.host.lost)(text.bytes())
    }

    /// The window around `page`, cut to the adopted range that holds it (or the page alone).
    fn clip(&self, lock: &Shared<'_>, page: PageNo, window: Window) -> (PageNo, PageNo) {
        let Some(region) = self.regions.find(lock, page.addr()) else {
            self.must_not_be_own(page.addr());
            return (page, page + 1);
        };
        if window.backwards {
            ((page + 1).back(window.pages).max(PageNo::of(region.start)), page + 1)
        } else {
            (page, (page + window.pages).min(PageNo::of(region.end)))
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
            if (start..end).contains(&addr) && self.uffd().standing(addr) == Standing::Registered {
                let mut text = crate::sys::Line::new();
                let staging = if self.staging.contains(addr) { &b" (staging)"[..] } else { b"" };
                text.push(b"internal error: a page of lowtide's own was missing, offset ").number((addr - start) as u64);
                text.push(b" of ").number((end - start) as u64).push(staging);
                (self.host.fatal)(text.bytes());
            }
        });
    }
}

impl Operation<'_> {
    /// Counts a fault, and remembers its kind until its time is known.
    fn count(&self, kind: FaultKind, worker: &mut Worker) {
        add(self.counters().faults(kind), 1);
        worker.counted = Some(kind);
    }

    fn is_on_device(&self, raw: u64) -> bool {
        Entry::from_raw(raw).is_some_and(|entry| self.store().is_on_device(entry))
    }

    /// Serves a fault as the page's word says.
    fn serve(&self, page: PageNo, access: Access, worker: &mut Worker) -> Try {
        match self.map.get(page) {
            word @ (PageState::None | PageState::Removing(_) | PageState::Zero) => self.touch(page, word, access, worker),
            PageState::Staged(_) | PageState::Storing(_) | PageState::Swapped(_) if self.going.has(page) => {
                self.let_go_around(page);
                Err(Again::Changed)
            }
            PageState::Staged(frame) => self.unstage(page, frame, worker),
            PageState::Storing(frame) => self.copy_back(page, frame, worker),
            PageState::Swapped(raw) if worker.reach() == Reach::Memory && self.is_on_device(raw) => Ok(Served::Elsewhere),
            PageState::Swapped(_) => self.page_in(page, worker),
            word @ PageState::Clean(_) => {
                // Missing although it was never evicted: the program dropped it, which its event says or will say.
                if self.map.swap(page, word, PageState::None) {
                    self.forget(&mut self.store().freer(), word);
                }
                Err(Again::Changed)
            }
            // Another monitor is bringing it in and wakes all who wait for it; it may have been done when it looked, hence
            // once more from here.
            PageState::Loading(..) | PageState::Moving(_) | PageState::Orphan(..) => Err(Again::Changed),
        }
    }

    /// Installing a page failed. AGAIN: an event is pending.
    fn failed(&self, page: PageNo, error: Errno) -> Try {
        match error {
            Errno::AGAIN => Ok(Served::EventsFirst),
            // The kernel contradicts itself. A thread that is woken for that faults again, for ever perhaps.
            Errno::NOENT if self.uffd().standing(page.addr()) == Standing::Registered => Err(Again::NoMemory(error)),
            // The mapping is gone (its event may be on the way), or the process is ending: the thread finds out by itself.
            Errno::NOENT | Errno::SRCH | Errno::FAULT | Errno::INVAL => {
                self.uffd().wake(page.addr(), PAGE_SIZE);
                Ok(Served::Done)
            }
            e => Err(Again::NoMemory(e)),
        }
    }
}
