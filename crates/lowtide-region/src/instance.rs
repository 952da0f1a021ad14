//! The instance of a group: a pager, what threads borrow to serve faults, and lowtide's own threads while the group lives.
//!
//! lowtide's mappings live as long as the process. So the instance of a group that has ended stays, empty, for the next
//! group of its kind: same codec, swap and delivery.

use std::alloc::Layout;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lowtide_config::ram::default_pool;
use lowtide_core::codec::Codec;
use lowtide_core::lock::Lock;
use lowtide_core::percpu;
use lowtide_core::store::{Store, StoreConfig, StoreError};
use lowtide_core::vm::{self, PAGE_SIZE};
use lowtide_pager::fault::{Monitor, Reach, Served, Worker, Workers};
use lowtide_pager::mappings::Range;
use lowtide_pager::pager::{Host, Pager};
use lowtide_pager::reclaim::Depth;
use lowtide_pager::segment::Proc;
use lowtide_pager::sys::clock::now_ns;
use lowtide_pager::sys::present::Present;
use lowtide_pager::sys::uffd::{Access, FEATURE_SIGBUS, NEEDED_WITHOUT_EVENTS, Uffd};
use rustix::io::Errno;

use crate::bell::Bell;
use crate::error::Error;
use crate::server::{Seat, ServerThreads};
use crate::signals;
use crate::swap::Swap;

/// How pages come in that a thread touches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// By the thread itself, in a handler of SIGBUS. Needs no privilege, and is the fastest. A system call that meets a page
    /// that is out fails with EFAULT.
    #[default]
    InThread,
    /// By a thread of lowtide, for which the other one waits: also a thread in a system call. Needs the privilege to serve the
    /// kernel's accesses: root, CAP_SYS_PTRACE, access to `/dev/userfaultfd`, or the sysctl `vm.unprivileged_userfaultfd`.
    Monitor,
    /// By a thread of lowtide, without privilege: for programs that can't have a handler of SIGBUS. As with
    /// [`Delivery::InThread`], system calls fail with EFAULT.
    UserMonitor,
}

/// What can't be changed of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kind {
    pub codec: Codec,
    pub swap: Swap,
    pub delivery: Delivery,
    /// Bytes of its staging area: a group finds one that is neither too small for its limit nor much too large.
    staging: usize,
}

impl Kind {
    /// Of the instance for a group with this limit.
    pub fn new(codec: Codec, swap: Swap, delivery: Delivery, ram: u64) -> Kind {
        Kind { codec, swap, delivery, staging: staging_target(ram).next_power_of_two() }
    }
}

/// An instance.
pub struct Instance {
    kind: Kind,
    pub pager: Pager,
    workers: Workers,
    pub bell: Bell,
    /// Its threads are to end.
    pub is_closing: AtomicBool,
    /// Bytes that guards keep in memory.
    pub resident: AtomicU64,
    /// Where its channels lead, if its pages go to a server.
    seat: Option<Seat>,
    /// What lowtide's own threads need, while these do not run.
    threads: Lock<Option<Threads>>,
}

/// See [`Instance::threads`].
pub struct Threads {
    pub reclaimer: Worker,
    pub monitors: Vec<Monitor>,
}

/// Most threads that serve faults at a time, in their own thread or as monitors: more find one after a moment.
const MAX_WORKERS: usize = 128;
const MAX_MONITORS: usize = 4;
/// Steps of eviction for one fault at most: then others are served, who evict too. One step may free less than a fault brings
/// in.
const MOST_STEPS: usize = 32;

/// Instances without a group.
static EMPTY: Lock<Vec<&'static Instance>> = Lock::new(Vec::new());
/// Held while an instance is built: what is mapped meanwhile is its own.
static BUILDING: Lock<()> = Lock::new(());

impl Instance {
    /// An instance of this kind for a group with this limit: an empty one, or a new one. `server`: by whom its server is spoken to,
    /// if the kind has one.
    pub fn open(kind: &Kind, ram: u64, server: Option<&ServerThreads>) -> Result<&'static Instance, Error> {
        let _blocked = signals::block();
        let mut empty = EMPTY.lock();
        let found = empty.iter().position(|instance| instance.kind == *kind).map(|i| empty.swap_remove(i));
        drop(empty);
        let instance = match found {
            Some(instance) => {
                if let Some((seat, server)) = instance.seat.as_ref().zip(server) {
                    seat.leads_to(server);
                    let restarted = instance.pager.enter().map_or(Ok(()), |operation| operation.store().restart_remotes());
                    restarted.map_err(|_| server.is_out_of_reach())?;
                }
                instance
            }
            None => Instance::build(kind, ram, server)?,
        };
        instance.begin(ram);
        Ok(instance)
    }

    fn build(kind: &Kind, ram: u64, server: Option<&ServerThreads>) -> Result<&'static Instance, Error> {
        let uffd = open_uffd(kind.delivery)?;
        let file = kind.swap.open()?;
        let _building = BUILDING.lock();
        let first = vm::own_count();
        let no_memory = |errno| Error::System { what: "mapping lowtide's tables", errno };
        let store = StoreConfig { pool_limit: default_pool(ram) as usize, accept_percent: 90, codec: kind.codec };
        let store = Store::new(store).map_err(|_| no_memory(Errno::NOMEM))?;
        if let Some(file) = file {
            store.add_file(file).map_err(|error| match error {
                StoreError::NoMemory => no_memory(Errno::NOMEM),
                _ => Error::Swap("no swap area can be made of its file".to_owned()),
            })?;
        }
        let seat = server.map(|server| server.add_to(&store)).transpose()?;
        // SAFETY: zeros are a valid Proc, and the memory is the global allocator's, of this layout; it is never freed.
        let proc = unsafe { std::alloc::alloc_zeroed(Layout::new::<Proc>()).cast::<Proc>().as_ref() };
        let proc = proc.ok_or_else(|| no_memory(Errno::NOMEM))?;
        let host = Host {
            fatal,
            lost: |text| say(&[b"lowtide: ", text, b"; the thread that needs it gets SIGBUS\n"]),
            warn,
            waits: || {},
            // Only a forked child, which has no region, would ask for these.
            open_uffd: || Err(Errno::NOSYS),
            open_page_map: Present::open,
            // A number of the program's table of descriptors would be taken now and then: a program that closes one and opens
            // another relies on getting the same.
            open_memory: || None,
            has_page_map: || true,
            steps: MOST_STEPS,
            turn: || [Range::NONE; 2],
            is_alone: || true,
            child_wants_to_run: || false,
            undisturbed: |call| call(),
            has_thread: |_| false,
            changes_are_over: || false,
        };
        let pager = Pager::new(uffd, store, kind.staging, proc, host)
            .map_err(|errno| Error::System { what: "opening /proc/self/pagemap and mapping lowtide's tables", errno })?;
        pager.activate().map_err(|errno| Error::System { what: "registering memory with userfaultfd", errno })?;
        let cpus = percpu::count();
        let workers = Workers::new((2 * cpus).clamp(4, MAX_WORKERS), Reach::Everything).map_err(no_memory)?;
        let monitors = if kind.delivery == Delivery::InThread { 0 } else { cpus.clamp(1, MAX_MONITORS) };
        let threads = Threads {
            reclaimer: Worker::new(true).map_err(no_memory)?,
            monitors: (0..monitors).map(|_| Monitor::new()).collect::<Result<_, _>>().map_err(no_memory)?,
        };
        pager.owns(first, vm::own_count());
        Ok(Box::leak(Box::new(Instance {
            kind: kind.clone(),
            pager,
            workers,
            bell: Bell::new(),
            is_closing: AtomicBool::new(false),
            resident: AtomicU64::new(0),
            seat,
            threads: Lock::new(Some(threads)),
        })))
    }

    /// As for a new group.
    fn begin(&self, ram: u64) {
        self.is_closing.store(false, Ordering::Relaxed);
        let pager = &self.pager;
        pager.budget.set_limit(ram);
        // All growth comes through faults, which are counted.
        pager.budget.set_calm(true);
        self.share(ram);
        pager.proc().counters.words().iter().for_each(|count| count.store(0, Ordering::Relaxed));
        pager.measure_rest();
        pager.publish();
        pager.budget.measured(pager.proc().own_bytes.load(Ordering::Relaxed));
    }

    /// Divides the limit. With signals blocked.
    pub fn share(&self, ram: u64) {
        self.pager.set_staging_target(staging_target(ram));
        self.share_with_tables(ram);
    }

    /// What lowtide's tables and buffers take, which grow with what is out, comes off the pool: else they would leave the
    /// program's pages less than a working minimum. Not where the pool is the only place for pages. With signals blocked.
    pub fn share_with_tables(&self, ram: u64) {
        let tables = if self.kind.swap == Swap::Ram { 0 } else { self.pager.rest_bytes() };
        let most = default_pool(ram) as usize;
        let most = most.saturating_sub(tables).max(most / 4);
        self.pager.limit_pool(most);
    }

    /// What its threads begin with; to be given back when they end.
    pub fn take_threads(&self) -> Option<Threads> {
        let _blocked = signals::block();
        self.threads.lock().take()
    }

    /// Nobody is in it any more, and its threads have ended. What its server has of it is removed.
    pub fn leave(&'static self, mut threads: Threads, server: Option<Arc<ServerThreads>>) {
        let _blocked = signals::block();
        while self.pager.empty_staging(&mut threads.reclaimer) {}
        self.pager.collect_page_map();
        self.pager.drain_frames();
        self.pager.maintain();
        drop(server);
        *self.threads.lock() = Some(threads);
        EMPTY.lock().push(self);
    }

    /// The kind of the group's delivery.
    pub fn delivery(&self) -> Delivery {
        self.kind.delivery
    }

    /// Calls `f` with a worker, on its stack, with signals blocked.
    pub fn with_worker<R>(&self, f: impl FnOnce(&Pager, &mut Worker) -> R) -> R {
        let _blocked = signals::block();
        let result = self.workers.with(|worker| {
            let result = f(&self.pager, worker);
            worker.wake(self.pager.uffd());
            result
        });
        self.wake_reclaimer();
        result
    }

    /// Serves a fault of this thread, in its signal handler, with all signals blocked. False: the page is lost.
    pub fn serve(&self, addr: usize) -> bool {
        let addr = addr & !(PAGE_SIZE - 1);
        let served = self.workers.with(|worker| {
            let served = self.pager.serve_within_limit(addr, Access::Write, now_ns(), worker);
            self.pager.stage_ahead(worker);
            worker.forget_waiters();
            served
        });
        self.wake_reclaimer();
        // No events are asked for; the thread tries again.
        served != Served::Lost
    }

    /// Workers that nobody needs give their memory back. By the reclaimer.
    pub fn let_workers_rest(&self, now_us: u64) {
        self.workers.rest(now_us);
    }

    /// Wakes the reclaimer if there is something for it to do that can't wait.
    pub fn wake_reclaimer(&self) {
        if self.pager.wants_reclaimer() {
            self.bell.wake_sleeper();
        }
    }

    /// Adopts fresh memory.
    pub fn adopt(&self, range: Range) -> Result<(), Errno> {
        let _blocked = signals::block();
        self.pager.adopt(range)
    }
}

/// In a forked child: all instances are its parent's.
///
/// # Safety
/// There is one thread.
pub unsafe fn forget_in_child() {
    // SAFETY: handed on to the caller.
    unsafe {
        EMPTY.reset_after_fork();
        BUILDING.reset_after_fork();
    }
    core::mem::forget(core::mem::take(&mut *EMPTY.lock()));
}

fn open_uffd(delivery: Delivery) -> Result<Uffd, Error> {
    let full = delivery == Delivery::Monitor;
    match delivery {
        Delivery::InThread => Uffd::open_for_user_mode(NEEDED_WITHOUT_EVENTS | FEATURE_SIGBUS),
        Delivery::UserMonitor => Uffd::open_for_user_mode(NEEDED_WITHOUT_EVENTS),
        Delivery::Monitor => Uffd::open(NEEDED_WITHOUT_EVENTS),
    }
    .map_err(|errno| Error::Userfaultfd { errno, full })
}

/// Bytes of evicted pages that wait before they are stored.
fn staging_target(ram: u64) -> usize {
    Depth::default().target(ram, 1)
}

/// Writes to standard error what is put together of parts, without allocation.
fn say(parts: &[&[u8]]) {
    let mut line = lowtide_pager::sys::Line::new();
    for part in parts {
        line.push(part);
    }
    let _ = rustix::io::write(rustix::stdio::stderr(), line.bytes());
}

/// Tells the user something, once.
pub fn warn(text: &[u8]) {
    say(&[b"lowtide: ", text, b"\n"]);
}

/// What must not be: going on could give the program wrong bytes.
fn fatal(text: &[u8]) -> ! {
    say(&[b"lowtide: ", text, b"\n"]);
    std::process::abort()
}
