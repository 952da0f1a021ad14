//! The run's RAM between measurements. Each process publishes its measurement ([`Proc::ram_bytes`])
//! and, in steps of [`STEP`], its growth since ([`Proc::grown`]). [`Segment::grown`] sums all
//! growth, like the kernel's batched per-CPU counters: one load tells the run's growth. [`Audit`]
//! corrects the error left by processes killed in between.
//!
//! Figures are estimates until the next measurement. Every process can write them: differences
//! wrap, and sums never fall below zero.

use core::sync::atomic::{AtomicI64, AtomicPtr, Ordering};

use super::{Proc, Segment, proc_state};

const STEP: u64 = 64 << 10;

/// The other living members of a family: processes related by forks without exec.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Others {
    /// Their number.
    pub members: u64,
    /// Sum of what they count for shared pages, in bytes.
    pub shared: u64,
}

impl Segment {
    /// Bytes of the run by published growth, in O(1). Updates `ram_peak`.
    pub fn ram_roughly(&self) -> u64 {
        let told = self.grown.load(Ordering::Relaxed).wrapping_add(self.untold.load(Ordering::Relaxed));
        let sum = self.supervisor_bytes.load(Ordering::Relaxed).saturating_add_signed(told);
        self.keep_peak(sum);
        sum
    }

    /// Raises `ram_peak` to `sum`.
    pub fn keep_peak(&self, sum: u64) {
        if sum > self.ram_peak.load(Ordering::Relaxed) {
            self.ram_peak.fetch_max(sum, Ordering::Relaxed);
        }
    }

    /// Publishes a measurement, shortly after [`crate::accounts::budget::RamBudget::counted`].
    pub fn publish_ram(&self, p: &Proc, bytes: u64) {
        // Before `ram_bytes`: a concurrent sum must not count growth twice, or the peak keeps it.
        let grown = p.grown.swap(0, Ordering::Relaxed);
        let twice = p.counted_twice.swap(0, Ordering::Relaxed) as i64;
        let before = (p.ram_bytes.swap(bytes, Ordering::Relaxed) as i64).wrapping_add(grown).wrapping_sub(twice);
        self.grown.fetch_add((bytes as i64).wrapping_sub(before), Ordering::Relaxed);
    }

    /// The share of `mine`, about to publish, exceeds the record of its family of `members` by
    /// `bytes`. Its relatives count these as unclaimed ([`crate::accounts::share`]), so each counts
    /// for less until measured. Otherwise the pages would count twice for milliseconds and cause
    /// eviction.
    pub fn found_shared(&self, mine: &Proc, bytes: u64, members: u64) {
        let part = bytes / members.max(1);
        self.relatives(mine).for_each(|p| self.counts_twice(p, part));
    }

    /// The same for an unrecorded copy of one of `others` relatives, which counted for all it
    /// shares.
    pub fn found_copied(&self, mine: &Proc, bytes: u64, others: u64) {
        let part = bytes / others.max(1);
        self.relatives(mine).for_each(|p| {
            self.counts_twice(p, part);
            // Relatives measured before must find these claimed.
            p.shared_bytes.fetch_add(part, Ordering::Relaxed);
        });
    }

    fn counts_twice(&self, p: &Proc, bytes: u64) {
        p.counted_twice.fetch_add(bytes, Ordering::Relaxed);
        self.grown.fetch_sub(bytes as i64, Ordering::Relaxed);
    }
}

/// `lowtide run`'s sum over all processes.
#[derive(Debug, Default)]
pub struct Audit {
    lacked: i64,
}

impl Audit {
    /// Sums and counts live processes and `lowtide run`, in bytes. Updates `ram_peak`.
    pub fn look(&mut self, run: &Segment) -> u64 {
        let get = |n: &AtomicI64| n.load(Ordering::Relaxed);
        let (mut sum, mut seen, mut active) = (0u64, 0, 0);
        let before = get(&run.grown);
        for p in run.used_procs() {
            let state = p.state.load(Ordering::Relaxed);
            if state >= proc_state::WATCHING {
                let grown = p.ram_bytes.load(Ordering::Relaxed).saturating_add_signed(get(&p.grown));
                sum = sum.saturating_add(grown.saturating_sub(p.counted_twice.load(Ordering::Relaxed)));
                seen += 1;
                active += u32::from(state == proc_state::ACTIVE);
            }
        }
        let after = get(&run.grown);
        run.seen.store(seen, Ordering::Relaxed);
        run.seen_active.store(active, Ordering::Relaxed);
        // Growth published meanwhile may be in the sum or not, or about to be published. Only an
        // error at two looks in a row is permanent.
        let untold = get(&run.untold);
        let off = |told: i64| (sum as i64).wrapping_sub(told).wrapping_sub(untold);
        let lacks = nearest(off(before), off(after));
        let lacked = core::mem::replace(&mut self.lacked, lacks);
        let surely = if (lacks > 0) == (lacked > 0) { nearest(lacks, lacked) } else { 0 };
        if surely != 0 {
            run.untold.store(untold.wrapping_add(surely), Ordering::Relaxed);
            self.lacked = 0;
        }
        sum = sum.saturating_add(run.supervisor_bytes.load(Ordering::Relaxed));
        run.keep_peak(sum);
        sum
    }
}

/// The value between `a` and `b` nearest to zero.
fn nearest(a: i64, b: i64) -> i64 {
    if (a > 0) != (b > 0) {
        0
    } else if a.unsigned_abs() < b.unsigned_abs() {
        a
    } else {
        b
    }
}

/// A process's place in the segment; empty before it joins.
#[derive(Debug, Default)]
pub struct Membership {
    run: AtomicPtr<Segment>,
    mine: AtomicPtr<Proc>,
}

impl Membership {
    /// Joins `run` as `mine`; again in a forked child.
    pub fn join(&self, run: &'static Segment, mine: &'static Proc) {
        self.mine.store(core::ptr::from_ref(mine).cast_mut(), Ordering::Relaxed);
        // Release: pairs with the Acquire in `places`, for `mine`.
        self.run.store(core::ptr::from_ref(run).cast_mut(), Ordering::Release);
    }

    fn places(&self) -> Option<(&'static Segment, &'static Proc)> {
        // Acquire: pairs with the Release in `join`. SAFETY: null, or a `'static` reference from
        // `join`.
        let run = unsafe { self.run.load(Ordering::Acquire).as_ref() }?;
        // SAFETY: the same.
        Some((run, unsafe { self.mine.load(Ordering::Relaxed).as_ref() }?))
    }

    /// Publishes growth since the measurement, in steps.
    pub fn tell(&self, grown: i64) {
        let Some((run, mine)) = self.places() else { return };
        if mine.grown.load(Ordering::Relaxed).abs_diff(grown) >= STEP {
            let told = mine.grown.swap(grown, Ordering::Relaxed);
            run.grown.fetch_add(grown.wrapping_sub(told), Ordering::Relaxed);
        }
    }

    /// Growth published by others; only differences matter.
    pub fn told(&self) -> i64 {
        self.places()
            .map_or(0, |(run, mine)| run.grown.load(Ordering::Relaxed).wrapping_sub(mine.grown.load(Ordering::Relaxed)))
    }
}
