//! The pager's parts in one place, and the rules about who may change what when.
//!
//! LOCK ORDER: space lock > hand > staging queues > locks of the store. A thread in an *operation* (see [`Pager::enter`]) may
//! change page-map words and the store; while the program forks there are none, so that the child's copy is consistent. The
//! store is reached through an [`Operation`] or the exclusive space lock only ([`MayChange`]).

use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use alloc::boxed::Box;
use lowtide_core::device::DeviceName;
use lowtide_core::lock::{Lock, rank};
use lowtide_core::slot::{Entry, ORDERS};
use lowtide_core::store::{AreaStats, MAX_AREAS, Store};
use lowtide_core::vm::{self, Mapping, OnFork, PAGE_SIZE, Whose};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::mm::MsyncFlags;

use crate::backoff::Backoff;
use crate::budget::RamBudget;
use crate::drain::Drained;
use crate::guards::Guards;
use crate::hand::Hand;
use crate::order::Order;
use crate::pagemap::PageMap;
use crate::patience::Patience;
use crate::present::Present;
use crate::regions::{Range, Regions};
use crate::segment::{Counters, Proc, Segment, area_state};
use crate::space::{Exclusive, SpaceLock};
use crate::staging::Staging;
use crate::stream::{MAX_WINDOW, Streams};
use crate::uffd::{Standing, Uffd};
use crate::worker::Worker;

/// Bytes of objects that leave the pool at a time: those of one cluster, or a few.
const SHRINK_BYTES: usize = 1 << 20;

/// What the pager asks of the process it lives in.
#[derive(Debug, Clone, Copy)]
pub struct Host {
    /// The program can't go on: end the run with this message.
    pub fatal: fn(&[u8]) -> !,
    /// A page can't be had, says the message. Where this returns, the thread that touched it is to be told
    /// ([`crate::fault::Served::Lost`]).
    pub lost: fn(&[u8]),
    /// Tell the user once.
    pub warn: fn(&[u8]),
    /// The calling monitor is about to wait: until its turn is over others are to look after the program's faults.
    pub waits: fn(),
    /// A new userfaultfd of this process, ready for [`crate::uffd::NEEDED_FEATURES`].
    pub open_uffd: fn() -> Result<Uffd, Errno>,
    /// The page map of this process.
    pub open_page_map: fn() -> Result<Present, Errno>,
    /// Steps of eviction for one fault at most: one where others evict as well, and a fault need not wait for all the room that
    /// it takes.
    pub steps: usize,
    /// Where the one thread changes memory that has the turn to map, unmap or move; see `order.rs`.
    pub turn: fn() -> [Range; 2],
    /// Whether the program has one thread only.
    pub is_alone: fn() -> bool,
}

/// The pager of one process.
pub struct Pager {
    uffd: AtomicPtr<Uffd>,
    present: AtomicPtr<Present>,
    pub(crate) space: SpaceLock,
    pub(crate) map: PageMap,
    pub(crate) regions: Regions,
    /// Changed with the space lock held exclusively.
    pub(crate) order: Lock<Order, { rank::UNRANKED }>,
    /// What is to stay in memory; see `ranges.rs`.
    pub(crate) pinned: Regions,
    pub(crate) staging: Staging,
    /// Everything that left staging. Reached through [`Operation::store`] and [`Pager::store`].
    store: Store,
    /// RAM left.
    pub budget: RamBudget,
    /// Guards that the program makes.
    pub guards: Guards,
    /// When not to look for pages to evict.
    pub(crate) backoff: Backoff,
    /// The same of monitors that detach pages for the keeper.
    pub(crate) ahead_backoff: Backoff,
    proc: AtomicPtr<Proc>,
    pub(crate) hand: Lock<Hand, { rank::HAND }>,
    /// How far the hand looks at a time, in bytes.
    pub(crate) reach: AtomicUsize,
    pub(crate) loads: Streams,
    pub(crate) touches: Streams,
    pub(crate) zeros: Mapping,
    pub(crate) host: Host,
    /// Memory shared with the next forked child; see `fork/handover.rs`.
    pub(crate) handover: AtomicPtr<crate::fork::Handover>,
    forking: AtomicBool,
    was_forked: AtomicBool,
    /// See [`Pager::moves_during_fork`].
    has_moved: AtomicBool,
    /// A descriptor to close where there are no more, so that a fork event can be read, which brings one; null: there is none
    /// now.
    reserve: AtomicPtr<OwnedFd>,
    /// Faults were served by copying: there may be stale words.
    has_copied: AtomicBool,
    /// See [`Pager::set_sharers`].
    sharers: AtomicU32,
    operations: AtomicU32,
    /// The keeper is awake.
    reclaiming: AtomicBool,
    /// Pages of the program that have come into memory; wraps.
    pub(crate) arrived: AtomicUsize,
    /// Zero pages that are out now.
    pub(crate) zero_now: AtomicU64,
    /// Pages that are on their way into staging.
    pub(crate) moving: AtomicUsize,
    /// See [`Pager::measure_rest`].
    rest: AtomicUsize,
    /// See [`Pager::owns`].
    own: [AtomicUsize; 2],
}

/// The right to change words and the store; see [`Pager::enter`]. What the pager does in an operation are methods of this type.
pub struct Operation<'a>(&'a Pager);

impl Operation<'_> {
    /// The store.
    pub fn store(&self) -> &Store {
        &self.0.store
    }
}

impl Deref for Operation<'_> {
    type Target = Pager;
    fn deref(&self) -> &Pager {
        self.0
    }
}

/// What gives the right to change words and the store: an operation, or the space lock alone (events, and the moment of a
/// fork).
pub(crate) trait MayChange {}
impl MayChange for Operation<'_> {}
impl MayChange for Exclusive<'_> {}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        // SeqCst: pairs with the look in `pause`. What the operation has done comes before what is done while there are none.
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
            present: AtomicPtr::new(Box::into_raw(Box::new((host.open_page_map)()?))),
            space: SpaceLock::new(),
            map: PageMap::new()?,
            regions: Regions::new()?,
            order: Lock::new(Order::default()),
            pinned: Regions::new()?,
            staging,
            store,
            budget: RamBudget::default(),
            guards: Guards::default(),
            backoff: Backoff::default(),
            ahead_backoff: Backoff::default(),
            proc: AtomicPtr::new(core::ptr::from_ref(proc).cast_mut()),
            hand: Lock::new(Hand::default()),
            reach: AtomicUsize::new(1 << 30),
            loads: Streams::new(4, 50),
            touches: Streams::new(16, 25),
            zeros: vm::map(MAX_WINDOW * PAGE_SIZE, OnFork::Copy)?,
            host,
            handover: AtomicPtr::new(crate::fork::Handover::new()?),
            forking: AtomicBool::new(false),
            was_forked: AtomicBool::new(false),
            has_moved: AtomicBool::new(false),
            reserve: AtomicPtr::new(core::ptr::null_mut()),
            has_copied: AtomicBool::new(false),
            sharers: AtomicU32::new(0),
            operations: AtomicU32::new(0),
            reclaiming: AtomicBool::new(false),
            arrived: AtomicUsize::new(0),
            zero_now: AtomicU64::new(0),
            moving: AtomicUsize::new(0),
            rest: AtomicUsize::new(0),
            own: [AtomicUsize::new(0), AtomicUsize::new(usize::MAX)],
        })
    }

    /// Before the first adoption, with the monitors about to start: from here on a fork waits until its event is read.
    ///
    /// # Errors
    /// Those of registering the staging area.
    pub fn activate(&self) -> Result<(), Errno> {
        self.keep_reserve();
        self.staging.register(self.uffd())
    }

    /// The userfaultfd.
    pub fn uffd(&self) -> &Uffd {
        // Acquire, here and in `present`: pairs with the Release in `reopen`.
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
        // Release: of the first two, pairs with the Acquire in `uffd` and `present`; of the third, with that in `keep_reserve`.
        self.uffd.store(Box::into_raw(Box::new(uffd)), Ordering::Release);
        self.present.store(Box::into_raw(Box::new(present)), Ordering::Release);
        self.reserve.store(core::ptr::null_mut(), Ordering::Release);
        self.keep_reserve();
    }

    /// Keeps a descriptor at hand, if there is one to be had.
    pub(crate) fn keep_reserve(&self) {
        // Acquire: pairs with the swap in `close_reserve`. Release: with the same, which frees what is stored here.
        if self.reserve.load(Ordering::Acquire).is_null()
            && let Ok(fd) = rustix::io::fcntl_dupfd_cloexec(self.uffd().as_fd(), 0)
        {
            self.reserve.store(Box::into_raw(Box::new(fd)), Ordering::Release);
        }
    }

    /// Closes it. With the space lock held alone, as above but where nobody else is at work.
    pub(crate) fn close_reserve(&self, _: &Exclusive<'_>) {
        // AcqRel: pairs with the two in `keep_reserve`.
        let reserve = self.reserve.swap(core::ptr::null_mut(), Ordering::AcqRel);
        if !reserve.is_null() {
            // SAFETY: from `keep_reserve`, and taken out once.
            drop(unsafe { Box::from_raw(reserve) });
        }
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
        // SeqCst, of both: pairs with the two in `pause`. Either this thread sees that the program forks, or that one sees the
        // operation.
        self.operations.fetch_add(1, Ordering::SeqCst);
        let operation = Operation(self);
        (!self.forking.load(Ordering::SeqCst)).then_some(operation)
    }

    /// Stops operations from beginning, and waits for those under way. Monitors go on serving faults, by copying only.
    pub(crate) fn pause(&self) {
        // SeqCst, of both: pairs with the two in `enter`.
        self.forking.store(true, Ordering::SeqCst);
        let mut patience = Patience::new();
        while self.operations.load(Ordering::SeqCst) > 0 {
            if !patience.wait(crate::patience::IN_HAND_SECONDS) {
                (self.host.fatal)(b"an I/O on swap has not ended for ten minutes");
            }
        }
    }

    /// A thread of the program moves memory though a fork is under way for which it should have waited: nobody can tell whether
    /// the child's copy of the tables knows of it.
    pub fn moves_during_fork(&self) {
        // SeqCst: pairs with the swap in `has_moved`. Before the call that moves: if that meets the cloning of the memory,
        // whoever reads the fork's event, which comes after the cloning, sees it.
        self.has_moved.store(true, Ordering::SeqCst);
    }

    /// Whether one did since this was last asked.
    pub(crate) fn has_moved(&self) -> bool {
        // SeqCst: pairs with the store in `moves_during_fork`.
        self.has_moved.swap(false, Ordering::SeqCst)
    }

    /// In a forked child: the parent's threads, of which one may just have found that no operation may begin and was about to
    /// take its count back, are not here.
    pub(crate) fn forget_operations(&self) {
        // SeqCst: pairs with `pause`, once the child has more threads.
        self.operations.store(0, Ordering::SeqCst);
    }

    /// The program is about to fork: memory that it shares with a child may from now on have stale words.
    pub(crate) fn forks(&self) {
        self.was_forked.store(true, Ordering::Relaxed);
    }

    /// Pages are in memory now whose words say otherwise.
    pub(crate) fn copied(&self) {
        self.has_copied.store(true, Ordering::Relaxed);
    }

    /// Whether there may be such words.
    pub(crate) fn may_have_stale_words(&self) -> bool {
        self.was_forked() || self.has_copied.load(Ordering::Relaxed)
    }

    /// Ends a [`Pager::pause`].
    pub(crate) fn resume(&self) {
        // SeqCst: pairs with the look in `enter`. What was done while there were no operations comes before those that begin.
        self.forking.store(false, Ordering::SeqCst);
    }

    /// The store, for who has the right to change it.
    pub(crate) fn store(&self, _right: &impl MayChange) -> &Store {
        &self.store
    }

    /// Bytes of the page map that were ever in use at a time.
    pub fn page_map_bytes(&self) -> usize {
        self.map.used_bytes()
    }

    /// The keeper says whether it is awake: pages are detached for it while it is not.
    pub fn set_reclaiming(&self, awake: bool) {
        // Release: pairs with the Acquire in `is_reclaiming`.
        self.reclaiming.store(awake, Ordering::Release);
    }

    /// Whether there is something for the keeper to do that should not wait.
    pub fn wants_keeper(&self) -> bool {
        self.budget.above_high() && (self.staging.is_above_target() || self.budget.at_limit())
    }

    pub(crate) fn is_reclaiming(&self) -> bool {
        // Acquire: pairs with the Release in `set_reclaiming`.
        self.reclaiming.load(Ordering::Acquire)
    }

    /// The name of the device behind an entry.
    pub(crate) fn device_of(&self, entry: Entry) -> DeviceName {
        self.store.device_of(entry)
    }

    /// Bytes of a batch of staging, which is what is evicted at a time.
    pub fn batch_bytes(&self) -> usize {
        self.staging.batch_frames() * PAGE_SIZE
    }

    /// What this process has of each of the run's swap areas.
    pub fn area_stats(&self) -> [AreaStats; MAX_AREAS] {
        self.store.area_stats()
    }

    /// Changes the limit of the pool, in bytes of frames; not while the program forks.
    pub fn set_pool_limit(&self, bytes: usize) {
        if let Some(operation) = self.enter() {
            operation.store().set_pool_limit(bytes);
        }
    }

    /// Whether a swap area with a device has room now. `false` also while the program forks.
    pub fn devices_have_room(&self) -> bool {
        self.enter().is_some_and(|operation| operation.store().devices_have_room())
    }

    /// Moves up to `pages` objects of a sparse pool together. False: there was nothing to do; also while the program forks.
    pub fn compact(&self, pages: usize) -> bool {
        let Some(operation) = self.enter() else { return false };
        operation.store().wants_compaction() && operation.store().compact_in_steps(pages, &mut || self.publish_own())
    }

    /// Gives memory of the page map back, when there may be much of it that speaks of no page any more. Not while a thread of
    /// the program is in [`Pager::removed`], which is for the caller to see to.
    pub fn collect_page_map(&self) {
        if !self.map.wants_collection() || self.paused() {
            return;
        }
        self.pause();
        let alone = self.space.exclusive();
        // SAFETY: no operation is under way, nobody else has the space lock, and no thread of the program is at it.
        unsafe { self.map.collect() };
        // Before the lock: whoever waits for it to serve a fault by copying, as in a fork, finds that there is no need.
        self.resume();
        drop(alone);
    }

    /// Whether [`Pager::recompress`] would find something to do.
    pub fn wants_recompression(&self, now_us: u64) -> bool {
        self.store.wants_recompression(now_us)
    }

    /// Whether this process, or one that it was forked from, has ever forked since memory was adopted.
    pub fn was_forked(&self) -> bool {
        self.was_forked.load(Ordering::Relaxed)
    }

    /// With how many other processes this one may have pages in common.
    pub fn set_sharers(&self, others: u64) {
        self.sharers.store(others.min(u64::from(u32::MAX)) as u32, Ordering::Relaxed);
    }

    pub(crate) fn sharers(&self) -> u32 {
        self.sharers.load(Ordering::Relaxed)
    }

    /// How many bytes of evicted pages are to wait before they are stored, in this process.
    pub fn set_staging_target(&self, bytes: usize) {
        self.staging.set_target(bytes);
    }

    /// Whether operations are stopped.
    pub fn paused(&self) -> bool {
        // SeqCst: pairs with the stores in `pause` and `resume`.
        self.forking.load(Ordering::SeqCst)
    }

    /// Adopts a range: registers it, so that its missing pages are served from now on, and makes it evictable.
    ///
    /// # Errors
    /// Those of UFFDIO_REGISTER; `NOMEM`: too many ranges; `EXIST`: lowtide's own memory is there by now; `AGAIN`: the mappings
    /// of the range are changing just now.
    pub fn adopt(&self, range: Range) -> Result<(), Errno> {
        let lock = self.space.exclusive();
        if self.regions.covers(&lock, range) {
            return Ok(());
        }
        // SAFETY: the monitors serve every fault, once this thread has let go of the lock.
        let register = || unsafe { self.uffd().register(range.start, range.end - range.start) };
        vm::unless_own(range.start, range.end, register).ok_or(Errno::EXIST)??;
        // There should be none; but where a program changes its mappings past the C library from several threads, words may
        // have been left behind, and would give old bytes to pages that were never touched.
        for gap in self.regions.gaps(&lock, range) {
            self.dropped(&lock, gap.start, gap.end);
        }
        if self.insert_registered(&lock, range)? {
            return Ok(());
        }
        // SAFETY: nothing of the range has been evicted yet.
        unsafe { self.uffd().unregister(range.start, range.end - range.start)? };
        Err(Errno::NOMEM)
    }

    /// Takes a range that was registered just now among the adopted ones. The kernel passes over what is not mapped in it: the
    /// program may have unmapped a part since it was found, of which no event told; were that taken for adopted, what is mapped
    /// there next would be evicted and not served. False: the set is full.
    fn insert_registered(&self, lock: &Exclusive<'_>, range: Range) -> Result<bool, Errno> {
        match self.present().mappings.is_one(range) {
            // What was unmapped since of a single mapping, an event will tell.
            Some(true) => Ok(self.regions.insert(lock, range)),
            Some(false) => {
                let mut inserted = true;
                self.each_registered(range, |part| inserted &= self.regions.insert(lock, part))?;
                Ok(inserted)
            }
            None => {
                // SAFETY: an asynchronous msync does nothing but to look for holes.
                unsafe { rustix::mm::msync(range.start as *mut _, range.end - range.start, MsyncFlags::ASYNC) }
                    .map_err(|_| Errno::AGAIN)?;
                Ok(self.regions.insert(lock, range))
            }
        }
    }

    /// Calls `f` with the parts of `range` that are registered with a userfaultfd.
    ///
    /// # Errors
    /// `AGAIN`: the mappings are changing, and events wait or will come. Those of reading the list of mappings.
    fn each_registered(&self, range: Range, mut f: impl FnMut(Range)) -> Result<(), Errno> {
        let mut at = range.start;
        while at < range.end {
            let Some(mapping) = self.present().mappings.next(at)?.filter(|mapping| mapping.start < range.end) else { break };
            let part = Range { start: mapping.start.max(at), end: mapping.end.min(range.end) };
            // Its first page speaks for a mapping, also for one that has been cut meanwhile.
            match self.uffd().standing(part.start) {
                Standing::Changing => return Err(Errno::AGAIN),
                Standing::Registered => f(part),
                Standing::NotRegistered => {}
            }
            at = part.end;
        }
        Ok(())
    }

    /// Writes the bytes of memory that are lowtide's own in this process into the run's segment: the frames of staging and of
    /// the pool as they are counted now, and the rest as [`Pager::measure_rest`] found it. Cheap: for every batch of pages.
    pub(crate) fn publish_own(&self) {
        // None of these have arrived, or all: half of them is never wrong by more than half of a MOVE.
        let moving = self.moving.load(Ordering::Relaxed) * PAGE_SIZE / 2;
        let counted = self.staging.held_bytes() + moving + self.store.held_bytes();
        let own = (counted + self.rest.load(Ordering::Relaxed)) as u64;
        self.budget.set_own(own);
        self.proc().own_bytes.store(own, Ordering::Relaxed);
    }

    /// Gives the frames that the pool keeps at hand back to the kernel; not while the program forks.
    pub fn drain_frames(&self) {
        let Some(operation) = self.enter() else { return };
        operation.store().drain_frames(&mut || self.publish_own());
    }

    /// Drops what forked descendants that are gone had of this process's swap files. Whether there was anything to do; `false`
    /// also while the program forks.
    pub fn release_dead(&self, run: &Segment) -> bool {
        let Some(operation) = self.enter() else { return false };
        operation.store().release_dead(run.image(self.proc()), &mut |image| run.is_alive(image))
    }

    /// What the store does when there is time; not while the program forks.
    pub fn maintain(&self) {
        let Some(operation) = self.enter() else { return };
        operation.store().maintain();
        self.publish_own();
    }

    /// Of lowtide's own ranges only those of the numbers `first .. end` (see [`vm::own_count`]) are this pager's: there are
    /// others.
    pub fn owns(&self, first: usize, end: usize) {
        self.own[0].store(first, Ordering::Relaxed);
        self.own[1].store(end, Ordering::Relaxed);
    }

    /// Asks the kernel how much memory is behind lowtide's own mappings but for staging and the pool's frames: tables, buffers,
    /// stacks, heap, the library's data. Mappings shared with forked processes (reference counts) are not in it: the kernel
    /// does not count them as anonymous memory of any of them either, and so they are not in `ram_bytes`. Some microseconds for
    /// each mapping: a few times a second.
    pub fn measure_rest(&self) {
        let [frames, buffer] = self.store.addresses();
        let counted = [self.staging.addresses(), frames, buffer];
        let mut rest = 0;
        let [first, end] = self.own.each_ref().map(|number| number.load(Ordering::Relaxed));
        vm::own_ranges_in(first, end, |start, end, whose| {
            if whose == Whose::Lowtide && !counted.iter().any(|c| c.start < end && start < c.end) {
                // What the kernel does not tell is nothing: it told what to evict by the same call.
                rest += self.present().bytes(start, end).unwrap_or(0);
            }
        });
        self.rest.store(rest, Ordering::Relaxed);
    }

    /// What [`Pager::measure_rest`] found: bytes of tables, buffers and stacks.
    pub fn rest_bytes(&self) -> usize {
        self.rest.load(Ordering::Relaxed)
    }

    /// Stores all that waits in staging, a batch at a time; false: nothing is left to store, or it can't be now.
    pub fn empty_staging(&self, worker: &mut Worker) -> bool {
        let Some(operation) = self.enter() else { return false };
        operation.drain(worker) == Drained::Freed
    }

    /// Writes old pages from the pool to the swap file, a cluster or a few, if the pool is about to get full. Whether pages
    /// were written; `false` also while the program forks.
    pub fn shrink_pool(&self, worker: &mut Worker) -> bool {
        let Some(operation) = self.enter() else { return false };
        let wanted = operation.store().wants_shrinking().min(SHRINK_BYTES);
        wanted > 0 && operation.store().shrink(wanted, worker.scratch()).pages > 0
    }

    /// The same whether or not the pool is about to get full: its memory is for others.
    pub fn empty_pool(&self, worker: &mut Worker) -> bool {
        let Some(operation) = self.enter() else { return false };
        let shrunk = operation.store().shrink(SHRINK_BYTES, worker.scratch());
        self.publish_own();
        shrunk.pages > 0 && !shrunk.failed
    }

    /// Compresses up to `pages` cold pages of the pool again ([`Store::recompress`]); how many words it looked at, 0 also while
    /// the program forks. The worker keeps the compressor until [`Worker::forget_compressor`].
    pub fn recompress(&self, worker: &mut Worker, pages: usize, now_us: u64) -> usize {
        let Some(operation) = self.enter() else { return 0 };
        operation.store().recompress(pages, now_us, worker.scratch()).looked
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
        set(&c.space_lock_sleeps, self.space.sleeps.load(Ordering::Relaxed));
        set(&c.space_lock_wait_ns, self.space.waited_ns.load(Ordering::Relaxed));
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
            set(&counts.read_bytes, area.read_bytes);
            set(&counts.write_bytes, area.write_bytes);
            set(&counts.errors, area.errors);
        }
    }
}

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
