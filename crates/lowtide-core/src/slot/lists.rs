//! Where an area's clusters are: on lists, linked by number, or in the index of those that are partly used. The lock around
//! [`Lists`] protects the lists and nothing else; a thread waits for it with a cluster's lock held, never the other way round:
//! with the lists locked, clusters are only tried.
//!
//! Isolation and relocation are those of the kernel's swap allocator since its locks were reworked (Kairui Song's series
//! "mm, swap: rework of swap allocator locks", 2024).

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::io::Errno;

#[cfg(feature = "lab")]
use super::cluster::ORDERS;
use super::cluster::{Cluster, Inner, ListState};
use super::index::{Index, Level};
use crate::lock::rank;
use crate::percpu::{CacheAligned, Zone};
use crate::sync::{Array, Guard, Lock};
use crate::table::{Table, Zeroed};
use crate::vm::OnFork;

#[cfg(not(feature = "lab"))]
const COUNT: usize = 2;
#[cfg(feature = "lab")]
const COUNT: usize = 3 + ORDERS + ORDERS * ListId::BUCKETS;

/// One of the lists of an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ListId(u8);

impl ListId {
    pub(super) const FREE: ListId = ListId(0);
    pub(super) const DISCARD: ListId = ListId(1);

    /// The state of the clusters on it.
    pub(super) fn state(self) -> ListState {
        match self {
            ListId::FREE => ListState::Free,
            ListId::DISCARD => ListState::Discard,
            other => other.state_of_used(),
        }
    }

    /// There are no other lists.
    #[cfg(not(feature = "lab"))]
    fn state_of_used(self) -> ListState {
        ListState::None
    }

    pub(super) fn all() -> impl Iterator<Item = ListId> {
        (0..COUNT as u8).map(ListId)
    }
}

/// The lists of a rival of the index.
#[cfg(feature = "lab")]
impl ListId {
    pub(super) const FULL: ListId = ListId(2);
    /// Buckets of frag lists for each order: a rival may use fewer.
    pub(super) const BUCKETS: usize = ORDERS;

    /// The clusters of that order that may have room.
    pub(super) const fn nonfull(order: u32) -> ListId {
        ListId(3 + order as u8)
    }

    /// The clusters of that order in a bucket of the rival's.
    pub(super) const fn frag(order: u32, bucket: usize) -> ListId {
        ListId((3 + ORDERS + order as usize * ListId::BUCKETS + bucket) as u8)
    }

    fn state_of_used(self) -> ListState {
        match self.0 as usize {
            2 => ListState::Full,
            i if i < 3 + ORDERS => ListState::NonFull,
            _ => ListState::Frag,
        }
    }
}

/// Neighbours on a list, as index of a cluster plus one; 0: none.
#[derive(Debug, Default)]
struct Link {
    next: u32,
    prev: u32,
}

// SAFETY: two integers.
unsafe impl Zeroed for Link {}

#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    head: u32,
    tail: u32,
}

/// The lists, and which cluster comes after which.
#[derive(Debug)]
pub(super) struct Lists {
    ends: [Ends; COUNT],
    links: Table<Link>,
}

/// A place where a cluster can be: on a list, or at a level of the index, which has no bitmap of those that are full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    List(ListId),
    Index(Level),
}

impl Place {
    /// As a cluster remembers it; never 0.
    fn number(self) -> u8 {
        match self {
            Place::List(list) => list.0 + 1,
            Place::Index(level) => INDEXED + level.number(),
        }
    }

    fn from_number(n: u8) -> Option<Place> {
        match n {
            0 => None,
            n if n < INDEXED => Some(Place::List(ListId(n - 1))),
            n => Some(Place::Index(Level::from_number(n - INDEXED))),
        }
    }

    /// The state of the clusters there.
    pub(super) fn state(self) -> ListState {
        match self {
            Place::List(list) => list.state(),
            Place::Index(Level::FULL) => ListState::Full,
            Place::Index(_) => ListState::Frag,
        }
    }
}

/// How many clusters of a list are looked at for one of a zone.
const NEAR: usize = 64;
const INDEXED: u8 = 200;
const _: () = assert!(COUNT < INDEXED as usize && INDEXED as usize + Level::COUNT <= 256);

pub(super) type LockedInner<'a> = Guard<'a, Inner, { rank::CLUSTER }>;

/// Where an area's clusters are.
#[derive(Debug)]
pub(super) struct Places {
    pub lists: CacheAligned<Lock<Lists, { rank::LISTS }>>,
    /// How many clusters are on each list, to be asked without the lock.
    lens: CacheAligned<[AtomicU32; COUNT]>,
    pub index: Index,
}

impl Lists {
    fn new(clusters: usize) -> Result<Lists, Errno> {
        Ok(Lists { ends: [Ends::default(); COUNT], links: Table::new(clusters, OnFork::Copy)? })
    }

    /// The clusters on a list, in order.
    pub(super) fn iter(&self, list: ListId) -> impl Iterator<Item = usize> {
        let next = |at: u32| (at as usize).checked_sub(1);
        core::iter::successors(next(self.ends[list.0 as usize].head), move |i| next(self.links[*i].next))
    }

    fn push(&mut self, list: ListId, i: usize) {
        let me = i as u32 + 1;
        let ends = &mut self.ends[list.0 as usize];
        self.links[i] = Link { next: 0, prev: ends.tail };
        match ends.tail {
            0 => ends.head = me,
            tail => self.links[tail as usize - 1].next = me,
        }
        ends.tail = me;
    }

    fn unlink(&mut self, list: ListId, i: usize) {
        let Link { next, prev } = core::mem::take(&mut self.links[i]);
        let ends = &mut self.ends[list.0 as usize];
        match prev {
            0 => ends.head = next,
            p => self.links[p as usize - 1].next = next,
        }
        match next {
            0 => ends.tail = prev,
            n => self.links[n as usize - 1].prev = prev,
        }
    }
}

impl Places {
    /// For that many clusters, none of which is anywhere yet. `zones`: as for [`Index::new`].
    pub(super) fn new(clusters: usize, zones: u32) -> Result<Places, Errno> {
        Ok(Places {
            lists: CacheAligned(Lock::new(Lists::new(clusters)?)),
            lens: CacheAligned([const { AtomicU32::new(0) }; COUNT]),
            index: Index::new(clusters, zones)?,
        })
    }

    /// How many clusters are on a list, as of a moment ago.
    #[inline]
    pub(super) fn len(&self, list: ListId) -> usize {
        self.lens[list.0 as usize].load(Relaxed) as usize
    }

    /// Takes the first cluster of a list whose lock is free off the list and returns it locked: nobody else can walk onto it.
    /// Of one CPU's zone only those near the head of the list are looked at.
    pub(super) fn isolate<'a>(
        &self,
        clusters: &'a Array<Cluster>,
        list: ListId,
        zone: Zone,
    ) -> Option<(usize, LockedInner<'a>)> {
        if self.len(list) == 0 {
            return None;
        }
        let mut lists = self.lists.lock();
        let lock = |i: usize| clusters[i].0.try_lock().map(|inner| (i, inner));
        let near = if zone == Zone::ALL { usize::MAX } else { NEAR };
        let (i, mut inner) = lists.iter(list).take(near).filter(|i| zone.has(*i)).find_map(lock)?;
        self.leave(Some(&mut lists), i, &mut inner);
        inner.state = ListState::None;
        Some((i, inner))
    }

    /// Takes a locked cluster from where it is: nobody else can walk onto it.
    pub(super) fn take_off(&self, i: usize, inner: &mut Inner) {
        self.leave(None, i, inner);
        inner.state = ListState::None;
    }

    /// Puts a locked cluster somewhere (on a list: to its tail), from wherever it is; leaves it where it is if it is there
    /// already.
    #[inline]
    pub(super) fn move_to(&self, i: usize, inner: &mut Inner, to: Place) {
        if inner.place != to.number() {
            self.move_elsewhere(i, inner, to);
        }
    }

    fn move_elsewhere(&self, i: usize, inner: &mut Inner, to: Place) {
        match to {
            Place::List(list) => {
                let mut lists = self.lists.lock();
                self.leave(Some(&mut lists), i, inner);
                lists.push(list, i);
                self.lens[list.0 as usize].fetch_add(1, Relaxed);
            }
            Place::Index(level) => {
                self.leave(None, i, inner);
                self.index.add(level, i);
            }
        }
        inner.place = to.number();
        inner.state = to.state();
    }

    /// Takes a locked cluster from where it is, if it is anywhere. `lists`: those of this, if they are locked already.
    fn leave(&self, lists: Option<&mut Lists>, i: usize, inner: &mut Inner) {
        let from = of(inner);
        debug_assert!(from.is_none_or(|place| place.state() == inner.state), "state and list disagree");
        match (from, lists) {
            (Some(Place::List(list)), Some(lists)) => {
                lists.unlink(list, i);
                self.lens[list.0 as usize].fetch_sub(1, Relaxed);
            }
            (Some(Place::List(list)), None) => {
                self.lists.lock().unlink(list, i);
                self.lens[list.0 as usize].fetch_sub(1, Relaxed);
            }
            (Some(Place::Index(level)), _) => self.index.remove(level, i),
            (None, _) => {}
        }
        inner.place = 0;
    }

    /// Bytes of memory that the links and the index take.
    pub(super) fn table_bytes(&self) -> usize {
        self.lists.lock().links.populated_bytes() + self.index.table_bytes()
    }
}

/// Where a locked cluster says it is.
pub(super) fn of(inner: &Inner) -> Option<Place> {
    Place::from_number(inner.place)
}
