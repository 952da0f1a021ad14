//! Which partly used clusters a search for a folio opens, and when it gives up. Four policies behind one small interface, one
//! file each. [`Policy::default`] is what won; the lab's `slots-fragmentation` compares them.

mod bucketed;
mod exact;
mod scan_all;
mod scan_one;

use alloc::boxed::Box;

use super::cluster::{CLUSTER_SLOTS, Inner, MAX_ORDER};
use super::index::Level;
use super::lists::{BUCKETS, ListId, Place};
use crate::percpu::Zone;

/// How fragmented clusters are searched.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Policy {
    /// Walks the whole frag list: slow where it is long.
    ScanAll,
    /// Tries one frag cluster and gives up.
    ScanOne,
    /// Tries the emptiest clusters first, as many as are likely to pay.
    Bucketed,
    /// Opens only clusters that surely have a run: gives up exactly when there is none.
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

    /// The policy of that name.
    pub fn named(name: &str) -> Option<Policy> {
        Policy::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// What trying some clusters of a list came to.
#[derive(Debug)]
pub(super) struct Tried {
    /// The first slot of the run that was found.
    pub slot: Option<u64>,
    /// Clusters opened.
    pub opened: usize,
}

/// What a policy's search may do. Clusters that are opened in vain go to the tail of the frag list where they belong.
pub(super) trait Trier {
    /// Tries up to `tries` clusters of a list, each at most once.
    fn try_list(&mut self, list: ListId, tries: usize) -> Tried;

    /// Tries one cluster, of the first list of several that holds one.
    fn try_first(&mut self, lists: &mut dyn Iterator<Item = ListId>) -> Option<u64>;

    /// Tries the clusters of a level of the index, and of a zone, until one is as it says. (It always is, unless other threads
    /// are at it.)
    fn try_level(&mut self, level: Level, zone: Zone) -> Option<u64>;
}

/// How an area's partly used clusters are indexed and searched.
pub(super) trait Search {
    /// Where a cluster with a used slot belongs; `freed`: the latest change was a free.
    fn place(&self, inner: &Inner, freed: bool) -> Place;

    /// Searches partly used clusters for a run of 2^`order` that is better taken than a free cluster, once those are scarce.
    fn search_first(&self, _order: u32, _trier: &mut dyn Trier) -> Option<u64> {
        None
    }

    /// Searches the partly used clusters that serve `order` for a run of 2^`order`. `used` and `total`: slots of the area.
    fn search(&self, order: u32, used: u64, total: u64, trier: &mut dyn Trier) -> Option<u64>;

    /// Searches clusters that serve other orders, when nothing else is left: by default for single slots only, which find
    /// room in any.
    fn steal(&self, order: u32, trier: &mut dyn Trier) -> Option<u64> {
        if order != 0 {
            return None;
        }
        let lists = |o| (0..BUCKETS).map(move |b| ListId::frag(o, b)).chain([ListId::nonfull(o)]);
        trier.try_first(&mut (1..=MAX_ORDER).flat_map(lists))
    }

    /// Whether a folio may be put into a cluster that serves another order.
    fn mixes(&self) -> bool {
        false
    }
}

/// A policy with its state.
#[derive(Debug)]
pub(super) enum Searcher {
    ScanAll(scan_all::ScanAll),
    ScanOne(scan_one::ScanOne),
    Bucketed(Box<bucketed::Bucketed>),
    Exact(exact::Exact),
}

impl Searcher {
    pub(super) fn new(policy: Policy) -> Searcher {
        match policy {
            Policy::ScanAll => Searcher::ScanAll(scan_all::ScanAll),
            Policy::ScanOne => Searcher::ScanOne(scan_one::ScanOne),
            Policy::Bucketed => Searcher::Bucketed(Box::new(bucketed::Bucketed::new())),
            Policy::Exact => Searcher::Exact(exact::Exact),
        }
    }

    fn as_search(&self) -> &dyn Search {
        match self {
            Searcher::ScanAll(s) => s,
            Searcher::ScanOne(s) => s,
            Searcher::Bucketed(s) => &**s,
            Searcher::Exact(s) => s,
        }
    }
}

impl Search for Searcher {
    #[inline]
    fn place(&self, inner: &Inner, freed: bool) -> Place {
        // The hot one first, without a call through a table.
        if let Searcher::Exact(s) = self { s.place(inner, freed) } else { self.as_search().place(inner, freed) }
    }

    fn search(&self, order: u32, used: u64, total: u64, trier: &mut dyn Trier) -> Option<u64> {
        self.as_search().search(order, used, total, trier)
    }

    fn search_first(&self, order: u32, trier: &mut dyn Trier) -> Option<u64> {
        self.as_search().search_first(order, trier)
    }

    fn steal(&self, order: u32, trier: &mut dyn Trier) -> Option<u64> {
        self.as_search().steal(order, trier)
    }

    #[inline]
    fn mixes(&self) -> bool {
        matches!(self, Searcher::Exact(_))
    }
}

/// The lists of the policies that know only whether the latest change was a free.
fn by_latest_change(inner: &Inner, freed: bool) -> Place {
    Place::List(match inner.count as usize {
        CLUSTER_SLOTS => ListId::FULL,
        _ if freed => ListId::nonfull(inner.order.into()),
        _ => ListId::frag(inner.order.into(), 0),
    })
}
