//! What a process of the run says of itself: what it has now, and what it has done so far.

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use lowtide_core::latency::LATENCY_BUCKETS;
use lowtide_core::slot::{FILLS, Fills, ORDERS};
use lowtide_core::store::{AreaState, FillWords, MAX_AREAS};
use rustix::thread::futex;

/// Ages of [`Counters::refaults_pool`]: how many epochs ago a page was evicted. What is older counts as age modulo this number.
pub const REFAULT_AGES: usize = 64;
/// Epochs in which as many pages are evicted as the limit has.
pub const EPOCHS_A_LIMIT: usize = 16;

/// How much is evicted while a page of that age is away, in limits. Where in its epoch it left is chance: those of age 0 are a
/// third of an epoch away on average, others as many as their age says.
pub fn limits_away(age: usize) -> f64 {
    let epochs = if age == 0 { 1.0 / 3.0 } else { age as f64 };
    epochs / EPOCHS_A_LIMIT as f64
}

/// Where the page of a fault was: indices of [`Counters::service_ns`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// Evicted as zeros.
    Zero,
    /// In staging.
    Staged,
    /// In the compressed pool.
    Pool,
    /// On a device.
    Device,
    /// Nowhere: its first touch.
    FirstTouch,
}

impl FaultKind {
    /// All of them, in order.
    pub const ALL: [FaultKind; 5] =
        [FaultKind::Zero, FaultKind::Staged, FaultKind::Pool, FaultKind::Device, FaultKind::FirstTouch];
}

/// Counters of one process image, or of all dead ones. Pages are 4 KiB pages.
#[repr(C)]
#[allow(missing_docs)] // docs/statistics.md says what they are
pub struct Counters {
    pub faults_total: AtomicU64,
    /// Those that the program's threads served themselves.
    pub faults_in_thread: AtomicU64,
    pub faults_zero: AtomicU64,
    pub faults_staged: AtomicU64,
    pub faults_pool: AtomicU64,
    pub faults_device: AtomicU64,
    pub faults_first_touch: AtomicU64,
    pub faults_shared_writes: AtomicU64,
    pub read_ahead_pages: AtomicU64,
    pub read_ahead_used: AtomicU64,
    /// Pages that came back in, read-ahead included, first touches not.
    pub pages_in: AtomicU64,
    /// Those of them that were in the pool or on a device.
    pub pages_loaded: AtomicU64,
    pub evictions_pages: AtomicU64,
    pub evictions_clean: AtomicU64,
    pub evictions_direct: AtomicU64,
    pub evictions_background: AtomicU64,
    pub moved_calls: AtomicU64,
    /// Calls of mremap that were made for threads of the program.
    pub moves_made: AtomicU64,
    pub stored_pages: AtomicU64,
    pub zero_pages: AtomicU64,
    pub same_filled_pages: AtomicU64,
    pub incompressible_pages: AtomicU64,
    /// Pages that were compressed and stored elsewhere, or as they were, all the same.
    pub in_vain_pages: AtomicU64,
    pub recompressed_pages: AtomicU64,
    /// Bytes by which these became smaller.
    pub recompressed_bytes: AtomicU64,
    /// Times that the pool became full, and pages that it did not take.
    pub pool_full_times: AtomicU64,
    pub pool_refused_pages: AtomicU64,
    pub writeback_pages: AtomicU64,
    pub writeback_ios: AtomicU64,
    pub writeback_bytes: AtomicU64,
    /// Folios that got contiguous slots, by order, and those that were split for want of them.
    pub folios: [AtomicU64; ORDERS],
    pub folios_split: [AtomicU64; ORDERS],
    /// How often a monitor woke or looked because a fault or an event may have come, and how often another monitor had it.
    pub monitor_wakeups: AtomicU64,
    pub monitor_wakeups_vain: AtomicU64,
    /// Nanoseconds in which monitors detached pages for the reclaimer while a thread waited.
    pub staging_ahead_ns: AtomicU64,
    /// Microseconds of CPU that lowtide's threads have had.
    pub cpu_us: AtomicU64,
    /// Times that a thread slept for the space lock, and nanoseconds that threads waited for it.
    pub space_lock_sleeps: AtomicU64,
    pub space_lock_wait_ns: AtomicU64,
    /// The same of all other locks: times that a thread found one held, and nanoseconds that threads waited for them.
    pub lock_waits: AtomicU64,
    pub lock_wait_ns: AtomicU64,
    /// Faults on pages in the pool, and on a device, by how many epochs ago the page was evicted ([`EPOCHS_A_LIMIT`]).
    pub refaults_pool: [AtomicU64; REFAULT_AGES],
    pub refaults_device: [AtomicU64; REFAULT_AGES],
    /// Nanoseconds that faults of each [`FaultKind`] took to serve.
    pub service_ns: [AtomicU64; FaultKind::ALL.len()],
    /// Microseconds in which at least one thread waited for a page.
    pub stall_some_us: AtomicU64,
    /// Longest fault service in nanoseconds.
    pub latency_max_ns: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        // SAFETY: repr(C), every field is an AtomicU64 or an array of them, of which zeros are one.
        unsafe { core::mem::zeroed() }
    }
}

impl Counters {
    /// The count of faults of a kind.
    pub fn faults(&self, kind: FaultKind) -> &AtomicU64 {
        match kind {
            FaultKind::Zero => &self.faults_zero,
            FaultKind::Staged => &self.faults_staged,
            FaultKind::Pool => &self.faults_pool,
            FaultKind::Device => &self.faults_device,
            FaultKind::FirstTouch => &self.faults_first_touch,
        }
    }

    /// Faults and evicted pages together: as long as the sum stands, nothing happens. It wraps.
    pub fn happened(&self) -> u64 {
        self.faults_total.load(Ordering::Relaxed).wrapping_add(self.evictions_pages.load(Ordering::Relaxed))
    }

    /// Number of counters, for folding them as words.
    pub const WORDS: usize = size_of::<Counters>() / 8;

    /// All counters as a slice of words, in the order of declaration.
    pub fn words(&self) -> &[AtomicU64; Self::WORDS] {
        // SAFETY: repr(C), and every field is an AtomicU64 or an array of them.
        unsafe { &*(core::ptr::from_ref(self).cast()) }
    }

    /// Adds `other` to `self`; the maximum is kept as a maximum.
    pub fn fold(&self, other: &Counters) {
        for (to, from) in self.words().iter().zip(other.words()) {
            let (is_maximum, from) = (core::ptr::eq(to, &self.latency_max_ns), from.load(Ordering::Relaxed));
            if is_maximum {
                to.fetch_max(from, Ordering::Relaxed)
            } else {
                to.fetch_add(from, Ordering::Relaxed)
            };
        }
    }
}

/// Counts of I/Os on one swap area.
#[repr(C)]
#[derive(Default)]
#[allow(missing_docs)] // docs/statistics.md says what they are
pub struct AreaCounters {
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    pub read_bytes: AtomicU64,
    pub write_bytes: AtomicU64,
    pub errors: AtomicU64,
}

impl AreaCounters {
    /// All counters, in the order of declaration.
    pub fn words(&self) -> [&AtomicU64; 5] {
        [&self.reads, &self.writes, &self.read_bytes, &self.write_bytes, &self.errors]
    }

    /// Adds `other` to `self`.
    pub fn fold(&self, other: &AreaCounters) {
        for (to, from) in self.words().into_iter().zip(other.words()) {
            to.fetch_add(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

/// What a process has of one swap area now.
#[repr(C)]
#[derive(Default)]
pub struct AreaGauges {
    /// Bytes of its pages that are there.
    pub used: AtomicU64,
    /// An [`AreaState`] as a number.
    pub state: AtomicU64,
    /// Bytes that the process has added to [`super::SwapArea::used`] and not given back. When it is gone, by death or by exec,
    /// whoever notices takes them off there, and this to 0.
    pub charged: AtomicU64,
    /// The latest [`super::Order`] about the area with which the process has complied.
    pub order: AtomicU64,
    /// While it takes its pages off: bytes of those that are still there, with those that it has from its parents.
    pub left: AtomicU64,
    /// The same: bytes for which there is no room elsewhere. Until there is, or the order changes, it tries again now and then.
    pub homeless: AtomicU64,
    /// The same: pages that could not be read, at the latest try, ...
    pub unreadable: AtomicU64,
    /// ... and the address of the first of them.
    pub unreadable_at: AtomicU64,
}

impl AreaGauges {
    /// All but what [`super::Segment`] accounts for.
    fn gauges(&self) -> [&AtomicU64; 7] {
        [&self.used, &self.state, &self.order, &self.left, &self.homeless, &self.unreadable, &self.unreadable_at]
    }
}

/// How full the clusters are that a process has of a swap area: see [`Fills`].
#[repr(C)]
#[derive(Default)]
pub struct AreaFills {
    opened: [AtomicU64; FILLS],
    never: AtomicU64,
}

impl AreaFills {
    /// What it has now.
    pub fn set(&self, fills: Fills) {
        self.opened.iter().zip(fills.opened).for_each(|(to, from)| to.store(from, Ordering::Relaxed));
        self.never.store(fills.never, Ordering::Relaxed);
    }

    /// What it had when it was last asked.
    pub fn get(&self) -> Fills {
        let opened = core::array::from_fn(|class| self.opened[class].load(Ordering::Relaxed));
        Fills { opened, never: self.never.load(Ordering::Relaxed) }
    }
}

/// How many numbers there are for states.
pub const AREA_STATES: usize = AreaState::ALL.len();

/// The number of a state in [`AreaGauges::state`].
pub const fn area_state(state: AreaState) -> u64 {
    state as u64
}

/// States of [`Proc::state`].
pub mod proc_state {
    /// Nobody's.
    pub const FREE: u32 = 0;
    /// Being filled in.
    pub const CLAIMED: u32 = 1;
    /// Agent present, nothing adopted: native speed.
    pub const WATCHING: u32 = 2;
    /// Memory adopted.
    pub const ACTIVE: u32 = 3;
}

/// States of `Proc::alarm`.
mod alarm {
    /// Its mappings are counted as they are made, or it has no reclaimer.
    pub(super) const NONE: u64 = 0;
    /// It can't sleep long without one.
    pub(super) const ASKED: u64 = 1;
    /// `lowtide run` rings as soon as it has had CPU time.
    pub(super) const SET: u64 = 2;
}

/// Most threads that lowtide has in a process: its reclaimer, its fault handlers, and one that makes moves.
pub const OWN_THREADS: usize = 18;

/// One process of the tree.
#[repr(C, align(64))]
pub struct Proc {
    /// One of [`proc_state`].
    pub state: AtomicU32,
    /// Process id in the supervisor's pid namespace; 0 when free.
    pub pid: AtomicU32,
    /// Another number for each process image that has had the slot, and while nobody has.
    pub(super) image: AtomicU64,
    /// 1: the process has another pid for `lowtide run` than it knows.
    pub(super) elsewhere: AtomicU64,
    /// 1: it has no hook for fork.
    without_hooks: AtomicU64,
    /// Whether it has an alarm: one of [`alarm`].
    alarm: AtomicU64,
    /// 1: its threads are to be held, see [`super::Segment::ask_to_hold`].
    pub(super) is_to_be_held: AtomicU32,
    /// Counts the rings for its reclaimer: a futex for all processes of the run, at which it takes its long naps.
    pub bell: AtomicU32,
    /// Ids of lowtide's threads in it, ...
    threads: [AtomicU32; OWN_THREADS],
    /// ... and an address in the code of the library that they execute; 0: there are none.
    pub agent_at: AtomicU64,
    /// Resident anonymous bytes that count against the limit (lowtide's own inside the process included).
    pub ram_bytes: AtomicU64,
    /// Bytes by which it has grown, or shrunk, since then, as far as it has told (`ram.rs`).
    pub grown: AtomicI64,
    /// Of both together, what others of its family have found to be their part since ([`super::Segment::found_shared`]).
    pub(super) counted_twice: AtomicU64,
    /// Of `ram_bytes`, its part of the pages that it shares with other processes of its family ([`crate::accounts::share`]).
    pub shared_bytes: AtomicU64,
    /// Number of its family; 0: it shares memory with nobody.
    pub family: AtomicU64,
    /// Of `ram_bytes`, lowtide's own: pool, staged pages, tables, buffers, stacks, heap; 0 before memory is adopted.
    pub own_bytes: AtomicU64,
    /// Bytes of program pages waiting in staging (part of `own_bytes`).
    pub staged_bytes: AtomicU64,
    /// Bytes of frames that the pool holds.
    pub pool_bytes: AtomicU64,
    /// Bytes of compressed objects in the pool.
    pub pool_stored_bytes: AtomicU64,
    /// Pages stored now (pool and device, zero pages not).
    pub now_stored: AtomicU64,
    /// Pages in zero state now that were evicted as zero pages.
    pub now_zero: AtomicU64,
    /// Pages on the device now.
    pub now_on_device: AtomicU64,
    /// Bytes of address space adopted.
    pub adopted_bytes: AtomicU64,
    /// When it was last seen to miss a page, or to touch a new one, in microseconds of [`crate::sys::clock`]; 0 before memory
    /// is adopted.
    pub faulted_us: AtomicU64,
    /// The latest [`super::Reclaim::number`] that the process has dealt with, as far as it could, ...
    pub reclaimed: AtomicU64,
    /// ... and the bytes of the program's pages that it has moved out because of such requests, all together.
    pub reclaimed_bytes: AtomicU64,
    /// The latest [`super::Settings::question`] that it has answered, ...
    pub answered: AtomicU64,
    /// ... and the answer: bytes that it counts for and can't move out, with a working minimum.
    pub fixed_bytes: AtomicU64,
    /// The swap areas, as in `Settings::swap`.
    pub areas_now: [AreaGauges; MAX_AREAS],
    /// The latest [`super::Settings::fills_asked`] that it has answered, ...
    pub fills_told: AtomicU64,
    /// ... and the answer.
    pub fills: [AreaFills; MAX_AREAS],
    /// Counts since the process was last started by exec.
    pub counters: Counters,
    /// I/Os on the swap areas since then.
    pub areas: [AreaCounters; MAX_AREAS],
    /// The words of its same-filled pages.
    pub same_filled_words: FillWords,
    /// Latencies of fault service: see [`latency_bucket`].
    pub latency: [AtomicU64; LATENCY_BUCKETS],
}

impl Proc {
    /// In a process that is in another pid namespace than `lowtide run`, or may be: nobody can tell by its pid whether it is
    /// alive.
    pub fn has_another_pid(&self) {
        // Release: pairs with the Acquire in `is_elsewhere`.
        self.elsewhere.store(1, Ordering::Release);
    }

    /// Whether that was said.
    pub fn is_elsewhere(&self) -> bool {
        // Acquire: pairs with the Release in `has_another_pid`.
        self.elsewhere.load(Ordering::Acquire) != 0
    }

    /// In a process that has no hook for fork: its children are copies of it, without an agent of their own.
    pub fn has_no_hooks(&self) {
        self.without_hooks.store(1, Ordering::Relaxed);
    }

    /// Whether that was said.
    pub fn forks_unseen(&self) -> bool {
        self.without_hooks.load(Ordering::Relaxed) != 0
    }

    /// By its reclaimer, after it has looked at the bell's count: whether `lowtide run` rings as soon as the process has had CPU
    /// time. From the first question on it tries to.
    pub fn is_rung_when_it_runs(&self) -> bool {
        // Relaxed: an alarm that has come is taken back before the ring. A reclaimer that has missed it here finds that the
        // bell has rung.
        let _ = self.alarm.compare_exchange(alarm::NONE, alarm::ASKED, Ordering::Relaxed, Ordering::Relaxed);
        self.alarm.load(Ordering::Relaxed) == alarm::SET
    }

    /// Whether it has ever asked.
    pub fn asks_for_alarm(&self) -> bool {
        self.alarm.load(Ordering::Relaxed) != alarm::NONE
    }

    /// By `lowtide run`, of a process that has asked: whether it rings.
    pub fn has_alarm(&self, is_set: bool) {
        let (from, to) = if is_set { (alarm::ASKED, alarm::SET) } else { (alarm::SET, alarm::ASKED) };
        let _ = self.alarm.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether its threads are to be held.
    pub fn is_to_be_held(&self) -> bool {
        // Acquire: pairs with the Release in `Segment::ask_to_hold`.
        self.is_to_be_held.load(Ordering::Acquire) != 0
    }

    /// The calling thread, of this id, is lowtide's, and lives as long as the process image.
    pub fn thread_begins(&self, id: u32) {
        let free = |place: &&AtomicU32| place.compare_exchange(0, id, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let _ = self.threads.iter().find(free);
    }

    /// Wakes its reclaimer from a long nap, if it takes one; else from the next one at once.
    pub fn ring(&self) {
        // SeqCst: pairs with the load before the reclaimer looks. What it is to see comes before.
        self.bell.fetch_add(1, Ordering::SeqCst);
        let _ = futex::wake(&self.bell, futex::Flags::empty(), 1);
    }

    /// How many threads of lowtide's it has.
    pub fn own_threads(&self) -> usize {
        self.threads.iter().filter(|id| id.load(Ordering::Relaxed) != 0).count()
    }

    /// Ids of lowtide's threads in it; none where they mean something else to `lowtide run`.
    pub fn threads(&self) -> impl Iterator<Item = u32> {
        let all = if self.is_elsewhere() { &[] } else { &self.threads[..] };
        all.iter().map(|id| id.load(Ordering::Relaxed)).filter(|id| *id != 0)
    }

    /// The image that had the slot can execute no other instruction.
    pub(super) fn next_image(&self) {
        self.elsewhere.store(0, Ordering::Relaxed);
        self.is_to_be_held.store(0, Ordering::Relaxed);
        // AcqRel: pairs with the Acquire in `Segment::is_alive` and `Segment::image`.
        self.image.fetch_add(1, Ordering::AcqRel);
    }

    /// Sets all gauges (what is so now, unlike counts) to zero: for a new image of the process, or none.
    pub(super) fn clear_gauges(&self) {
        self.agent_at.store(0, Ordering::Relaxed);
        self.threads.iter().for_each(|id| id.store(0, Ordering::Relaxed));
        for gauge in [
            &self.without_hooks,
            &self.alarm,
            &self.shared_bytes,
            &self.family,
            &self.own_bytes,
            &self.staged_bytes,
            &self.pool_bytes,
            &self.pool_stored_bytes,
            &self.now_stored,
            &self.now_zero,
            &self.now_on_device,
            &self.adopted_bytes,
            &self.faulted_us,
            &self.reclaimed,
            &self.reclaimed_bytes,
            &self.answered,
            &self.fixed_bytes,
            &self.fills_told,
        ]
        .into_iter()
        .chain(self.areas_now.iter().flat_map(AreaGauges::gauges))
        {
            gauge.store(0, Ordering::Relaxed);
        }
        self.fills.iter().for_each(|fills| fills.set(Fills::default()));
    }
}
