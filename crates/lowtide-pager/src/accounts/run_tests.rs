//! What the processes of a run count for each other: [`RamBudget`] and the segment together.

use core::sync::atomic::Ordering;

use lowtide_wire::segment::{Audit, Proc, Segment};

use crate::accounts::budget::RamBudget;
use crate::accounts::budget::tests::segment;

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
    budget.added_up(run.ram_roughly(), told);
}

fn all(run: &Segment) -> u64 {
    let sum = Audit::default().look(run);
    assert_eq!((run.ram_roughly(), run.untold.load(Ordering::Relaxed)), (sum, 0));
    sum
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
    assert_eq!((now(), all(run) >> 20), (std::vec![101; 3], 101));
    assert!(members[2].1.at_limit(), "it has not grown itself");
    measure(run, &members[0], 40 << 20);
    assert_eq!((now(), all(run) >> 20), (std::vec![102; 3], 102));
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
    assert_eq!((members[1].1.now() >> 20, all(run) >> 20), (40, 40));
}

/// Until the child looks, each counts for half of the unclaimed pages.
#[test]
fn what_a_look_finds_counts_once_before_the_others_are_measured() {
    let (run, members) = run_of(2);
    members.iter().for_each(|(proc, _)| proc.family.store(1, Ordering::Relaxed));
    measure(run, &members[0], 40 << 20);
    measure(run, &members[1], 14 << 20);
    run.found_shared(members[1].0, 26 << 20, 2);
    measure(run, &members[1], 27 << 20);
    assert_eq!((all(run) >> 20, members[0].1.now() >> 20), (54, 54));
    measure(run, &members[0], 27 << 20);
    assert_eq!((all(run) >> 20, run.ram_peak.load(Ordering::Relaxed) >> 20), (54, 54), "at no time was it more");
}

#[test]
fn what_a_copy_finds_its_parent_counts_less_for_at_once() {
    let (run, members) = run_of(2);
    measure(run, &members[0], 54 << 20);
    members.iter().for_each(|(proc, _)| proc.family.store(1, Ordering::Relaxed));
    run.found_copied(members[1].0, 27 << 20, 1);
    measure(run, &members[1], 108 << 20);
    assert_eq!((all(run) >> 20, run.others_of(members[1].0).shared >> 20), (135, 27));
    measure(run, &members[0], 27 << 20);
    assert_eq!((all(run) >> 20, run.ram_peak.load(Ordering::Relaxed) >> 20), (135, 135), "at no time was it more");
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
        let mut audit = Audit::default();
        assert_eq!([audit.look(run), audit.look(run)], [41 << 20; 2], "it is gone, and so is what it wrote");
        measure(run, &members[1], 40 << 20);
        assert_eq!((members[1].1.now(), run.ram_roughly()), (40 << 20, 40 << 20));
    }
}

#[test]
fn what_nobody_lives_to_tell_is_found_at_the_second_look() {
    let (run, members) = run_of(2);
    for member in &members {
        measure(run, member, 40 << 20);
    }
    let mut audit = Audit::default();
    assert_eq!((audit.look(run), run.ram_roughly()), (80 << 20, 80 << 20));
    members[0].0.ram_bytes.store(50 << 20, Ordering::Relaxed);
    assert_eq!((audit.look(run), run.ram_roughly()), (90 << 20, 80 << 20), "it may be about to tell");
    assert_eq!((audit.look(run), run.ram_roughly()), (90 << 20, 90 << 20));
    members[0].0.ram_bytes.store(20 << 20, Ordering::Relaxed);
    audit.look(run);
    run.grown.fetch_sub(30 << 20, Ordering::Relaxed);
    assert_eq!((audit.look(run), run.ram_roughly()), (60 << 20, 60 << 20), "it was");
    assert_eq!(run.seen.load(Ordering::Relaxed), 2);
}

#[test]
fn the_quick_sum_is_the_slow_one_whatever_happens_between() {
    let (run, members) = run_of(4);
    let mut audit = Audit::default();
    std::thread::scope(|s| {
        for (i, (proc, budget)) in members.iter().enumerate() {
            s.spawn(move || {
                let mut random = fastrand::Rng::with_seed(i as u64);
                for _ in 0..20_000 {
                    if random.u8(..) < 16 {
                        budget.counted();
                        run.publish_ram(proc, random.u64(..1 << 30));
                    } else {
                        budget.add_pages(random.i64(-4096..4096) as isize);
                    }
                }
            });
        }
        for _ in 0..1000 {
            audit.look(run);
        }
    });
    let sums = [audit.look(run), audit.look(run), audit.look(run)];
    assert_eq!(sums, [run.ram_roughly(); 3]);
    assert_eq!(run.processes(), 4);
}

#[test]
fn who_joined_no_run_counts_for_itself() {
    let budget = RamBudget::default();
    budget.measured(10 << 20);
    budget.add_pages(256);
    assert_eq!(budget.now(), 11 << 20);
}
