//! The quota: how many bytes of file the processes of a run may use together, and what an area has taken of it.

use core::sync::atomic::{AtomicU64, Ordering};

/// A limit on bytes of file that the processes of a run share.
#[derive(Debug, Clone, Copy)]
pub struct Quota {
    /// Bytes in use by all.
    pub used: &'static AtomicU64,
    /// Those of `used` that are this process's: what is to be taken off `used` when it is gone without having given them back.
    /// Changed after `used` when bytes come and before it when they go, so that a process that is killed between the two leaves
    /// too much in `used`, by a cluster, and never too little.
    pub mine: Option<&'static AtomicU64>,
    /// Most bytes.
    pub limit: u64,
}

impl Quota {
    /// Adds bytes. False: there is no room, and nothing was added.
    fn take(&self, bytes: u64) -> bool {
        let more = |used: u64| used.checked_add(bytes).filter(|u| *u <= self.limit);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        if taken && let Some(mine) = self.mine {
            mine.fetch_add(bytes, Ordering::Release);
        }
        taken
    }

    /// Takes back what [`Quota::take`] added.
    fn give(&self, bytes: u64) {
        if let Some(mine) = self.mine {
            mine.fetch_sub(bytes, Ordering::Relaxed);
        }
        self.used.fetch_sub(bytes, Ordering::Release);
    }
}

/// What an area takes of a quota.
#[derive(Debug)]
pub(super) struct Charge {
    /// `None`: there is no limit.
    quota: Option<Quota>,
    /// Bytes that were taken.
    bytes: AtomicU64,
}

impl Charge {
    pub(super) fn new(quota: Option<Quota>) -> Charge {
        Charge { quota, bytes: AtomicU64::new(0) }
    }

    /// Takes bytes. False: there is no room.
    pub(super) fn take(&self, bytes: u64) -> bool {
        if self.quota.as_ref().is_some_and(|quota| !quota.take(bytes)) {
            return false;
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        true
    }

    /// Takes back what [`Charge::take`] took.
    pub(super) fn give(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(quota) = &self.quota {
            quota.give(bytes);
        }
    }

    /// Bytes that were taken.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes that were taken, and those that could still be.
    pub(super) fn affordable(&self) -> u64 {
        let left = |quota: &Quota| quota.limit.saturating_sub(quota.used.load(Ordering::Relaxed));
        self.quota.as_ref().map_or(u64::MAX, left).saturating_add(self.bytes())
    }

    /// Whether the quota has no room for `bytes` more.
    pub(super) fn is_out_of(&self, bytes: u64) -> bool {
        self.quota.as_ref().is_some_and(|quota| quota.used.load(Ordering::Relaxed) + bytes > quota.limit)
    }
}
