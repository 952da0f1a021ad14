//! Taking slots from clusters: the steps of a search (`search.rs`), each of which finds a cluster, locks it and looks again.

use core::sync::atomic::Ordering::Relaxed;

use super::cluster::{CLUSTER_SLOTS, ListState, MAX_ORDER};
use super::index::Level;
use super::lists::{self, ListId, LockedInner, Place};
use super::next::Hint;
use super::search::Request;
use crate::percpu::Zone;

/// Clusters whose clean copies would be a run, if forked children did not refer to some of them too: most that one search
/// opens. That a child refers to a slot no more, nobody tells.
const IN_VAIN: usize = 64;

/// The cluster that an offset means; 0 means none. The offset after a cluster's last slot still means that cluster.
#[inline]
fn cluster_before(next: u64) -> Option<usize> {
    (next as usize).checked_sub(1).map(|slot| slot / CLUSTER_SLOTS)
}

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

    /// Takes from the cluster of the slot before `next`, rather from `next` on; 0: from none.
    #[inline]
    fn take_behind(&mut self, next: u64) -> Option<u64> {
        let i = cluster_before(next)?;
        let clusters = self.area.clusters();
        let mut inner = clusters.lock(i);
        if !inner.usable() || inner.count == 0 && !inner.charged {
            return None;
        }
        #[cfg(feature = "lab")]
        if clusters.rival().is_some() && !inner.serves(self.order) {
            return None;
        }
        let from = next as usize - i * CLUSTER_SLOTS;
        // Where the device turns what is left before is for later: nobody goes back for it.
        let goes_back = matches!(self.hint, Hint::Area(..)) && !inner.has_run_from(self.order, from);
        let slot = if goes_back { None } else { self.take(i, &mut inner, from) };
        if slot.is_none() && inner.state == ListState::Frag && inner.count > 0 {
            // Left by this CPU: now it is to be where it belongs.
            clusters.relocate(i, &mut inner);
        }
        slot
    }

    /// On a rotating device: takes from the cluster where all go on, which may be another one by now, or from the free one that
    /// follows it by number, and all go on there. Without the lock each of several threads would open one.
    pub(super) fn take_following(&mut self) -> Option<u64> {
        let Hint::Area(shared) = self.hint else { return None };
        let mut next = shared.lock();
        let slot = self.take_behind(*next).or_else(|| self.take_free_after(*next))?;
        *next = slot + (1 << self.order);
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
        self.count_opened();
        if !inner.charged && !clusters.charge(i, inner) {
            clusters.move_to(i, inner, Place::List(ListId::FREE));
            return None;
        }
        self.take(i, inner, 0)
    }

    /// One of a zone. `grow`: also one that is no part of the file yet, or no more.
    pub(super) fn take_free(&mut self, grow: bool, zone: Zone) -> Option<u64> {
        let clusters = self.area.clusters();
        let (i, mut inner) = clusters.isolate(ListId::FREE, zone)?;
        self.count_opened();
        if !inner.charged && (!grow || !clusters.charge(i, &mut inner)) {
            clusters.move_to(i, &mut inner, Place::List(ListId::FREE));
            return None;
        }
        self.take(i, &mut inner, 0)
    }

    pub(super) fn take_unused(&mut self) -> Option<u64> {
        let (clusters, zone) = (self.area.clusters(), self.area.next().zone());
        let mut left = false;
        while let Some((i, mut inner)) = clusters.open() {
            self.count_opened();
            // Those of other zones are left to them, free and not yet part of the file.
            if inner.count == 0 && !zone.has(i) {
                clusters.uncharge(i, &mut inner);
                clusters.move_to(i, &mut inner, Place::List(ListId::FREE));
                left = true;
                continue;
            }
            #[cfg(feature = "lab")]
            {
                inner.order = self.order as u8;
            }
            if let Some(slot) = self.take(i, &mut inner, 0) {
                return Some(slot);
            }
            // The first and the last cluster are never empty, and may have no run of a high order.
            #[cfg(feature = "lab")]
            {
                inner.order = 0;
            }
            clusters.relocate(i, &mut inner);
        }
        // The last ones are for whoever comes.
        if left { self.take_free(true, Zone::ALL) } else { None }
    }

    /// From a partly used cluster of this CPU's zone that is better taken than a free one, where those are scarce: a free one
    /// is worth more than a bit of a search for a folio, less than one for each page.
    pub(super) fn take_rather_than_free(&mut self) -> Option<u64> {
        let order = self.order;
        let mut levels = Level::sufficient(order).filter(|level| order > 0 || level.has_much_room());
        // Not of other zones: where others allocate and free, cache lines go back and forth.
        let zone = self.area.next().zone();
        levels.find_map(|level| self.take_at_level(level, zone))
    }

    /// From any partly used cluster.
    pub(super) fn take_partly_used(&mut self) -> Option<u64> {
        Level::sufficient(self.order).find_map(|level| self.take_at_level(level, Zone::ALL))
    }

    /// Tries the clusters of a level of the index, and of a zone, until one is as it says. (It always is, unless other threads
    /// are at it.)
    fn take_at_level(&mut self, level: Level, zone: Zone) -> Option<u64> {
        let index = self.area.clusters().index();
        if index.is_empty(level) {
            return None;
        }
        let zone = if self.area.next().is_shared() { Zone::ALL } else { zone };
        // On from where this CPU was last: CPUs keep apart, and what is written together lies together.
        let start = self.cluster();
        index.around(level, zone, start).find_map(|i| self.take_indexed(i))
    }

    /// Takes slots from a locked cluster and puts it where it belongs then.
    #[inline]
    pub(super) fn take(&mut self, i: usize, inner: &mut LockedInner<'_>, from: usize) -> Option<u64> {
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

    /// As [`Request::take_from_copies`], of one cluster.
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
        // If it is not at a level of those that are partly used or full, others have emptied it meanwhile: then it is to be had
        // in other ways. What this has emptied is taken as it is, without being punched out first.
        if !matches!(lists::of(&inner), Some(Place::Index(_))) {
            debug_assert!(freed == 0, "slots that are given up are used until they are freed, so the cluster was never empty");
            return None;
        }
        let slot = self.take(i, &mut inner, first);
        // Also if it was taken from: what was given up beside the run may be more room than the index says.
        clusters.relocate(i, &mut inner);
        slot
    }

    /// Takes from a cluster that the index has, if nobody else has it in hand.
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
