//! Whether an area may give out slots: not if a parent made it, swapoff closed it, all clusters are
//! full, or its device fails.
//!
//! Except for device failures (`backoff.rs`), one word has this and the number of full clusters: a
//! compare-and-swap decides which thread puts the area on the list of available areas or takes it
//! off. Other updates are one atomic operation and touch no list.
//!
//! With used slots, every allocation would write its cache line. (Their number is known roughly:
//! `TELL` in `clusters.rs`.)
//!
//! The off-list bit is the kernel's, from Kairui Song's series "mm, swap: rework of swap allocator
//! locks", 2024-25.

use rustix::io::Errno;

use super::backoff::Backoff;
use crate::percpu::CacheAligned;
use crate::sync::atomic::{AtomicU64, Ordering};

const OFF: u64 = 1 << 63;
/// New, or allocated from in another way.
const UNLISTED: u64 = 1 << 62;
/// By swapoff.
const CLOSED: u64 = 1 << 61;
/// Closed, and no allocation in flight. Cleared first to remove or reopen the area.
const QUIET: u64 = 1 << 60;
/// Made by a parent.
const INHERITED: u64 = 1 << 59;
const KEPT_OFF: u64 = UNLISTED | CLOSED | INHERITED;
const COUNT: u64 = INHERITED - 1;

/// Why an area gives out no slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unavailable {
    /// A parent made it.
    Inherited,
    /// swapoff has closed it.
    Closed,
    /// Its device fails, so it rests.
    Resting,
    /// All its clusters are full.
    Full,
}

/// Thread-safe; some methods need the list of available areas locked.
#[derive(Debug)]
pub(super) struct Availability {
    word: CacheAligned<AtomicU64>,
    clusters: u64,
    backoff: Backoff,
}

impl Availability {
    pub(super) fn new(clusters: u64) -> Availability {
        Availability { word: CacheAligned(AtomicU64::new(OFF | UNLISTED)), clusters, backoff: Backoff::default() }
    }

    /// Reads the clock if the device fails.
    pub(super) fn reason(&self) -> Option<Unavailable> {
        let word = self.word.load(Ordering::Relaxed);
        match () {
            () if word & INHERITED != 0 => Some(Unavailable::Inherited),
            () if word & CLOSED != 0 => Some(Unavailable::Closed),
            () if self.rests() => Some(Unavailable::Resting),
            () if word & COUNT == self.clusters => Some(Unavailable::Full),
            () => None,
        }
    }

    /// Whether neither swapoff nor a fork forbids allocation.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        // SeqCst, as are `close` and the count of users (`areas/reference.rs`): either the closing
        // thread waits for this thread, or this load sees the area closed.
        self.word.load(Ordering::SeqCst) & (CLOSED | INHERITED) == 0
    }

    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.word.load(Ordering::SeqCst) & CLOSED != 0
    }

    #[inline]
    pub(super) fn is_inherited(&self) -> bool {
        self.word.load(Ordering::Relaxed) & INHERITED != 0
    }

    /// Off the list (or about to be) only because it is full.
    pub(super) fn is_full(&self) -> bool {
        self.word.load(Ordering::Relaxed) & !OFF == self.clusters
    }

    pub(super) fn full_clusters(&self) -> u64 {
        self.word.load(Ordering::Relaxed) & COUNT
    }

    #[inline]
    pub(super) fn cluster_filled(&self) {
        self.word.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn cluster_has_room(&self) {
        self.word.fetch_sub(1, Ordering::Relaxed);
    }

    /// To be called after a cluster became full or ceased to be. If true,
    /// [`Availability::try_delist`] and [`Availability::try_relist`] decide.
    #[inline]
    pub(super) fn may_change_list(&self) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        let full = word & COUNT == self.clusters;
        (word & OFF == 0) == full && word & KEPT_OFF == 0
    }

    /// With the list locked: whether this thread delists the area.
    pub(super) fn try_delist(&self) -> bool {
        self.word.compare_exchange(self.clusters, self.clusters | OFF, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// With the list locked: whether this thread lists the area.
    pub(super) fn try_relist(&self) -> bool {
        let on = |word| (word & (OFF | KEPT_OFF) == OFF && word & COUNT != self.clusters).then_some(word & !OFF);
        self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, on).is_ok()
    }

    /// With the list locked: whether the area has to come off the list; `None` if it was closed
    /// already.
    pub(super) fn close(&self) -> Option<bool> {
        // SeqCst: pairs with `is_open`.
        let before = self.word.fetch_or(CLOSED | OFF, Ordering::SeqCst);
        (before & CLOSED == 0).then_some(before & OFF == 0)
    }

    /// The closing thread has waited for all allocations.
    pub(super) fn quiesced(&self) {
        // Release: pairs with the Acquire in `begin_removal` and `open`.
        self.word.fetch_or(QUIET, Ordering::SeqCst);
    }

    /// Claims a closed and quiet area for removal.
    pub(super) fn begin_removal(&self) -> bool {
        // Acquire: pairs with the Release in `quiesced`.
        self.word.fetch_and(!QUIET, Ordering::SeqCst) & QUIET != 0
    }

    pub(super) fn cancel_removal(&self) {
        self.quiesced();
    }

    /// With the list locked: opens a new or closed area, for [`Availability::try_relist`]. False:
    /// it is a parent's, or another thread is closing or removing it.
    pub(super) fn open(&self) -> bool {
        let open = |word| {
            let may = word & INHERITED == 0 && word & (CLOSED | QUIET) != CLOSED;
            may.then_some(word & !(UNLISTED | CLOSED | QUIET))
        };
        // Acquire: pairs with the Release in `quiesced`.
        self.word.fetch_update(Ordering::SeqCst, Ordering::Relaxed, open).is_ok()
    }

    /// In a forked child; the caller takes the area off the list.
    pub(super) fn inherit(&self) {
        self.word.fetch_or(INHERITED | OFF, Ordering::Relaxed);
    }

    /// Reads the clock if the device fails.
    pub(super) fn rests(&self) -> bool {
        self.backoff.is_on()
    }

    pub(super) fn failing(&self) -> Option<Errno> {
        self.backoff.error()
    }

    #[cold]
    pub(super) fn write_failed(&self, errno: Errno) {
        self.backoff.failed(errno);
    }

    /// Whether that ended an outage: several failures in a row.
    pub(super) fn write_succeeded(&self) -> bool {
        self.backoff.succeeded()
    }

    #[cfg(test)]
    pub(super) fn pass_rest(&self) {
        self.backoff.pass();
    }
}

#[cfg(all(test, not(any(feature = "loom", feature = "shuttle"))))]
mod tests {
    use super::*;

    fn open() -> Availability {
        let new = Availability::new(2);
        assert!(new.open() && new.try_relist() && !new.may_change_list());
        new
    }

    #[test]
    fn the_reason_is_the_one_that_lasts_longest() {
        let area = open();
        assert_eq!(area.reason(), None);
        (0..2).for_each(|_| area.cluster_filled());
        assert_eq!(area.reason(), Some(Unavailable::Full));
        area.write_failed(Errno::NOSPC);
        assert_eq!((area.reason(), area.failing()), (Some(Unavailable::Resting), Some(Errno::NOSPC)));
        area.close();
        assert_eq!((area.reason(), area.is_open()), (Some(Unavailable::Closed), false));
        area.inherit();
        assert_eq!((area.reason(), area.is_open()), (Some(Unavailable::Inherited), false));
        assert!(area.is_closed(), "by the parent");
    }

    #[test]
    fn slots_may_be_given_out_from_an_area_that_is_full_or_on_no_list() {
        let area = Availability::new(1);
        assert!(area.is_open() && !area.may_change_list());
        area.cluster_filled();
        assert!(area.is_open(), "some are had back");
        assert!(!area.is_full() && !area.may_change_list() && !area.try_delist(), "no list is concerned");
    }

    #[test]
    fn a_full_area_is_off_the_list_until_a_cluster_has_room() {
        let area = open();
        area.cluster_filled();
        assert!(!area.may_change_list() && !area.is_full());
        area.cluster_filled();
        assert!(area.may_change_list() && area.is_full() && !area.try_relist());
        assert!(area.try_delist() && !area.try_delist() && !area.may_change_list() && area.is_full());
        area.cluster_has_room();
        assert!(area.may_change_list() && area.try_relist() && !area.try_relist());
        assert_eq!(area.full_clusters(), 1);
    }

    #[test]
    fn a_closed_area_is_removed_or_opened_by_one_thread_once_it_is_quiet() {
        let area = open();
        assert!(!area.begin_removal(), "not closed");
        assert_eq!((area.close(), area.close()), (Some(true), None));
        assert!(!area.begin_removal() && !area.open(), "who closes it still waits");
        area.quiesced();
        assert!(area.begin_removal() && !area.begin_removal() && !area.open(), "it is being removed");
        area.cancel_removal();
        assert!(!area.is_open() && area.open() && area.is_open() && area.try_relist());
        assert_eq!(area.reason(), None);
    }

    #[test]
    fn what_a_parent_made_is_never_opened() {
        let area = open();
        area.inherit();
        assert!(!area.open() && !area.may_change_list() && !area.try_relist() && !area.is_open());
    }
}
