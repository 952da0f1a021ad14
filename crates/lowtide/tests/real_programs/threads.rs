//! Threads: everything at once with every byte checked, the MADV_DONTNEED race, big stacks that come and go.

use crate::check::{Data, Growth, compare, ends_well};
use crate::machine::turn;
use crate::programs::job;

#[test]
fn four_threads_mix_everything() {
    let Some(_turn) = turn() else { return };
    let Some(job) = job("four threads mix", "thread_mix", "4 6000 48") else { return };
    compare(&job, Growth::Stream, Data::Compressible, ends_well);
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
fn big_stacks_come_and_go() {
    let Some(_turn) = turn() else { return };
    let Some(job) = job("big stacks", "stacks", "16 4 12") else { return };
    compare(&job, Growth::Stream, Data::Compressible, ends_well);
}
