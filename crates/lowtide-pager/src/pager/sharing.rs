//! What forks have left: pages in common with other processes, and words that may not be true any more.

use core::sync::atomic::Ordering;

use super::Pager;

impl Pager {
    /// The program is about to fork: memory that it shares with a child may from now on have stale words.
    pub(crate) fn forks(&self) {
        self.was_forked.store(true, Ordering::Relaxed);
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

    /// Pages are in memory now whose words say otherwise.
    pub(crate) fn copied(&self) {
        self.has_copied.store(true, Ordering::Relaxed);
    }

    /// Whether there may be such words.
    pub(crate) fn may_have_stale_words(&self) -> bool {
        self.was_forked() || self.has_copied.load(Ordering::Relaxed)
    }
}
