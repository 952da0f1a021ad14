//! Several swap areas in one run.

use std::fs;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::process::Command;

use crate::check::{Growth, ends_well, faults, report};
use crate::machine::{limited_turn, limited_turn_beside, python};
use crate::measure::{Job, Limit, Outcome, Swap};
use crate::programs::{compiled, job};

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
    // What is written together in as long a run as this program's finds no place in the last quarter of it, or so.
    assert!(used[0] > size[0] * 5 / 8 && used[0] <= size[0], "the first is nearly full: {areas}");
    assert!(used[1] > 0 && used[0] * size[1] > used[1] * size[0], "the second takes what is left: {areas}");
    assert!(writes.iter().chain(&of_each(outcome, "reads")).all(|n| *n > 0), "{areas}");
    assert_eq!(used.iter().sum::<u64>() as f64, outcome.stat("pages.on_device") * 4096.0, "{areas}");
    assert_eq!(writes.iter().sum::<u64>() as f64, outcome.stat("writeback.ios"), "{areas}");
    assert_eq!(of_each(outcome, "errors"), [0, 0]);
}

#[test]
#[ignore = "takes long: make test-long"]
fn a_directory_of_high_priority_that_is_too_small() {
    let Some(_turn) = limited_turn() else { return };
    let Some(job) = job("areas two directories", "written_once", "96 n") else { return };
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
    let Some(_turn) = limited_turn() else { return };
    let Some(job) = job("areas file and directory", "written_once", "96 nt") else { return };
    let specs = [file(&job, 16 * MIB) + ",discard", directory(&job, "more") + ",size=256M"];
    let outcome = run(&job, &specs, "1M");
    assert_the_first_is_fuller(&outcome);
    let prios: Vec<_> = (0..2).map(|i| outcome.stats["areas"][i]["prio"].as_i64()).collect();
    assert_eq!(prios, [Some(-2), Some(-3)], "in the order in which they were given");
}

#[test]
fn a_file_with_a_name_is_the_large_process_s_and_not_its_launcher_s() {
    let Some(_turn) = limited_turn() else { return };
    let (Some(python), Some(program)) = (python(), compiled("written_once")) else { return };
    let script = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)";
    let job = Job::new("areas launcher", python).args(["-c", script]).args([program]).words("96 n");
    let spec = file(&job, 128 * MIB);
    run(&job, &[spec], "1M");
    let blocks = fs::metadata(job.directory.join("swap")).expect("the file").blocks();
    assert!(blocks * 512 > 60 * MIB, "{} KiB", blocks / 2);
}

#[test]
fn forked_children_have_areas_of_their_own() {
    let Some(_turn) = limited_turn() else { return };
    let Some(job) = job("areas forks", "forks", "stay 40 2") else { return };
    let specs = [file(&job, 8 * MIB) + ",prio=4", directory(&job, "more") + ",size=256M"];
    let outcome = run(&job, &specs, "1M");
    let written = of_each(&outcome, "writes");
    assert!(written.iter().all(|n| *n > 0), "{}", outcome.stats["areas"]);
    assert_eq!(written.iter().sum::<u64>() as f64, outcome.stat("writeback.ios"));
}

#[test]
fn the_space_of_a_process_that_is_gone_is_there_for_the_next() {
    let Some(_turn) = limited_turn() else { return };
    let Some(program) = compiled("written_once") else { return };
    // Four times what fits once: two processes, each of which executes itself.
    let job = Job::new("areas in turn", "sh").args(["-c", "\"$@\" && \"$@\"", "sh"]).args([program]).words("96 n 2");
    let outcome = run(&job, &[directory(&job, "swap") + ",size=128M"], "1M");
    assert_eq!(outcome.stdout, "OK 24576\n".repeat(4));
    assert!(outcome.stat("writeback.bytes") > (4 * 60 * MIB) as f64, "{}", outcome.stats);
}

#[test]
fn an_area_whose_file_system_fills_up_leaves_the_rest_to_the_next() {
    let Some(_turn) = limited_turn_beside() else { return };
    let (Some(job), Some(program)) = (job("areas full", "written_once", "96 n"), compiled("written_once")) else { return };
    // In a mount namespace of its own, with a tiny file system; where that is not allowed, not tested.
    let script = "cd $1 && mkdir small more && mount -t tmpfs -o size=6m none small && echo mounted &&
        $2 run --ram 24M --pool 1M --swap dir:small,size=64M,prio=5 --swap dir:more,size=256M --stats stats.json -- $3 96 n";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).arg(&job.directory).arg(env!("CARGO_BIN_EXE_lowtide")).arg(program);
    let output = command.output().expect("unshare starts");
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !said.starts_with("mounted") {
        crate::machine::skipped::skipped(format_args!("mounting is not allowed here: {errors}"));
        return;
    }
    assert!(output.status.success() && said.contains("\nOK"), "{said} {errors}");
    let stats: serde_json::Value =
        serde_json::from_slice(&fs::read(job.directory.join("stats.json")).expect("statistics")).expect("JSON");
    let areas = &stats["areas"];
    let figure = |i: usize, key: &str| areas[i][key].as_u64().unwrap_or_else(|| panic!("{key}: {areas}"));
    assert_eq!((areas[0]["state"].as_str(), areas[1]["state"].as_str()), (Some("failing"), Some("active")), "{areas}");
    // What failed is not tried for each page: with 4 KiB a write it would be thousands of errors.
    assert!((1..=64).contains(&figure(0, "errors")) && figure(1, "errors") == 0, "{areas}");
    assert!(figure(0, "used") > 2 * MIB && figure(1, "used") > 60 * MIB, "{areas}");
    let warned = errors.lines().filter(|line| line.contains("small: its file system is full")).count();
    assert_eq!(warned, 1, "{errors}");
    assert!(!errors.contains("swap is full"), "{errors}");
}
