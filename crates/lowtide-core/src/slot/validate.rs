//! Checks a whole area: counts against maps, states against lists.

use alloc::vec;
use core::fmt;

use super::area::Area;
use super::cluster::{CLUSTER_SLOTS, MAX_ORDER};
use super::index::Level;
use super::lists::{self, ListId, Place};
use crate::percpu::Zone;

/// An inconsistency of an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invalid {
    /// A cluster's counts do not match its maps.
    Counts {
        /// Index of the cluster.
        cluster: usize,
    },
    /// A cluster is not on the list of its state and count, or on several.
    List {
        /// Index of the cluster.
        cluster: usize,
    },
    /// The count of full clusters is wrong.
    Full {
        /// The area's count.
        counted: u64,
        /// The actual number.
        found: u64,
    },
    /// The count of used slots is not the clusters' sum, or far from the truth.
    Usage {
        /// The area's count.
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
            Invalid::Full { counted, found } => write!(f, "{counted} full clusters counted, {found} found"),
            Invalid::Usage { counted, found } => write!(f, "{counted} slots counted, {found} in use"),
        }
    }
}

impl core::error::Error for Invalid {}

impl Area {
    /// Checks all data against each other. No other thread may use the area. (Over 70 lines: a
    /// check after the other.)
    ///
    /// # Errors
    /// The first inconsistency.
    pub fn validate(&self) -> Result<(), Invalid> {
        let clusters = self.clusters();
        let opened = clusters.opened();
        let mut on: vec::Vec<Option<Place>> = vec![None; opened];
        {
            let lists = clusters.lock_lists();
            for list in ListId::all() {
                let mut len = 0;
                for cluster in lists.iter(list) {
                    if on.get(cluster) != Some(&None) {
                        return Err(Invalid::List { cluster });
                    }
                    on[cluster] = Some(Place::List(list));
                    len += 1;
                }
                if len != clusters.len(list) {
                    return Err(Invalid::List { cluster: opened });
                }
            }
        }
        let index = clusters.index();
        if !index.is_consistent() {
            return Err(Invalid::List { cluster: opened });
        }
        for level in (0..Level::FULL.number()).map(Level::from_number) {
            for cluster in index.around(level, Zone::ALL, 0) {
                if on.get(cluster) != Some(&None) {
                    return Err(Invalid::List { cluster });
                }
                on[cluster] = Some(Place::Index(level));
            }
        }
        let (mut found, mut full, mut told) = (0, 0, 0);
        for (cluster, on) in on.iter().enumerate() {
            let mut inner = clusters.lock(cluster);
            if !inner.is_consistent(&self.marks().of(cluster)) {
                return Err(Invalid::Counts { cluster });
            }
            let room = inner.used_without(&self.marks().of(cluster)).largest_clear(MAX_ORDER);
            let copies = u32::from(inner.copies).checked_sub(1);
            let has_copies = inner.caches > 0 && clusters.rival().is_none();
            let right = if has_copies { copies >= room } else { copies.is_none() };
            if !right || !(0..=MAX_ORDER).all(|o| index.has(Level::of_copies(o), cluster) == (copies == Some(o))) {
                return Err(Invalid::List { cluster });
            }
            inner.find_best();
            // Full clusters are in no bitmap.
            let full_one = Place::Index(Level::FULL);
            let on = on.or_else(|| lists::of(&inner).filter(|place| *place == full_one));
            let right = match (on, inner.count as usize) {
                (Some(place), 0) => place == Place::List(ListId::FREE) || place == Place::List(ListId::DISCARD),
                (Some(place), _) => match (place, clusters.place_of(&inner)) {
                    (Place::Index(is), Place::Index(belongs)) => is.may_stand_for(belongs),
                    (is, belongs) => is == belongs,
                },
                (None, _) => false,
            };
            if !right || lists::of(&inner) != on || on.is_some_and(|place| place.state() != inner.state) {
                return Err(Invalid::List { cluster });
            }
            full += u64::from(inner.is_full());
            let beyond = ((cluster + 1) * CLUSTER_SLOTS).saturating_sub(self.slots() as usize);
            told += inner.told as u64 - beyond as u64;
            found += inner.count as u64 - beyond as u64;
        }
        let counted = clusters.used_about();
        if counted != told || counted.abs_diff(found) > (opened * CLUSTER_SLOTS) as u64 / 16 {
            return Err(Invalid::Usage { counted, found });
        }
        let counted = self.availability().full_clusters();
        if counted == full { Ok(()) } else { Err(Invalid::Full { counted, found: full }) }
    }
}
