//! Checks a whole area: counts against maps, states against lists.

use alloc::vec;
use core::fmt;
use core::sync::atomic::Ordering;

use super::area::Area;
use super::cluster::{CLUSTER_SLOTS, ListState};
use super::lists::{self, ListId};
use super::policy::Search;

/// What is wrong with an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invalid {
    /// A cluster's counts do not agree with its maps.
    Counts {
        /// Index of the cluster.
        cluster: usize,
    },
    /// A cluster is not on the list that its state and its count say, or on several.
    List {
        /// Index of the cluster.
        cluster: usize,
    },
    /// The area's use count is not the sum of its clusters'.
    Usage {
        /// What the area says.
        counted: u64,
        /// The sum.
        found: u64,
    },
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Invalid::Counts { cluster } => write!(f, "cluster {cluster}: counts and maps disagree"),
            Invalid::List { cluster } => write!(f, "cluster {cluster}: state and list disagree"),
            Invalid::Usage { counted, found } => write!(f, "{counted} slots counted, {found} in use"),
        }
    }
}

impl core::error::Error for Invalid {}

impl Area {
    /// Checks everything that the area knows against everything else. No other thread may use the area meanwhile.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn validate(&self) -> Result<(), Invalid> {
        let opened = self.opened.load(Ordering::Acquire) as usize;
        let mut on: vec::Vec<Option<ListId>> = vec![None; opened];
        {
            let lists = self.lists.lock();
            for list in ListId::all() {
                let mut len = 0;
                for cluster in lists.iter(list) {
                    if on.get(cluster) != Some(&None) {
                        return Err(Invalid::List { cluster });
                    }
                    on[cluster] = Some(list);
                    len += 1;
                }
                if len != lists.len(list) {
                    return Err(Invalid::List { cluster: opened });
                }
            }
        }
        let mut found = 0;
        for (cluster, on) in on.iter().enumerate() {
            let inner = self.clusters[cluster].0.lock();
            if !inner.is_consistent() {
                return Err(Invalid::Counts { cluster });
            }
            let right = match (*on, inner.count as usize) {
                (Some(list), 0) => list == ListId::FREE || list == ListId::DISCARD,
                (Some(list), CLUSTER_SLOTS) => list == ListId::FULL,
                (Some(list), _) => list == self.searcher.list(&inner, list.state() == ListState::NonFull),
                (None, _) => false,
            };
            if !right || lists::of(&inner) != *on || on.is_some_and(|list| list.state() != inner.state) {
                return Err(Invalid::List { cluster });
            }
            let beyond = ((cluster + 1) * CLUSTER_SLOTS).saturating_sub(self.slots() as usize);
            found += inner.count as u64 - beyond as u64;
        }
        let counted = self.used();
        if counted == found { Ok(()) } else { Err(Invalid::Usage { counted, found }) }
    }
}
