//! A group's instance: a pager, workers for threads that serve faults, and lowtide's threads.
//!
//! lowtide's mappings last as long as the process. So an ended group leaves its empty instance to
//! the next group of its kind: same codec, swap and delivery.

use std::alloc::Layout;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lowtide_config::ram::default_pool;
use lowtide_core::codec::Codec;
use lowtide_core::lock::Lock;
use lowtide_core::percpu;
use lowtide_core::store::{Store, StoreConfig, StoreError};
use lowtide_core::vm::{self, PAGE_SIZE};
use lowtide_pager::fault::{Handler, Served, Workers};
use lowtide_pager::mappings::Changes;
use lowtide_pager::pager::{Host, Pager};
use lowtide_pager::pages::{Rights, Worker};
use lowtide_pager::reclaim::Depth;
use lowtide_sys::Range;
use lowtide_sys::clock::now_ns;
use lowtide_sys::present::Present;
use lowtide_sys::uffd::{Access, FEATURE_SIGBUS, NEEDED_WITHOUT_EVENTS, Uffd};
use lowtide_wire::segment::Proc;
use rustix::io::Errno;

use crate::bell::Bell;
use crate::error::Error;
use crate::server::{Seat, ServerThreads};
use crate::signals;
use crate::swap::Swap;

/// The thread that brings touched pages in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// The thread itself, in a handler of SIGBUS: fastest, and without privilege. System calls on
    /// evicted pages fail with EFAULT.
    #[default]
    InThread,
    /// A thread of lowtide, for which threads and their system calls wait. Needs a privilege for
    /// the kernel's accesses: root, CAP_SYS_PTRACE, access to `/dev/userfaultfd`, or the sysctl
    /// `vm.unprivileged_userfaultfd`.
    Monitor,
    /// A thread of lowtide, without privilege, for programs that can't handle SIGBUS. System calls
    /// fail as with [`Delivery::InThread`].
    UserMonitor,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kind {
    pub codec: Codec,
    pub swap: Swap,
    pub delivery: Delivery,
    /// A power of two of bytes, near enough to the group's limit.
    staging: usize,
}

impl Kind {
    pub fn new(codec: Codec, swap: Swap, delivery: Delivery, ram: u64) -> Kind {
        Kind { codec, swap, delivery, staging: staging_target(ram).next_power_of_two() }
    }
}

pub struct Instance {
    kind: Kind,
    pub pager: Pager,
    workers: Workers,
    pub bell: Bell,
    pub is_closing: AtomicBool,
    pub resident: AtomicU64,
    seat: Option<Seat>,
    threads: Lock<Option<Threads>>,
}

/// See [`Instance::threads`].
pub struct Threads {
    pub reclaimer: Worker,
    pub handlers: Vec<Handler>,
}

/// Most threads that serve faults at once.
const MAX_WORKERS: usize = 128;
const MAX_HANDLERS: usize = 4;
/// Most eviction steps for one fault, which may free less than it brings in: others are served
/// then, and evict too.
const MOST_STEPS: usize = 32;

static EMPTY: Lock<Vec<&'static Instance>> = Lock::new(Vec::new());
/// Held while an instance is built: mappings made meanwhile are its own.
static BUILDING: Lock<()> = Lock::new(());

impl Instance {
    /// Reuses an empty instance of this kind or makes one. `server` speaks to its server.
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
        // SAFETY: zeros are a valid Proc in memory of this layout, never freed.
        let proc = unsafe { std::alloc::alloc_zeroed(Layout::new::<Proc>()).cast::<Proc>().as_ref() };
        let proc = proc.ok_or_else(|| no_memory(Errno::NOMEM))?;
        let host = Host {
            fatal,
            lost: |text| say(&[b"lowtide: ", text, b"; the thread that needs it gets SIGBUS\n"]),
            warn,
            waits: || {},
            // Only forked children, which have no region, would use these.
            open_uffd: || Err(Errno::NOSYS),
            open_page_map: Present::open,
            // A spare descriptor would disturb programs that expect the next one to get the number
            // they closed.
            open_memory: || None,
            has_page_map: || true,
            steps: MOST_STEPS,
            turn: || Changes::NONE,
            is_alone: || true,
            may_have_grown: |_| false,
            child_wants_to_run: || false,
            undisturbed: |call| call(),
            has_thread: |_| false,
            changes_are_over: || false,
        };
        let pager = Pager::new(uffd, store, kind.staging, proc, host)
            .map_err(|errno| Error::System { what: "opening /proc/self/pagemap and mapping lowtide's tables", errno })?;
        pager.activate().map_err(|errno| Error::System { what: "registering memory with userfaultfd", errno })?;
        let cpus = percpu::count();
        let workers = Workers::new((2 * cpus).clamp(4, MAX_WORKERS), Rights::Serve).map_err(no_memory)?;
        let handlers = if kind.delivery == Delivery::InThread { 0 } else { cpus.clamp(1, MAX_HANDLERS) };
        let threads = Threads {
            reclaimer: Worker::new(Rights::All).map_err(no_memory)?,
            handlers: (0..handlers).map(|_| Handler::new()).collect::<Result<_, _>>().map_err(no_memory)?,
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

    fn begin(&self, ram: u64) {
        self.is_closing.store(false, Ordering::Relaxed);
        let pager = &self.pager;
        pager.budget().set_limit(ram);
        // All growth comes through counted faults.
        pager.budget().set_calm(true);
        self.share(ram);
        pager.proc().counters.words().iter().for_each(|count| count.store(0, Ordering::Relaxed));
        pager.measure_rest();
        pager.publish();
        pager.budget().measured(pager.proc().own_bytes.load(Ordering::Relaxed));
    }

    /// With signals blocked.
    pub fn share(&self, ram: u64) {
        self.pager.set_staging_target(staging_target(ram));
        self.share_with_tables(ram);
    }

    /// lowtide's growing tables and buffers reduce the pool rather than a working minimum of pages,
    /// unless the pool is their only place. With signals blocked.
    pub fn share_with_tables(&self, ram: u64) {
        let tables = if self.kind.swap == Swap::Ram { 0 } else { self.pager.rest_bytes() };
        let most = default_pool(ram) as usize;
        let most = most.saturating_sub(tables).max(most / 4);
        self.pager.limit_pool(most);
    }

    pub fn take_threads(&self) -> Option<Threads> {
        let _blocked = signals::block();
        self.threads.lock().take()
    }

    /// Empties the instance after its threads have ended; removes its pages from the server.
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

    pub fn delivery(&self) -> Delivery {
        self.kind.delivery
    }

    /// With signals blocked, on the worker's stack.
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

    /// Serves this thread's fault in its signal handler, with all signals blocked. False: the page
    /// is lost.
    pub fn serve(&self, addr: usize) -> bool {
        let addr = addr & !(PAGE_SIZE - 1);
        let served = self.workers.with(|worker| {
            let served = self.pager.serve_within_limit(addr, Access::Write, now_ns(), worker);
            self.pager.stage_ahead(worker);
            worker.forget_waiters();
            served
        });
        self.wake_reclaimer();
        // No events are requested; the thread tries again.
        served != Served::Lost
    }

    /// For the reclaimer.
    pub fn let_workers_rest(&self, now_us: u64) {
        self.workers.rest(now_us);
    }

    pub fn wake_reclaimer(&self) {
        if self.pager.wants_reclaimer() {
            self.bell.wake_sleeper();
        }
    }

    pub fn register(&self, range: Range) -> Result<(), Errno> {
        let _blocked = signals::block();
        self.pager.register(range)
    }
}

/// All instances are the parent's.
///
/// # Safety
/// There is one thread.
pub unsafe fn forget_in_child() {
    // SAFETY: as the caller promises.
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

fn staging_target(ram: u64) -> usize {
    Depth::default().target(ram, 1)
}

/// Without allocation.
fn say(parts: &[&[u8]]) {
    let mut line = lowtide_sys::Line::new();
    for part in parts {
        line.push(part);
    }
    let _ = rustix::io::write(rustix::stdio::stderr(), line.bytes());
}

pub fn warn(text: &[u8]) {
    say(&[b"lowtide: ", text, b"\n"]);
}

/// Going on could give the program wrong bytes.
fn fatal(text: &[u8]) -> ! {
    say(&[b"lowtide: ", text, b"\n"]);
    std::process::abort()
}
