//! The quota, and an area's charge.

use core::sync::atomic::{AtomicU64, Ordering};

/// A limit on bytes of file that the processes of a run share.
#[derive(Debug, Clone, Copy)]
pub struct Quota {
    /// Bytes in use by all.
    pub used: &'static AtomicU64,
    /// This process's part of `used`, subtracted after it dies without giving it back. Changed
    /// after `used` on take, before it on give: a process killed in between leaves `used` a cluster
    /// too high, never too low.
    pub mine: Option<&'static AtomicU64>,
    /// Most bytes.
    pub limit: u64,
}

impl Quota {
    /// False: no room, and nothing was added.
    fn take(&self, bytes: u64) -> bool {
        let more = |used: u64| used.checked_add(bytes).filter(|u| *u <= self.limit);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        if taken && let Some(mine) = self.mine {
            mine.fetch_add(bytes, Ordering::Release);
        }
        taken
    }

    fn give(&self, bytes: u64) {
        if let Some(mine) = self.mine {
            mine.fetch_sub(bytes, Ordering::Relaxed);
        }
        self.used.fetch_sub(bytes, Ordering::Release);
    }
}

#[derive(Debug)]
pub(super) struct Charge {
    /// `None`: no limit.
    quota: Option<Quota>,
    bytes: AtomicU64,
}

impl Charge {
    pub(super) fn new(quota: Option<Quota>) -> Charge {
        Charge { quota, bytes: AtomicU64::new(0) }
    }

    pub(super) fn take(&self, bytes: u64) -> bool {
        if self.quota.as_ref().is_some_and(|quota| !quota.take(bytes)) {
            return false;
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        true
    }

    pub(super) fn give(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(quota) = &self.quota {
            quota.give(bytes);
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Taken, or still possible.
    pub(super) fn affordable(&self) -> u64 {
        let left = |quota: &Quota| quota.limit.saturating_sub(quota.used.load(Ordering::Relaxed));
        self.quota.as_ref().map_or(u64::MAX, left).saturating_add(self.bytes())
    }

    pub(super) fn is_out_of(&self, bytes: u64) -> bool {
        self.quota.as_ref().is_some_and(|quota| quota.used.load(Ordering::Relaxed) + bytes > quota.limit)
    }
}
