//! The store: where the bytes of a page that left memory are, whether in the compressed pool or on a device.

mod types;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::sync::atomic::{AtomicUsize, Ordering};

use rustix::fd::OwnedFd;
use rustix::io::Errno;

pub use crate::codec::{Codec, Scratch};
use crate::lock::Lock;
pub use crate::slot::Entry;
pub use types::{FileConfig, Loaded, Page, StoreConfig, StoreError, StoreStats, Stored};

/// Keeps pages that left memory. All methods may be called from any thread at any time unless they say otherwise.
#[derive(Debug)]
pub struct Store {
    naive: Lock<(u64, BTreeMap<u64, Box<Page>>)>,
    limit: AtomicUsize,
}

impl Store {
    /// A store with nothing in it.
    ///
    /// # Errors
    /// `NoMemory` when its tables cannot be mapped.
    pub fn new(cfg: StoreConfig) -> Result<Store, StoreError> {
        Ok(Store { naive: Lock::new((1, BTreeMap::new())), limit: AtomicUsize::new(cfg.pool_limit) })
    }

    /// Stores pages that are neighbours; `out[i]` is set for every page. Pages must not change during the call.
    pub fn store_run(&self, pages: &[&Page], out: &mut [Result<Stored, StoreError>], scratch: &mut Scratch) {
        let _ = scratch;
        let mut naive = self.naive.lock();
        for (page, out) in pages.iter().zip(out) {
            if page.iter().all(|&b| b == 0) {
                *out = Ok(Stored::Zero);
                continue;
            }
            if (naive.1.len() + 1) * 4096 > self.limit.load(Ordering::Relaxed) {
                *out = Err(StoreError::Full);
                continue;
            }
            let n = naive.0;
            naive.0 += 1;
            naive.1.insert(n, Box::new(**page));
            *out = Entry::new(0, n).map(Stored::Entry).ok_or(StoreError::Full);
        }
    }

    /// Brings the bytes of a page back. The entry stays; [`Store::free`] drops it.
    ///
    /// # Errors
    /// As in [`StoreError`]; `into` then holds garbage.
    pub fn load(&self, e: Entry, into: &mut Page, scratch: &mut Scratch) -> Result<Loaded, StoreError> {
        let _ = scratch;
        *into = **self.naive.lock().1.get(&e.raw()).ok_or(StoreError::BadEntry)?;
        Ok(Loaded::Pool)
    }

    /// Loads neighbours: consecutive slots of a device are read with one I/O. `into` and `out` are as long as `entries`.
    pub fn load_run(
        &self,
        entries: &[Entry],
        into: &mut [Page],
        out: &mut [Result<Loaded, StoreError>],
        scratch: &mut Scratch,
    ) {
        for ((e, into), out) in entries.iter().zip(into).zip(out) {
            *out = self.load(*e, into, scratch);
        }
    }

    /// Drops one reference to an entry. Freeing an entry that is not in use is counted and has no other effect.
    pub fn free(&self, e: Entry) {
        self.naive.lock().1.remove(&e.raw());
    }

    /// Figures, each exact by itself, not a snapshot of one moment together.
    pub fn stats(&self) -> StoreStats {
        let n = self.naive.lock().1.len();
        StoreStats {
            pool_bytes: n * 4096,
            pool_stored_bytes: n * 4096,
            pool_limit: self.limit.load(Ordering::Relaxed),
            stored_now: n as u64,
            ..StoreStats::default()
        }
    }

    /// Changes the limit of the pool (bytes of frames). Above it nothing is thrown out; new pages go elsewhere.
    pub fn set_pool_limit(&self, bytes: usize) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Parent side of a fork, before it, with no other call in flight: adds one reference to every used slot of file areas on
    /// behalf of the child. When the fork then fails, [`Store::fork_undo_references`].
    pub fn fork_add_references(&self) {}

    /// Takes back what [`Store::fork_add_references`] added, for a fork that failed. No other call may have been made between.
    pub fn fork_undo_references(&self) {}

    /// Child side of a fork: the first call in the child. File areas become inherited: readable and freeable, never allocated
    /// from. Their descriptors are replaced by what `reopen(area, number of the descriptor in the parent)` returns.
    ///
    /// # Errors
    /// The first error of `reopen` (loads from that area then fail; all else works), or `NoMemory`.
    ///
    /// # Safety
    /// Only in a forked child that has one thread, when no other call was in flight in the parent at the moment of the fork.
    pub unsafe fn fork_child(
        &self,
        reopen: &mut dyn FnMut(u8, i32) -> Result<OwnedFd, Errno>,
        file: Option<FileConfig>,
    ) -> Result<(), StoreError> {
        let _ = (reopen, file);
        Ok(())
    }
}
