//! Threads: everything at once with every byte checked, the MADV_DONTNEED race, big stacks that come and go.

use std::collections::BTreeSet;
use std::fs;

use crate::check::{Data, Growth, compare, ends_well};
use crate::handlers;
use crate::machine::{tool, turn, turn_beside};
use crate::measure::{Limit, Swap};
use crate::programs::job;

#[test]
fn four_threads_mix_everything() {
    let Some(_turn) = turn() else { return };
    let Some(job) = job("four threads mix", "thread_mix", "4 6000 48") else { return };
    compare(&job, Growth::Stream, Data::Compressible, ends_well);
}

/// System calls past the C library, of several threads that move memory: the kernel's reports of these come in any order.
#[test]
#[ignore = "takes long: make test-long"]
fn raw_calls_of_threads_are_right_or_refused() {
    let Some(_turn) = turn_beside() else { return };
    for seed in 1..=4 {
        let Some(job) = job("four threads with raw calls", "thread_mix_raw", &format!("4 2500 48 {seed}")) else { return };
        let outcome = job.limited(&Limit { ram: 64 << 20, swap: Swap::Default });
        let is_refused = outcome.stderr.contains("by raw system calls of several threads");
        assert!(ends_well(&outcome) != is_refused, "seed {seed}: {} {}", outcome.stdout, outcome.stderr);
    }
}

/// One thread's are in order.
#[test]
#[ignore = "takes long: make test-long"]
fn raw_calls_of_one_thread_are_right() {
    let Some(_turn) = turn() else { return };
    let Some(job) = job("one thread with raw calls", "thread_mix_raw", "1 8000 100") else { return };
    compare(&job, Growth::Stream, Data::Compressible, ends_well);
}

/// The kernel writes to the memory of a thread that has ended, and waits for no page then. Also where all that is in memory is
/// wanted back soon, so that nothing is spared any more.
#[test]
fn threads_that_end_are_joined() {
    let Some(_turn) = turn_beside() else { return };
    for (what, ram) in [("16 12 64", 32 << 20), ("16 12 14 random", 16 << 20)] {
        let (Some(job), Some(env)) = (job("threads that end", "thread_ends", what), tool("env")) else { return };
        let outcome = job.around(env, &["GLIBC_TUNABLES=glibc.pthread.rseq=0"]).limited(&Limit { ram, swap: Swap::Ram });
        assert!(ends_well(&outcome) && outcome.stat("evictions.pages") > 5_000.0, "{what}: {outcome:?}");
    }
}

/// It looks there, and in the mutexes, too.
#[test]
fn who_takes_a_robust_mutex_learns_that_its_owner_is_dead() {
    let Some(_turn) = turn_beside() else { return };
    for what in ["threads 64", "process 64"] {
        let Some(job) = job("robust mutexes", "robust", what) else { return };
        let outcome = job.limited(&Limit { ram: 32 << 20, swap: Swap::Ram });
        assert!(ends_well(&outcome) && outcome.stat("evictions.pages") > 5_000.0, "{what}: {outcome:?}");
    }
}

/// Nor where a child shares their memory.
#[test]
fn threads_end_while_a_child_shares_their_memory() {
    let Some(_turn) = turn() else { return };
    let Some(job) = job("ends beside a child", "shared_ends", "48 10") else { return };
    let outcome = job.limited(&Limit { ram: 64 << 20, swap: Swap::Default });
    assert!(ends_well(&outcome) && outcome.stat("evictions.pages") > 1000.0, "{outcome:?}");
}

#[test]
fn dontneed_reads_zero() {
    let Some(_turn) = turn() else { return };
    let Some(job) = job("DONTNEED race", "dontneed_race", "own 2 600 160") else { return };
    compare(&job, Growth::Existing, Data::Compressible, ends_well);
}

#[test]
fn dontneed_of_another_threads_stack() {
    let Some(_turn) = turn() else { return };
    let Some(job) = job("DONTNEED of stacks", "dontneed_race", "stack 2 150 160") else { return };
    compare(&job, Growth::Existing, Data::Compressible, ends_well);
}

#[test]
#[ignore = "takes long: make test-long"]
fn big_stacks_come_and_go() {
    let Some(_turn) = turn() else { return };
    let Some(job) = job("big stacks", "stacks", "16 4 12") else { return };
    compare(&job, Growth::Stream, Data::Compressible, ends_well);
}

/// Where there are more than 16, neighbours have one together.
#[test]
fn each_cpu_on_which_threads_wait_has_a_handler() {
    let Some(_turn) = turn() else { return };
    let Some(job) = job("pinned threads", "pinned", "48") else { return };
    let cpus = handlers::own_cpus();
    let mut seen = Vec::new();
    let [variable, monitor] = handlers::NEEDED;
    let job = job.env(variable, monitor);
    let mut run = job.start_limited(&Limit { ram: 24 << 20, swap: Swap::Ram });
    run.wait_until(|run| {
        seen = handlers::of(run.session);
        seen.iter().flatten().copied().collect::<BTreeSet<usize>>() == cpus && seen.len() == cpus.len().min(16)
    });
    fs::write(job.directory.join("go"), "").expect("written");
    let outcome = run.finish();
    assert!(ends_well(&outcome), "{outcome:?}");
    assert_eq!(seen.len(), cpus.len().min(16), "{seen:?}");
    assert!(
        seen.iter().map(BTreeSet::len).sum::<usize>() == cpus.len() && seen.iter().flatten().all(|cpu| cpus.contains(cpu)),
        "{seen:?}"
    );
}
