//! The search order with a [`Rival`], and its access to the lists.

use super::{AnyRival, Rival, serves};
use crate::percpu::Zone;
use crate::slot::area::Area;
use crate::slot::cluster::{CLUSTER_SLOTS, ListState};
use crate::slot::lists::{self, ListId, LockedInner};
use crate::slot::search::Request;
use crate::slot::zombies::{self, Reach};

#[derive(Debug)]
pub(in crate::slot) struct Tried {
    pub slot: Option<u64>,
    pub opened: usize,
}

/// Clusters opened in vain go to the tail of their frag list.
pub(in crate::slot) struct Trial<'r, 'a> {
    request: &'r mut Request<'a>,
    /// Give up clean copies.
    scarce: bool,
}

impl Request<'_> {
    /// As [`Request::search`], with a rival's lists.
    pub(in crate::slot) fn search_lists(&mut self, rival: &AnyRival) -> Option<u64> {
        let rival = rival.as_ref();
        let area = self.area;
        let half_used = area.clusters().used_about() * 2 >= area.opened_slots();
        if let Some(slot) = self.take_empty(half_used) {
            return Some(slot);
        }
        // A full cluster gives up its clean copies; it may become free.
        let scarce = area.marks().any() && self.cache.is_scarce(area);
        if scarce
            && area.reclaim_full(1, self.cache) > 0
            && let Some(slot) = self.take_free(true, Zone::ALL)
        {
            return Some(slot);
        }
        if let Some(slot) = self.search_partly_used(rival, scarce) {
            return Some(slot);
        }
        if let Some(slot) = self.take_last_empty(half_used) {
            return Some(slot);
        }
        if zombies::reap(area, Reach::SHORT)
            && let Some(slot) = self.take_free(true, Zone::ALL).or_else(|| self.search_partly_used(rival, scarce))
        {
            return Some(slot);
        }
        rival.steal(self.order, &mut Trial { request: self, scarce })
    }

    fn search_partly_used(&mut self, rival: &dyn Rival, scarce: bool) -> Option<u64> {
        let clusters = self.area.clusters();
        let (order, used, total) = (self.order, clusters.used_about(), clusters.slots());
        rival.search(order, used, total, &mut Trial { request: self, scarce })
    }
}

impl<'a> Trial<'_, 'a> {
    /// Each cluster at most once.
    pub(super) fn try_list(&mut self, list: ListId, tries: usize) -> Tried {
        let area = self.request.area;
        // Clusters returned to the tail are not tried again.
        let tries = tries.min(area.clusters().len(list));
        let before = self.request.opened;
        let slot = (0..tries).find_map(|_| {
            let (i, inner) = area.clusters().isolate(list, Zone::ALL)?;
            self.take_isolated(i, inner)
        });
        Tried { slot, opened: self.request.opened.since(before) as usize }
    }

    pub(super) fn try_first(&mut self, mut lists: impl Iterator<Item = ListId>) -> Option<u64> {
        let area = self.request.area;
        let (i, inner) = lists.find_map(|list| area.clusters().isolate(list, Zone::ALL))?;
        self.take_isolated(i, inner)
    }

    /// From free slots, else from clean copies; else the cluster returns to a list.
    fn take_isolated(&mut self, i: usize, mut inner: LockedInner<'a>) -> Option<u64> {
        let request = &mut *self.request;
        let (area, clusters, order) = (request.area, request.area.clusters(), request.order);
        request.count_opened();
        if let Some(slot) = request.take(i, &mut inner, 0) {
            return Some(slot);
        }
        if inner.caches > 0
            && self.scarce
            && let Some(first) = inner.used_without(&area.copies_of(i, 0, CLUSTER_SLOTS)).find_clear(order, 0)
        {
            let freed;
            (inner, freed) = area.reclaim_run(i, inner, first, 1 << order, request.cache);
            // The lock was released.
            let usable = inner.usable() && serves(&inner, order) && inner.charged;
            if usable && let Some(slot) = request.take(i, &mut inner, first) {
                return Some(slot);
            }
            let is_elsewhere = lists::of(&inner).is_some() || inner.state != ListState::None;
            if freed > 0 {
                clusters.relocate(i, &mut inner);
            }
            if freed > 0 || is_elsewhere {
                return None;
            }
        }
        // To the frag list, as after an allocation.
        inner.history.allocated();
        clusters.relocate(i, &mut inner);
        None
    }
}

impl dyn Rival {
    /// The next full cluster with clean copies, off its list; [`Self::put_back`] returns it.
    pub(in crate::slot) fn next_full(&self, area: &Area) -> Option<usize> {
        let clusters = area.clusters();
        (0..clusters.len(ListId::FULL)).find_map(|_| {
            let (i, inner) = clusters.isolate(ListId::FULL, Zone::ALL)?;
            if inner.caches > 0 {
                return Some(i);
            }
            self.put_back(area, i, inner);
            None
        })
    }

    /// Unless another thread has.
    pub(in crate::slot) fn put_back(&self, area: &Area, i: usize, mut inner: LockedInner<'_>) {
        if lists::of(&inner).is_none() && inner.state == ListState::None {
            area.clusters().relocate(i, &mut inner);
        }
    }
}
