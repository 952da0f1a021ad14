//! Groups: parts of what is stored that have a limit of their own in the pool. And the one place where objects come into the
//! pool and leave it, so that accounts are exact.
//!
//! A group's account is the bytes of its objects, which a table word names with its group. Its limit has the pool's hysteresis,
//! and within the pool's limit it decides: over its limit a group's pages go to the device, or are refused, whatever room the
//! pool has, and the shrinker takes its pages and no others' ([`Store::shrink`]). A limit of 0 keeps all of them out of the
//! pool. A page that comes to the pool while other threads are at it may pass the limit by what is in flight: one object for
//! each thread.
//!
//! Zero pages are of no group: nothing is kept for them. Group 0 has the pool's limit and no account; what the others have is
//! taken off the pool's figures. Accounts are a process's own, like the pool: a fork copies both.

use super::Store;
use super::table_word::{Made, Object, Word};
use crate::limit::Limit;
use crate::slot::{Area, AreaRef, CLUSTER_SLOTS, Clock};
use core::sync::atomic::{AtomicU16, Ordering};

/// How many groups there are.
pub const GROUPS: usize = 16;

/// The number of a group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Group(u8);

impl Group {
    /// The tree of a run: its limit is the pool's.
    pub const RUN: Group = Group(0);

    /// Group `number`, below [`GROUPS`].
    pub const fn new(number: u8) -> Option<Group> {
        if (number as usize) < GROUPS { Some(Group(number)) } else { None }
    }

    /// The group's number.
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// Figures of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupStats {
    /// Most bytes of objects that it may have in the pool; `usize::MAX` if only the pool's limit counts.
    pub limit: usize,
    /// Bytes of its objects in the pool.
    pub stored_bytes: usize,
    /// How often it became full.
    pub full_times: u64,
}

/// A set of groups, a bit each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct GroupSet(u16);

impl GroupSet {
    pub(super) const ALL: GroupSet = GroupSet(u16::MAX);

    pub(super) fn has(self, group: Group) -> bool {
        self.0 >> group.0 & 1 != 0
    }
}

/// The accounts and limits of all groups but the first.
#[derive(Debug)]
pub(super) struct Groups {
    limits: [Limit; GROUPS - 1],
    /// Groups that ever had a limit, a bit each.
    limited: AtomicU16,
}

impl Groups {
    /// Nobody has a limit. `accept_percent` as for the pool.
    pub(super) fn new(accept_percent: u32) -> Groups {
        Groups { limits: core::array::from_fn(|_| Limit::new(usize::MAX, accept_percent)), limited: AtomicU16::new(0) }
    }

    pub(super) fn of(&self, group: Group) -> Option<&Limit> {
        self.limits.get((group.0 as usize).checked_sub(1)?)
    }

    /// Bytes that should leave the pool on behalf of groups, and which groups' pages.
    fn excess(&self) -> (usize, GroupSet) {
        let (mut bytes, mut over) = (0usize, 0);
        let mut left = self.limited.load(Ordering::Relaxed);
        while left != 0 {
            let group = Group(left.trailing_zeros() as u8);
            let excess = self.of(group).map_or(0, Limit::excess);
            bytes = bytes.saturating_add(excess);
            over |= u16::from(excess > 0) << group.0;
            left &= left - 1;
        }
        (bytes, GroupSet(over))
    }
}

impl Store {
    /// Whether some tier would take a page of `group` now, as far as is known without trying: the pool, or a device with free
    /// slots that does not rest after a failure. A page that is all zero needs none.
    pub fn would_take(&self, group: Group) -> bool {
        let takes = |area: AreaRef<'_>| area.device.takes_pages() && area.unavailable().is_none();
        // Clean copies are given up for new pages.
        if self.counters.cached_now.get() > 0 {
            return true;
        }
        self.pool_takes(group) || self.areas.iter().any(takes)
    }

    /// Changes the limit of a group, in bytes of objects; for [`Group::RUN`], of the pool ([`Store::set_pool_limit`]). A group
    /// that has more keeps what it has until the shrinker comes, if there is a device.
    pub fn set_group_limit(&self, group: Group, bytes: usize) {
        match self.groups.of(group) {
            Some(limit) => {
                limit.set(bytes);
                self.groups.limited.fetch_or(1 << group.0, Ordering::Relaxed);
            }
            None => self.set_pool_limit(bytes),
        }
    }

    /// Figures of a group; of [`Group::RUN`] the pool's, without the other groups' objects. Exact when no other call is in
    /// flight.
    pub fn group_stats(&self, group: Group) -> GroupStats {
        let of = |limit: &Limit| GroupStats {
            limit: limit.get(),
            stored_bytes: limit.held.load(Ordering::Relaxed),
            full_times: limit.full_times.load(Ordering::Relaxed),
        };
        self.groups.of(group).map_or_else(
            || {
                let others: usize = self.groups.limits.iter().map(|limit| limit.held.load(Ordering::Relaxed)).sum();
                GroupStats {
                    limit: self.pool.limit(),
                    stored_bytes: self.pool.stored_bytes().saturating_sub(others),
                    full_times: self.pool.full_times(),
                }
            },
            of,
        )
    }

    /// THE predicate: whether pages of a group go to the pool now. Ask before compressing.
    pub(super) fn pool_takes(&self, group: Group) -> bool {
        self.groups.of(group).is_none_or(Limit::accepts) && self.pool.accepts()
    }

    /// Bytes of objects that should leave the pool, and whose: anybody's as long as the pool is over its limit.
    pub(super) fn excess(&self) -> (usize, GroupSet) {
        match (self.pool.excess(), self.groups.excess()) {
            (0, groups) => groups,
            (bytes, _) => (bytes, GroupSet::ALL),
        }
    }

    /// Whether a cluster has pages in the pool that belong to `some`, and that the shrinker has not taken. So its hand takes no
    /// marks away where it takes no pages. Looks through the cluster's words, but not if they are anybody's.
    pub(super) fn has_pages_of(&self, some: GroupSet, area: &Area, cluster: usize) -> bool {
        let first = (cluster * CLUSTER_SLOTS) as u64;
        let of_some = |slot| {
            let word = area.word(slot).map(|word| Word::decode(word.load(Ordering::Relaxed)));
            matches!(word, Some(Word::Pool(object)) if some.has(object.group))
        };
        some == GroupSet::ALL
            || area.ages.has_pages(cluster, Clock::Writing) && (first..first + CLUSTER_SLOTS as u64).any(of_some)
    }

    /// Puts a page's bytes into the pool, on the account of its group. `None` when the pool has no room.
    pub(super) fn keep(&self, data: &[u8], made: Made, group: Group, how: Insert) -> Option<Object> {
        let handle = match how {
            Insert::Anywhere => self.pool.insert(data)?,
            Insert::IntoRoom => self.pool.insert_into_room(data)?,
        };
        if let Some(limit) = self.groups.of(group) {
            limit.held.fetch_add(data.len(), Ordering::Relaxed);
        }
        Some(Object { handle, made, group })
    }

    /// Takes an object out of the pool and off its group's account. The caller is its one owner.
    pub(super) fn let_go(&self, object: Object) {
        let removed = self.pool.remove(object.handle);
        debug_assert!(removed.is_ok(), "a table word named no object");
        if let Some(limit) = self.groups.of(object.group) {
            limit.held.fetch_sub(object.handle.object_len(), Ordering::Relaxed);
        }
    }
}

/// Where an object may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Insert {
    /// The pool may grow for it.
    Anywhere,
    /// Only where there is room.
    IntoRoom,
}

#[cfg(test)]
#[path = "group_tests.rs"]
mod tests;
