//! What only experiments need (the feature `lab`): other ways to search partly used clusters, one lock for a whole area, and
//! figures that would cost an allocation something. Nothing of it is in what is shipped.
//!
//! Each other way to search, a [`Rival`], is a small file. Clusters are on lists then, by what happened to them last, and not
//! in the index; each serves one order. The order in which an area's clusters are searched is [`Request::search_lists`].
//! `lowtide-lab slots-fragmentation` compares the policies.

pub(super) mod area_lock;
mod bucketed;
mod scan_all;
mod scan_one;
mod search_lists;

use alloc::boxed::Box;
use core::fmt;

use super::area::Area;
use super::cluster::{CLUSTER_SLOTS, Inner, MAX_ORDER};
use super::lists::ListId;
use super::swap_cache::SwapCache;
use search_lists::Trial;

/// How partly used clusters are searched.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Policy {
    /// Walks the whole frag list: slow where it is long.
    ScanAll,
    /// Tries one frag cluster and gives up.
    ScanOne,
    /// Tries the emptiest clusters first, as many as are likely to pay.
    Bucketed,
    /// What is shipped: the index, which says which clusters have a run, so that a search gives up exactly when there is none.
    #[default]
    Exact,
}

impl Policy {
    /// All policies.
    pub const ALL: [Policy; 4] = [Policy::ScanAll, Policy::ScanOne, Policy::Bucketed, Policy::Exact];

    /// The policy's name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Policy::ScanAll => "scan-all",
            Policy::ScanOne => "scan-one",
            Policy::Bucketed => "bucketed",
            Policy::Exact => "exact",
        }
    }

    /// The policy with its state; `None`: what is shipped.
    pub(super) fn rival(self) -> Option<Box<dyn Rival>> {
        match self {
            Policy::ScanAll => Some(Box::new(scan_all::ScanAll)),
            Policy::ScanOne => Some(Box::new(scan_one::ScanOne)),
            Policy::Bucketed => Some(Box::new(bucketed::Bucketed::new())),
            Policy::Exact => None,
        }
    }
}

/// How partly used clusters are listed and searched, in place of the index.
pub(super) trait Rival: fmt::Debug + Send + Sync {
    /// The list of a cluster with a used slot.
    fn list_of(&self, inner: &Inner) -> ListId;

    /// Searches the partly used clusters that serve `order` for a run of 2^`order`. `used` and `total`: slots of the area.
    fn search(&self, order: u32, used: u64, total: u64, trial: &mut Trial<'_, '_>) -> Option<u64>;

    /// Searches clusters that serve other orders, when nothing else is left: by default for single slots only, which find
    /// room in any.
    fn steal(&self, order: u32, trial: &mut Trial<'_, '_>) -> Option<u64> {
        if order != 0 {
            return None;
        }
        let lists = |o| (0..ListId::BUCKETS).map(move |b| ListId::frag(o, b)).chain([ListId::nonfull(o)]);
        trial.try_first((1..=MAX_ORDER).flat_map(lists))
    }
}

/// The list of a cluster, for those that know only whether the latest change was a free.
fn by_latest_change(inner: &Inner) -> ListId {
    match inner.count as usize {
        CLUSTER_SLOTS => ListId::FULL,
        _ if inner.freed => ListId::nonfull(inner.order.into()),
        _ => ListId::frag(inner.order.into(), 0),
    }
}

/// Clean copies stand in the way of what there is no other room for.
pub(super) struct LastResort<'a>(pub &'a dyn SwapCache);

impl SwapCache for LastResort<'_> {
    fn give_up(&self, area: &Area, slot: u64) -> bool {
        self.0.give_up(area, slot)
    }

    fn is_scarce(&self, _area: &Area) -> bool {
        true
    }
}

/// How much searching allocations have done beyond their first try.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SearchStats {
    /// Allocations that this CPU's own cluster could not serve.
    pub searches: u64,
    /// Clusters that these opened.
    pub opened: u64,
}

impl Area {
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

    /// How often the locks of all clusters, and the lock of the lists, were taken: takes each of them.
    pub fn lock_acquisitions(&self) -> (u64, u64) {
        self.clusters().lock_acquisitions()
    }
}
