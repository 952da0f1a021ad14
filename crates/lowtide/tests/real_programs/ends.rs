//! The ways a program ends: its exit status is the program's own, and nobody hangs.

use crate::check::{Data, Growth, compare};
use crate::machine::turn;
use crate::measure::{Job, Limit, Outcome, Swap};
use crate::programs::{compiled, compiled_statically, job};

fn ends(mode: &str, status: i32) {
    let Some(_turn) = turn() else { return };
    let Some(job) = job(&format!("ends by {mode}"), "exits", &format!("{mode} 96")) else { return };
    compare(&job, Growth::Existing, Data::Any, |outcome| outcome.status == status && outcome.stdout.starts_with("OK"));
}

#[test]
fn by_return() {
    ends("return", 0);
}

#[test]
fn by_exit() {
    ends("exit", 7);
}

#[test]
fn by_immediate_exit() {
    ends("_exit", 8);
}

#[test]
fn by_sigterm() {
    ends("term", 128 + 15);
}

#[test]
fn by_segmentation_fault() {
    ends("segv", 128 + 11);
}

#[test]
fn by_abort() {
    ends("abort", 128 + 6);
}

#[test]
fn after_the_main_thread() {
    ends("main-thread", 5);
}

/// The kernel shows nothing of such a process's memory by its number any more.
#[test]
fn what_grows_after_the_main_thread_is_limited() {
    ends("grows-after-main", 5);
}

/// Nobody is told: lowtide's threads are there, and the process goes on until they see it.
#[test]
fn by_the_instruction_that_ends_a_thread() {
    let Some(_turn) = turn() else { return };
    for (how, program) in [("dynamic", compiled("bare_exit")), ("static", compiled_statically("bare_exit"))] {
        let Some(program) = program else { continue };
        let is_right = |outcome: &Outcome| outcome.status == 5 && outcome.stdout == "OK\n";
        let job = |mib: &str| Job::new(&format!("bare exit {how} {mib}"), &program).words(mib);
        compare(&job("96"), Growth::Existing, Data::Any, is_right);
        // Before lowtide has looked for the first time.
        let outcome = job("1").limited(&Limit { ram: 32 << 20, swap: Swap::Default });
        assert!(is_right(&outcome) && outcome.left.is_empty(), "{outcome:?}");
    }
}
