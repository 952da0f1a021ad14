//! Allocation of slots: the order in which an area's clusters are searched.
//!
//! 1. the cluster that this CPU used last for this order;
//! 2. in an area half full, partly used clusters that are better taken than a free one, if the policy can tell;
//! 3. a free cluster of this CPU's zone;
//! 4. a cluster that was never used, if those that were are at least half used (so that a file does not grow while it has
//!    holes), or any free one;
//! 5. where slots are scarce and clusters are not indexed, one full cluster gives up its swap cache;
//! 6. partly used clusters that serve the order, as the policy says;
//! 7. where slots are scarce, a cluster whose free slots and clean copies make a run gives these copies up;
//! 8. any cluster that was never used;
//! 9. clusters that wait for discard;
//! 10. slots that dead children held;
//! 11. clusters that serve other orders, as the policy says;
//! 12. where slots are not scarce, what was left out for that reason.
//!
//! On a rotating device there are no zones, and between 1 and 2 comes the free cluster that follows by number, then, if those
//! that were used are at least half used, one that was never used, and then the first free one: long writes to one place are
//! worth more there than free clusters.

use core::sync::atomic::Ordering::Relaxed;

use super::area::Area;
use super::cluster::{CLUSTER_SLOTS, ListState, MAX_ORDER};
use super::index::Level;
use super::lists::{self, ListId, LockedInner, Place};
use super::next::Hint;
use super::policy::{Search, Tried, Trier};
use super::swap_cache::{LastResort, NoCache, SwapCache};
use super::zombies::{self, Reach};
use crate::percpu::Zone;
use crate::sync::spin_loop;

/// How often an allocation starts over when other threads had every cluster with room in their hands.
const ROUNDS: usize = 16;

/// Clusters whose clean copies would be a run, if forked children did not refer to some of them too: most that one search
/// opens. That a child refers to a slot no more, nobody tells.
const IN_VAIN: usize = 64;

/// How much searching allocations have done beyond their first try, for experiments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SearchStats {
    /// Allocations that this CPU's own cluster could not serve.
    pub searches: u64,
    /// Clusters that these opened.
    pub opened: u64,
}

/// One allocation under way.
struct Request<'a> {
    area: &'a Area,
    order: u32,
    hint: Hint<'a>,
    cache: &'a dyn SwapCache,
    /// Clusters opened.
    opened: u64,
    /// Clean copies are to be given up: asked once, with no lock held.
    scarce: bool,
}

impl Area {
    /// Gives out 2^`order` slots at a multiple of that; each has one reference and the table word 0. `None` when there is no
    /// such run that the policy finds, or other threads held on to the last ones.
    pub fn alloc(&self, order: u32) -> Option<u64> {
        self.alloc_reclaiming(order, &NoCache)
    }

    /// As [`Area::alloc`]; slots that hold only a cache mark are taken back on the way where slots are scarce, and elsewhere
    /// before it fails: with [`Policy::Exact`](super::Policy::Exact) it fails only where free slots and clean copies together
    /// make no run.
    pub fn alloc_reclaiming(&self, order: u32, cache: &dyn SwapCache) -> Option<u64> {
        self.alloc_where_scarce(order, cache).or_else(|| self.alloc_from_copies(order, cache))
    }

    /// As [`Area::alloc_reclaiming`], of what only clean copies stand in the way.
    pub(super) fn alloc_from_copies(&self, order: u32, cache: &dyn SwapCache) -> Option<u64> {
        if !self.marks().any() {
            return None;
        }
        let cache = LastResort(cache);
        if self.clusters().index().is_none() {
            return self.alloc_where_scarce(order, &cache);
        }
        if !self.gives_out(order) {
            return None;
        }
        let mut request = self.request(order, &cache);
        let found = request.take_from_copies();
        found.inspect(|slot| request.hint.set_shared(slot + (1 << order)));
        self.next().count(request.opened);
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
            self.next().count(request.opened);
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
    /// For who goes on where it ended, so that pages of any number lie together without rests between. `None`: they are not,
    /// or the policy wants one order in a cluster.
    pub fn alloc_behind(&self, slot: u64, n: usize) -> Option<u64> {
        if n == 0 || !self.availability().is_open() || !self.clusters().searcher().mixes() {
            return None;
        }
        match self.next().hint(0) {
            Hint::Cpu(_) => self.take_at(slot, n).then_some(slot),
            Hint::Area(shared, at) => {
                let mut next = shared.lock();
                let slot = next[at];
                self.take_at(slot, n).then(|| {
                    next[at] = slot + n as u64;
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
        if inner.count == 0 || !inner.usable(0, true) || !inner.all_free(index, n) {
            return false;
        }
        inner.occupy(index, n);
        self.took(i, &mut inner, index, n);
        true
    }

    /// What is to be done after `n` slots of a locked cluster were marked as used.
    #[inline]
    fn took(&self, i: usize, inner: &mut LockedInner<'_>, index: usize, n: usize) {
        debug_assert!(inner.all_used(index, n));
        // Where clusters are by what room they have, one that this CPU fills stays where it was when it began.
        let clusters = self.clusters();
        if clusters.searcher().mixes() && inner.state == ListState::Frag && !inner.is_full() {
            clusters.tell(inner);
        } else {
            clusters.relocate(i, inner, false);
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
        Request { area: self, order, hint: self.next().hint(order), cache, opened: 0, scarce: false }
    }

    /// Whether 2^`order` aligned free slots exist anywhere: looks at every cluster. The truth that searches are measured
    /// against.
    pub fn has_free_run(&self, order: u32) -> bool {
        let clusters = self.clusters();
        !clusters.are_all_opened() || (0..clusters.opened()).any(|i| clusters.lock(i).find_best() >= Some(order))
    }

    /// Figures of all allocations so far.
    pub fn search_stats(&self) -> SearchStats {
        let (searches, opened) = self.next().counted();
        SearchStats { searches, opened }
    }
}

/// The cluster that an offset means; 0 means none. The offset after a cluster's last slot still means that cluster.
#[inline]
fn cluster_before(next: u64) -> Option<usize> {
    (next as usize).checked_sub(1).map(|slot| slot / CLUSTER_SLOTS)
}

impl<'a> Request<'a> {
    #[inline]
    fn take_next(&mut self) -> Option<u64> {
        match self.hint {
            Hint::Cpu(next) => self.take_behind(next.load(Relaxed)),
            Hint::Area(shared, at) => {
                let mut next = shared.lock();
                let slot = self.take_behind(next[at])?;
                next[at] = slot + (1 << self.order);
                Some(slot)
            }
        }
    }

    /// Takes from the cluster of the slot before `next`, rather from `next` on; 0: from none.
    #[inline]
    fn take_behind(&mut self, next: u64) -> Option<u64> {
        let i = cluster_before(next)?;
        let clusters = self.area.clusters();
        let mut inner = clusters.lock(i);
        if !inner.usable(self.order, clusters.searcher().mixes()) || inner.count == 0 && !inner.charged {
            return None;
        }
        let from = next as usize - i * CLUSTER_SLOTS;
        // Where the device turns what is left before is for later: nobody goes back for it.
        let goes_back = matches!(self.hint, Hint::Area(..)) && !inner.has_run_from(self.order, from);
        let slot = if goes_back { None } else { self.take(i, &mut inner, from) };
        if slot.is_none() && inner.state == ListState::Frag && inner.count > 0 {
            // Left by this CPU: now it is to be where it belongs.
            clusters.relocate(i, &mut inner, false);
        }
        slot
    }

    /// On a rotating device: takes from the cluster where all go on, which may be another one by now, or from the free one that
    /// follows it by number, and all go on there. Without the lock each of several threads would open one.
    fn take_following(&mut self) -> Option<u64> {
        let Hint::Area(shared, at) = self.hint else { return None };
        let mut next = shared.lock();
        let slot = self.take_behind(next[at]).or_else(|| self.take_free_after(next[at]))?;
        next[at] = slot + (1 << self.order);
        Some(slot)
    }

    /// As the search does it, but by number: the area does not grow while what it has is less than half used.
    fn take_free_after(&mut self, next: u64) -> Option<u64> {
        let (area, clusters) = (self.area, self.area.clusters());
        let half_used = clusters.used_about() * 2 >= area.opened_slots();
        let after = (next as usize).div_ceil(CLUSTER_SLOTS);
        let isolated = clusters.isolate_free(after, half_used);
        let Some((i, mut inner)) = isolated else {
            return if half_used { self.take_unused() } else { None }.or_else(|| {
                let (i, mut inner) = clusters.isolate_free(0, half_used)?;
                self.take_isolated_free(i, &mut inner)
            });
        };
        self.take_isolated_free(i, &mut inner)
    }

    fn take_isolated_free(&mut self, i: usize, inner: &mut LockedInner<'a>) -> Option<u64> {
        let clusters = self.area.clusters();
        self.opened += 1;
        if !inner.charged && !clusters.charge(i, inner) {
            clusters.move_to(i, inner, Place::List(ListId::FREE));
            return None;
        }
        self.take(i, inner, 0)
    }

    fn search(&mut self) -> Option<u64> {
        let area = self.area;
        if area.is_over_half_full()
            && let Some(slot) = area.clusters().searcher().search_first(self.order, self)
        {
            return Some(slot);
        }
        let half_used = area.clusters().used_about() * 2 >= area.opened_slots();
        if let Some(slot) = self.take_free(half_used, area.next().zone()) {
            return Some(slot);
        }
        if half_used && let Some(slot) = self.take_unused() {
            return Some(slot);
        }
        if let Some(slot) = self.take_free(half_used, Zone::ALL) {
            return Some(slot);
        }
        self.scarce = area.marks().any() && self.cache.is_scarce(area);
        // Where it is known which copies stand in the way of a run, no others are given up for it. A cluster that gave up
        // everything is free now.
        if self.scarce
            && area.clusters().index().is_none()
            && area.reclaim_full(1, self.cache) > 0
            && let Some(slot) = self.take_free(true, Zone::ALL)
        {
            return Some(slot);
        }
        if let Some(slot) = self.take_partly_used() {
            return Some(slot);
        }
        if self.scarce
            && let Some(slot) = self.take_from_copies()
        {
            return Some(slot);
        }
        if !half_used && let Some(slot) = self.take_free(true, Zone::ALL).or_else(|| self.take_unused()) {
            return Some(slot);
        }
        if area.discard_some(1) > 0
            && let Some(slot) = self.take_free(true, Zone::ALL)
        {
            return Some(slot);
        }
        if zombies::reap(area, Reach::SHORT)
            && let Some(slot) = self.take_free(true, Zone::ALL).or_else(|| self.take_partly_used())
        {
            return Some(slot);
        }
        area.clusters().searcher().steal(self.order, self)
    }

    /// One of a zone. `grow`: also one that is no part of the file yet, or no more.
    fn take_free(&mut self, grow: bool, zone: Zone) -> Option<u64> {
        let clusters = self.area.clusters();
        let (i, mut inner) = clusters.isolate(ListId::FREE, zone)?;
        self.opened += 1;
        if !inner.charged && (!grow || !clusters.charge(i, &mut inner)) {
            clusters.move_to(i, &mut inner, Place::List(ListId::FREE));
            return None;
        }
        self.take(i, &mut inner, 0)
    }

    fn take_unused(&mut self) -> Option<u64> {
        let (clusters, zone) = (self.area.clusters(), self.area.next().zone());
        let mut left = false;
        while let Some((i, mut inner)) = clusters.open() {
            self.opened += 1;
            // Those of other zones are left to them, free and not yet part of the file.
            if inner.count == 0 && !zone.has(i) {
                clusters.uncharge(i, &mut inner);
                clusters.move_to(i, &mut inner, Place::List(ListId::FREE));
                left = true;
                continue;
            }
            inner.order = self.order as u8;
            if let Some(slot) = self.take(i, &mut inner, 0) {
                return Some(slot);
            }
            // The first and the last cluster are never empty, and may have no run of a high order.
            inner.order = 0;
            clusters.relocate(i, &mut inner, true);
        }
        // The last ones are for whoever comes.
        if left { self.take_free(true, Zone::ALL) } else { None }
    }

    fn take_partly_used(&mut self) -> Option<u64> {
        let clusters = self.area.clusters();
        let (used, total) = (clusters.used_about(), clusters.slots());
        clusters.searcher().search(self.order, used, total, self)
    }

    /// Takes slots from a locked cluster and puts it where it belongs then.
    #[inline]
    fn take(&mut self, i: usize, inner: &mut LockedInner<'_>, from: usize) -> Option<u64> {
        let index = inner.take(self.order, from)?;
        let n = 1usize << self.order;
        self.area.took(i, inner, index, n);
        let first = i * CLUSTER_SLOTS + index;
        self.hint.set_own((first + n) as u64);
        Some(first as u64)
    }

    /// The cluster that was used last.
    #[inline]
    fn cluster(&self) -> usize {
        cluster_before(self.hint.get()).unwrap_or(0)
    }

    /// Takes a run that is free but for clean copies, which are given up: of the smallest that will do.
    fn take_from_copies(&mut self) -> Option<u64> {
        let clusters = self.area.clusters();
        let index = clusters.index()?;
        let start = self.cluster();
        let mut in_vain = 0;
        (self.order..=MAX_ORDER).map(Level::of_copies).filter(|level| !index.is_empty(*level)).find_map(|level| {
            let mut all = index.around(level, Zone::ALL, start);
            all.find_map(|i| if in_vain < IN_VAIN { self.take_copies_of(i, &mut in_vain) } else { None })
        })
    }

    /// As [`Request::take_from_copies`], of one cluster.
    fn take_copies_of(&mut self, i: usize, in_vain: &mut usize) -> Option<u64> {
        let (area, clusters) = (self.area, self.area.clusters());
        let mut inner = clusters.lock(i);
        self.opened += 1;
        let Some(first) = inner.used_without(&area.copies_of(i, 0, CLUSTER_SLOTS)).find_clear(self.order, 0) else {
            let room = inner.used_without(&area.marks().of(i));
            match room.find_clear(self.order, 0) {
                None => area.correct_copies(i, &mut inner, &room),
                Some(_) => *in_vain += 1,
            }
            return None;
        };
        let (mut inner, freed) = area.reclaim_run(i, inner, first, 1 << self.order, self.cache);
        // If it is not at a level of those that are partly used or full, others have emptied it meanwhile: then it is to be had
        // in other ways. What this has emptied is taken as it is, without being punched out first.
        if !matches!(lists::of(&inner), Some(Place::Index(_))) {
            debug_assert!(freed == 0, "slots that are given up are used until they are freed, so the cluster was never empty");
            return None;
        }
        let slot = self.take(i, &mut inner, first);
        // Also if it was taken from: what was given up beside the run may be more room than the index says.
        clusters.relocate(i, &mut inner, slot.is_none());
        slot
    }

    /// Takes from a cluster that the index has, if nobody else has it in hand.
    #[inline]
    fn take_indexed(&mut self, i: usize) -> Option<u64> {
        let clusters = self.area.clusters();
        let mut inner = clusters.try_lock(i)?;
        self.opened += 1;
        let slot = self.take(i, &mut inner, 0);
        if slot.is_none() && inner.state == ListState::Frag {
            clusters.relocate(i, &mut inner, false);
        }
        slot
    }

    /// Takes from an isolated cluster; if it has no room, from where its swap cache was; else it goes back to a list.
    fn take_isolated(&mut self, i: usize, mut inner: LockedInner<'a>) -> Option<u64> {
        let (area, clusters) = (self.area, self.area.clusters());
        self.opened += 1;
        if let Some(slot) = self.take(i, &mut inner, 0) {
            return Some(slot);
        }
        if inner.caches > 0
            && self.scarce
            && let Some(first) = inner.used_without(&area.copies_of(i, 0, CLUSTER_SLOTS)).find_clear(self.order, 0)
        {
            let freed;
            (inner, freed) = area.reclaim_run(i, inner, first, 1 << self.order, self.cache);
            // Anything may have happened to it meanwhile.
            let usable = inner.usable(self.order, clusters.searcher().mixes()) && inner.charged;
            if usable && let Some(slot) = self.take(i, &mut inner, first) {
                return Some(slot);
            }
            let is_elsewhere = lists::of(&inner).is_some() || inner.state != ListState::None;
            if freed > 0 {
                clusters.relocate(i, &mut inner, true);
            }
            if freed > 0 || is_elsewhere {
                return None;
            }
        }
        clusters.relocate(i, &mut inner, false);
        None
    }
}

impl Trier for Request<'_> {
    fn try_list(&mut self, list: ListId, tries: usize) -> Tried {
        // A cluster that goes back to the tail of the same list is not met again.
        let tries = tries.min(self.area.clusters().len(list));
        let before = self.opened;
        let slot = (0..tries).find_map(|_| {
            let (i, inner) = self.area.clusters().isolate(list, Zone::ALL)?;
            self.take_isolated(i, inner)
        });
        Tried { slot, opened: (self.opened - before) as usize }
    }

    fn try_first(&mut self, mut lists: &mut dyn Iterator<Item = ListId>) -> Option<u64> {
        let (i, inner) = Iterator::find_map(&mut lists, |list| self.area.clusters().isolate(list, Zone::ALL))?;
        self.take_isolated(i, inner)
    }

    fn try_level(&mut self, level: Level, zone: Zone) -> Option<u64> {
        let clusters = self.area.clusters();
        let zone = if self.area.next().is_shared() { Zone::ALL } else { zone };
        let index = clusters.index().filter(|index| !index.is_empty(level))?;
        // On from where this CPU was last: CPUs keep apart, and what is written together lies together.
        let start = self.cluster();
        index.around(level, zone, start).find_map(|i| self.take_indexed(i))
    }
}
