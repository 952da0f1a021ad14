//! Processes that share the memory of one with lowtide's threads (CLONE_VM), and live on without it.

use crate::machine::{limited_turn_beside, native_only, tool, turn_beside};
use crate::measure::{Job, Limit, Outcome, Swap};
use crate::programs::job;

const LIMIT: Limit = Limit { ram: 32 << 20, swap: Swap::Ram };

fn outlives(how: &str) -> Option<Job> {
    outlives_as(&format!("outlives {how}"), how)
}

fn outlives_as(label: &str, how: &str) -> Option<Job> {
    job(label, "outlives", &format!("{how} 64"))
}

/// The survivor of a process that has come to its end in this way. None: natively only.
fn survivor(how: &str) -> Option<Outcome> {
    let job = outlives(how)?;
    let native = job.native();
    assert!(native.status == 0 && native.stdout == "the survivor is right\n", "{how}: {native:?}");
    (!native_only()).then(|| job.limited(&LIMIT))
}

/// What it needs nobody can bring back: the run ends, with one message, and the survivor has read nothing.
#[test]
fn who_needs_pages_of_a_process_that_is_gone_ends_the_run() {
    let Some(_turn) = turn_beside() else { return };
    for how in ["ends", "killed", "executes"] {
        let Some(limited) = survivor(how) else { return };
        assert_eq!((limited.status, limited.stdout.as_str()), (125, ""), "{how}: {}", limited.stderr);
        assert_eq!(limited.stderr.matches("shares its memory").count(), 1, "{how}: {}", limited.stderr);
        assert_eq!(limited.left, [""; 0], "{how}");
    }
}

/// One that needs nothing that is out goes on.
#[test]
fn who_needs_nothing_of_a_process_that_is_gone_goes_on() {
    let Some(_turn) = turn_beside() else { return };
    let Some(limited) = survivor("quiet") else { return };
    assert_eq!((limited.status, limited.stdout.as_str()), (0, "the survivor is right\n"), "{}", limited.stderr);
}

/// Also where `lowtide run` does not wait for what the program leaves behind, because it had a child before.
#[test]
fn a_survivor_is_known_before_the_run_is_over() {
    let (Some(_turn), Some(shell)) = (limited_turn_beside(), tool("sh")) else { return };
    let Some(job) = outlives_as("outlives a child before", "ends") else { return };
    let job = job.around(shell, &["-c", "sleep 5 > /dev/null 2>&1 & exec \"$0\" \"$@\""]);
    // (The program ends at another time of a look each time.)
    for _ in 0..4 {
        let limited = job.limited(&LIMIT);
        assert_eq!((limited.status, limited.stdout.as_str()), (125, ""), "{}", limited.stderr);
        assert_eq!(limited.stderr.matches("shares its memory").count(), 1, "{}", limited.stderr);
    }
}

/// Who only reads the memory of a process that ends (a debugger) has nothing of what is out, and ends nothing.
#[test]
fn who_reads_the_memory_of_a_process_that_ends_does_not_end_the_run() {
    let Some(_turn) = turn_beside() else { return };
    let Some(job) = outlives("seen") else { return };
    let native = job.native();
    assert!(native.status == 0 && native.stdout == "the reader goes on\n", "{native:?}");
    if !native_only() {
        let limited = job.limited(&LIMIT);
        assert_eq!((limited.status, limited.stdout), (0, native.stdout), "{}", limited.stderr);
    }
}

/// What is handed over may be anything of the kind: it holds nobody up, and takes no more than its share.
#[test]
fn what_is_handed_over_is_not_trusted() {
    let Some(_turn) = limited_turn_beside() else { return };
    let Some(job) = job("hands_over", "hands_over", "") else { return };
    let limited = job.limited(&LIMIT);
    let expected = "not ready: 22\nready: 0\none more: 17\nat last: 24\nit goes on\n";
    assert_eq!((limited.status, limited.stdout.as_str()), (0, expected), "{}", limited.stderr);
}
