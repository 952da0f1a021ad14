//! Whether an area may be given slots from, and why not: a parent made it, swapoff closed it, all its clusters are full, or its
//! device fails.
//!
//! But for the device, whose failures are a matter of time (`backoff.rs`), all of it is in one word, with the number of full
//! clusters: who makes the area full, or not full again, decides by compare-and-swap on that word whether the list of available
//! areas has to change, so that exactly one thread changes it. All other updates are one atomic operation and touch no list.
//!
//! Full clusters and not used slots are counted, because an area is full when all its clusters are, and a word that every
//! allocation writes would be a cache line that all CPUs fight for. (Used slots are known about only: clusters tell how many
//! they have now and then: `clusters.rs`, `TELL`.)
//!
//! (The off-list bit is the kernel's, from Kairui Song's series "mm, swap: rework of swap allocator locks", 2024-25.)

use rustix::io::Errno;

use super::backoff::Backoff;
use crate::percpu::CacheAligned;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Not on the list of available areas.
const OFF: u64 = 1 << 63;
/// It was never put on the list: it is new, or slots are given out there in another way.
const UNLISTED: u64 = 1 << 62;
/// Nothing is allocated here: swapoff.
const CLOSED: u64 = 1 << 61;
/// It is closed, and no allocation is in flight any more. Who removes or reopens the area takes this away first.
const QUIET: u64 = 1 << 60;
/// The area was made by a parent: nothing is allocated here.
const INHERITED: u64 = 1 << 59;
/// What keeps it off the list whatever its count is.
const KEPT_OFF: u64 = UNLISTED | CLOSED | INHERITED;
const COUNT: u64 = INHERITED - 1;

/// Why no slots are to be had from an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unavailable {
    /// A parent made it.
    Inherited,
    /// swapoff has closed it.
    Closed,
    /// Its device fails: it rests.
    Resting,
    /// All its clusters are full.
    Full,
}

/// Whether an area may be given slots from. All methods are thread-safe; those that say so are called with the list of
/// available areas locked.
#[derive(Debug)]
pub(super) struct Availability {
    /// The bits above, and the number of full clusters.
    word: CacheAligned<AtomicU64>,
    clusters: u64,
    backoff: Backoff,
}

impl Availability {
    /// Of an area of `clusters` clusters that is on no list yet.
    pub(super) fn new(clusters: u64) -> Availability {
        Availability { word: CacheAligned(AtomicU64::new(OFF | UNLISTED)), clusters, backoff: Backoff::default() }
    }

    /// Why no slots are to be had, if so. Reads the clock if the device fails.
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

    /// Whether slots may be given out as far as swapoff and forks are concerned: asked for each allocation.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        // Sequentially consistent, as are `close` and the count of users (`areas/reference.rs`): either the thread that closes
        // waits for this thread, or this sees the area closed.
        self.word.load(Ordering::SeqCst) & (CLOSED | INHERITED) == 0
    }

    /// Whether swapoff has closed it.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.word.load(Ordering::SeqCst) & CLOSED != 0
    }

    /// Whether a parent made it.
    #[inline]
    pub(super) fn is_inherited(&self) -> bool {
        self.word.load(Ordering::Relaxed) & INHERITED != 0
    }

    /// Whether it is off the list for being full, and for nothing else. (Between the two, if the list is about to change.)
    pub(super) fn is_full(&self) -> bool {
        self.word.load(Ordering::Relaxed) & !OFF == self.clusters
    }

    /// How many clusters are full.
    pub(super) fn full_clusters(&self) -> u64 {
        self.word.load(Ordering::Relaxed) & COUNT
    }

    /// A cluster is full now.
    #[inline]
    pub(super) fn cluster_filled(&self) {
        self.word.fetch_add(1, Ordering::Relaxed);
    }

    /// A cluster is full no more.
    #[inline]
    pub(super) fn cluster_has_room(&self) {
        self.word.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the list may have to change: to be asked after clusters became full, or not full again. If so,
    /// [`Availability::try_delist`] and [`Availability::try_relist`] decide.
    #[inline]
    pub(super) fn may_change_list(&self) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        let full = word & COUNT == self.clusters;
        (word & OFF == 0) == full && word & KEPT_OFF == 0
    }

    /// With the list locked: whether the area is to be taken off it, by this thread.
    pub(super) fn try_delist(&self) -> bool {
        self.word.compare_exchange(self.clusters, self.clusters | OFF, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// With the list locked: whether the area is to be put on it, by this thread.
    pub(super) fn try_relist(&self) -> bool {
        let on = |word| (word & (OFF | KEPT_OFF) == OFF && word & COUNT != self.clusters).then_some(word & !OFF);
        self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, on).is_ok()
    }

    /// With the list locked: swapoff closes the area. Whether it is on the list now, and is to be taken off; `None` if it was
    /// closed before.
    pub(super) fn close(&self) -> Option<bool> {
        // Sequentially consistent: pairs with `is_open`.
        let before = self.word.fetch_or(CLOSED | OFF, Ordering::SeqCst);
        (before & CLOSED == 0).then_some(before & OFF == 0)
    }

    /// By who closed it: nobody allocates here any more, so that it may be removed, or opened again.
    pub(super) fn quiesced(&self) {
        // Release: pairs with the Acquire in `begin_removal` and `open`, after which nobody has an allocation in flight.
        self.word.fetch_or(QUIET, Ordering::SeqCst);
    }

    /// Whether this thread, and no other, may remove the area: it is closed and quiet, and is quiet no more, so that nobody
    /// opens it.
    pub(super) fn begin_removal(&self) -> bool {
        // Acquire: pairs with the Release in `quiesced`.
        self.word.fetch_and(!QUIET, Ordering::SeqCst) & QUIET != 0
    }

    /// It stays, closed as before.
    pub(super) fn cancel_removal(&self) {
        self.quiesced();
    }

    /// With the list locked: it is to be on the list, where [`Availability::try_relist`] then puts it: it is new, or was
    /// closed. False: a parent made it, or another thread is closing or removing it.
    pub(super) fn open(&self) -> bool {
        let open = |word| {
            let may = word & INHERITED == 0 && word & (CLOSED | QUIET) != CLOSED;
            may.then_some(word & !(UNLISTED | CLOSED | QUIET))
        };
        // Acquire: pairs with the Release in `quiesced`.
        self.word.fetch_update(Ordering::SeqCst, Ordering::Relaxed, open).is_ok()
    }

    /// In a forked child: a parent made the area, which is to be taken off the list.
    pub(super) fn inherit(&self) {
        self.word.fetch_or(INHERITED | OFF, Ordering::Relaxed);
    }

    /// Whether nothing is to be written for the time being, because the device fails. Reads the clock if it does.
    pub(super) fn rests(&self) -> bool {
        self.backoff.is_on()
    }

    /// The error of the latest write, if it failed.
    pub(super) fn failing(&self) -> Option<Errno> {
        self.backoff.error()
    }

    /// A write failed.
    #[cold]
    pub(super) fn write_failed(&self, errno: Errno) {
        self.backoff.failed(errno);
    }

    /// A write went well. Whether that ended an outage: several failures with none that went well between.
    pub(super) fn write_succeeded(&self) -> bool {
        self.backoff.succeeded()
    }

    /// As if the time of a rest had passed.
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
