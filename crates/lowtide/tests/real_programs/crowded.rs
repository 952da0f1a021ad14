//! More processes than a run has places for.

use std::fs;

use crate::check::ends_well;
use crate::gauges::Gauges;
use crate::machine::{native_only, turn};
use crate::measure::{Limit, Swap};
use crate::programs::job;

/// All places but those that are in use are taken in the shared memory of the run. The program then forks, with most of its
/// memory out, and starts another one: both have no limit, every byte that they should have, and one warning together.
#[test]
fn processes_without_a_place() {
    let Some(_turn) = turn() else { return };
    let Some(job) = job("crowded", "crowded", "96") else { return };
    let (filled, go) = (job.directory.join("filled"), job.directory.join("go"));
    fs::write(&go, "").expect("a directory of our own");
    let native = job.native();
    assert!(ends_well(&native), "{native:?}");
    if native_only() {
        return;
    }
    fs::remove_file(&go).and_then(|()| fs::remove_file(&filled)).expect("both are there");
    let mut run = job.start_limited(&Limit { ram: 64 << 20, swap: Swap::Ram });
    let full = run.wait_until(|run| {
        let gauges = filled.exists().then(|| Gauges::of(run.session)).flatten();
        gauges.filter(|gauges| gauges.active().count() == 1).map(|gauges| gauges.take_all_places()).is_some()
    });
    fs::write(&go, "").expect("a directory of our own");
    let limited = run.finish();
    assert!(full && ends_well(&limited) && limited.left.is_empty(), "{limited:?}");
    let warnings: Vec<&str> = limited.stderr.lines().filter(|line| line.contains("warning")).collect();
    assert!(matches!(warnings[..], [one] if one.contains("for which there was no place")), "{warnings:?}");
}
