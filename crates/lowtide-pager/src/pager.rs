//! The pager's parts in one place, and the rules about who may change what when.
//!
//! LOCK ORDER: space lock > hand > staging queues > locks of the store. A thread in an *operation* (see [`Pager::enter`]) may
//! change page-map words and the store; while the program forks there are none, so that the child's copy is consistent.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use alloc::boxed::Box;
use lowtide_core::codec::Scratch;
use lowtide_core::lock::{Lock, rank};
use lowtide_core::slot::ORDERS;
use lowtide_core::store::{Page, Store};
use lowtide_core::vm::{self, Mapping, OnFork, PAGE_SIZE, Whose};
use rustix::io::Errno;

use crate::budget::Budget;
use crate::pagemap::PageMap;
use crate::present::Present;
use crate::regions::{Range, Regions};
use crate::segment::{Counters, Proc, area_state};
use crate::space::SpaceLock;
use crate::staging::Staging;
use crate::stream::{MAX_WINDOW, Streams};
use crate::uffd::Uffd;

/// Pages that are loaded and installed at a time: bounds a worker's buffer and how long the space lock is shared.
pub const BATCH: usize = 64;
/// Bytes of objects that leave the pool at a time: those of one cluster, or a few.
const SHRINK_BYTES: usize = 1 << 20;

/// What the pager asks of the process it lives in.
#[derive(Debug, Clone, Copy)]
pub struct Host {
    /// The program can't go on: end the run with this message.
    pub fatal: fn(&[u8]) -> !,
    /// Tell the user once.
    pub warn: fn(&[u8]),
}

/// The pager of one process.
pub struct Pager {
    uffd: AtomicPtr<Uffd>,
    present: AtomicPtr<Present>,
    /// See [`SpaceLock`].
    pub space: SpaceLock,
    /// Where missing pages are.
    pub map: PageMap,
    /// What is adopted.
    pub regions: Regions,
    /// The inactive list.
    pub staging: Staging,
    /// Everything that left staging.
    pub store: Store,
    /// RAM left.
    pub budget: Budget,
    proc: AtomicPtr<Proc>,
    /// Address up to which the clock hand has looked.
    pub(crate) hand: Lock<usize, { rank::HAND }>,
    /// Rounds of the hand, from 1; pages that came in during this round are young.
    pub(crate) round: AtomicU8,
    pub(crate) loads: Streams,
    pub(crate) touches: Streams,
    pub(crate) zeros: Mapping,
    pub(crate) host: Host,
    /// Memory shared with the next forked child; see `fork.rs`.
    pub(crate) handover: AtomicPtr<crate::fork::Handover>,
    forking: AtomicBool,
    was_forked: AtomicBool,
    operations: AtomicU32,
    /// Nothing could take a page lately.
    pub(crate) full: AtomicBool,
    /// Zero pages that are out now.
    pub(crate) zero_now: AtomicU64,
    /// Pages that are on their way into staging.
    pub(crate) moving: AtomicUsize,
    /// See [`Pager::measure_rest`].
    rest: AtomicUsize,
}

/// The private means of one thread that serves or evicts.
pub struct Worker {
    pub(crate) scratch: Scratch,
    buffer: Mapping,
    /// Whether this thread may wait for pages (the reclaimer may; a monitor, which serves them, must not).
    pub may_fault: bool,
}

impl Worker {
    /// Buffers for one thread.
    ///
    /// # Errors
    /// `NOMEM`.
    pub fn new(may_fault: bool) -> Result<Worker, Errno> {
        Ok(Worker {
            scratch: Scratch::new().map_err(|_| Errno::NOMEM)?,
            buffer: vm::map(BATCH * PAGE_SIZE, OnFork::Copy)?,
            may_fault,
        })
    }

    /// Gives back what only compressing with zstd needs.
    pub fn forget_compressor(&mut self) {
        self.scratch.forget_compressor();
    }

    /// The page buffer and the codec's buffers.
    pub(crate) fn parts(&mut self) -> (&mut [Page; BATCH], &mut Scratch) {
        // SAFETY: the mapping has BATCH pages, any bytes are a valid Page, and `&mut self` makes the reference unique.
        (unsafe { &mut *self.buffer.as_ptr().cast() }, &mut self.scratch)
    }
}

/// The right to change words and the store; see [`Pager::enter`].
pub struct Operation<'a>(&'a Pager);

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        self.0.operations.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Pager {
    /// A pager with nothing adopted: until [`Pager::activate`] the kernel knows nothing of it. `staging` is the target of the
    /// inactive list in bytes.
    ///
    /// # Errors
    /// `NOMEM`, and those of opening the page map.
    pub fn new(uffd: Uffd, store: Store, staging: usize, proc: &'static Proc, host: Host) -> Result<Pager, Errno> {
        let staging = Staging::new(staging)?;
        Ok(Pager {
            uffd: AtomicPtr::new(Box::into_raw(Box::new(uffd))),
            present: AtomicPtr::new(Box::into_raw(Box::new(Present::open()?))),
            space: SpaceLock::new(),
            map: PageMap::new()?,
            regions: Regions::new()?,
            staging,
            store,
            budget: Budget::default(),
            proc: AtomicPtr::new(core::ptr::from_ref(proc).cast_mut()),
            hand: Lock::new(0),
            round: AtomicU8::new(1),
            loads: Streams::new(4),
            touches: Streams::new(16),
            zeros: vm::map(MAX_WINDOW * PAGE_SIZE, OnFork::Copy)?,
            host,
            handover: AtomicPtr::new(crate::fork::Handover::new()?),
            forking: AtomicBool::new(false),
            was_forked: AtomicBool::new(false),
            operations: AtomicU32::new(0),
            full: AtomicBool::new(false),
            zero_now: AtomicU64::new(0),
            moving: AtomicUsize::new(0),
            rest: AtomicUsize::new(0),
        })
    }

    /// Before the first adoption, with the monitors about to start: from here on a fork waits until its event is read.
    ///
    /// # Errors
    /// Those of registering the staging area.
    pub fn activate(&self) -> Result<(), Errno> {
        self.staging.register(self.uffd())
    }

    /// The userfaultfd.
    pub fn uffd(&self) -> &Uffd {
        // SAFETY: set by `new` or `reopen` from a box that is never freed.
        unsafe { &*self.uffd.load(Ordering::Acquire) }
    }

    pub(crate) fn present(&self) -> &Present {
        // SAFETY: as for `uffd`.
        unsafe { &*self.present.load(Ordering::Acquire) }
    }

    /// In a forked child: replaces the descriptors, which are the parent's.
    pub(crate) fn reopen(&self, uffd: Uffd, present: Present) {
        // The old ones are leaked on purpose: their numbers mean nothing in this process and must not be closed here.
        self.uffd.store(Box::into_raw(Box::new(uffd)), Ordering::Release);
        self.present.store(Box::into_raw(Box::new(present)), Ordering::Release);
    }

    /// This process's place in the segment of the run.
    pub fn proc(&self) -> &'static Proc {
        // SAFETY: only ever set from a `&'static Proc`, all of whose fields are atomics.
        unsafe { &*self.proc.load(Ordering::Relaxed) }
    }

    /// In a forked child: its own place.
    pub(crate) fn set_proc(&self, proc: &'static Proc) {
        self.proc.store(core::ptr::from_ref(proc).cast_mut(), Ordering::Relaxed);
    }

    /// Fault and eviction counts.
    pub fn counters(&self) -> &'static Counters {
        &self.proc().counters
    }

    /// Begins an operation that changes words or the store, unless the program is forking.
    pub fn enter(&self) -> Option<Operation<'_>> {
        self.operations.fetch_add(1, Ordering::SeqCst);
        let operation = Operation(self);
        (!self.forking.load(Ordering::SeqCst)).then_some(operation)
    }

    /// Stops operations from beginning, and waits for those under way. Monitors go on serving faults, by copying only.
    pub fn pause(&self) {
        self.was_forked.store(true, Ordering::Relaxed);
        self.forking.store(true, Ordering::SeqCst);
        while self.operations.load(Ordering::SeqCst) > 0 {
            rustix::thread::sched_yield();
        }
    }

    /// Ends a [`Pager::pause`].
    pub fn resume(&self) {
        self.forking.store(false, Ordering::SeqCst);
    }

    /// Whether no tier could take a page when it was last tried.
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// Whether this process, or one that it was forked from, has ever forked since memory was adopted.
    pub fn was_forked(&self) -> bool {
        self.was_forked.load(Ordering::Relaxed)
    }

    /// Whether operations are stopped.
    pub fn paused(&self) -> bool {
        self.forking.load(Ordering::SeqCst)
    }

    /// Adopts a range: registers it, so that its missing pages are served from now on, and makes it evictable.
    ///
    /// # Errors
    /// Those of UFFDIO_REGISTER; `NOMEM`: too many ranges; `EXIST`: lowtide's own memory is there by now.
    pub fn adopt(&self, range: Range) -> Result<(), Errno> {
        let lock = self.space.exclusive();
        if self.regions.covers(&lock, range) {
            return Ok(());
        }
        // SAFETY: the monitors serve every fault; the words of memory that is not adopted are None.
        let register = || unsafe { self.uffd().register(range.start, range.end - range.start) };
        vm::unless_own(range.start, range.end, register).ok_or(Errno::EXIST)??;
        if self.regions.insert(&lock, range) {
            return Ok(());
        }
        // SAFETY: nothing of the range has been evicted yet.
        unsafe { self.uffd().unregister(range.start, range.end - range.start)? };
        Err(Errno::NOMEM)
    }

    /// Writes the bytes of memory that are lowtide's own in this process into the run's segment: the frames of staging and of the pool
    /// as they are counted now, and the rest as [`Pager::measure_rest`] found it. Cheap: for every batch of pages.
    pub(crate) fn publish_own(&self) {
        // None of these have arrived, or all: half of them is never wrong by more than half of a MOVE.
        let moving = self.moving.load(Ordering::Relaxed) * PAGE_SIZE / 2;
        let counted = self.staging.held_bytes() + moving + self.store.held_bytes();
        self.proc().own_bytes.store((counted + self.rest.load(Ordering::Relaxed)) as u64, Ordering::Relaxed);
    }

    /// Gives the frames that the pool keeps at hand back to the kernel; not while the program forks.
    pub fn drain_frames(&self) {
        let Some(_operation) = self.enter() else { return };
        self.store.drain_frames(&mut || self.publish_own());
    }

    /// What the store does when there is time; not while the program forks.
    pub fn maintain(&self) {
        let Some(_operation) = self.enter() else { return };
        self.store.maintain();
        self.publish_own();
    }

    /// Asks the kernel how much memory is behind lowtide's own mappings but for staging and the pool's frames: tables, buffers,
    /// stacks, heap, the library's data. Mappings shared with forked processes (reference counts) are not in it: the kernel does not
    /// count them as anonymous memory of any of them either, and so they are not in `ram_bytes`. Some microseconds for each mapping:
    /// a few times a second.
    pub fn measure_rest(&self) {
        let [frames, buffer] = self.store.addresses();
        let counted = [self.staging.addresses(), frames, buffer];
        let mut rest = 0;
        vm::own_ranges(|start, end, whose| {
            if whose == Whose::Lowtide && !counted.iter().any(|c| c.start < end && start < c.end) {
                // What the kernel does not tell is nothing: it told what to evict by the same call.
                rest += self.present().bytes(start, end).unwrap_or(0);
            }
        });
        self.rest.store(rest, Ordering::Relaxed);
    }

    /// Writes old pages from the pool to the swap file, a cluster or a few, if the pool is about to get full. Whether pages were
    /// written; `false` also while the program forks.
    pub fn shrink_pool(&self, worker: &mut Worker) -> bool {
        let Some(_operation) = self.enter() else { return false };
        let wanted = self.store.wants_shrinking().min(SHRINK_BYTES);
        wanted > 0 && self.store.shrink(wanted, &mut worker.scratch).pages > 0
    }

    /// Compresses up to `pages` cold pages of the pool again ([`Store::recompress`]); how many words it looked at, 0 also while the
    /// program forks. The worker keeps the compressor until [`Worker::forget_compressor`].
    pub fn recompress(&self, worker: &mut Worker, pages: usize, now_us: u64) -> usize {
        let Some(_operation) = self.enter() else { return 0 };
        self.store.recompress(pages, now_us, &mut worker.scratch).looked
    }

    /// Writes the gauges of this process into the run's segment.
    pub fn publish(&self) {
        let p = self.proc();
        let s = self.store.stats();
        let staged = (self.staging.staged() * PAGE_SIZE) as u64;
        let set = |gauge: &AtomicU64, value: u64| gauge.store(value, Ordering::Relaxed);
        set(&p.staged_bytes, staged);
        set(&p.pool_bytes, s.pool_bytes as u64);
        set(&p.pool_stored_bytes, s.pool_stored_bytes as u64);
        set(&p.now_stored, s.stored_now);
        set(&p.now_on_device, s.on_device_now);
        set(&p.now_zero, self.zero_now.load(Ordering::Relaxed));
        self.publish_own();
        let c = &p.counters;
        set(&c.same_filled_pages, s.same_filled);
        p.same_filled_words.set(&s.same_filled_words);
        set(&c.incompressible_pages, s.incompressible);
        set(&c.recompressed_pages, s.recompressed);
        set(&c.recompressed_bytes, s.recompressed_bytes);
        set(&c.writeback_pages, s.device_write_bytes / PAGE_SIZE as u64);
        set(&c.writeback_ios, s.device_write_ios);
        set(&c.writeback_bytes, s.device_write_bytes);
        for order in 0..ORDERS {
            set(&c.folios[order], s.folios[order]);
            set(&c.folios_split[order], s.folios_split[order]);
        }
        for ((now, counts), area) in p.areas_now.iter().zip(&p.areas).zip(self.store.area_stats()) {
            set(&now.used, area.used);
            set(&now.state, area_state(area.state));
            set(&counts.reads, area.reads);
            set(&counts.writes, area.writes);
            set(&counts.errors, area.errors);
        }
    }
}

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
