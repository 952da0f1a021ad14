//! Configuration, results, errors and figures of a store.

use rustix::fd::OwnedFd;
use rustix::io::Errno;

use super::fill_words::{FILL_WORDS, FillWord};
use crate::codec::Codec;
use crate::device::{DeviceName, Opener};
use crate::slot::{Allocator, Entry, ORDERS, Quota, SlotError};

/// Configuration of a store.
#[derive(Debug)]
pub struct StoreConfig {
    /// Most bytes of frames in the compressed pool; 0: no pool.
    pub pool_limit: usize,
    /// A full pool accepts again below this percentage.
    pub accept_percent: u32,
    /// The compressor.
    pub codec: Codec,
}

/// A swap file of a store.
#[derive(Debug)]
pub struct FileConfig {
    /// The open file; the store closes it.
    pub fd: OwnedFd,
    /// The user's name for it.
    pub name: DeviceName,
    /// Most bytes that the file may hold.
    pub size: u64,
    /// Charged cluster by cluster before the file grows; `None`: unlimited.
    pub quota: Option<Quota>,
    /// Higher ones are used first, equal ones in turn.
    pub priority: i16,
    /// Punches out free clusters.
    pub discard: bool,
    /// As [`crate::slot::AreaConfig::allocator`].
    pub allocator: Allocator,
    /// All threads write one sequence, on a rotational device ([`crate::device::is_rotational`]).
    pub rotating: bool,
}

impl FileConfig {
    /// Without a name and a quota, of priority 0.
    pub fn new(fd: OwnedFd, size: u64) -> FileConfig {
        let name = DeviceName::default();
        FileConfig { fd, name, size, quota: None, priority: 0, discard: false, rotating: false, allocator: Allocator::SHIPPED }
    }
}

/// An area on a server.
#[derive(Debug)]
pub struct RemoteConfig {
    /// Opens the connection.
    pub open: Opener,
    /// The user's name for it.
    pub name: DeviceName,
    /// Most bytes of pages.
    pub size: u64,
    /// As [`FileConfig::quota`].
    pub quota: Option<Quota>,
    /// As [`FileConfig::priority`].
    pub priority: i16,
}

/// zstd's level. Level 3 saves no more, higher ones a percent or two for two to six times the time
/// (`lowtide-lab recompress`).
pub const RECOMPRESS_LEVEL: i32 = 2;

/// Most swap areas of a run; a forked child's store has its parents' as well.
pub const MAX_AREAS: usize = 8;

/// State of a swap area in a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum AreaState {
    /// The process has none of its own.
    #[default]
    Absent,
    /// No free slot known.
    Full,
    /// It takes pages.
    Active,
    /// The latest write failed; it will be retried.
    Failing,
}

impl AreaState {
    /// All states.
    pub const ALL: [AreaState; 4] = [AreaState::Absent, AreaState::Full, AreaState::Active, AreaState::Failing];
}

/// A process's part of one swap area.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AreaStats {
    /// State of the area.
    pub state: AreaState,
    /// The latest write's error, if it failed.
    pub failing: Option<Errno>,
    /// Bytes of pages there now, except in parents' slots.
    pub used: u64,
    /// Reads of runs of slots, parents' slots included.
    pub reads: u64,
    /// Writes of runs of slots.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Failed reads and writes.
    pub errors: u64,
}

/// Place of a stored page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored {
    /// All zeros: kept nowhere.
    Zero,
    /// Kept under this entry until freed.
    Entry(Entry),
}

/// A caller's knowledge about its pages in [`Store::store_tried`].
pub trait Trials {
    /// Whether to compress page `i`; otherwise it counts as incompressible.
    fn is_worth_trying(&self, i: usize) -> bool;
    /// Whether pages like `i` got small enough, as far as known.
    fn is_promising(&self, i: usize) -> bool;
    /// Page `i` was compressed. `paid`: enough for the pool.
    fn was_tried(&self, i: usize, paid: bool);
}

/// Tries all pages.
impl Trials for () {
    fn is_worth_trying(&self, _: usize) -> bool {
        true
    }
    fn is_promising(&self, _: usize) -> bool {
        true
    }
    fn was_tried(&self, _: usize, _: bool) {}
}

/// Source of a loaded page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loaded {
    /// The pool: no I/O.
    Pool,
    /// A device.
    Device,
}

/// A failed store or load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreError {
    /// No tier can take the page.
    Full,
    /// The device failed.
    Io {
        /// The kernel's error.
        errno: Errno,
        /// Bytes into the area.
        offset: u64,
    },
    /// The device returned wrong bytes.
    Corrupt {
        /// The page's entry.
        entry: Entry,
        /// Bytes into the area.
        offset: u64,
    },
    /// The entry names no page, or a freed one.
    BadEntry,
    /// On a device, against [`super::Scratch::keep_to_memory`].
    OnDevice,
    /// No memory for lowtide's tables.
    NoMemory,
    /// An impossible area.
    Area(SlotError),
    /// The parent died during the fork, and this process's references were dropped.
    ParentDied,
}

/// Figures of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreStats {
    /// Bytes of frames that the pool holds.
    pub pool_bytes: usize,
    /// Bytes of the objects in the pool.
    pub pool_stored_bytes: usize,
    /// The pool's limit, in bytes of frames.
    pub pool_limit: usize,
    /// Pages stored now, without zero pages.
    pub stored_now: u64,
    /// Of these, pages on a device.
    pub on_device_now: u64,
    /// Zero pages since the start.
    pub zero_seen: u64,
    /// Pages of one repeated word, not zero, since the start.
    pub same_filled: u64,
    /// Their most frequent words, in order.
    pub same_filled_words: [FillWord; FILL_WORDS],
    /// Pages since the start that did not compress to 7/8, or were not tried ([`Trials`]).
    pub incompressible: u64,
    /// Pages compressed in vain: not to 7/8, or not to half in a mostly taken pool.
    pub in_vain: u64,
    /// Pages refused by all tiers.
    pub refused: u64,
    /// Read operations on devices.
    pub device_read_ios: u64,
    /// Write operations on devices.
    pub device_write_ios: u64,
    /// Bytes read from devices.
    pub device_read_bytes: u64,
    /// Bytes written to devices.
    pub device_write_bytes: u64,
    /// Pages written from the pool to a device.
    pub written_back: u64,
    /// Pages that the pool took compressed after a shuffle ([`crate::codec::Filter`]).
    pub shuffled: u64,
    /// Pages of the pool recompressed with zstd.
    pub recompressed: u64,
    /// Bytes that this saved.
    pub recompressed_bytes: u64,
    /// Pages that the pool was too full for (or has a limit of 0): written to a device, or refused.
    pub pool_refused: u64,
    /// How often the pool became full.
    pub pool_full_times: u64,
    /// Clusters in the pool that the device failed to write.
    pub broken_clusters: u64,
    /// Failed operations on devices.
    pub device_errors: u64,
    /// Pages that came back wrong.
    pub corrupt: u64,
    /// Slots given up after a failed write.
    pub bad_slots: u64,
    /// Calls of `free` with an unused entry.
    pub bad_frees: u64,
    /// Slots with only a clean copy of a page in memory.
    pub cached_now: u64,
    /// Folios with contiguous slots, by order (4: 16 pages).
    pub folios: [u64; ORDERS],
    /// Folios split for lack of a free run of that order.
    pub folios_split: [u64; ORDERS],
    /// References for forked children beyond the nameable number, whose slots stay in use after
    /// their death.
    pub stuck_references: u64,
    /// Bytes charged to the quotas of this process's swap files.
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
