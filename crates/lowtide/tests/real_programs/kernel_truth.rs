//! Where the kernel does otherwise than its userfaultfd events say: calls that are refused after their events were sent, memory
//! that goes without an event, and the same by other system calls.

use std::path::PathBuf;

use crate::check::ends_well;
use crate::machine::{native_only, turn_beside};
use crate::measure::{Job, Limit, Outcome, Swap};
use crate::programs::{compiled, compiled_statically, with_musl};
use crate::without_hooks::may_be_followed;

/// Calls that fail when their events have been prepared.
const REFUSED: [&str; 5] = ["munmap-seal", "mmap-seal", "mremap-seal", "overcommit", "as"];
/// What lowtide answers in the kernel's place.
const ANSWERED: [&str; 3] = ["locked", "all-locked", "leave-several"];
/// Memory is unmapped, or dropped, and no event tells.
const UNTOLD: [&str; 3] = ["shm", "shm-beside", "process-madvise-guards"];
/// What a child does not get.
const WIPED: [&str; 3] = ["wipe", "wipe-late", "droppable"];

/// Runs a case natively and under a limit; how the second ends.
fn run(program: &PathBuf, words: &str) -> Option<Outcome> {
    let job = Job::new(&format!("kernel truth {words}"), program).words(words);
    let native = job.native();
    assert!(ends_well(&native), "{words}: the native run is unsound: {native:?}");
    if native_only() {
        return None;
    }
    let outcome = job.limited(&Limit { ram: 48 << 20, swap: Swap::Default });
    assert!(outcome.left.is_empty(), "{outcome:?}");
    Some(outcome)
}

fn are_right(program: Option<PathBuf>, cases: impl IntoIterator<Item = &'static str>, how: &str) {
    let Some(program) = program else { return };
    for case in cases {
        let Some(outcome) = run(&program, &format!("{case} {how}")) else { continue };
        assert!(ends_well(&outcome), "{} {case} {how}: {outcome:?}", program.display());
        assert!(outcome.stat("evictions.pages") > 1000.0, "{case}: {}", outcome.stats);
    }
}

#[test]
fn calls_that_are_refused_leave_memory_as_it_was() {
    let Some(_turn) = turn_beside() else { return };
    are_right(compiled("kernel_truth"), REFUSED.into_iter().chain(["brk-seal"]), "");
    are_right(compiled("kernel_truth"), REFUSED.into_iter().chain(["brk-seal"]), "raw");
    are_right(compiled_statically("kernel_truth"), REFUSED, "");
    are_right(with_musl("kernel_truth", true), REFUSED, "");
}

#[test]
fn what_lowtide_answers_is_what_the_kernel_would() {
    let Some(_turn) = turn_beside() else { return };
    are_right(compiled("kernel_truth"), ANSWERED, "");
}

#[test]
fn what_goes_without_an_event_is_gone() {
    let Some(_turn) = turn_beside() else { return };
    are_right(compiled("kernel_truth"), UNTOLD.into_iter().chain(["process-madvise-drops", "own-move"]), "");
    are_right(compiled("kernel_truth"), UNTOLD, "raw");
    // There they are refused.
    if may_be_followed() {
        are_right(compiled_statically("kernel_truth"), UNTOLD, "");
        are_right(with_musl("kernel_truth", true), UNTOLD, "");
    }
}

#[test]
fn what_is_wiped_by_a_fork_is_wiped_when_it_was_out() {
    let Some(_turn) = turn_beside() else { return };
    are_right(compiled("kernel_truth"), WIPED, "");
    are_right(compiled("kernel_truth"), WIPED, "raw");
    are_right(compiled_statically("kernel_truth"), WIPED, "");
}

/// The kernel loses count of changes under way when it refuses to shrink a break that it has begun to unmap. Where no hook keeps it
/// from that, no page can be brought in any more.
#[test]
fn a_break_that_the_kernel_refuses_to_shrink_ends_a_raw_run() {
    let Some(_turn) = turn_beside() else { return };
    let Some(program) = compiled_statically("kernel_truth") else { return };
    let Some(outcome) = run(&program, "brk-seal raw") else { return };
    assert!(
        outcome.status == 125 && outcome.stderr.contains("counts a change of mappings as under way that is over"),
        "{outcome:?}"
    );
}
