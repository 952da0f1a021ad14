//! For experiments only (feature `lab`): other searches of partly used clusters, one lock for a
//! whole area, and statistics that would slow allocation.
//!
//! Each other search is a [`Rival`]. Clusters are then on lists by their latest change, not in the
//! index, and each serves one order ([`Request::search_lists`]). `lowtide-lab slots-fragmentation`
//! compares the policies.

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
    /// Tries the emptiest clusters first, as long as likely to pay.
    Bucketed,
    /// The shipped index.
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

    pub(super) fn rival(self) -> Option<Box<dyn Rival>> {
        match self {
            Policy::ScanAll => Some(Box::new(scan_all::ScanAll)),
            Policy::ScanOne => Some(Box::new(scan_one::ScanOne)),
            Policy::Bucketed => Some(Box::new(bucketed::Bucketed::new())),
            Policy::Exact => None,
        }
    }
}

/// Instead of the index.
pub(super) trait Rival: fmt::Debug + Send + Sync {
    fn list_of(&self, inner: &Inner) -> ListId;

    /// Clusters that serve `order`. `used` and `total`: slots of the area.
    fn search(&self, order: u32, used: u64, total: u64, trial: &mut Trial<'_, '_>) -> Option<u64>;

    /// Last resort: clusters of other orders. By default for single slots, which fit any.
    fn steal(&self, order: u32, trial: &mut Trial<'_, '_>) -> Option<u64> {
        if order != 0 {
            return None;
        }
        let lists = |o| (0..ListId::BUCKETS).map(move |b| ListId::frag(o, b)).chain([ListId::nonfull(o)]);
        trial.try_first((1..=MAX_ORDER).flat_map(lists))
    }
}

fn by_latest_change(inner: &Inner) -> ListId {
    match inner.count as usize {
        CLUSTER_SLOTS => ListId::FULL,
        _ if inner.freed => ListId::nonfull(inner.order.into()),
        _ => ListId::frag(inner.order.into(), 0),
    }
}

/// Makes every area scarce.
pub(super) struct LastResort<'a>(pub &'a dyn SwapCache);

impl SwapCache for LastResort<'_> {
    fn give_up(&self, area: &Area, slot: u64) -> bool {
        self.0.give_up(area, slot)
    }

    fn is_scarce(&self, _area: &Area) -> bool {
        true
    }
}

/// Work beyond first tries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SearchStats {
    /// Allocations that this CPU's own cluster could not serve.
    pub searches: u64,
    /// Clusters that these opened.
    pub opened: u64,
}

impl Area {
    /// Whether 2^`order` aligned free slots exist. Locks every cluster.
    pub fn has_free_run(&self, order: u32) -> bool {
        let clusters = self.clusters();
        !clusters.are_all_opened() || (0..clusters.opened()).any(|i| clusters.lock(i).find_best() >= Some(order))
    }

    /// Statistics so far.
    pub fn search_stats(&self) -> SearchStats {
        let (searches, opened) = self.next().counted();
        SearchStats { searches, opened }
    }

    /// Acquisitions of all cluster locks, and of the list lock. Takes each.
    pub fn lock_acquisitions(&self) -> (u64, u64) {
        self.clusters().lock_acquisitions()
    }
}
