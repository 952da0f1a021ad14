//! The steps of a search (`search.rs`). Each finds a cluster, locks it and checks it again.

use core::sync::atomic::Ordering::Relaxed;

use super::cluster::{CLUSTER_SLOTS, ListState, MAX_ORDER};
use super::index::Level;
use super::lists::{self, ListId, LockedInner, Place};
use super::next::{Hint, cluster_before};
use super::search::Request;
use crate::percpu::Zone;

/// Most clusters that one search opens where references of forked children, dropped without notice,
/// prevent a run of clean copies.
const IN_VAIN: usize = 64;

impl<'a> Request<'a> {
    #[inline]
    pub(super) fn take_next(&mut self) -> Option<u64> {
        match self.hint {
            Hint::Cpu(next) => self.take_behind(next.load(Relaxed)),
            Hint::Area(shared) => {
                let mut next = shared.lock();
                let slot = self.take_behind(*next)?;
                *next = slot + (1 << self.order);
                Some(slot)
            }
        }
    }

    /// From the cluster of the slot before `next`, preferably from `next` on; 0: none.
    #[inline]
    fn take_behind(&mut self, next: u64) -> Option<u64> {
        let i = cluster_before(next)?;
        let clusters = self.area.clusters();
        let mut inner = clusters.lock(i);
        if !inner.usable() || inner.count == 0 && !inner.charged {
            return None;
        }
        if clusters.rival().is_some_and(|rival| !rival.serves(&inner, self.order)) {
            return None;
        }
        // One that became free since is taken from its start.
        let from = if inner.count == 0 { 0 } else { next as usize - i * CLUSTER_SLOTS };
        // A rotational device never goes back within a cluster.
        let goes_back = matches!(self.hint, Hint::Area(..)) && !inner.has_run_from(self.order, from);
        let slot = if goes_back { None } else { self.take(i, &mut inner, from) };
        if slot.is_none() && inner.state == ListState::Frag && inner.count > 0 {
            clusters.relocate(i, &mut inner);
        }
        slot
    }

    /// On a rotational device: from the cluster where all threads write, or the next free one by
    /// number. Without the lock each thread would open one.
    pub(super) fn take_following(&mut self) -> Option<u64> {
        let Hint::Area(shared) = self.hint else { return None };
        let mut next = shared.lock();
        let slot = self.take_behind(*next).or_else(|| self.take_free_after(*next))?;
        *next = slot + (1 << self.order);
        Some(slot)
    }

    /// The area does not grow while less than half of it is used.
    fn take_free_after(&mut self, next: u64) -> Option<u64> {
        let (area, clusters) = (self.area, self.area.clusters());
        let half_used = clusters.used_about() * 2 >= area.opened_slots();
        let after = (next as usize).div_ceil(CLUSTER_SLOTS);
        let isolated = clusters.isolate_free(after, half_used);
        let Some((i, mut inner)) = isolated else {
            return if half_used { self.take_unused() } else { None }.or_else(|| {
                let (i, mut inner) = clusters.isolate_free(0, half_used)?;
                self.take_isolated_free(i, &mut inner, true)
            });
        };
        self.take_isolated_free(i, &mut inner, true)
    }

    /// `grow`: even if not part of the file yet, or no more.
    fn take_isolated_free(&mut self, i: usize, inner: &mut LockedInner<'a>, grow: bool) -> Option<u64> {
        let clusters = self.area.clusters();
        self.count_opened();
        if !inner.charged && (!grow || !clusters.charge(i, inner)) {
            clusters.move_to(i, inner, Place::List(ListId::FREE));
            return None;
        }
        let slot = self.take(i, inner, 0);
        debug_assert!(slot.is_some(), "cluster {i} is free, and has no run of order {}", self.order);
        if slot.is_none() {
            // It was on the wrong list. On none it would be lost until a slot is freed.
            clusters.relocate(i, inner);
        }
        slot
    }

    /// `grow` as in [`Request::take_isolated_free`].
    pub(super) fn take_free(&mut self, grow: bool, zone: Zone) -> Option<u64> {
        let clusters = self.area.clusters();
        let (i, mut inner) = clusters.isolate(ListId::FREE, zone)?;
        self.take_isolated_free(i, &mut inner, grow)
    }

    pub(super) fn take_unused(&mut self) -> Option<u64> {
        let (clusters, zone) = (self.area.clusters(), self.area.next().zone());
        let mut left = false;
        while let Some((i, mut inner)) = clusters.open() {
            self.count_opened();
            // Those of other zones stay free, and not yet part of the file.
            if inner.count == 0 && !zone.has(i) {
                clusters.uncharge(i, &mut inner);
                clusters.move_to(i, &mut inner, Place::List(ListId::FREE));
                left = true;
                continue;
            }
            inner.history.begin(self.order);
            if let Some(slot) = self.take(i, &mut inner, 0) {
                return Some(slot);
            }
            // The first and last cluster are never empty, and may have no run of a high order.
            inner.history.begin(0);
            clusters.relocate(i, &mut inner);
        }
        if left { self.take_free(true, Zone::ALL) } else { None }
    }

    /// Where free clusters are scarce: one is worth a short search for a folio, but not one per
    /// page.
    pub(super) fn take_rather_than_free(&mut self) -> Option<u64> {
        let order = self.order;
        let mut levels = Level::sufficient(order).filter(|level| order > 0 || level.has_much_room());
        // Only this zone: else cache lines bounce between CPUs.
        let zone = self.area.next().zone();
        levels.find_map(|level| self.take_at_level(level, zone))
    }

    pub(super) fn take_partly_used(&mut self) -> Option<u64> {
        Level::sufficient(self.order).find_map(|level| self.take_at_level(level, Zone::ALL))
    }

    /// Only concurrent changes make a cluster fail.
    fn take_at_level(&mut self, level: Level, zone: Zone) -> Option<u64> {
        let index = self.area.clusters().index();
        if index.is_empty(level) {
            return None;
        }
        let zone = if self.area.next().is_shared() { Zone::ALL } else { zone };
        // From this CPU's latest on: CPUs keep apart, and consecutive writes lie together.
        let start = self.cluster();
        index.around(level, zone, start).find_map(|i| self.take_indexed(i))
    }

    /// By number, waiting for each lock that other threads held during the search. The caller holds
    /// no cluster lock.
    pub(super) fn take_with_patience(&mut self) -> Option<u64> {
        let clusters = self.area.clusters();
        let start = self.cluster();
        (start..clusters.opened()).chain(0..start).find_map(|i| {
            let mut inner = clusters.lock(i);
            self.count_opened();
            let may = inner.usable() && (inner.charged || clusters.charge(i, &mut inner));
            if may { self.take(i, &mut inner, 0) } else { None }
        })
    }

    #[inline]
    pub(super) fn take(&mut self, i: usize, inner: &mut LockedInner<'_>, from: usize) -> Option<u64> {
        let index = inner.take(self.order, from)?;
        let n = 1usize << self.order;
        self.area.took(i, inner, index, n);
        let first = i * CLUSTER_SLOTS + index;
        self.hint.set_own((first + n) as u64);
        Some(first as u64)
    }

    #[inline]
    fn cluster(&self) -> usize {
        cluster_before(self.hint.get()).unwrap_or(0)
    }

    /// Gives up clean copies, in the smallest sufficient run.
    pub(super) fn take_from_copies(&mut self) -> Option<u64> {
        let clusters = self.area.clusters();
        let index = clusters.index();
        let start = self.cluster();
        let mut in_vain = 0;
        (self.order..=MAX_ORDER).map(Level::of_copies).filter(|level| !index.is_empty(*level)).find_map(|level| {
            let mut all = index.around(level, Zone::ALL, start);
            all.find_map(|i| if in_vain < IN_VAIN { self.take_copies_of(i, &mut in_vain) } else { None })
        })
    }

    fn take_copies_of(&mut self, i: usize, in_vain: &mut usize) -> Option<u64> {
        let (area, clusters) = (self.area, self.area.clusters());
        let mut inner = clusters.lock(i);
        self.count_opened();
        let Some(first) = inner.used_without(&area.copies_of(i, 0, CLUSTER_SLOTS)).find_clear(self.order, 0) else {
            let room = inner.used_without(&area.marks().of(i));
            match room.find_clear(self.order, 0) {
                None => area.correct_copies(i, &mut inner, &room),
                Some(_) => *in_vain += 1,
            }
            return None;
        };
        let (mut inner, freed) = area.reclaim_run(i, inner, first, 1 << self.order, self.cache);
        // Else other threads have emptied it, and other steps find it. A cluster emptied here is
        // reused without discard.
        if !matches!(lists::of(&inner), Some(Place::Index(_))) {
            debug_assert!(freed == 0, "slots that are given up are used until they are freed, so the cluster was never empty");
            return None;
        }
        let slot = self.take(i, &mut inner, first);
        // Even after taking: the copies given up may be more room than the index has.
        clusters.relocate(i, &mut inner);
        slot
    }

    /// Skips a locked cluster.
    #[inline]
    fn take_indexed(&mut self, i: usize) -> Option<u64> {
        let clusters = self.area.clusters();
        let mut inner = clusters.try_lock(i)?;
        self.count_opened();
        let slot = self.take(i, &mut inner, 0);
        if slot.is_none() && inner.state == ListState::Frag {
            clusters.relocate(i, &mut inner);
        }
        slot
    }
}
