//! Serves one fault by the page's word: `touch.rs` (it reads as zero; `zero_page.rs`), `staged.rs`
//! (in staging), `load.rs` (in the store); `fork/paused.rs` while the program forks.

mod bring_in;
mod growing;
pub(crate) mod handler;
mod load;
mod staged;
pub(crate) mod stream;
mod touch;
mod workers;
mod zero_page;

use core::sync::atomic::Ordering;

use lowtide_core::slot::Entry;
use lowtide_core::store::StoreError;
use lowtide_core::vm::{Mapping, PAGE_SIZE};
use lowtide_sys::clock::now_ns;
use lowtide_sys::uffd::{Access, Standing};
use lowtide_wire::segment::{FaultKind, add, latency_bucket};
use rustix::io::Errno;

use crate::fault::stream::{Streams, Window};
use crate::pagemap::PageState;
use crate::pagemap::ids::PageNo;
use crate::pager::Pager;
use crate::pages::Operation;
use crate::pages::install::IN_DOUBT;
use crate::pages::patience::{IN_HAND_SECONDS, NO_MEMORY_SECONDS, Patience};
use crate::pages::space::Shared;
use crate::pages::worker::Worker;
use crate::reclaim::evicted::Evicted;

pub use bring_in::BringIn;
pub use handler::{Handler, Turn};
pub use workers::Workers;
pub(crate) use zero_page::ZeroPage;

/// The program's access pattern by its faults, and zeros to install.
pub(crate) struct Faults {
    pub(crate) loads: Streams,
    pub(crate) touches: Streams,
    pub(crate) zeros: Mapping,
    pub(crate) zero_page: ZeroPage,
}

impl Faults {
    pub(crate) fn new(zeros: Mapping) -> Faults {
        Faults { loads: Streams::new(4, 50), touches: Streams::new(16, 25), zeros, zero_page: ZeroPage::default() }
    }
}

/// The result of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// The waiting thread can run on.
    Done,
    /// An event waits: read it, then serve this fault again.
    EventsFirst,
    /// The page can't be had ([`crate::pager::Host::lost`]). It is as before; a later try may
    /// succeed.
    Lost,
    /// It needs a fault handler thread ([`Rights::Memory`](crate::pages::Rights) does not suffice).
    Elsewhere,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Again {
    Changed,
    /// The kernel had no memory for it, or contradicts itself.
    NoMemory(Errno),
    Lost(Entry, StoreError),
}

type Try = Result<Served, Again>;

impl Pager {
    /// As [`Pager::serve_any`], after freeing memory at the limit; counts the time from `known_ns`
    /// until the page was there.
    pub fn serve_within_limit(&self, addr: usize, access: Access, known_ns: u64, worker: &mut Worker) -> Served {
        let start = now_ns();
        let (proc, counters) = (self.proc(), self.counters());
        if self.accounts.budget.lacks_room() && !self.takes_no_room(PageNo::of(addr), access) {
            if !worker.rights().has_devices() {
                return Served::Elsewhere;
            }
            self.make_room(worker);
        }
        worker.counted = None;
        let served = self.serve_any(addr, access, worker);
        if served == Served::Elsewhere {
            return served;
        }
        // The woken thread may take this CPU.
        let now = now_ns();
        counters.stall_some_us.fetch_add((now - start) / 1000, Ordering::Relaxed);
        if served == Served::EventsFirst {
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

    /// Evicts until this fault has room, nothing is left to evict, or `Host::steps` steps were
    /// made. One step may free too little: badly compressing pages stay in the pool, and filling
    /// staging frees nothing. A step that only finished removals does not count.
    fn make_room(&self, worker: &mut Worker) {
        let mut steps = 0;
        while steps < self.host.steps {
            let evicted = self.evict_for_fault(worker);
            if !evicted.is_progress() {
                return;
            }
            if evicted != Evicted::LetGo {
                add(&self.counters().evictions_direct, 1);
                steps += 1;
            }
            if !self.accounts.budget.at_limit() {
                return;
            }
        }
    }

    /// Serves a fault on a missing or a protected page at `addr`. The caller holds no lock; this
    /// never waits for another fault or an event. If the page can't be had, the host decides:
    /// [`Served::Lost`], or the run ends. [`Worker::wake`] wakes the threads later; writers to a
    /// protected page run at once.
    pub fn serve_any(&self, addr: usize, access: Access, worker: &mut Worker) -> Served {
        let page = PageNo::of(addr);
        let served = match access {
            Access::Protected => self.serve_protected(page, worker),
            _ => self.serve_missing(page, access, worker),
        };
        if matches!(served, Served::Done | Served::Lost) {
            add(&self.counters().faults_total, 1);
        }
        served
    }

    /// Tries until the page is there: during a fork by copying, else by its word.
    fn serve_missing(&self, page: PageNo, access: Access, worker: &mut Worker) -> Served {
        let (mut in_hand, mut no_memory) = (Patience::new(), Patience::new());
        let has_devices = worker.rights().has_devices();
        loop {
            let Some(operation) = self.enter() else {
                if !has_devices {
                    return Served::Elsewhere;
                }
                match self.serve_paused(page, worker) {
                    Some(served) => return served,
                    None => continue,
                }
            };
            let served = operation.serve_by_word(page, access, worker);
            drop(operation);
            if served.is_err() {
                self.is_about_to_wait(worker);
            }
            let goes_on = match served {
                Ok(served) => {
                    self.publish_own();
                    return served;
                }
                Err(Again::NoMemory(_) | Again::Lost(..)) if !has_devices => return Served::Elsewhere,
                // Others wait for this worker, and a device may have the page.
                Err(Again::Changed) if !has_devices && !in_hand.wait(0) => return Served::Elsewhere,
                Err(Again::Changed) if !has_devices => true,
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

    /// Before a wait: other handlers must serve the program's faults.
    pub(crate) fn is_about_to_wait(&self, worker: &mut Worker) {
        if !worker.rights().has_devices() {
            return;
        }
        worker.is_about_to_wait(self.uffd());
        (self.host.waits)();
    }

    #[cold]
    fn give_up(&self, page: PageNo, last: Try) {
        let mut text = lowtide_sys::Line::new();
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
                text.number(self.pages.map.get(page).bits());
            }
        }
        (self.host.lost)(text.bytes())
    }

    fn clip(&self, lock: &Shared<'_>, page: PageNo, window: Window) -> (PageNo, PageNo) {
        let Some(region) = self.mappings.regions.find(lock, page.addr()) else {
            self.must_not_be_own(page.addr());
            return (page, page + 1);
        };
        if window.backwards {
            ((page + 1).back(window.pages).max(PageNo::of(region.start)), page + 1)
        } else {
            (page, (page + window.pages).min(PageNo::of(region.end)))
        }
    }

    /// lowtide must never wait for itself. A stale message may name a page that the program has
    /// unmapped since, and where lowtide's own memory is now; that is not registered, and nobody
    /// waits there.
    #[cold]
    fn must_not_be_own(&self, addr: usize) {
        lowtide_core::vm::own_ranges(|start, end, _| {
            if (start..end).contains(&addr) && self.uffd().standing(addr) == Standing::Registered {
                let mut text = lowtide_sys::Line::new();
                let staging = if self.pages.staging.contains(addr) { &b" (staging)"[..] } else { b"" };
                text.push(b"internal error: a page of lowtide's own was missing, offset ").number((addr - start) as u64);
                text.push(b" of ").number((end - start) as u64).push(staging);
                (self.host.fatal)(text.bytes());
            }
        });
    }
}

impl Operation<'_> {
    fn count(&self, kind: FaultKind, worker: &mut Worker) {
        add(self.counters().faults(kind), 1);
        worker.counted = Some(kind);
    }

    fn is_on_device(&self, raw: u64) -> bool {
        Entry::from_raw(raw).is_some_and(|entry| self.store().is_on_device(entry))
    }

    /// One try, in an operation.
    fn serve_by_word(&self, page: PageNo, access: Access, worker: &mut Worker) -> Try {
        match self.pages.map.get(page) {
            word @ (PageState::None | PageState::Removing(_) | PageState::Zero) => self.touch(page, word, access, worker),
            PageState::Staged(_) | PageState::Storing(_) | PageState::Swapped(_) if self.mappings.going.has(page) => {
                self.let_go_around(page);
                Err(Again::Changed)
            }
            PageState::Staged(frame) => self.unstage(page, frame, worker),
            PageState::Storing(frame) => self.copy_back(page, frame, worker),
            PageState::Swapped(raw) if !worker.rights().has_devices() && self.is_on_device(raw) => Ok(Served::Elsewhere),
            PageState::Swapped(_) => self.page_in(page, worker),
            word @ PageState::Clean(_) => {
                // Missing although never evicted: the program dropped it, as its event says or will
                // say.
                if self.pages.map.swap(page, word, PageState::None) {
                    self.forget(&mut self.store().freer(), word);
                }
                Err(Again::Changed)
            }
            // Another handler wakes its waiters, perhaps before they waited: look again.
            PageState::Loading(..) | PageState::Moving(_) | PageState::Orphan(..) => Err(Again::Changed),
        }
    }

    /// Installing a page failed. AGAIN: an event is pending.
    fn failed(&self, page: PageNo, error: Errno) -> Try {
        match error {
            Errno::AGAIN => Ok(Served::EventsFirst),
            // The kernel contradicts itself; a woken thread might fault again for ever.
            Errno::NOENT if self.uffd().standing(page.addr()) == Standing::Registered => Err(Again::NoMemory(error)),
            // The mapping is gone, or the process is ending: the thread finds out itself.
            Errno::NOENT | Errno::SRCH | Errno::FAULT | Errno::INVAL => {
                self.uffd().wake(page.addr(), PAGE_SIZE);
                Ok(Served::Done)
            }
            e => Err(Again::NoMemory(e)),
        }
    }
}
