//! How long threads wait for locks, per rank. Only threads that wait pay for the figures. With the feature `lab` also how often
//! locks are taken, in a process that counts it.

#[cfg(feature = "lab")]
use core::sync::atomic::AtomicBool;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::time::{ClockId, clock_gettime};

use super::rank::RANKS;

struct Class {
    contended: AtomicU64,
    wait_ns: AtomicU64,
    max_ns: AtomicU64,
}

static CLASSES: [Class; RANKS] =
    [const { Class { contended: AtomicU64::new(0), wait_ns: AtomicU64::new(0), max_ns: AtomicU64::new(0) } }; RANKS];

/// How long threads waited for locks of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Waits {
    /// How often a thread found such a lock held.
    pub contended: u64,
    /// How long all these waits took, in nanoseconds.
    pub total_ns: u64,
    /// The longest, in nanoseconds.
    pub max_ns: u64,
}

/// The waits for all locks of a rank in this process since the start, or since [`reset_waits`].
pub fn waits(rank: u8) -> Waits {
    CLASSES.get(rank as usize).map_or_else(Waits::default, |c| Waits {
        contended: c.contended.load(Relaxed),
        total_ns: c.wait_ns.load(Relaxed),
        max_ns: c.max_ns.load(Relaxed),
    })
}

/// The waits for locks of all ranks together.
pub fn all_waits() -> Waits {
    (0..RANKS as u8).map(waits).fold(Waits::default(), |sum, of| Waits {
        contended: sum.contended + of.contended,
        total_ns: sum.total_ns + of.total_ns,
        max_ns: sum.max_ns.max(of.max_ns),
    })
}

/// Sets the figures of all ranks to zero: for experiments, and in a forked child, which has not waited yet.
pub fn reset_waits() {
    // Looked at first: a store would make a child copy the page that they are in.
    for c in CLASSES.iter().filter(|c| c.contended.load(Relaxed) != 0) {
        c.contended.store(0, Relaxed);
        c.wait_ns.store(0, Relaxed);
        c.max_ns.store(0, Relaxed);
    }
}

/// Whether this process counts the locks it takes: for others a line that all threads write to would be what they wait for.
#[cfg(feature = "lab")]
static COUNTS_TAKEN: AtomicBool = AtomicBool::new(false);
#[cfg(feature = "lab")]
static TAKEN: [AtomicU64; RANKS] = [const { AtomicU64::new(0) }; RANKS];

/// From here on it is counted how often locks are taken ([`taken`]). For experiments whose process has one thread: what several
/// take at the same moment may be counted once.
#[cfg(feature = "lab")]
pub fn count_taken() {
    COUNTS_TAKEN.store(true, Relaxed);
}

/// How often locks of each rank were taken since [`count_taken`].
#[cfg(feature = "lab")]
pub fn taken() -> [u64; RANKS] {
    core::array::from_fn(|rank| TAKEN[rank].load(Relaxed))
}

/// A lock of `rank` was taken.
#[cfg(feature = "lab")]
#[inline]
pub(super) fn took(rank: u8) {
    if let Some(taken) = TAKEN.get(rank as usize).filter(|_| COUNTS_TAKEN.load(Relaxed)) {
        // Not an addition in one: that would look like one more lock to who counts such instructions.
        taken.store(taken.load(Relaxed) + 1, Relaxed);
    }
}

fn now_ns() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// A wait begins.
pub(super) fn begin() -> u64 {
    now_ns()
}

/// The wait that began at `began` is over.
pub(super) fn end(rank: u8, began: u64) {
    let ns = now_ns().saturating_sub(began);
    if let Some(c) = CLASSES.get(rank as usize) {
        c.contended.fetch_add(1, Relaxed);
        c.wait_ns.fetch_add(ns, Relaxed);
        c.max_ns.fetch_max(ns, Relaxed);
    }
}
