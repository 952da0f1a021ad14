//! The fast paths. An allocation takes from this CPU's cluster, behind its latest slots; a free
//! changes one word of a cluster's map. Both take one lock. Other cases go to the search
//! (`search.rs`), which begins with the same cluster, and to [`Area::free_run`].

use core::sync::atomic::Ordering::Relaxed;

use super::area::Area;
use super::cluster::CLUSTER_SLOTS;
use super::lists::LockedInner;
use super::next::cluster_before;

impl Area {
    /// `order` must exist. `None`: use the search, as always where all CPUs share one sequence.
    #[inline]
    pub(super) fn take_at_hand(&self, order: u32) -> Option<u64> {
        let clusters = self.clusters();
        if clusters.rival().is_some() {
            return None;
        }
        let next = self.next().own(order)?;
        let behind = next.load(Relaxed);
        let i = cluster_before(behind)?;
        let mut inner = clusters.lock(i);
        let index = inner.take_behind(order, behind as usize - i * CLUSTER_SLOTS)?;
        // It stays partly used, and keeps its level.
        clusters.tell(&mut inner);
        let first = (i * CLUSTER_SLOTS + index) as u64;
        next.store(first + (1 << order), Relaxed);
        Some(first)
    }

    /// Only if no other process can refer to the slots and only the cluster's count and place
    /// change. False: nothing has changed.
    #[inline]
    pub(super) fn give_at_hand(&self, i: usize, inner: &mut LockedInner<'_>, index: usize, n: usize) -> bool {
        let held = self.sharing().is_some_and(|sharing| sharing.has_held(i, index));
        if held || !inner.give_some(index, n) {
            return false;
        }
        if self.clusters().is_in_place(inner) {
            self.clusters().tell(inner);
        } else {
            self.clusters().relocate(i, inner);
        }
        true
    }
}
