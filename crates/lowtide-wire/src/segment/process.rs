//! A process's entries in the segment: gauges and counters.

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use lowtide_core::latency::LATENCY_BUCKETS;
use lowtide_core::lock::rank::RANKS;
use lowtide_core::slot::{FILLS, Fills, ORDERS};
use lowtide_core::store::{FillWords, MAX_AREAS};
use rustix::thread::futex;

/// Ages of [`Counters::refaults_pool`], in epochs since eviction, modulo this.
pub const REFAULT_AGES: usize = 64;
/// Epochs until a limit's worth of pages has been evicted.
pub const EPOCHS_A_LIMIT: usize = 16;

/// Location of a faulting page.
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
    /// Never present: first touch.
    FirstTouch,
}

impl FaultKind {
    /// All kinds, in order.
    pub const ALL: [FaultKind; 5] =
        [FaultKind::Zero, FaultKind::Staged, FaultKind::Pool, FaultKind::Device, FaultKind::FirstTouch];
}

/// Adds to a counter.
pub fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}

/// Counters of one process image, or of all dead ones. Pages are 4 KiB.
#[repr(C)]
#[allow(missing_docs)] // stats/list.rs of the command says what they are
pub struct Counters {
    pub faults_total: AtomicU64,
    /// Faults served by program threads.
    pub faults_in_thread: AtomicU64,
    pub faults_zero: AtomicU64,
    pub faults_staged: AtomicU64,
    pub faults_pool: AtomicU64,
    pub faults_device: AtomicU64,
    pub faults_first_touch: AtomicU64,
    pub read_ahead_pages: AtomicU64,
    pub read_ahead_used: AtomicU64,
    /// Pages brought in, read-ahead included, first touches excluded.
    pub pages_in: AtomicU64,
    /// Those from the pool or a device.
    pub pages_loaded: AtomicU64,
    pub evictions_pages: AtomicU64,
    pub evictions_clean: AtomicU64,
    pub evictions_direct: AtomicU64,
    pub evictions_background: AtomicU64,
    pub moved_calls: AtomicU64,
    /// Calls refused by `lowtide run` ([`crate::call_filter`]).
    pub calls_refused: AtomicU64,
    pub stored_pages: AtomicU64,
    pub zero_pages: AtomicU64,
    pub same_filled_pages: AtomicU64,
    pub incompressible_pages: AtomicU64,
    /// Pages compressed in vain.
    pub in_vain_pages: AtomicU64,
    pub shuffled_pages: AtomicU64,
    pub recompressed_pages: AtomicU64,
    /// Bytes saved by recompression.
    pub recompressed_bytes: AtomicU64,
    /// Times the pool filled up, and pages it refused.
    pub pool_full_times: AtomicU64,
    pub pool_refused_pages: AtomicU64,
    /// Trials of another size of the pool, and those that paid.
    pub pool_trials: AtomicU64,
    pub pool_trials_paid: AtomicU64,
    pub writeback_pages: AtomicU64,
    pub writeback_ios: AtomicU64,
    pub writeback_bytes: AtomicU64,
    /// Folios with contiguous slots, by order, and folios split for lack of them.
    pub folios: [AtomicU64; ORDERS],
    pub folios_split: [AtomicU64; ORDERS],
    /// Wakeups of handlers, and those for a message that another handler had taken.
    pub monitor_wakeups: AtomicU64,
    pub monitor_wakeups_vain: AtomicU64,
    /// Nanoseconds of detaching by handlers while a thread waited.
    pub staging_ahead_ns: AtomicU64,
    /// CPU microseconds of lowtide's threads.
    pub cpu_us: AtomicU64,
    /// Sleeps and nanoseconds waited for the space lock.
    pub space_lock_sleeps: AtomicU64,
    pub space_lock_wait_ns: AtomicU64,
    /// Contentions for other locks, nanoseconds waited and the longest wait, by rank.
    pub lock_waits: [AtomicU64; RANKS],
    pub lock_wait_ns: [AtomicU64; RANKS],
    pub lock_wait_max_ns: [AtomicU64; RANKS],
    /// Faults on the pool and devices, by age in epochs.
    pub refaults_pool: [AtomicU64; REFAULT_AGES],
    pub refaults_device: [AtomicU64; REFAULT_AGES],
    /// Service nanoseconds by [`FaultKind`].
    pub service_ns: [AtomicU64; FaultKind::ALL.len()],
    /// Microseconds with a thread waiting for a page.
    pub stall_some_us: AtomicU64,
    /// Longest service, in nanoseconds.
    pub latency_max_ns: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        // SAFETY: repr(C), with AtomicU64 fields only: zeros are valid.
        unsafe { core::mem::zeroed() }
    }
}

impl Counters {
    /// The counter of a kind.
    pub fn faults(&self, kind: FaultKind) -> &AtomicU64 {
        match kind {
            FaultKind::Zero => &self.faults_zero,
            FaultKind::Staged => &self.faults_staged,
            FaultKind::Pool => &self.faults_pool,
            FaultKind::Device => &self.faults_device,
            FaultKind::FirstTouch => &self.faults_first_touch,
        }
    }

    /// Changes with each fault and eviction; wraps.
    pub fn happened(&self) -> u64 {
        self.faults_total.load(Ordering::Relaxed).wrapping_add(self.evictions_pages.load(Ordering::Relaxed))
    }

    /// Number of counters.
    pub const WORDS: usize = size_of::<Counters>() / 8;

    /// All counters, in order.
    pub fn words(&self) -> &[AtomicU64; Self::WORDS] {
        // SAFETY: repr(C), with AtomicU64 fields only.
        unsafe { &*(core::ptr::from_ref(self).cast()) }
    }

    /// Adds `other` to `self`; takes the larger maximum.
    pub fn fold(&self, other: &Counters) {
        for (to, from) in self.words().iter().zip(other.words()) {
            let from = from.load(Ordering::Relaxed);
            if self.lock_wait_max_ns.iter().chain([&self.latency_max_ns]).any(|maximum| core::ptr::eq(to, maximum)) {
                to.fetch_max(from, Ordering::Relaxed)
            } else {
                to.fetch_add(from, Ordering::Relaxed)
            };
        }
    }
}

/// I/O counters of one swap area.
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
    /// All counters, in order.
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

/// State of one swap area in one process.
#[repr(C)]
#[derive(Default)]
pub struct AreaGauges {
    /// Bytes on the area.
    pub used: AtomicU64,
    /// An [`lowtide_core::store::AreaState`].
    pub state: AtomicU64,
    /// Bytes added to [`super::SwapArea::used`], subtracted again after exec or death.
    pub charged: AtomicU64,
    /// The latest [`super::Order`] carried out.
    pub order: AtomicU64,
    /// During swapoff: bytes left, inherited pages included.
    pub left: AtomicU64,
    /// During swapoff: bytes without room elsewhere; retried.
    pub homeless: AtomicU64,
    /// During swapoff: unreadable pages, latest try.
    pub unreadable: AtomicU64,
    /// Address of the first.
    pub unreadable_at: AtomicU64,
}

impl AreaGauges {
    fn gauges(&self) -> [&AtomicU64; 7] {
        [&self.used, &self.state, &self.order, &self.left, &self.homeless, &self.unreadable, &self.unreadable_at]
    }
}

/// Fill levels of clusters on a swap area: see [`Fills`].
#[repr(C)]
#[derive(Default)]
pub struct AreaFills {
    opened: [AtomicU64; FILLS],
    never: AtomicU64,
}

impl AreaFills {
    /// Stores the levels.
    pub fn set(&self, fills: Fills) {
        self.opened.iter().zip(fills.opened).for_each(|(to, from)| to.store(from, Ordering::Relaxed));
        self.never.store(fills.never, Ordering::Relaxed);
    }

    /// Loads the levels.
    pub fn get(&self) -> Fills {
        let opened = core::array::from_fn(|class| self.opened[class].load(Ordering::Relaxed));
        Fills { opened, never: self.never.load(Ordering::Relaxed) }
    }
}

/// States of [`Proc::state`].
pub mod proc_state {
    /// Unused slot.
    pub const FREE: u32 = 0;
    /// Being filled in.
    pub const CLAIMED: u32 = 1;
    /// Agent present, nothing registered: native speed.
    pub const WATCHING: u32 = 2;
    /// Memory registered.
    pub const ACTIVE: u32 = 3;
}

mod alarm {
    /// Mappings are counted as they are made, or there is no reclaimer.
    pub(super) const NONE: u64 = 0;
    /// Requested, because the reclaimer can't sleep long without.
    pub(super) const ASKED: u64 = 1;
    /// `lowtide run` rings when the process has used CPU time.
    pub(super) const SET: u64 = 2;
}

/// Most lowtide threads in a process: reclaimer, handlers.
pub const OWN_THREADS: usize = 17;

/// One process's slot.
#[repr(C, align(64))]
pub struct Proc {
    /// One of [`proc_state`].
    pub state: AtomicU32,
    /// Pid in the supervisor's namespace; 0: free.
    pub pid: AtomicU32,
    /// Changes whenever the slot changes hands.
    pub(super) image: AtomicU64,
    /// 1: another pid for `lowtide run` than for itself.
    pub(super) elsewhere: AtomicU64,
    /// 1: no fork hook.
    without_hooks: AtomicU64,
    /// One of [`alarm`].
    alarm: AtomicU64,
    /// 1: hold its threads.
    pub(super) is_to_be_held: AtomicU32,
    /// Futex counting rings, for the reclaimer's long naps.
    pub bell: AtomicU32,
    threads: [AtomicU32; OWN_THREADS],
    /// Odd while a lowtide thread starts, perhaps not among `threads` yet.
    pub(super) thread_starts: AtomicU32,
    /// A state of `told_calls.rs`.
    pub(super) told_calls: AtomicU32,
    /// Address of the word cleared at the first thread's end; 0: unknown.
    pub cleared_word: AtomicU64,
    /// An address in the agent's code; 0: no agent.
    pub agent_at: AtomicU64,
    /// Resident anonymous bytes, lowtide's own included.
    pub ram_bytes: AtomicU64,
    /// Growth published since (`ram.rs`).
    pub grown: AtomicI64,
    /// Bytes that relatives have claimed since ([`super::Segment::found_shared`]).
    pub(super) counted_twice: AtomicU64,
    /// Its share of family pages, within `ram_bytes`.
    pub shared_bytes: AtomicU64,
    /// Family number; 0: none.
    pub family: AtomicU64,
    /// lowtide's part of `ram_bytes`; 0 before registration.
    pub own_bytes: AtomicU64,
    /// Staged bytes, within `own_bytes`.
    pub staged_bytes: AtomicU64,
    /// Bytes of the pool's frames.
    pub pool_bytes: AtomicU64,
    /// Bytes of compressed objects.
    pub pool_stored_bytes: AtomicU64,
    /// Pages in the pool and on devices.
    pub now_stored: AtomicU64,
    /// Zero pages evicted now.
    pub now_zero: AtomicU64,
    /// Pages on devices.
    pub now_on_device: AtomicU64,
    /// Bytes registered.
    pub adopted_bytes: AtomicU64,
    /// Latest fault or first touch, in microseconds of [`lowtide_sys::clock`]; 0 before
    /// registration.
    pub faulted_us: AtomicU64,
    /// The latest [`super::Reclaim::number`] handled.
    pub reclaimed: AtomicU64,
    /// Bytes evicted for requests.
    pub reclaimed_bytes: AtomicU64,
    /// The latest [`super::Settings::question`] answered.
    pub answered: AtomicU64,
    /// The answer: unevictable bytes that count, with a working minimum.
    pub fixed_bytes: AtomicU64,
    /// As in `Settings::swap`.
    pub areas_now: [AreaGauges; MAX_AREAS],
    /// The latest [`super::Settings::fills_asked`] answered.
    pub fills_told: AtomicU64,
    /// The answer.
    pub fills: [AreaFills; MAX_AREAS],
    /// Counters since exec.
    pub counters: Counters,
    /// I/Os since exec.
    pub areas: [AreaCounters; MAX_AREAS],
    /// Fill words of same-filled pages.
    pub same_filled_words: FillWords,
    /// Latencies by [`latency_bucket`].
    pub latency: [AtomicU64; LATENCY_BUCKETS],
}

impl Proc {
    /// Marks a process perhaps in another pid namespace: its pid can't prove it dead.
    pub fn has_another_pid(&self) {
        // Release: pairs with the Acquire in `is_elsewhere`.
        self.elsewhere.store(1, Ordering::Release);
    }

    /// Whether it is marked so.
    pub fn is_elsewhere(&self) -> bool {
        // Acquire: pairs with the Release in `has_another_pid`.
        self.elsewhere.load(Ordering::Acquire) != 0
    }

    /// Marks a process without a fork hook: its children have no agent.
    pub fn has_no_hooks(&self) {
        self.without_hooks.store(1, Ordering::Relaxed);
    }

    /// Whether it is marked so.
    pub fn forks_unseen(&self) -> bool {
        self.without_hooks.load(Ordering::Relaxed) != 0
    }

    /// For the reclaimer, after loading the bell: whether `lowtide run` rings when the process has
    /// used CPU time. The first call requests that.
    pub fn is_rung_when_it_runs(&self) -> bool {
        // Relaxed: the alarm is withdrawn before the ring: who misses that sees the ring.
        let _ = self.alarm.compare_exchange(alarm::NONE, alarm::ASKED, Ordering::Relaxed, Ordering::Relaxed);
        self.alarm.load(Ordering::Relaxed) == alarm::SET
    }

    /// Whether an alarm was requested.
    pub fn asks_for_alarm(&self) -> bool {
        self.alarm.load(Ordering::Relaxed) != alarm::NONE
    }

    /// For `lowtide run`: sets or withdraws a requested alarm.
    pub fn has_alarm(&self, is_set: bool) {
        let (from, to) = if is_set { (alarm::ASKED, alarm::SET) } else { (alarm::SET, alarm::ASKED) };
        let _ = self.alarm.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether to hold its threads.
    pub fn is_to_be_held(&self) -> bool {
        // Acquire: pairs with the Release in `Segment::ask_to_hold`.
        self.is_to_be_held.load(Ordering::Acquire) != 0
    }

    /// Records thread `id` as lowtide's, for the image's life.
    pub fn thread_begins(&self, id: u32) {
        let free = |place: &&AtomicU32| place.compare_exchange(0, id, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let _ = self.threads.iter().find(free);
    }

    /// Ends the reclaimer's present or next long nap.
    pub fn ring(&self) {
        // SeqCst: pairs with the reclaimer's load; its news come before.
        self.bell.fetch_add(1, Ordering::SeqCst);
        let _ = futex::wake(&self.bell, futex::Flags::empty(), 1);
    }

    /// Number of lowtide threads.
    pub fn own_threads(&self) -> usize {
        self.threads.iter().filter(|id| id.load(Ordering::Relaxed) != 0).count()
    }

    /// Ids of lowtide's threads; none from another pid namespace.
    pub fn threads(&self) -> impl Iterator<Item = u32> {
        let all = if self.is_elsewhere() { &[] } else { &self.threads[..] };
        all.iter().map(|id| id.load(Ordering::Relaxed)).filter(|id| *id != 0)
    }

    pub(super) fn next_image(&self) {
        self.elsewhere.store(0, Ordering::Relaxed);
        self.is_to_be_held.store(0, Ordering::Relaxed);
        // AcqRel: pairs with the Acquire in `Segment::is_alive` and `Segment::image`.
        self.image.fetch_add(1, Ordering::AcqRel);
    }

    /// Zeroes the gauges, for a new image or a free slot.
    pub(super) fn clear_gauges(&self) {
        self.agent_at.store(0, Ordering::Relaxed);
        let words = [&self.thread_starts, &self.told_calls];
        self.threads.iter().chain(words).for_each(|word| word.store(0, Ordering::Relaxed));
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
