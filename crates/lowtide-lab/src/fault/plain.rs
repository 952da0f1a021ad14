//! Page faults served from lowtide's store by a plain userfaultfd, one page at a time, with a stamp
//! at each boundary: the least cost of a fault, by the way of serving. No limit, no eviction.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lowtide_core::store::{Codec, Page, Scratch, Store, StoreConfig, StoreError, Stored};
use lowtide_core::{slot::Entry, vm::PAGE_SIZE};
use lowtide_sys::clock::now_ns;
use lowtide_sys::uffd::{FEATURE_SIGBUS, Message, Uffd, Wake, Watched};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::by_bpf::{self, ByBpf};
use super::counts::{Counts, Switches};
use super::signal;
use crate::burners::Burners;
use crate::race::Content;
use crate::threads;

/// Pages of each faulting thread, which drops them after touching all, and begins again.
const PAGES: usize = 4096;
/// A prime: makes the touches irregular.
const STEP: usize = 1031;
const STORED: usize = 1024;
/// Period of a monitor's check whether to end.
const LOOK_MS: i32 = 20;
/// The same where monitors get almost no faults: frequent checks would dominate their work.
const LOOK_AT_RING_MS: i32 = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A monitor pinned to each CPU; all of them poll.
    Monitors,
    /// The same at SCHED_IDLE.
    IdleMonitors,
    /// The thread itself, by a signal (UFFD_FEATURE_SIGBUS): system calls on missing pages would
    /// fail.
    Signal,
    /// The thread itself, by a BPF program's signal; a monitor at a ring of each CPU serves the
    /// others.
    ByBpf,
}

impl Way {
    pub const ALL: [Way; 4] = [Way::Monitors, Way::IdleMonitors, Way::Signal, Way::ByBpf];

    pub fn name(self) -> &'static str {
        match self {
            Way::Monitors => "a monitor on each CPU",
            Way::IdleMonitors => "the same, SCHED_IDLE",
            Way::Signal => "in the thread, by SIGBUS",
            Way::ByBpf => "in the thread, by BPF",
        }
    }

    /// The signal that a thread gets for its fault.
    fn signal(self) -> Option<i32> {
        match self {
            Way::Monitors | Way::IdleMonitors => None,
            Way::Signal => Some(libc::SIGBUS),
            Way::ByBpf => Some(by_bpf::SIGNAL),
        }
    }

    /// Checks that this machine supports it.
    ///
    /// # Errors
    /// A line: why not.
    pub fn usable(self) -> Result<(), String> {
        if self == Way::ByBpf { ByBpf::new(1).map(drop) } else { Ok(()) }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub way: Way,
    pub threads: usize,
    pub burners: usize,
}

/// Nanoseconds of a fault.
#[derive(Debug, Clone, Copy)]
pub struct Parts {
    /// From the access until its server knows of it.
    pub delivery: u64,
    /// Finding the page in the store and decompressing it.
    pub load: u64,
    /// UFFDIO_COPY.
    pub install: u64,
    /// From before UFFDIO_WAKE until the thread goes on.
    pub wake: u64,
}

impl Parts {
    /// From the access until the thread goes on.
    pub fn total(&self) -> u64 {
        self.delivery + self.load + self.install + self.wake
    }
}

#[derive(Debug, Default)]
pub struct Seen {
    pub faults: Vec<Parts>,
    /// Nanoseconds of the slowest fault, an unserved one at the end included.
    pub slowest: u64,
    /// Of all faulting and serving threads.
    pub counts: Counts,
}

pub(super) struct Served {
    uffd: Uffd,
    store: Store,
    entries: Vec<Entry>,
    start: usize,
    bytes: usize,
    /// For each page the times of its fault's read, load and install.
    stamps: Vec<[AtomicU64; 3]>,
    stop: AtomicBool,
    failed: Mutex<Option<String>>,
    counts: Mutex<Counts>,
    by_bpf: Option<ByBpf>,
}

pub(super) struct Hands {
    page: Box<Page>,
    scratch: Scratch,
    pub counts: Counts,
}

impl Hands {
    pub(super) fn new() -> Result<Hands, String> {
        let scratch = Scratch::new().map_err(|e| format!("no memory: {e:?}"))?;
        Ok(Hands { page: Box::new([0; PAGE_SIZE]), scratch, counts: Counts::default() })
    }
}

/// Lets threads fault for `time`.
///
/// # Errors
/// A line: what the machine can't do, or what failed.
pub fn run(setup: Setup, time: Duration) -> Result<Seen, String> {
    let served = Served::new(setup)?;
    let cpus = threads::allowed()?;
    let burners = Burners::start(setup.burners)?;
    std::thread::scope(|scope| {
        let served = &served;
        let monitors: Vec<_> = match setup.way {
            Way::Signal => Vec::new(),
            Way::Monitors | Way::IdleMonitors => {
                let run = |cpu| scope.spawn(move || served.note(served.monitor(cpu, setup.way)));
                cpus.into_iter().map(run).collect()
            }
            Way::ByBpf => {
                let run = |(number, cpu)| scope.spawn(move || served.note(served.monitor_at_ring(number, cpu)));
                cpus.into_iter().enumerate().map(run).collect()
            }
        };
        let touching: Vec<_> = (0..setup.threads).map(|i| scope.spawn(move || served.touch(i, setup.way))).collect();
        std::thread::sleep(time);
        served.stop.store(true, Ordering::Relaxed);
        // Waiting threads go on with zeros, as no server may come any more. SAFETY: no page is
        // being served: later installs are refused.
        served.note(unsafe { served.uffd.unregister(served.start, served.bytes) }.map_err(|e| format!("unregister: {e}")));
        // Before the monitors' end: they may get no CPU beside the burners.
        drop(burners);
        let mut all = Seen::default();
        for thread in touching {
            match thread.join() {
                Ok(Ok(seen)) => {
                    all.faults.extend(seen.faults);
                    all.slowest = all.slowest.max(seen.slowest);
                    all.counts += seen.counts;
                }
                Ok(Err(line)) => served.note(Err(line)),
                Err(_) => served.note(Err("a thread that faults failed".to_owned())),
            }
        }
        for monitor in monitors {
            if monitor.join().is_err() {
                served.note(Err("a thread that serves failed".to_owned()));
            }
        }
        all.counts += *served.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = served.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        failed.map_or(Ok(all), Err)
    })
}

impl Served {
    fn new(setup: Setup) -> Result<Served, String> {
        let features = if setup.way == Way::Signal { FEATURE_SIGBUS } else { 0 };
        let uffd = Uffd::open(features).map_err(|e| format!("no userfaultfd: {e}; it takes root or CAP_SYS_PTRACE"))?;
        let (store, entries) = store()?;
        let pages = setup.threads * PAGES;
        let bytes = pages * PAGE_SIZE;
        // SAFETY: a fresh mapping.
        let map = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let map = map.map_err(|e| format!("no memory: {e}"))?;
        let stamps = (0..pages).map(|_| Default::default()).collect();
        let (stop, failed, counts) = (AtomicBool::new(false), Mutex::new(None), Mutex::default());
        let by_bpf = if setup.way == Way::ByBpf { Some(ByBpf::new(threads::allowed()?.len())?) } else { None };
        let start = map.expose_provenance();
        let served = Served { uffd, store, entries, start, bytes, stamps, stop, failed, counts, by_bpf };
        // SAFETY: the mapping made here, still empty; all its missing pages are served, or
        // unregistered.
        let registered = unsafe {
            madvise(map, bytes, Advice::LinuxNoHugepage)
                .and_then(|()| served.uffd.register(served.start, bytes, Watched::Missing))
        };
        registered.map(|()| served).map_err(|e| format!("memory can't be registered: {e}"))
    }

    pub(super) fn by_bpf(&self) -> Option<&ByBpf> {
        self.by_bpf.as_ref()
    }

    /// Keeps the first failure; the run goes on to its end.
    pub(super) fn note(&self, result: Result<(), String>) {
        if let Err(line) = result {
            self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(line);
        }
    }

    /// Serves the fault at `addr`, known since `read`.
    pub(super) fn serve(&self, addr: usize, read: u64, hands: &mut Hands) -> Result<(), String> {
        let i = addr.checked_sub(self.start).ok_or("a page is missing that is not of the experiment")? / PAGE_SIZE;
        let entry = self.entries[i % STORED];
        self.store.load(entry, &mut hands.page, &mut hands.scratch).map_err(|e| format!("a page can't be loaded: {e:?}"))?;
        let loaded = now_ns();
        // SAFETY: the page is of this mapping, and is the requested one.
        let done = unsafe { self.uffd.copy(addr & !(PAGE_SIZE - 1), hands.page.as_ptr(), PAGE_SIZE, Wake::Later) };
        let installed = now_ns();
        hands.counts.served += 1;
        hands.counts.calls += 1;
        for (stamp, value) in self.stamps[i].iter().zip([read, loaded, installed]) {
            // Release: pairs with the Acquire of the faulting thread.
            stamp.store(value, Ordering::Release);
        }
        match done.error {
            Some(e) if !self.stop.load(Ordering::Relaxed) => Err(format!("a page can't be installed: {e}")),
            _ => Ok(()),
        }
    }

    fn monitor(&self, cpu: usize, way: Way) -> Result<(), String> {
        threads::pin(cpu)?;
        if way == Way::IdleMonitors {
            threads::run_only_when_idle()?;
        }
        let (mut hands, switches) = (Hands::new()?, Switches::begin());
        while !self.stop.load(Ordering::Relaxed) {
            self.uffd.wait_readable(LOOK_MS);
            hands.counts.calls += 1;
            self.read_and_serve(&mut hands)?;
        }
        self.add(hands.counts, &switches);
        Ok(())
    }

    /// Serves faults that the programs can't deliver; one for each CPU's ring.
    fn monitor_at_ring(&self, number: usize, cpu: usize) -> Result<(), String> {
        threads::pin(cpu)?;
        let mut waiter = self.by_bpf().ok_or("no rings")?.waiter(number)?;
        let (mut hands, switches) = (Hands::new()?, Switches::begin());
        while !self.stop.load(Ordering::Relaxed) {
            waiter.wait(LOOK_AT_RING_MS);
            hands.counts.calls += 1;
            while let Some(record) = waiter.take() {
                self.serve_another(record.fault.page, &mut hands)?;
            }
            if waiter.lost_some() {
                self.read_and_serve(&mut hands)?;
            }
        }
        self.add(hands.counts, &switches);
        Ok(())
    }

    fn read_and_serve(&self, hands: &mut Hands) -> Result<(), String> {
        while let Ok(Message::Fault { addr, .. }) = self.uffd.read() {
            hands.counts.calls += 1;
            self.serve_another(addr, hands)?;
        }
        // The read that found nothing.
        hands.counts.calls += 1;
        Ok(())
    }

    fn serve_another(&self, addr: usize, hands: &mut Hands) -> Result<(), String> {
        let served = self.serve(addr, now_ns(), hands);
        self.uffd.wake(addr, PAGE_SIZE);
        hands.counts.calls += 1;
        hands.counts.by_others += 1;
        served
    }

    fn add(&self, counts: Counts, switches: &Switches) {
        let mut all = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        *all += counts;
        *all += switches.end();
    }

    /// Touches the pages of thread `i` until the time is over.
    fn touch(&self, i: usize, way: Way) -> Result<Seen, String> {
        // Dropped last: until then this thread serves its own faults.
        let catcher = match way.signal() {
            Some(signal) => Some(signal::Catcher::new(self, Hands::new()?, signal)?),
            None => None,
        };
        let (mut seen, first, switches) = (Seen::default(), i * PAGES, Switches::begin());
        loop {
            for k in 0..PAGES {
                let page = first + k * STEP % PAGES;
                let addr = std::ptr::with_exposed_provenance::<u64>(self.start + page * PAGE_SIZE);
                let began = now_ns();
                // SAFETY: a page of the mapping, which only the kernel writes.
                unsafe { addr.read_volatile() };
                let ended = now_ns();
                seen.slowest = seen.slowest.max(ended - began);
                if self.stop.load(Ordering::Relaxed) {
                    seen.counts += switches.end();
                    seen.counts += catcher.map_or_else(Counts::default, |catcher| catcher.counts());
                    return Ok(seen);
                }
                let [read, loaded, installed] = self.stamps[page].each_ref().map(|stamp| stamp.load(Ordering::Acquire));
                // Otherwise the stamps are an earlier fault's.
                if began <= read && installed <= ended {
                    let (delivery, load, install) = (read - began, loaded - read, installed - loaded);
                    seen.faults.push(Parts { delivery, load, install, wake: ended - installed });
                }
            }
            let all = std::ptr::with_exposed_provenance_mut(self.start + first * PAGE_SIZE);
            // SAFETY: pages of this thread alone, not read any more. Removals raise no event: none
            // was requested.
            unsafe { madvise(all, PAGES * PAGE_SIZE, Advice::LinuxDontNeed) }.map_err(|e| format!("MADV_DONTNEED: {e}"))?;
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; its threads have ended.
        let _ = unsafe { munmap(std::ptr::with_exposed_provenance_mut(self.start), self.bytes) };
    }
}

/// A store with some pages in its pool.
fn store() -> Result<(Store, Vec<Entry>), String> {
    let text = |e: StoreError| format!("the store: {e:?}");
    let store = Store::new(StoreConfig { pool_limit: 64 << 20, accept_percent: 90, codec: Codec::Lz4 }).map_err(text)?;
    let mut scratch = Scratch::new().map_err(|e| format!("no memory: {e:?}"))?;
    let mut words = vec![0u64; PAGE_SIZE / 8];
    let mut entries = Vec::new();
    for i in 0..STORED {
        Content::COMPRESSIBLE.fill(i, &mut words);
        let mut page = [0; PAGE_SIZE];
        page.chunks_exact_mut(8).zip(&words).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_ne_bytes()));
        let mut stored = [Err(StoreError::Full)];
        store.store_run(&[&page], &[], &mut stored, &mut scratch);
        let [Ok(Stored::Entry(entry))] = stored else { return Err("a page can't be stored".to_owned()) };
        entries.push(entry);
    }
    Ok((store, entries))
}
