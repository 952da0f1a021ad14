//! Effects of forks: shared pages, and stale words.

use core::sync::atomic::Ordering;

use lowtide_core::vm::PAGE_SIZE;

use super::Pager;

impl Pager {
    /// Shared memory may get stale words.
    pub(crate) fn forks(&self) {
        self.forks.was_forked.store(true, Ordering::Relaxed);
    }

    /// Whether this process or a parent has forked since registration.
    pub fn was_forked(&self) -> bool {
        self.forks.was_forked.load(Ordering::Relaxed)
    }

    /// Number of unannounced forks; wraps.
    pub fn unannounced_forks(&self) -> u32 {
        self.forks.unannounced.load(Ordering::Relaxed)
    }

    pub(crate) fn was_forked_unannounced(&self) {
        self.forks.unannounced.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts pages of an unborn child, which no measurement shows yet.
    pub(crate) fn arrived_unborn(&self, pages: usize) {
        self.forks.unborn.fetch_add(pages, Ordering::Relaxed);
        self.accounts.budget.add_pages(pages as isize);
    }

    /// The children count their own pages now.
    pub(crate) fn are_born(&self) {
        let pages = self.forks.unborn.swap(0, Ordering::Relaxed);
        if pages > 0 {
            self.accounts.budget.add_pages(-(pages as isize));
        }
    }

    /// Bytes brought in for unborn children.
    pub fn unborn_bytes(&self) -> u64 {
        (self.forks.unborn.load(Ordering::Relaxed) * PAGE_SIZE) as u64
    }

    /// Sets how many other processes may share pages.
    pub fn set_sharers(&self, others: u64) {
        self.forks.sharers.store(others.min(u64::from(u32::MAX)) as u32, Ordering::Relaxed);
    }

    /// Whether pages shared so can be evicted; true during a fork.
    pub fn evicts_shared(&self) -> bool {
        self.enter().is_none_or(|operation| operation.sharers() <= operation.most_sharers())
    }

    /// Ends the pause, after [`Pager::set_sharers`] with fewer. False: a fork, or no tier takes
    /// pages.
    pub fn try_what_stayed(&self) -> bool {
        let Some(operation) = self.enter() else { return false };
        if !operation.store().would_take() {
            return false;
        }
        operation.reclaim.hand.lock().try_what_stayed();
        self.reclaim.backoff.look_again();
        self.reclaim.look_backoff.look_again();
        self.reclaim.ahead_backoff.look_again();
        true
    }

    pub(crate) fn sharers(&self) -> u32 {
        self.forks.sharers.load(Ordering::Relaxed)
    }

    /// Present pages have stale words.
    pub(crate) fn copied(&self) {
        self.forks.has_copied.store(true, Ordering::Relaxed);
    }

    pub(crate) fn may_have_stale_words(&self) -> bool {
        self.was_forked() || self.forks.has_copied.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_came_in_for_a_child_counts_until_it_is_born() {
        let Some(pager) = crate::mappings::events::tests::pager() else { return };
        let before = pager.accounts.budget.now();
        pager.arrived_unborn(256);
        assert_eq!((pager.accounts.budget.now() - before, pager.unborn_bytes()), (1 << 20, 1 << 20));
        pager.accounts.budget.measured(before + pager.unborn_bytes());
        pager.let_be_born(&mut pager.pages.space.exclusive(), 1);
        assert_eq!((pager.accounts.budget.now(), pager.unborn_bytes()), (before, 0));
    }
}
