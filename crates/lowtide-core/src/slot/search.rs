//! Allocation of slots: the order in which an area's clusters are searched.
//!
//! 1. this CPU's latest cluster for this order;
//! 2. in an area half full, partly used clusters that beat a free one;
//! 3. a free cluster of this CPU's zone;
//! 4. a cluster never used, if those used are at least half full (a file with holes should not
//!    grow), or any free one;
//! 5. partly used clusters, by the index;
//! 6. where slots are scarce, a cluster where free slots and clean copies make a run;
//! 7. any cluster never used;
//! 8. clusters that wait for discard;
//! 9. slots that dead children held;
//! 10. step 6 where slots are not scarce.
//!
//! Steps 2 to 5, 7 and 8 skip locked clusters. If one slot is wanted, all steps have failed several
//! times and some cluster is not full, the search locks each by number.
//!
//! On a rotational device there are no zones, and after step 1 come the next free cluster by
//! number, then, if those used are at least half full, one never used, then the first free one:
//! long sequential writes are worth more there than free clusters.

use super::area::Area;
use super::cluster::{CLUSTER_SLOTS, ListState, MAX_ORDER};
use super::lab::Opened;
use super::lists::LockedInner;
use super::next::Hint;
use super::swap_cache::{NoCache, SwapCache};
use super::zombies::{self, Reach};
use crate::percpu::Zone;
use crate::sync::spin_loop;

/// Before a single-slot allocation waits for locked clusters.
const ROUNDS: usize = 16;

pub(super) struct Request<'a> {
    pub area: &'a Area,
    pub order: u32,
    pub hint: Hint<'a>,
    pub cache: &'a dyn SwapCache,
    pub opened: Opened,
}

impl Area {
    /// Allocates 2^`order` aligned slots, each with one reference and table word 0. `None` if there
    /// is no such run; for orders above 0 also if other threads had the last ones locked: the
    /// caller splits. Waits for cluster locks.
    pub fn alloc(&self, order: u32) -> Option<u64> {
        self.alloc_reclaiming(order, &NoCache)
    }

    /// As [`Area::alloc`], but reclaims clean copies where slots are scarce, and elsewhere before
    /// it fails.
    pub fn alloc_reclaiming(&self, order: u32, cache: &dyn SwapCache) -> Option<u64> {
        self.alloc_where_scarce(order, cache).or_else(|| self.alloc_from_copies(order, cache))
    }

    /// Only from clean copies.
    pub(super) fn alloc_from_copies(&self, order: u32, cache: &dyn SwapCache) -> Option<u64> {
        if !self.marks().any() || !self.gives_out(order) {
            return None;
        }
        if let Some(rival) = self.clusters().rival() {
            return rival.alloc_as_if_scarce(self, order, cache);
        }
        let mut request = self.request(order, cache);
        let found = request.take_from_copies();
        found.inspect(|slot| request.hint.set_shared(slot + (1 << order)));
        request.count_search();
        found
    }

    /// Reclaims only where slots are scarce.
    #[inline]
    pub(super) fn alloc_where_scarce(&self, order: u32, cache: &dyn SwapCache) -> Option<u64> {
        if !self.gives_out(order) {
            return None;
        }
        self.take_at_hand(order).or_else(|| self.alloc_by_search(order, cache))
    }

    /// Out of line: the fast path then needs little stack.
    #[inline(never)]
    fn alloc_by_search(&self, order: u32, cache: &dyn SwapCache) -> Option<u64> {
        let mut request = self.request(order, cache);
        if let Some(slot) = request.take_next() {
            return Some(slot);
        }
        self.alloc_elsewhere(order, cache)
    }

    fn alloc_elsewhere(&self, order: u32, cache: &dyn SwapCache) -> Option<u64> {
        for round in 0..ROUNDS {
            let mut request = self.request(order, cache);
            if round > 0
                && let Some(slot) = request.take_next()
            {
                return Some(slot);
            }
            let mut found = request.take_following();
            if found.is_none() {
                found = request.search();
                found.inspect(|slot| request.hint.set_shared(slot + (1 << order)));
            }
            request.count_search();
            if found.is_some() {
                return found;
            }
            if order > 0 || self.availability().full_clusters() >= self.opened_clusters() as u64 {
                return None;
            }
            spin_loop();
        }
        let mut request = self.request(order, cache);
        let found = request.take_with_patience();
        request.count_search();
        found.inspect(|slot| request.hint.set_shared(slot + 1))
    }

    /// Only from this CPU's latest cluster.
    pub(super) fn alloc_next(&self, order: u32) -> Option<u64> {
        if !self.gives_out(order) {
            return None;
        }
        self.take_at_hand(order).or_else(|| self.request(order, &NoCache).take_next())
    }

    /// Allocates exactly the `n` slots from `slot` on, or, on a rotational device, behind the
    /// latest of all threads, if they are free and in the cluster of the slot before: runs of any
    /// length then follow without gaps.
    pub fn alloc_behind(&self, slot: u64, n: usize) -> Option<u64> {
        if n == 0 || !self.availability().is_open() || self.clusters().rival().is_some() {
            return None;
        }
        match self.next().hint(0) {
            Hint::Cpu(_) => self.take_at(slot, n).then_some(slot),
            Hint::Area(shared) => {
                let mut next = shared.lock();
                let slot = *next;
                self.take_at(slot, n).then(|| {
                    *next = slot + n as u64;
                    slot
                })
            }
        }
    }

    fn take_at(&self, slot: u64, n: usize) -> bool {
        let (i, index) = (slot as usize / CLUSTER_SLOTS, slot as usize % CLUSTER_SLOTS);
        if index == 0 || index + n > CLUSTER_SLOTS || slot >= self.opened_slots() {
            return false;
        }
        let mut inner = self.clusters().lock(i);
        if inner.count == 0 || !inner.usable() || !inner.all_free(index, n) {
            return false;
        }
        inner.occupy(index, n);
        self.took(i, &mut inner, index, n);
        true
    }

    /// After `n` slots of a locked cluster were marked used.
    #[inline]
    pub(super) fn took(&self, i: usize, inner: &mut LockedInner<'_>, index: usize, n: usize) {
        debug_assert!(inner.all_used(index, n));
        // A cluster that this CPU fills keeps its level.
        let clusters = self.clusters();
        let stays = inner.state == ListState::Frag && !inner.is_full() && clusters.rival().is_none();
        if stays {
            clusters.tell(inner);
        } else {
            clusters.relocate(i, inner);
        }
        if inner.is_full() {
            self.availability().cluster_filled();
        }
    }

    #[inline]
    fn gives_out(&self, order: u32) -> bool {
        order <= MAX_ORDER && self.availability().is_open()
    }

    /// `order` must exist. No `Option`: unwrapping costs as much as a cluster's lock.
    #[inline]
    fn request<'a>(&'a self, order: u32, cache: &'a dyn SwapCache) -> Request<'a> {
        Request { area: self, order, hint: self.next().hint(order), cache, opened: Opened::NONE }
    }
}

impl Request<'_> {
    fn search(&mut self) -> Option<u64> {
        let area = self.area;
        if let Some(rival) = area.clusters().rival() {
            return self.search_lists(rival);
        }
        if area.is_over_half_full()
            && let Some(slot) = self.take_rather_than_free()
        {
            return Some(slot);
        }
        let half_used = area.clusters().used_about() * 2 >= area.opened_slots();
        if let Some(slot) = self.take_empty(half_used) {
            return Some(slot);
        }
        if let Some(slot) = self.take_partly_used() {
            return Some(slot);
        }
        if area.marks().any()
            && self.cache.is_scarce(area)
            && let Some(slot) = self.take_from_copies()
        {
            return Some(slot);
        }
        if let Some(slot) = self.take_last_empty(half_used) {
            return Some(slot);
        }
        if zombies::reap(area, Reach::SHORT)
            && let Some(slot) = self.take_free(true, Zone::ALL).or_else(|| self.take_partly_used())
        {
            return Some(slot);
        }
        None
    }

    /// Before partly used clusters. `half_used`: the area may grow.
    #[inline]
    pub(super) fn take_empty(&mut self, half_used: bool) -> Option<u64> {
        if let Some(slot) = self.take_free(half_used, self.area.next().zone()) {
            return Some(slot);
        }
        if half_used && let Some(slot) = self.take_unused() {
            return Some(slot);
        }
        self.take_free(half_used, Zone::ALL)
    }

    /// After partly used clusters: the area may grow or discard.
    #[inline]
    pub(super) fn take_last_empty(&mut self, half_used: bool) -> Option<u64> {
        if !half_used && let Some(slot) = self.take_free(true, Zone::ALL).or_else(|| self.take_unused()) {
            return Some(slot);
        }
        if self.area.discard_some(1) > 0 { self.take_free(true, Zone::ALL) } else { None }
    }

    #[inline]
    pub(super) fn count_opened(&mut self) {
        self.opened.add_one();
    }

    fn count_search(&self) {
        self.area.searches().add(self.opened);
    }
}
