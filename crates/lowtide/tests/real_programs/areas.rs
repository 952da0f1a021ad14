//! Several swap areas in one run.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;

use crate::check::{Growth, ends_well, faults, report};
use crate::machine::{native_only, turn};
use crate::measure::{Job, Limit, Outcome, Swap};
use crate::programs::job;

const MIB: u64 = 1 << 20;

/// A directory of its own for an area.
fn directory(job: &Job, name: &str) -> String {
    let path = job.directory.join(name);
    fs::create_dir(&path).expect("a directory");
    format!("dir:{}", path.display())
}

/// A swap file with a name.
fn file(job: &Job, size: u64) -> String {
    let path = job.directory.join("swap");
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).expect("a file");
    file.set_len(size).expect("room");
    format!("file:{}", path.display())
}

/// Runs a program with these areas; everything that must hold for any program does.
fn run(job: &Job, specs: &[String], pool: &str) -> Outcome {
    let native = job.native();
    assert!(ends_well(&native), "natively: {native:?}");
    let areas = specs.iter().flat_map(|spec| ["--swap", spec]);
    let options = areas.chain(["--pool", pool]).map(str::to_owned).collect();
    let limit = Limit { ram: 24 * MIB, swap: Swap::Options(options) };
    let limited = job.limited(&limit);
    report(job, &limit, &native, &limited);
    let wrong = faults(&native, &limited, &limit, Growth::Existing);
    assert!(wrong.is_empty() && limited.stats["warnings"] == serde_json::json!([]), "{wrong:?}\n{}", limited.stderr);
    limited
}

/// A figure of each area.
fn of_each(outcome: &Outcome, key: &str) -> Vec<u64> {
    let areas = outcome.stats["areas"].as_array().expect("a list");
    areas.iter().map(|area| area[key].as_u64().unwrap_or_else(|| panic!("{key}: {area}"))).collect()
}

/// The first is full and the second is not; what was done there adds up to what the whole run did.
fn assert_the_first_is_fuller(outcome: &Outcome) {
    let areas = &outcome.stats["areas"];
    let (used, size, writes) = (of_each(outcome, "used"), of_each(outcome, "size"), of_each(outcome, "writes"));
    assert!(used[0] > size[0] * 3 / 4 && used[0] <= size[0], "the first is nearly full: {areas}");
    assert!(used[1] > 0 && used[0] * size[1] > used[1] * size[0], "the second takes what is left: {areas}");
    assert!(writes.iter().chain(&of_each(outcome, "reads")).all(|n| *n > 0), "{areas}");
    assert_eq!(used.iter().sum::<u64>() as f64, outcome.stat("pages.on_device") * 4096.0, "{areas}");
    assert_eq!(writes.iter().sum::<u64>() as f64, outcome.stat("writeback.ios"), "{areas}");
    assert_eq!(of_each(outcome, "errors"), [0, 0]);
}

#[test]
fn a_directory_of_high_priority_that_is_too_small() {
    let Some(_turn) = turn() else { return };
    let Some(job) = job("areas two directories", "written_once", "96 n") else { return };
    if native_only() {
        return;
    }
    let (low, high) = (directory(&job, "low"), directory(&job, "high"));
    // Given in the other order: it is the priority that counts.
    let outcome = run(&job, &[format!("{high},size=16M,prio=9"), format!("{low},size=256M")], "1M");
    assert_the_first_is_fuller(&outcome);
    let areas = &outcome.stats["areas"];
    assert_eq!([&areas[0]["spec"], &areas[1]["spec"]], [&high, &low]);
    assert_eq!((areas[0]["prio"].as_i64(), areas[1]["prio"].as_i64()), (Some(9), Some(-2)));
    assert_eq!((areas[1]["state"].as_str(), of_each(&outcome, "size")), (Some("active"), vec![16 * MIB, 256 * MIB]));
}

#[test]
fn a_file_and_then_a_directory() {
    let Some(_turn) = turn() else { return };
    let Some(job) = job("areas file and directory", "written_once", "96 nt") else { return };
    if native_only() {
        return;
    }
    let specs = [file(&job, 16 * MIB) + ",discard", directory(&job, "more") + ",size=256M"];
    let outcome = run(&job, &specs, "1M");
    assert_the_first_is_fuller(&outcome);
    let prios: Vec<_> = (0..2).map(|i| outcome.stats["areas"][i]["prio"].as_i64()).collect();
    assert_eq!(prios, [Some(-2), Some(-3)], "in the order in which they were given");
}

#[test]
fn forked_children_have_areas_of_their_own() {
    let Some(_turn) = turn() else { return };
    let Some(job) = job("areas forks", "forks", "stay 40 2") else { return };
    if native_only() {
        return;
    }
    let specs = [file(&job, 8 * MIB) + ",prio=4", directory(&job, "more") + ",size=256M"];
    let outcome = run(&job, &specs, "1M");
    let written = of_each(&outcome, "writes");
    assert!(written.iter().all(|n| *n > 0), "{}", outcome.stats["areas"]);
    assert_eq!(written.iter().sum::<u64>() as f64, outcome.stat("writeback.ios"));
}
