//! The lists of an area's clusters, linked by index. The lock around [`Lists`] protects the lists and nothing else; a thread waits
//! for it with a cluster's lock held, never the other way round: with the lists locked, clusters are only tried.
//!
//! Isolation and relocation are those of the kernel's swap allocator since its locks were reworked (Kairui Song's series
//! "mm, swap: rework of swap allocator locks", 2024).

use rustix::io::Errno;

use super::cluster::{Cluster, Inner, ListState, ORDERS};
use super::policy::BUCKETS;
use crate::lock::rank;
use crate::sync::{Array, Guard, Lock};
use crate::table::{Table, Zeroed};
use crate::vm::OnFork;

const COUNT: usize = 3 + ORDERS + ORDERS * BUCKETS;

/// One of the lists of an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ListId(u8);

impl ListId {
    pub(super) const FREE: ListId = ListId(0);
    pub(super) const FULL: ListId = ListId(1);
    pub(super) const DISCARD: ListId = ListId(2);

    /// The clusters of that order that may have room.
    pub(super) const fn nonfull(order: u32) -> ListId {
        ListId(3 + order as u8)
    }

    /// The clusters of that order in a bucket of the policy's.
    pub(super) const fn frag(order: u32, bucket: usize) -> ListId {
        ListId((3 + ORDERS + order as usize * BUCKETS + bucket) as u8)
    }

    /// The state of the clusters on it.
    pub(super) fn state(self) -> ListState {
        match self.0 as usize {
            0 => ListState::Free,
            1 => ListState::Full,
            2 => ListState::Discard,
            i if i < 3 + ORDERS => ListState::NonFull,
            _ => ListState::Frag,
        }
    }

    pub(super) fn all() -> impl Iterator<Item = ListId> {
        (0..COUNT as u8).map(ListId)
    }
}

const _: () = assert!(COUNT <= 128, "the lists that hold something are one word of 128 bits");

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
    len: u32,
}

/// The lists, and which cluster comes after which.
#[derive(Debug)]
pub(super) struct Lists {
    ends: [Ends; COUNT],
    /// One bit for each list that holds something.
    some: u128,
    links: Table<Link>,
}

pub(super) type Locked = Lock<Lists, { rank::LISTS }>;
pub(super) type LockedInner<'a> = Guard<'a, Inner, { rank::CLUSTER }>;

impl Lists {
    pub(super) fn new(clusters: usize) -> Result<Lists, Errno> {
        Ok(Lists { ends: [Ends::default(); COUNT], some: 0, links: Table::new(clusters, OnFork::Copy)? })
    }

    /// How many clusters are on a list.
    pub(super) fn len(&self, list: ListId) -> usize {
        self.ends[list.0 as usize].len as usize
    }

    /// The clusters on a list, in order.
    pub(super) fn iter(&self, list: ListId) -> impl Iterator<Item = usize> {
        let next = |at: u32| (at as usize).checked_sub(1);
        core::iter::successors(next(self.ends[list.0 as usize].head), move |i| next(self.links[*i].next))
    }

    /// Bytes of memory that the links take.
    pub(super) fn table_bytes(&self) -> usize {
        self.links.populated_bytes()
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
        ends.len += 1;
        self.some |= 1 << list.0;
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
        ends.len -= 1;
        if ends.len == 0 {
            self.some &= !(1 << list.0);
        }
    }
}

/// Takes the first cluster of a list whose lock is free off the list and returns it locked: nobody else can walk onto it.
pub(super) fn isolate<'a>(lists: &Locked, clusters: &'a Array<Cluster>, list: ListId) -> Option<(usize, LockedInner<'a>)> {
    isolate_one_of(lists, clusters, core::iter::once(list))
}

/// As [`isolate`], from the first list of several, in their order, that has such a cluster; the lists stay locked meanwhile.
pub(super) fn isolate_one_of<'a>(
    lists: &Locked,
    clusters: &'a Array<Cluster>,
    wanted: impl Iterator<Item = ListId>,
) -> Option<(usize, LockedInner<'a>)> {
    let mut lists = lists.lock();
    if lists.some == 0 {
        return None;
    }
    for list in wanted {
        if lists.some >> list.0 & 1 == 0 {
            continue;
        }
        let found = lists.iter(list).find_map(|i| clusters[i].0.try_lock().map(|inner| (i, inner)));
        if let Some((i, mut inner)) = found {
            debug_assert!(inner.list == list.0 + 1 && inner.state == list.state(), "state and list disagree");
            lists.unlink(list, i);
            inner.state = ListState::None;
            inner.list = 0;
            return Some((i, inner));
        }
    }
    None
}

/// Puts a locked cluster to the tail of a list, from whichever list it is on; leaves it where it is if it is there already.
pub(super) fn relocate(lists: &Locked, i: usize, inner: &mut Inner, to: ListId) {
    if inner.list == to.0 + 1 {
        return;
    }
    let mut lists = lists.lock();
    unlink_locked(&mut lists, i, inner);
    lists.push(to, i);
    inner.list = to.0 + 1;
    inner.state = to.state();
}

fn unlink_locked(lists: &mut Lists, i: usize, inner: &mut Inner) {
    if let Some(from) = inner.list.checked_sub(1) {
        debug_assert!(inner.state == ListId(from).state(), "state and list disagree");
        lists.unlink(ListId(from), i);
        inner.list = 0;
    }
}

/// The list that a locked cluster says it is on.
pub(super) fn of(inner: &Inner) -> Option<ListId> {
    inner.list.checked_sub(1).map(ListId)
}
