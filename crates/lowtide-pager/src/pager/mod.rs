//! The pager's parts in one place, and the rules about who may change what when.
//!
//! LOCK ORDER: space lock > hand > staging queues > locks of the store. A thread in an *operation* (see [`Pager::enter`]) may
//! change page-map words and the store; while the program forks there are none, so that the child's copy is consistent. The
//! store is reached through an [`Operation`] or the exclusive space lock only (`MayChange`).

mod adopt;
mod descriptors;
mod host;
mod operation;
mod publish;
mod sharing;
mod upkeep;

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use alloc::boxed::Box;
use alloc::sync::Arc;
use lowtide_core::device::DeviceName;
use lowtide_core::ledger::Ledger;
use lowtide_core::lock::{Lock, rank};
use lowtide_core::slot::Entry;
use lowtide_core::store::Store;
use lowtide_core::vm::{self, Mapping, OnFork, PAGE_SIZE};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

use crate::accounts::budget::RamBudget;
use crate::fault::ZeroPage;
use crate::fault::sentinels::Sentinels;
use crate::fault::stream::{MAX_WINDOW, Streams};
use crate::fork::{HeldBack, Hold, SharedWrites};
use crate::mappings::event_order::Order;
use crate::mappings::going::Going;
use crate::mappings::guards::Guards;
use crate::mappings::held::Held;
use crate::mappings::kept::MOST_KEPT;
use crate::mappings::made_move::Settling;
use crate::mappings::moved::tells_length;
use crate::mappings::regions::Regions;
use crate::mappings::removal_calls::RemovalCalls;
use crate::mappings::space::SpaceLock;
use crate::mappings::walks::Walks;
use crate::pagemap::PageMap;
use crate::reclaim::backoff::Backoff;
use crate::reclaim::soft_dirty::SoftDirty;
use crate::reclaim::staging::Staging;
use crate::reclaim::stretches::Stretches;
use crate::reclaim::victims::Hand;
use crate::reclaim::zeros::Search;
use crate::segment::{Counters, Proc};
use crate::sys::present::Present;
use crate::sys::release;
use crate::sys::uffd::Uffd;

pub use host::Host;
pub use operation::Operation;

/// The pager of one process.
pub struct Pager {
    uffd: AtomicPtr<Uffd>,
    present: AtomicPtr<Present>,
    pub(crate) space: SpaceLock,
    pub(crate) map: PageMap,
    pub(crate) regions: Regions,
    /// What is left of removals.
    pub(crate) going: Going,
    pub(crate) removal_calls: RemovalCalls,
    pub(crate) walks: Walks,
    /// Changed with the space lock held exclusively.
    pub(crate) order: Lock<Order, { rank::UNRANKED }>,
    pub(crate) settling: Settling,
    /// What is to stay in memory; see `ranges.rs`.
    pub(crate) pinned: Regions,
    pub(crate) held: Held,
    /// See [`Pager::keeping`]; 0: none.
    pub(crate) kept: [AtomicU64; MOST_KEPT],
    pub(crate) staging: Staging,
    /// Everything that left staging. Reached through [`Operation::store`] and [`Pager::store`].
    store: Store,
    /// RAM left. Staging and store count there what they hold.
    pub budget: Arc<RamBudget>,
    /// Guards that the program makes.
    pub guards: Guards,
    /// When not to look for pages to evict.
    pub(crate) backoff: Backoff,
    /// The same where a look was worth next to nothing.
    pub(crate) look_backoff: Backoff,
    /// The same of monitors that detach pages for the reclaimer.
    pub(crate) ahead_backoff: Backoff,
    proc: AtomicPtr<Proc>,
    pub(crate) hand: Lock<Hand, { rank::HAND }>,
    /// How far the hand looks at a time, in bytes.
    pub(crate) reach: AtomicUsize,
    pub(crate) stretches: Stretches,
    pub(crate) search: Search,
    pub(crate) soft_dirty: SoftDirty,
    pub(crate) zero_page: ZeroPage,
    pub(crate) shared_writes: SharedWrites,
    /// Memory was adopted that can't tell of accesses, because it is inaccessible.
    has_inaccessible: AtomicBool,
    /// See [`Pager::sees_code`].
    has_code: AtomicBool,
    /// See [`Pager::sees_unwritable`].
    has_unwritable: AtomicBool,
    /// Changed with the space lock held exclusively, or by the thread that sets them.
    pub(crate) sentinels: Lock<Sentinels, { rank::UNRANKED }>,
    pub(crate) loads: Streams,
    pub(crate) touches: Streams,
    pub(crate) zeros: Mapping,
    pub(crate) host: Host,
    /// Whether the kernel reports how much a move has moved.
    pub(crate) tells_moved_length: bool,
    /// Memory shared with the next forked child; see `fork/handover.rs`.
    pub(crate) handover: AtomicPtr<crate::fork::Handover>,
    pub(crate) held_back: HeldBack,
    pub(crate) hold: Hold,
    forking: AtomicBool,
    was_forked: AtomicBool,
    /// See [`Pager::moves_during_fork`].
    has_moved: AtomicBool,
    /// Forks that were not announced; wraps.
    unannounced: AtomicU32,
    /// Pages that were brought in for children that are not to be seen yet.
    unborn: AtomicUsize,
    /// A descriptor to close where there are no more, so that a fork event can be read, which brings one; null: there is none
    /// now.
    reserve: AtomicPtr<(OwnedFd, Option<OwnedFd>)>,
    /// Faults were served by copying: there may be stale words.
    has_copied: AtomicBool,
    /// See [`Pager::set_sharers`].
    sharers: AtomicU32,
    operations: AtomicU32,
    /// See [`Pager::events_read`].
    pub(crate) events_read: AtomicU64,
    /// The reclaimer is awake.
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

impl Pager {
    /// A pager with nothing adopted: until [`Pager::activate`] the kernel knows nothing of it. `staging` is the target of the
    /// inactive list in bytes.
    ///
    /// # Errors
    /// `NOMEM`, and those of opening the page map.
    pub fn new(uffd: Uffd, mut store: Store, staging: usize, proc: &'static Proc, host: Host) -> Result<Pager, Errno> {
        let budget = Arc::<RamBudget>::default();
        budget.publish_in(proc);
        let ledger: Arc<dyn Ledger> = budget.clone();
        store.count_in(&ledger);
        let staging = Staging::new(staging, ledger)?;
        let present = (host.open_page_map)()?;
        let zeros = vm::map(MAX_WINDOW * PAGE_SIZE, OnFork::Copy)?;
        let soft_dirty = SoftDirty::new(present.is_soft_dirty(zeros.addr()) == Some(true));
        Ok(Pager {
            uffd: AtomicPtr::new(Box::into_raw(Box::new(uffd))),
            present: AtomicPtr::new(Box::into_raw(Box::new(present))),
            space: SpaceLock::new(),
            map: PageMap::new()?,
            regions: Regions::new()?,
            going: Going::new(),
            removal_calls: RemovalCalls::new(),
            walks: Walks::default(),
            order: Lock::new(Order::default()),
            settling: Settling::default(),
            pinned: Regions::new()?,
            held: Held::new()?,
            kept: [const { AtomicU64::new(0) }; MOST_KEPT],
            staging,
            store,
            budget,
            guards: Guards::default(),
            backoff: Backoff::default(),
            look_backoff: Backoff::default(),
            ahead_backoff: Backoff::default(),
            proc: AtomicPtr::new(core::ptr::from_ref(proc).cast_mut()),
            hand: Lock::new(Hand::default()),
            reach: AtomicUsize::new(1 << 30),
            stretches: Stretches::new()?,
            search: Search::default(),
            soft_dirty,
            zero_page: ZeroPage::default(),
            shared_writes: SharedWrites::new(),
            has_inaccessible: AtomicBool::new(false),
            has_code: AtomicBool::new(false),
            has_unwritable: AtomicBool::new(false),
            sentinels: Lock::new(Sentinels::new()),
            loads: Streams::new(4, 50),
            touches: Streams::new(16, 25),
            zeros,
            host,
            tells_moved_length: tells_length(release::running()),
            handover: AtomicPtr::new(crate::fork::Handover::new()?),
            held_back: HeldBack::new()?,
            hold: Hold::default(),
            forking: AtomicBool::new(false),
            was_forked: AtomicBool::new(false),
            has_moved: AtomicBool::new(false),
            unannounced: AtomicU32::new(0),
            unborn: AtomicUsize::new(0),
            reserve: AtomicPtr::new(core::ptr::null_mut()),
            has_copied: AtomicBool::new(false),
            sharers: AtomicU32::new(0),
            operations: AtomicU32::new(0),
            events_read: AtomicU64::new(0),
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

    /// This process's place in the segment of the run.
    pub fn proc(&self) -> &'static Proc {
        // SAFETY: only ever set from a `&'static Proc`, all of whose fields are atomics.
        unsafe { &*self.proc.load(Ordering::Relaxed) }
    }

    /// In a forked child: its own place.
    pub(crate) fn set_proc(&self, proc: &'static Proc) {
        self.proc.store(core::ptr::from_ref(proc).cast_mut(), Ordering::Relaxed);
        self.budget.publish_in(proc);
    }

    /// Fault and eviction counts.
    pub fn counters(&self) -> &'static Counters {
        &self.proc().counters
    }

    /// How many events were read from the userfaultfd so far; wraps.
    pub fn events_read(&self) -> u64 {
        self.events_read.load(Ordering::Relaxed)
    }

    /// The name of the device behind an entry.
    pub(crate) fn device_of(&self, entry: Entry) -> DeviceName {
        self.store.device_of(entry)
    }
}

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
