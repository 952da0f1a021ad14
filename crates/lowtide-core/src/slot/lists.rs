//! The place of each cluster of an area: on a list, linked by number, or in the index of partly
//! used ones. The lock of [`Lists`] protects only the lists. A thread waits for it with a cluster's
//! lock held, never the reverse: with the lists locked, clusters are only tried.
//!
//! Isolation and relocation follow the kernel's swap allocator (Kairui Song's series "mm, swap:
//! rework of swap allocator locks", 2024).

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::io::Errno;

use super::cluster::{Cluster, Inner, ListState};
use super::index::{Index, Level};
use super::lab;
use crate::lock::rank;
use crate::percpu::{CacheAligned, Zone};
use crate::sync::{Array, Guard, Lock};
use crate::table::{Table, Zeroed};
use crate::vm::OnFork;

/// Lists of clusters without a used slot.
pub(super) const UNUSED: usize = 2;
const COUNT: usize = UNUSED + lab::LISTS;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ListId(pub(super) u8);

impl ListId {
    pub(super) const FREE: ListId = ListId(0);
    pub(super) const DISCARD: ListId = ListId(1);

    pub(super) fn state(self) -> ListState {
        match self {
            ListId::FREE => ListState::Free,
            ListId::DISCARD => ListState::Discard,
            of_a_rival => lab::state_on(of_a_rival),
        }
    }

    pub(super) fn all() -> impl Iterator<Item = ListId> {
        (0..COUNT as u8).map(ListId)
    }
}

/// Cluster numbers plus one; 0: none.
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

#[derive(Debug)]
pub(super) struct Lists {
    ends: [Ends; COUNT],
    links: Table<Link>,
}

/// The index has no bitmap of full clusters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    List(ListId),
    Index(Level),
}

impl Place {
    /// Never 0.
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

    pub(super) fn state(self) -> ListState {
        match self {
            Place::List(list) => list.state(),
            Place::Index(Level::FULL) => ListState::Full,
            Place::Index(_) => ListState::Frag,
        }
    }
}

/// Clusters visited in search of one of a zone.
const NEAR: usize = 64;
const INDEXED: u8 = 200;
const _: () = assert!(COUNT < INDEXED as usize && INDEXED as usize + Level::COUNT <= 256);

pub(super) type LockedInner<'a> = Guard<'a, Inner, { rank::CLUSTER }>;

#[derive(Debug)]
pub(super) struct Places {
    pub lists: CacheAligned<Lock<Lists, { rank::LISTS }>>,
    /// Read without the lock.
    lens: CacheAligned<[AtomicU32; COUNT]>,
    pub index: Index,
}

impl Lists {
    fn new(clusters: usize) -> Result<Lists, Errno> {
        Ok(Lists { ends: [Ends::default(); COUNT], links: Table::new(clusters, OnFork::Copy)? })
    }

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
    /// `zones`: as for [`Index::new`].
    pub(super) fn new(clusters: usize, zones: u32) -> Result<Places, Errno> {
        Ok(Places {
            lists: CacheAligned(Lock::new(Lists::new(clusters)?)),
            lens: CacheAligned([const { AtomicU32::new(0) }; COUNT]),
            index: Index::new(clusters, zones)?,
        })
    }

    #[inline]
    pub(super) fn len(&self, list: ListId) -> usize {
        self.lens[list.0 as usize].load(Relaxed) as usize
    }

    /// Takes the first unlocked cluster off a list and returns it locked, out of reach of other
    /// threads. For one CPU's zone, only near the head.
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

    /// Takes a locked cluster out of reach of other threads.
    pub(super) fn take_off(&self, i: usize, inner: &mut Inner) {
        self.leave(None, i, inner);
        inner.state = ListState::None;
    }

    /// Moves a locked cluster (on a list: to its tail), unless it is there.
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

    /// `lists`: set if locked already.
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

    pub(super) fn table_bytes(&self) -> usize {
        self.lists.lock().links.populated_bytes() + self.index.table_bytes()
    }
}

#[inline]
pub(super) fn is_at(inner: &Inner, level: Level) -> bool {
    inner.place == INDEXED + level.number()
}

pub(super) fn of(inner: &Inner) -> Option<Place> {
    Place::from_number(inner.place)
}
