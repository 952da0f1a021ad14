//! For experiments only (feature `lab`): other searches of partly used clusters, one lock for a
//! whole area, and statistics that would slow allocation. Without the feature, `no_lab.rs` stands
//! in for this module.
//!
//! Each other search is a [`Rival`]. Clusters are then on lists by their latest change, not in the
//! index, and each serves one order ([`Request::search_lists`]). `lowtide-lab slots-fragmentation`
//! compares the policies.

mod area_lock;
mod bucketed;
mod counts;
mod lists;
mod scan_all;
mod scan_one;
mod search_lists;

use alloc::boxed::Box;
use core::fmt;

use super::area::{Area, AreaConfig};
use super::cluster::{CLUSTER_SLOTS, Inner, MAX_ORDER};
use super::lists::ListId;
use super::swap_cache::SwapCache;
use search_lists::Trial;

pub(super) use area_lock::AreaLock;
pub use counts::SearchStats;
pub(super) use counts::{Opened, Searches};
pub(super) use lists::{LISTS, state_on};

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

    fn rival(self) -> Option<AnyRival> {
        match self {
            Policy::ScanAll => Some(Box::new(scan_all::ScanAll)),
            Policy::ScanOne => Some(Box::new(scan_one::ScanOne)),
            Policy::Bucketed => Some(Box::new(bucketed::Bucketed::new())),
            Policy::Exact => None,
        }
    }
}

/// Which allocator an area has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Allocator {
    /// The search of partly used clusters.
    pub policy: Policy,
    /// One lock for the whole area (`area_lock.rs`).
    pub area_lock: bool,
}

impl From<Policy> for Allocator {
    fn from(policy: Policy) -> Allocator {
        Allocator { policy, ..Allocator::SHIPPED }
    }
}

impl Allocator {
    /// The one that is shipped.
    pub const SHIPPED: Allocator = Allocator { policy: Policy::Exact, area_lock: false };

    /// The same area without what this allocator can't have: a discard would be I/O under the
    /// area's lock, and only the shipped search writes one sequence of slots.
    pub(super) fn adapt(self, cfg: AreaConfig) -> AreaConfig {
        AreaConfig { discard: cfg.discard && !self.area_lock, rotating: cfg.rotating && self.policy == Policy::Exact, ..cfg }
    }

    pub(super) fn rival(self) -> Option<AnyRival> {
        self.policy.rival()
    }

    pub(super) fn area_lock(self) -> Option<AreaLock> {
        self.area_lock.then(AreaLock::new)
    }
}

/// What a rival knows of a cluster.
#[derive(Debug)]
pub(super) struct History {
    /// Served from its first slot until it is empty again.
    order: u8,
    /// The latest change was a free.
    freed: bool,
}

impl History {
    pub(super) const NONE: History = History { order: 0, freed: false };

    #[inline]
    pub(super) fn begin(&mut self, order: u32) {
        self.order = order as u8;
    }

    #[inline]
    pub(super) fn allocated(&mut self) {
        self.freed = false;
    }

    #[inline]
    pub(super) fn freed(&mut self) {
        self.freed = true;
    }

    fn order(&self) -> u32 {
        self.order.into()
    }
}

pub(super) type AnyRival = Box<dyn Rival>;

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
        _ if inner.history.freed => ListId::nonfull(inner.history.order()),
        _ => ListId::frag(inner.history.order(), 0),
    }
}

fn serves(inner: &Inner, order: u32) -> bool {
    order == 0 || inner.count == 0 || inner.history.order() == order
}

/// The same for every rival.
impl dyn Rival {
    /// Each cluster serves one order.
    pub(super) fn serves(&self, inner: &Inner, order: u32) -> bool {
        serves(inner, order)
    }

    /// Its search gives up clean copies where slots are scarce.
    pub(super) fn alloc_as_if_scarce(&self, area: &Area, order: u32, cache: &dyn SwapCache) -> Option<u64> {
        area.alloc_where_scarce(order, &LastResort(cache))
    }
}

/// Makes every area scarce.
struct LastResort<'a>(&'a dyn SwapCache);

impl SwapCache for LastResort<'_> {
    fn give_up(&self, area: &Area, slot: u64) -> bool {
        self.0.give_up(area, slot)
    }

    fn is_scarce(&self, _area: &Area) -> bool {
        true
    }
}
