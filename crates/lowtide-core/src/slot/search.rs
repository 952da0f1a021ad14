//! Allocation of slots: the order in which an area's clusters are searched.
//!
//! 1. the cluster that this CPU used last for this order;
//! 2. in an area half full, partly used clusters that are better taken than a free one;
//! 3. a free cluster of this CPU's zone;
//! 4. a cluster that was never used, if those that were are at least half used (so that a file does not grow while it has
//!    holes), or any free one;
//! 5. partly used clusters, by the index;
//! 6. where slots are scarce, a cluster whose free slots and clean copies make a run gives these copies up;
//! 7. any cluster that was never used;
//! 8. clusters that wait for discard;
//! 9. slots that dead children held;
//! 10. where slots are not scarce, what was left out for that reason.
//!
//! On a rotating device there are no zones, and between 1 and 2 comes the free cluster that follows by number, then, if those
//! that were used are at least half used, one that was never used, and then the first free one: long writes to one place are
//! worth more there than free clusters.

use super::area::Area;
use super::cluster::{CLUSTER_SLOTS, ListState, MAX_ORDER};
#[cfg(feature = "lab")]
use super::lab::LastResort;
use super::lists::LockedInner;
use super::next::Hint;
use super::swap_cache::{NoCache, SwapCache};
use super::zombies::{self, Reach};
use crate::percpu::Zone;
use crate::sync::spin_loop;

/// How often an allocation starts over when other threads had every cluster with room in their hands.
const ROUNDS: usize = 16;

/// One allocation under way.
pub(super) struct Request<'a> {
    pub area: &'a Area,
    pub order: u32,
    pub hint: Hint<'a>,
    pub cache: &'a dyn SwapCache,
    /// Clusters opened.
    #[cfg(feature = "lab")]
    pub opened: u64,
}

impl Area {
    /// Gives out 2^`order` slots at a multiple of that; each has one reference and the table word 0. `None` when there is no
    /// such run, or other threads held on to the last ones.
    pub fn alloc(&self, order: u32) -> Option<u64> {
        self.alloc_reclaiming(order, &NoCache)
    }

    /// As [`Area::alloc`]; slots that hold only a cache mark are taken back on the way where slots are scarce, and elsewhere
    /// before it fails: it fails only where free slots and clean copies together make no run.
    pub fn alloc_reclaiming(&self, order: u32, cache: &dyn SwapCache) -> Option<u64> {
        self.alloc_where_scarce(order, cache).or_else(|| self.alloc_from_copies(order, cache))
    }

    /// As [`Area::alloc_reclaiming`], of what only clean copies stand in the way.
    pub(super) fn alloc_from_copies(&self, order: u32, cache: &dyn SwapCache) -> Option<u64> {
        if !self.marks().any() || !self.gives_out(order) {
            return None;
        }
        #[cfg(feature = "lab")]
        if self.clusters().rival().is_some() {
            return self.alloc_where_scarce(order, &LastResort(cache));
        }
        let mut request = self.request(order, cache);
        let found = request.take_from_copies();
        found.inspect(|slot| request.hint.set_shared(slot + (1 << order)));
        request.count_search();
        found
    }

    /// As [`Area::alloc_reclaiming`], but takes back nothing where slots are not scarce.
    pub(super) fn alloc_where_scarce(&self, order: u32, cache: &dyn SwapCache) -> Option<u64> {
        if !self.gives_out(order) {
            return None;
        }
        let mut request = self.request(order, cache);
        if let Some(slot) = request.take_next() {
            return Some(slot);
        }
        self.alloc_elsewhere(order, cache)
    }

    /// As [`Area::alloc_where_scarce`], once this CPU's own cluster had none.
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
                break;
            }
            spin_loop();
        }
        None
    }

    /// As [`Area::alloc`], but only from the cluster that this CPU used last.
    pub(super) fn alloc_next(&self, order: u32) -> Option<u64> {
        self.gives_out(order).then(|| self.request(order, &NoCache).take_next()).flatten()
    }

    /// Gives out `n` slots in a row, as [`Area::alloc`] does, whatever their number is: those from `slot` on, or, on a rotating
    /// device, those behind the latest of all threads; if they are free and the cluster of the slot before them holds them too.
    /// For who goes on where it ended, so that pages of any number lie together without rests between. `None`: they are not.
    pub fn alloc_behind(&self, slot: u64, n: usize) -> Option<u64> {
        if n == 0 || !self.availability().is_open() {
            return None;
        }
        #[cfg(feature = "lab")]
        if self.clusters().rival().is_some() {
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

    /// What is to be done after `n` slots of a locked cluster were marked as used.
    #[inline]
    pub(super) fn took(&self, i: usize, inner: &mut LockedInner<'_>, index: usize, n: usize) {
        debug_assert!(inner.all_used(index, n));
        // One that this CPU fills stays where the index had it when it began.
        let clusters = self.clusters();
        let stays = inner.state == ListState::Frag && !inner.is_full();
        #[cfg(feature = "lab")]
        let stays = stays && clusters.rival().is_none();
        if stays {
            clusters.tell(inner);
        } else {
            clusters.relocate(i, inner);
        }
        if inner.is_full() {
            self.availability().cluster_filled();
        }
    }

    /// Whether the order exists, and the area gives out anything.
    #[inline]
    fn gives_out(&self, order: u32) -> bool {
        order <= MAX_ORDER && self.availability().is_open()
    }

    /// For an order that exists. (Not in an `Option`: to take it out costs as much as the lock of a cluster.)
    #[inline]
    fn request<'a>(&'a self, order: u32, cache: &'a dyn SwapCache) -> Request<'a> {
        Request {
            area: self,
            order,
            hint: self.next().hint(order),
            cache,
            #[cfg(feature = "lab")]
            opened: 0,
        }
    }
}

impl Request<'_> {
    fn search(&mut self) -> Option<u64> {
        let area = self.area;
        #[cfg(feature = "lab")]
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

    /// Takes a cluster in which nothing is used, before partly used ones are searched. `half_used`: the area may grow.
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

    /// The same after these were searched in vain: the area may grow, and clusters that wait for discard are free after it.
    #[inline]
    pub(super) fn take_last_empty(&mut self, half_used: bool) -> Option<u64> {
        if !half_used && let Some(slot) = self.take_free(true, Zone::ALL).or_else(|| self.take_unused()) {
            return Some(slot);
        }
        if self.area.discard_some(1) > 0 { self.take_free(true, Zone::ALL) } else { None }
    }

    /// A cluster was opened.
    #[inline]
    pub(super) fn count_opened(&mut self) {
        #[cfg(feature = "lab")]
        {
            self.opened += 1;
        }
    }

    /// The search is over.
    fn count_search(&self) {
        #[cfg(feature = "lab")]
        self.area.next().count(self.opened);
    }
}
