//! What forks have left: pages in common with other processes, and words that may not be true any more.

use core::sync::atomic::Ordering;

use lowtide_core::vm::PAGE_SIZE;

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

    /// How many forks were not announced; wraps.
    pub fn unannounced_forks(&self) -> u32 {
        self.unannounced.load(Ordering::Relaxed)
    }

    pub(crate) fn was_forked_unannounced(&self) {
        self.unannounced.fetch_add(1, Ordering::Relaxed);
    }

    /// Pages came in for a child that is not to be seen yet, and is in nobody's measurements: this process counts for them.
    pub(crate) fn arrived_unborn(&self, pages: usize) {
        self.unborn.fetch_add(pages, Ordering::Relaxed);
        self.budget.add_pages(pages as isize);
    }

    /// All children are born: what came in for them is theirs.
    pub(crate) fn are_born(&self) {
        let pages = self.unborn.swap(0, Ordering::Relaxed);
        if pages > 0 {
            self.budget.add_pages(-(pages as isize));
        }
    }

    /// Bytes of pages that came in for children that are not to be seen yet.
    pub fn unborn_bytes(&self) -> u64 {
        (self.unborn.load(Ordering::Relaxed) * PAGE_SIZE) as u64
    }

    /// With how many other processes this one may have pages in common.
    pub fn set_sharers(&self, others: u64) {
        self.sharers.store(others.min(u64::from(u32::MAX)) as u32, Ordering::Relaxed);
    }

    /// Whether pages that so many share can be evicted. While the program forks that is taken for so.
    pub fn evicts_shared(&self) -> bool {
        self.enter().is_none_or(|operation| operation.sharers() <= operation.most_sharers())
    }

    /// What could not be evicted is tried again at once, instead of after a pause. False: not now, because the program forks, or
    /// no tier would take it. After [`Pager::set_sharers`], where fewer processes share it.
    pub fn try_what_stayed(&self) -> bool {
        let Some(operation) = self.enter() else { return false };
        if !operation.store().would_take() {
            return false;
        }
        operation.hand.lock().try_what_stayed();
        self.backoff.look_again();
        self.look_backoff.look_again();
        self.ahead_backoff.look_again();
        true
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

#[cfg(test)]
mod tests {
    #[test]
    fn what_came_in_for_a_child_counts_until_it_is_born() {
        let Some(pager) = crate::mappings::events::tests::pager() else { return };
        let before = pager.budget.now();
        pager.arrived_unborn(256);
        assert_eq!((pager.budget.now() - before, pager.unborn_bytes()), (1 << 20, 1 << 20));
        // Measured meanwhile: the kernel says nothing of it.
        pager.budget.measured(before + pager.unborn_bytes());
        pager.let_be_born(&mut pager.space.exclusive(), 1);
        assert_eq!((pager.budget.now(), pager.unborn_bytes()), (before, 0));
    }
}
