//! What goes into a store and what comes out: configuration, results, errors and figures.

use rustix::fd::OwnedFd;
use rustix::io::Errno;

use super::fill_words::{FILL_WORDS, FillWord};
use crate::codec::Codec;
use crate::device::{DeviceName, Opener};
#[cfg(feature = "lab")]
use crate::slot::Policy;
use crate::slot::{Entry, ORDERS, Quota, SlotError};

/// How a store is set up.
#[derive(Debug)]
pub struct StoreConfig {
    /// Most bytes of frames that the compressed pool may hold. 0: nothing is kept in the pool.
    pub pool_limit: usize,
    /// Once full, the pool accepts again when it holds less than this many percent of its limit.
    pub accept_percent: u32,
    /// The compressor.
    pub codec: Codec,
}

/// A swap file of a store.
#[derive(Debug)]
pub struct FileConfig {
    /// The open file; the store closes it.
    pub fd: OwnedFd,
    /// What the user calls it.
    pub name: DeviceName,
    /// Most bytes that the file may hold.
    pub size: u64,
    /// What the store adds to, cluster by cluster, before its file grows; `None`: nothing limits it.
    pub quota: Option<Quota>,
    /// Files of higher priority are used first; those of the same in turn.
    pub priority: i16,
    /// Clusters that become free are punched out, so that their space goes back to the file system and the quota.
    pub discard: bool,
    /// As [`crate::slot::AreaConfig::policy`].
    #[cfg(feature = "lab")]
    pub policy: Policy,
    /// As [`crate::slot::AreaConfig::area_lock`].
    #[cfg(feature = "lab")]
    pub area_lock: bool,
    /// The device turns: all threads write one sequence ([`crate::device::is_rotational`]).
    pub rotating: bool,
}

impl FileConfig {
    /// A file without a name and a quota, of priority 0.
    pub fn new(fd: OwnedFd, size: u64) -> FileConfig {
        let name = DeviceName::default();
        FileConfig {
            fd,
            name,
            size,
            quota: None,
            priority: 0,
            discard: false,
            rotating: false,
            #[cfg(feature = "lab")]
            policy: Policy::default(),
            #[cfg(feature = "lab")]
            area_lock: false,
        }
    }
}

/// Pages of a store on a server.
#[derive(Debug)]
pub struct RemoteConfig {
    /// How it is reached.
    pub open: Opener,
    /// What the user calls it.
    pub name: DeviceName,
    /// Most bytes of pages that may be there.
    pub size: u64,
    /// As [`FileConfig::quota`].
    pub quota: Option<Quota>,
    /// As [`FileConfig::priority`].
    pub priority: i16,
}

/// How hard zstd tries. Level 3 saves no more of a page, and those above it a percent or two for twice to six times the time
/// (`lowtide-lab recompress`).
pub const RECOMPRESS_LEVEL: i32 = 2;

/// Most swap areas of a run. In a forked child, whose areas are its parents' as well, a store has more.
pub const MAX_AREAS: usize = 8;

/// What a swap area does for a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum AreaState {
    /// The process has none of its own.
    #[default]
    Absent,
    /// It has no free slot, as far as is known without looking at all of it.
    Full,
    /// It takes pages.
    Active,
    /// The latest write failed: it is tried again after a while.
    Failing,
}

impl AreaState {
    /// All states.
    pub const ALL: [AreaState; 4] = [AreaState::Absent, AreaState::Full, AreaState::Active, AreaState::Failing];
}

/// Figures of what a process has of one of the run's swap areas.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AreaStats {
    /// Whether pages go there.
    pub state: AreaState,
    /// The error of its latest write, if that failed.
    pub failing: Option<Errno>,
    /// Bytes of pages that are there now, without those in slots that a parent made.
    pub used: u64,
    /// Reads of runs of slots, those of the process's parents included.
    pub reads: u64,
    /// Writes of runs of slots.
    pub writes: u64,
    /// Bytes that these reads brought.
    pub read_bytes: u64,
    /// Bytes that these writes took.
    pub write_bytes: u64,
    /// Reads and writes that failed.
    pub errors: u64,
}

/// Where a page went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored {
    /// The page is all zeros: nothing is kept for it.
    Zero,
    /// The page is kept under this entry until it is freed.
    Entry(Entry),
}

/// What the caller of [`Store::store_tried`] knows of the pages that it stores, by their numbers in the run, and is told of them.
pub trait Trials {
    /// Whether to compress page `i`. False: it is taken for incompressible.
    fn is_worth_trying(&self, i: usize) -> bool;
    /// Whether pages like `i` got small enough when they were last tried, as far as is known.
    fn is_promising(&self, i: usize) -> bool;
    /// Page `i` was compressed. False: in vain, because it did not get small enough for a place in the pool.
    fn was_tried(&self, i: usize, paid: bool);
}

/// Nothing is known: all pages are tried.
impl Trials for () {
    fn is_worth_trying(&self, _: usize) -> bool {
        true
    }
    fn is_promising(&self, _: usize) -> bool {
        true
    }
    fn was_tried(&self, _: usize, _: bool) {}
}

/// Where a page came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loaded {
    /// From the pool: no I/O.
    Pool,
    /// From a device.
    Device,
}

/// Why a page could not be stored or loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreError {
    /// No tier can take the page.
    Full,
    /// The device failed.
    Io {
        /// What the kernel said.
        errno: Errno,
        /// Where, in bytes from the start of the area.
        offset: u64,
    },
    /// The bytes that came back are not those that were stored.
    Corrupt {
        /// The page's entry.
        entry: Entry,
        /// Where they were read, in bytes from the start of the area.
        offset: u64,
    },
    /// The entry names no page: never given out, or already freed.
    BadEntry,
    /// The page is on a device, and the thread keeps to memory ([`super::Scratch::keep_to_memory`]).
    OnDevice,
    /// The kernel or the allocator has no memory for lowtide's tables.
    NoMemory,
    /// An area that can't be.
    Area(SlotError),
    /// The parent died while it forked this process, whose references to slots were dropped before it could make them its own.
    ParentDied,
}

/// Figures of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreStats {
    /// Bytes of frames that the pool holds.
    pub pool_bytes: usize,
    /// Bytes of the objects in them.
    pub pool_stored_bytes: usize,
    /// The pool's limit, in bytes of frames.
    pub pool_limit: usize,
    /// Pages stored now (zero pages take nothing and are not counted).
    pub stored_now: u64,
    /// Of these, pages on a device.
    pub on_device_now: u64,
    /// Zero pages seen since the start.
    pub zero_seen: u64,
    /// Pages filled with one repeated word, not zero, seen since the start.
    pub same_filled: u64,
    /// The words that most of them repeat, the most frequent first.
    pub same_filled_words: [FillWord; FILL_WORDS],
    /// Pages that did not compress to 7/8 of a page, or were taken for such ([`Trials`]), seen since the start.
    pub incompressible: u64,
    /// Pages that were compressed and went to a device, or were kept as they are, all the same: they did not compress to 7/8, or
    /// not to half when the pool was mostly taken.
    pub in_vain: u64,
    /// Pages refused because no tier could take them.
    pub refused: u64,
    /// Read operations on devices.
    pub device_read_ios: u64,
    /// Write operations on devices.
    pub device_write_ios: u64,
    /// Bytes read from devices.
    pub device_read_bytes: u64,
    /// Bytes written to devices.
    pub device_write_bytes: u64,
    /// Pages that were written from the pool to a device to make room in the pool.
    pub written_back: u64,
    /// Pages in the pool that were compressed again, with zstd.
    pub recompressed: u64,
    /// Bytes by which these became smaller.
    pub recompressed_bytes: u64,
    /// Pages that the pool had no room for, and those that were not offered to it (it is full, or its limit is 0): they went to
    /// a device, or were refused.
    pub pool_refused: u64,
    /// How often the pool became full.
    pub pool_full_times: u64,
    /// Clusters whose pages stay in the pool because the device failed to write them.
    pub broken_clusters: u64,
    /// Failed operations on devices.
    pub device_errors: u64,
    /// Pages that came back with other bytes than were stored.
    pub corrupt: u64,
    /// Slots given up because the device failed to write them.
    pub bad_slots: u64,
    /// Calls of `free` with an entry that was not in use.
    pub bad_frees: u64,
    /// Slots that hold only the clean copy of a page in memory.
    pub cached_now: u64,
    /// Folios that got contiguous slots, by order: order 4 is 16 pages.
    pub folios: [u64; ORDERS],
    /// Folios that were split because no run of that order was free.
    pub folios_split: [u64; ORDERS],
    /// References that were added for forked children without a name, because there were as many children as can have one: what
    /// such a child has when it dies stays in use for good.
    pub stuck_references: u64,
    /// Bytes of this process's own swap files in use or once used (what it has added to their quotas).
    pub file_bytes: u64,
}

impl From<SlotError> for StoreError {
    fn from(error: SlotError) -> StoreError {
        match error {
            SlotError::NoMemory => StoreError::NoMemory,
            other => StoreError::Area(other),
        }
    }
}
