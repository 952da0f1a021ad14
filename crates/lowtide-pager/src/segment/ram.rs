//! What the run uses, between measurements too. Each process publishes what it counted for when it was last measured
//! ([`Proc::ram_bytes`]) and tells, in steps of [`STEP`], by how much it has grown since ([`Proc::grown`]). All that is ever
//! told is added up in one place ([`Segment::grown`]), as in the kernel's counters with a batch for each CPU: who knows what
//! the run used at one moment knows it later by one load, however many processes there are.
//!
//! Figures are guesses that a measurement puts right: what a thread tells while another measures may stand twice until then.
//! Every process can write them, so they may be any number: differences wrap, and a sum is never below nothing.

use core::sync::atomic::{AtomicPtr, Ordering};

use super::{Proc, Segment, proc_state};

/// A process tells what it has grown or shrunk by this many bytes.
const STEP: u64 = 64 << 10;

impl Segment {
    /// Sum of what all live processes and `lowtide run` itself count against the limit, in bytes. Also keeps `ram_peak`.
    pub fn ram_now(&self) -> u64 {
        let mut sum = self.supervisor_bytes.load(Ordering::Relaxed);
        for p in self.used_procs() {
            if p.state.load(Ordering::Relaxed) >= proc_state::WATCHING {
                let grown = p.grown.load(Ordering::Relaxed);
                sum = sum.saturating_add(p.ram_bytes.load(Ordering::Relaxed).saturating_add_signed(grown));
            }
        }
        self.ram_peak.fetch_max(sum, Ordering::Relaxed);
        sum
    }

    /// The process was measured: it counts for `bytes`. Its budget begins to count anew shortly before
    /// ([`crate::accounts::budget::RamBudget::counted`]).
    pub fn publish_ram(&self, p: &Proc, bytes: u64) {
        // In this order: who adds up meanwhile must not count what it has grown twice, or the peak would keep it.
        let grown = p.grown.swap(0, Ordering::Relaxed);
        let before = (p.ram_bytes.swap(bytes, Ordering::Relaxed) as i64).wrapping_add(grown);
        self.grown.fetch_add((bytes as i64).wrapping_sub(before), Ordering::Relaxed);
    }
}

/// Where a process tells how it grows and reads how the others do: its place in the segment. Nowhere, as long as it has not
/// joined a run.
#[derive(Debug, Default)]
pub struct Membership {
    run: AtomicPtr<Segment>,
    mine: AtomicPtr<Proc>,
}

impl Membership {
    /// The process, which has `mine` in `run`, is one of the run. In a forked child: not any more in its parent's place.
    pub fn join(&self, run: &'static Segment, mine: &'static Proc) {
        self.mine.store(core::ptr::from_ref(mine).cast_mut(), Ordering::Relaxed);
        // Release: pairs with the Acquire in `places`, so that those who see the run see the place.
        self.run.store(core::ptr::from_ref(run).cast_mut(), Ordering::Release);
    }

    fn places(&self) -> Option<(&'static Segment, &'static Proc)> {
        // Acquire: pairs with the Release in `join`.
        // SAFETY: null, or what `join` was given, which lives for ever.
        let run = unsafe { self.run.load(Ordering::Acquire).as_ref() }?;
        // SAFETY: the same.
        Some((run, unsafe { self.mine.load(Ordering::Relaxed).as_ref() }?))
    }

    /// The process has grown by this many bytes since it was measured.
    pub fn tell(&self, grown: i64) {
        let Some((run, mine)) = self.places() else { return };
        if mine.grown.load(Ordering::Relaxed).abs_diff(grown) >= STEP {
            let told = mine.grown.swap(grown, Ordering::Relaxed);
            run.grown.fetch_add(grown.wrapping_sub(told), Ordering::Relaxed);
        }
    }

    /// What all have told so far, less what this process has since it was measured: the difference between two moments says by
    /// how many bytes the others have grown.
    pub fn told(&self) -> i64 {
        self.places()
            .map_or(0, |(run, mine)| run.grown.load(Ordering::Relaxed).wrapping_sub(mine.grown.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::budget::RamBudget;
    use crate::segment::segment;

    fn run_of(processes: u32) -> (&'static Segment, std::vec::Vec<(&'static Proc, RamBudget)>) {
        let run: &'static Segment = std::boxed::Box::leak(segment());
        let members = (1..=processes).map(|pid| {
            let (proc, budget) = (run.claim(pid).unwrap(), RamBudget::default());
            budget.set_limit(100 << 20);
            budget.join(run, proc);
            (proc, budget)
        });
        (run, members.collect())
    }

    fn measure(run: &Segment, (proc, budget): &(&Proc, RamBudget), bytes: u64) {
        budget.counted();
        run.publish_ram(proc, bytes);
        let told = budget.told();
        budget.added_up(run.ram_now(), told);
    }

    #[test]
    fn what_one_process_brings_in_the_others_see_before_anyone_measures() {
        let (run, members) = run_of(3);
        for member in &members {
            measure(run, member, 30 << 20);
        }
        let now = || members.iter().map(|(_, budget)| budget.now() >> 20).collect::<std::vec::Vec<_>>();
        assert_eq!(now(), [90; 3], "who was measured first, too");
        members[0].1.add_pages(9 << 8);
        members[1].1.set_uncounted(2 << 20);
        assert_eq!((now(), run.ram_now() >> 20), (std::vec![101; 3], 101));
        assert!(members[2].1.at_limit(), "it has not grown itself");
        // Measured, it is what was told, and one more that nobody had counted.
        measure(run, &members[0], 40 << 20);
        assert_eq!((now(), run.ram_now() >> 20), (std::vec![102; 3], 102));
        members[2].1.add_pages(-(12 << 8));
        assert_eq!(now(), [90; 3]);
    }

    #[test]
    fn what_a_process_had_goes_with_it() {
        let (run, members) = run_of(2);
        for member in &members {
            measure(run, member, 40 << 20);
        }
        members[0].1.add_pages(5 << 8);
        measure(run, &members[1], 40 << 20);
        assert_eq!(members[1].1.now() >> 20, 85);
        run.reap(members[0].0);
        assert_eq!((members[1].1.now() >> 20, run.ram_now() >> 20), (40, 40));
    }

    #[test]
    fn a_process_that_writes_nonsense_makes_a_wrong_number_and_nothing_else() {
        for (bytes, grown) in [(u64::MAX, i64::MAX), (i64::MAX as u64, 1), (0, i64::MIN), (1 << 63, -1)] {
            let (run, members) = run_of(2);
            members[0].0.ram_bytes.store(bytes, Ordering::Relaxed);
            members[0].0.grown.store(grown, Ordering::Relaxed);
            run.grown.store(grown, Ordering::Relaxed);
            measure(run, &members[1], 40 << 20);
            members[1].1.add_pages(1 << 8);
            members[1].1.now();
            run.reap(members[0].0);
            measure(run, &members[1], 40 << 20);
            assert_eq!((members[1].1.now(), run.ram_now()), (40 << 20, 40 << 20), "it is gone, and so is what it wrote");
        }
    }

    #[test]
    fn who_joined_no_run_counts_for_itself() {
        let budget = RamBudget::default();
        budget.measured(10 << 20);
        budget.add_pages(256);
        assert_eq!(budget.now(), 11 << 20);
    }
}
