//! Processes that share the memory of one with lowtide's threads (CLONE_VM), and live on without it.

use crate::machine::{native_only, turn};
use crate::measure::{Limit, Outcome, Swap};
use crate::programs::job;

/// The survivor of a process that has come to its end in this way. None: natively only.
fn survivor(how: &str) -> Option<Outcome> {
    let job = job(&format!("outlives {how}"), "outlives", &format!("{how} 64"))?;
    let native = job.native();
    assert!(native.status == 0 && native.stdout == "the survivor is right\n", "{how}: {native:?}");
    (!native_only()).then(|| job.limited(&Limit { ram: 32 << 20, swap: Swap::Ram }))
}

/// What it needs nobody can bring back: the run ends, with one message, and the survivor has read nothing.
#[test]
fn who_needs_pages_of_a_process_that_is_gone_ends_the_run() {
    let Some(_turn) = turn() else { return };
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
    let Some(_turn) = turn() else { return };
    let Some(limited) = survivor("quiet") else { return };
    assert_eq!((limited.status, limited.stdout.as_str()), (0, "the survivor is right\n"), "{}", limited.stderr);
}
