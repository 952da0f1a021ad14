//! The store keeps the bytes of pages that left memory, in the compressed pool or on a device.
//!
//! A stored page has a slot in an area, whose table word (`table_word.rs`) names the place of its
//! bytes. Pages in the pool have slots of the swap file as well, to be written back later under the
//! same entry. Only without space there, they get a slot of area 0, which has no device.
//!
//! The bytes behind an entry never change while it is referred to. No lock is held across I/O, and
//! no thread holds two locks here.

mod cache;
mod claim;
mod compact;
mod counters;
mod fill_words;
mod folio;
mod fork;
mod free;
mod gather;
#[cfg_attr(not(feature = "lab"), path = "no_lab.rs")]
mod lab;
mod load;
mod objects;
mod recompress;
mod scratch;
mod shrink;
mod store_pages;
mod swapoff;
mod table_word;
mod tier;
mod types;
mod walk;
mod worth;
mod write_out;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::device::{Device, DeviceName, FileDevice, RemoteDevice};
use crate::ledger::Ledger;
use crate::pool::Pool;
use crate::slot::{Area, AreaConfig, Areas, Fills, HOLDERS, IoCounts};
use crate::vm::{PAGE_SIZE, room};
use compact::Compaction;
use counters::Counters;
use lab::LargestFolio;
use recompress::Recompressor;
use shrink::Shrinker;

pub use crate::codec::Codec;
pub use crate::slot::{Entry, Image, Quota};
pub use crate::vm::Page;
pub use fill_words::{FILL_WORDS, FillWord, FillWords};
pub use free::Freer;
pub use recompress::{ROUND_US, Recompressed};
pub use scratch::Scratch;
pub use shrink::Shrunk;
pub use swapoff::Emptying;
pub use types::{
    AreaState, AreaStats, FileConfig, Loaded, MAX_AREAS, RECOMPRESS_LEVEL, RemoteConfig, StoreConfig, StoreError, StoreStats,
    Stored, Trials,
};

/// The area without a device.
const RAM_AREA: u8 = 0;

/// Table bytes of a slot in a shared area: a word, a bit per holder, a count, and some bits.
const SLOT_BYTES: usize = size_of::<u64>() + HOLDERS / 8 + size_of::<u16>() + 1;
/// Least slots of an area.
const LEAST_SLOTS: usize = 1 << 14;

/// Limits tables to a small part of the remaining address space or commit charge.
fn with_room_for_tables(slots: u64) -> u64 {
    let wish = usize::try_from(slots).unwrap_or(usize::MAX).saturating_mul(SLOT_BYTES);
    slots.min((room::part(wish, LEAST_SLOTS * SLOT_BYTES) / SLOT_BYTES) as u64)
}

/// Keeps pages that left memory. Any thread may call any method at any time unless stated
/// otherwise.
#[derive(Debug)]
pub struct Store {
    codec: Codec,
    pool: Pool,
    areas: Areas,
    /// Own areas with a device.
    own: AtomicU8,
    /// I/Os on removed areas, by number.
    retired: [IoCounts; MAX_AREAS],
    counters: Counters,
    compaction: Compaction,
    shrinker: Shrinker,
    recompressor: Recompressor,
    keeps_pool: AtomicBool,
    largest_folio: LargestFolio,
}

impl Store {
    /// An empty store.
    ///
    /// # Errors
    /// `NoMemory` when its tables cannot be mapped.
    pub fn new(cfg: StoreConfig) -> Result<Store, StoreError> {
        // A model checker tracks each word, so models have small tables.
        let model = cfg!(any(feature = "loom", feature = "shuttle"));
        let cfg = StoreConfig { pool_limit: if model { cfg.pool_limit } else { room::pool(cfg.pool_limit) }, ..cfg };
        let most = if model { 0 } else { room::part(ram_bytes(), cfg.pool_limit) };
        let store = Store {
            codec: cfg.codec,
            pool: Pool::new(cfg.pool_limit, most, cfg.accept_percent).map_err(|_| StoreError::NoMemory)?,
            areas: Areas::new(),
            own: AtomicU8::new(0),
            retired: Default::default(),
            counters: Counters::default(),
            compaction: Compaction::default(),
            shrinker: Shrinker::new().map_err(|_| StoreError::NoMemory)?,
            recompressor: Recompressor::default(),
            keeps_pool: AtomicBool::new(false),
            largest_folio: LargestFolio::new(),
        };
        // For pages that shrink to a sixteenth; unused parts take no memory.
        let mut slots = (most.max(cfg.pool_limit) / PAGE_SIZE * 16) as u64;
        loop {
            match Area::new(None, AreaConfig { slots, ..AreaConfig::default() }) {
                Ok(area) => {
                    store.areas.add(area, false)?;
                    break;
                }
                Err(_) if slots > 1 << 16 => slots /= 2,
                Err(_) => return Err(StoreError::NoMemory),
            }
        }
        Ok(store)
    }

    /// Adds an area for a swap file: used before lower priorities, in turn with equal ones.
    ///
    /// # Errors
    /// `NoMemory`; `Area` for a file of less than a cluster, or one too many. The store is
    /// unchanged, and the file closed.
    pub fn add_file(&self, file: FileConfig) -> Result<(), StoreError> {
        let device = FileDevice::new(file.fd, file.name).map_err(|_| StoreError::NoMemory)?;
        device.lengthen(file.size);
        let cfg = AreaConfig {
            slots: file.size / PAGE_SIZE as u64,
            priority: file.priority,
            rotating: file.rotating,
            discard: file.discard,
            shared: true,
            quota: file.quota,
            allocator: file.allocator,
        };
        self.add_device(Device::File(device), cfg)
    }

    /// The same on a server, which is told of free clusters.
    ///
    /// # Errors
    /// As [`Store::add_file`]; `Io`: no connection.
    pub fn add_remote(&self, remote: RemoteConfig) -> Result<(), StoreError> {
        let device = RemoteDevice::new(remote.name, remote.open).map_err(|errno| StoreError::Io { errno, offset: 0 })?;
        let cfg = AreaConfig {
            slots: remote.size / PAGE_SIZE as u64,
            priority: remote.priority,
            discard: true,
            shared: true,
            quota: remote.quota,
            ..AreaConfig::default()
        };
        self.add_device(Device::Remote(device), cfg)
    }

    /// Connects remote areas anew after their servers and (freed) pages have gone. No other call
    /// may be in flight.
    ///
    /// # Errors
    /// `Io`: no connection.
    pub fn restart_remotes(&self) -> Result<(), StoreError> {
        self.areas.iter().try_for_each(|area| match &area.device {
            Some(Device::Remote(remote)) => remote.start_over().map_err(|errno| StoreError::Io { errno, offset: 0 }),
            Some(Device::File(_)) | None => Ok(()),
        })
    }

    fn add_device(&self, device: Device, cfg: AreaConfig) -> Result<(), StoreError> {
        let cfg = AreaConfig { slots: with_room_for_tables(cfg.slots), ..cfg };
        self.areas.add(Area::new(Some(device), cfg)?, true)?;
        // Release: pairs with the Acquire in `has_device`: a thread that sees it finds the area.
        self.own.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// The name of the device behind an entry.
    pub fn device_of(&self, e: Entry) -> DeviceName {
        self.areas.get(e.area()).and_then(|area| Some(area.device.as_ref()?.name())).unwrap_or_default()
    }

    /// Whether this process has its own area with a device.
    pub fn has_device(&self) -> bool {
        // Acquire: pairs with the Release in `add_device` and `reopen_area`.
        self.own.load(Ordering::Acquire) > 0
    }

    /// Whether an area with a device takes new pages: it works, and has known free slots within the
    /// quota.
    pub fn devices_have_room(&self) -> bool {
        self.areas.iter().any(|area| area.device.is_some() && area.unavailable().is_none() && !area.is_full())
    }

    /// Figures, each exact by itself, not a snapshot.
    pub fn stats(&self) -> StoreStats {
        let c = &self.counters;
        let mut stats = StoreStats::default();
        let mut count = |io: &IoCounts| {
            stats.on_device_now += io.pages.get();
            stats.device_read_ios += io.reads.get();
            stats.device_write_ios += io.writes.get();
            stats.device_read_bytes += io.read_bytes.get();
            stats.device_write_bytes += io.write_bytes.get();
            stats.device_errors += io.errors.get();
        };
        self.retired.iter().for_each(&mut count);
        self.areas.iter().filter(|area| area.device.is_some()).for_each(|area| count(&area.io));
        for area in self.areas.iter().filter(|area| area.device.is_some()) {
            if !area.is_inherited() {
                stats.file_bytes += area.opened_bytes();
            }
        }
        StoreStats {
            pool_bytes: self.pool.bytes(),
            pool_stored_bytes: self.pool.stored_bytes(),
            pool_limit: self.pool.limit(),
            stored_now: c.stored_now.get(),
            zero_seen: c.zero_seen.get(),
            same_filled: c.same_filled.get(),
            same_filled_words: c.same_filled_words.most(),
            incompressible: c.incompressible.get(),
            in_vain: c.in_vain.get(),
            refused: c.refused.get(),
            written_back: c.written_back.get(),
            shuffled: c.shuffled.get(),
            recompressed: c.recompressed.get(),
            recompressed_bytes: c.recompressed_bytes.get(),
            pool_refused: c.pool_refused.get(),
            pool_full_times: self.pool.full_times(),
            broken_clusters: c.broken_clusters.get(),
            corrupt: c.corrupt.get(),
            bad_slots: c.bad_slots.get(),
            bad_frees: c.bad_frees.get(),
            cached_now: c.cached_now.get(),
            folios: core::array::from_fn(|order| c.folios[order].get()),
            folios_split: core::array::from_fn(|order| c.folios_split[order].get()),
            stuck_references: c.stuck_references.get(),
            ..stats
        }
    }

    /// This process's part of each swap area, by [`DeviceName::number`].
    pub fn area_stats(&self) -> [AreaStats; MAX_AREAS] {
        let mut all = [AreaStats::default(); MAX_AREAS];
        let count = |stats: &mut AreaStats, io: &IoCounts| {
            stats.reads += io.reads.get();
            stats.writes += io.writes.get();
            stats.read_bytes += io.read_bytes.get();
            stats.write_bytes += io.write_bytes.get();
            stats.errors += io.errors.get();
        };
        all.iter_mut().zip(&self.retired).for_each(|(stats, io)| count(stats, io));
        for area in self.areas.iter() {
            let number = area.device.as_ref().map(|device| usize::from(device.name().number));
            let Some(stats) = number.and_then(|number| all.get_mut(number)) else { continue };
            count(stats, &area.io);
            if !area.is_inherited() {
                stats.used += area.io.pages.get() * PAGE_SIZE as u64;
                stats.failing = area.failing();
                stats.state = match () {
                    () if area.failing().is_some() => AreaState::Failing,
                    () if area.is_full() => AreaState::Full,
                    () => AreaState::Active,
                };
            }
        }
        all
    }

    /// Fill levels of own clusters in each swap area, by [`DeviceName::number`]. Takes their locks.
    pub fn area_fills(&self) -> [Fills; MAX_AREAS] {
        let mut all = [Fills::default(); MAX_AREAS];
        for area in self.areas.iter().filter(|area| !area.is_inherited()) {
            let number = area.device.as_ref().map(|device| usize::from(device.name().number));
            if let Some(fills) = number.and_then(|number| all.get_mut(number)) {
                fills.add(area.fills());
            }
        }
        all
    }

    /// Changes the pool's limit (bytes of frames). The pool keeps its content.
    pub fn limit_pool(&self, bytes: usize) {
        self.pool.set_limit(bytes);
    }

    /// Reports the memory of the pool's frames, free ones included, and of the shrinker to `ledger`
    /// from now on.
    pub fn count_in(&mut self, ledger: &Arc<dyn Ledger>) {
        self.pool.count_in(ledger);
        self.shrinker.count_in(ledger);
    }

    /// Addresses of the memory that [`Store::count_in`] reports.
    pub fn addresses(&self) -> [core::ops::Range<usize>; 2] {
        [self.pool.addresses(), self.shrinker.addresses()]
    }

    /// Bytes of all tables. Slow: reads every frame.
    pub fn table_bytes(&self) -> usize {
        self.areas.iter().map(|area| area.table_bytes()).sum::<usize>() + self.pool.table_bytes()
    }

    /// Gives the memory of free pool frames back to the kernel.
    pub fn drain_frames(&self) {
        self.pool.drain_frames();
    }
}

fn ram_bytes() -> usize {
    let info = rustix::system::sysinfo();
    (info.totalram as usize).saturating_mul(info.mem_unit.max(1) as usize)
}

#[cfg(all(test, feature = "shuttle", not(feature = "loom")))]
mod models;
#[cfg(test)]
mod tests;
