//! Lock wait times per rank, paid by waiting threads only.

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

/// Waits for locks of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Waits {
    /// Acquisitions that found the lock held.
    pub contended: u64,
    /// Nanoseconds of all waits.
    pub total_ns: u64,
    /// Nanoseconds of the longest wait.
    pub max_ns: u64,
}

/// Waits for locks of a rank since the start or [`reset_waits`].
pub fn waits(rank: u8) -> Waits {
    CLASSES.get(rank as usize).map_or_else(Waits::default, |c| Waits {
        contended: c.contended.load(Relaxed),
        total_ns: c.wait_ns.load(Relaxed),
        max_ns: c.max_ns.load(Relaxed),
    })
}

/// Zeroes all ranks: for experiments, and in a forked child.
pub fn reset_waits() {
    // A store would copy the page in a child.
    for c in CLASSES.iter().filter(|c| c.contended.load(Relaxed) != 0) {
        c.contended.store(0, Relaxed);
        c.wait_ns.store(0, Relaxed);
        c.max_ns.store(0, Relaxed);
    }
}

fn now_ns() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

pub(super) fn begin() -> u64 {
    now_ns()
}

pub(super) fn end(rank: u8, began: u64) {
    let ns = now_ns().saturating_sub(began);
    if let Some(c) = CLASSES.get(rank as usize) {
        c.contended.fetch_add(1, Relaxed);
        c.wait_ns.fetch_add(ns, Relaxed);
        c.max_ns.fetch_max(ns, Relaxed);
    }
}
