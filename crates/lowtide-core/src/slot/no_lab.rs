//! In place of `lab/`, in all that is shipped: the same names for types without a size, or without
//! a value, so that the compiler drops every use of them.

use super::area::{Area, AreaConfig};
use super::cluster::{Inner, ListState};
use super::error::SlotError;
use super::lists::{ListId, LockedInner};
use super::search::Request;
use super::swap_cache::SwapCache;

const _: () = assert!(size_of::<(Allocator, Option<AnyRival>, Option<AreaLock>, History, Opened, Searches)>() == 0);

/// Which allocator an area has: there is one. (The feature `lab` has others.)
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Allocator;

impl Allocator {
    /// The one that is shipped.
    pub const SHIPPED: Allocator = Allocator;

    pub(super) fn adapt(self, cfg: AreaConfig) -> AreaConfig {
        cfg
    }

    pub(super) fn rival(self) -> Option<AnyRival> {
        None
    }

    pub(super) fn area_lock(self) -> Option<AreaLock> {
        None
    }
}

/// There is none.
#[derive(Debug)]
pub(super) enum AnyRival {}

impl AnyRival {
    pub(super) fn list_of(&self, _inner: &Inner) -> ListId {
        match *self {}
    }

    pub(super) fn serves(&self, _inner: &Inner, _order: u32) -> bool {
        match *self {}
    }

    pub(super) fn alloc_as_if_scarce(&self, _area: &Area, _order: u32, _cache: &dyn SwapCache) -> Option<u64> {
        match *self {}
    }

    pub(super) fn next_full(&self, _area: &Area) -> Option<usize> {
        match *self {}
    }

    pub(super) fn put_back(&self, _area: &Area, _i: usize, _inner: LockedInner<'_>) {
        match *self {}
    }
}

impl Request<'_> {
    pub(super) fn search_lists(&mut self, rival: &AnyRival) -> Option<u64> {
        match *rival {}
    }
}

/// There is none.
#[derive(Debug)]
pub(super) enum AreaLock {}

impl AreaLock {
    pub(super) fn free(&self, _area: &Area, _first: u64, _n: u64) -> Result<(), SlotError> {
        match *self {}
    }

    /// # Safety
    /// Never called.
    pub(super) unsafe fn reset_after_fork(&self) {
        match *self {}
    }
}

/// Not kept.
#[derive(Debug)]
pub(super) struct History;

impl History {
    pub(super) const NONE: History = History;

    #[inline(always)]
    pub(super) fn begin(&mut self, _order: u32) {}

    #[inline(always)]
    pub(super) fn allocated(&mut self) {}

    #[inline(always)]
    pub(super) fn freed(&mut self) {}
}

/// Not counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened;

impl Opened {
    pub(super) const NONE: Opened = Opened;

    #[inline(always)]
    pub(super) fn add_one(&mut self) {}
}

/// Not counted.
#[derive(Debug)]
pub(super) struct Searches;

impl Searches {
    pub(super) fn new() -> Searches {
        Searches
    }

    #[inline(always)]
    pub(super) fn add(&self, _opened: Opened) {}
}

/// A rival's lists.
pub(super) const LISTS: usize = 0;

/// Never called: there are no such lists.
pub(super) fn state_on(_list: ListId) -> ListState {
    ListState::None
}
