//! Whole process trees at 40 % of what they take natively, each with the output of its native run and within 1.10 x `--ram` +
//! 32 MiB at every sample but those shortly after a large process has forked. `make trees` runs them in full size.

use std::fs;
use std::sync::atomic::Ordering;

use lowtide_wire::segment::Proc;

use crate::check::{Growth, ends_well, faults, report};
use crate::gauges::{Gauges, own};
use crate::machine::{native_only, python, say, tool, turn, turn_beside};
use crate::measure::{Job, Limit, Outcome, Swap};
use crate::programs::{job, source};

const MIB: u64 = 1 << 20;

/// Compares a tree at 40 % with its native run, which must satisfy `sound`.
fn tree(job: &Job, sound: impl Fn(&Outcome) -> bool) {
    let native = job.native();
    assert!(sound(&native), "{}: the native run is unsound: {native:?}", job.name);
    if native_only() {
        return;
    }
    let limit = Limit { ram: (native.peak / 100 * 40).max(lowtide_config::ram::LEAST), swap: Swap::Default };
    let limited = job.limited(&limit);
    report(job, &limit, &native, &limited);
    let faults = faults(&native, &limited, &limit, Growth::Forks);
    assert!(faults.is_empty(), "{} at --ram {}: {faults:?}\n{}", job.name, limit.ram, limited.stderr);
    assert!(limited.samples > 5, "only {} samples", limited.samples);
}

/// A script for the Python that has numpy.
fn script(label: &str, file: &str) -> Option<Job> {
    Some(Job::new(label, python()?).args([source(file)]).with_forks())
}

#[test]
fn make_with_large_compilers() {
    let Some(_turn) = turn() else { return };
    let (Some(units), Some(make)) = (script("tree, units", "many_units.py"), tool("make")) else { return };
    let job = Job::new("tree, make", make).words("--no-print-directory -B -j4").with_forks();
    let written = units.args([&job.directory]).words("2").native();
    assert_eq!(written.status, 0, "{written:?}");
    tree(&job, |native| native.status == 0 && native.stdout.contains("beta-"));
}

fn shared_arrays(method: &str) {
    let Some(_turn) = turn() else { return };
    let Some(job) = script(&format!("tree, {method}"), "shared_arrays.py") else { return };
    tree(&job.args([method]).words("64 3"), ends_well);
}

#[test]
fn forked_workers_with_shared_arrays() {
    shared_arrays("fork");
}

#[test]
fn spawned_workers_with_arrays() {
    shared_arrays("spawn");
}

#[test]
#[ignore = "takes long: make test-long"]
fn workers_that_come_and_go_under_load() {
    let Some(_turn) = turn() else { return };
    let Some(job) = job("tree, server", "tree_server", "64 3 12 4000 500").map(Job::with_forks) else { return };
    tree(&job, ends_well);
}

#[test]
fn saves_under_writes() {
    let Some(_turn) = turn() else { return };
    let (Some(job), Some(_)) = (script("tree, redis", "redis_saves.py"), tool("redis-server")) else { return };
    let directory = job.directory.clone();
    tree(&job.args([directory]).words("3 60000"), ends_well);
}

/// Its parent is gone when the child looks at what it inherited.
#[test]
fn a_parent_that_exits_first() {
    let Some(_turn) = turn() else { return };
    let Some(job) = job("tree, orphan", "forks", "orphan 96").map(Job::with_forks) else { return };
    tree(&job, ends_well);
}

#[test]
fn forks_beside_many_threads() {
    let Some(_turn) = turn() else { return };
    let Some(job) = job("tree, threads", "fork_malloc", "8 30 64").map(Job::with_forks) else { return };
    tree(&job, ends_well);
}

/// Below its limit a script is not touched.
#[test]
fn many_short_processes() {
    let Some(_turn) = turn_beside() else { return };
    let job = Job::new("tree, short processes", source("short_processes.sh"));
    let directory = job.directory.clone();
    let job = job.args([directory]).words("3");
    let native = job.native();
    assert!(ends_well(&native), "{native:?}");
    if native_only() {
        return;
    }
    let limited = job.limited(&Limit { ram: 256 * MIB, swap: Swap::Default });
    assert_eq!((limited.status, &limited.stdout, &limited.stderr.lines().count()), (0, &native.stdout, &1), "{limited:?}");
    assert!(limited.stat("evictions.pages") == 0.0 && limited.left.is_empty(), "{limited:?}");
}

/// Bytes of the program's in memory.
fn resident(process: &Proc) -> u64 {
    process.ram_bytes.load(Ordering::Relaxed).saturating_sub(own(process))
}

/// Two processes of 200 MiB in less than 240 MiB: the one that does nothing gives its memory to the other, until that misses
/// none.
fn an_idle_and_a_busy_process(ram: u64, options: &[&str]) {
    /// Rounds of the busy one, of 51,200 touches each, in which hardly a page may be missed.
    const ROUNDS: u64 = 10;
    const MOST_FAULTS: u64 = 100;
    let Some(_turn) = turn() else { return };
    let Some(job) = job("tree, idle and busy", "idle_and_busy", "200") else { return };
    if native_only() {
        return;
    }
    let (rounds, go) = (job.directory.join("rounds"), job.directory.join("go"));
    let options = options.iter().map(|option| (*option).to_owned()).collect();
    let mut run = job.start_limited(&Limit { ram: ram * MIB, swap: Swap::Options(options) });
    let (mut gauges, mut begun, mut seen) = (None, (0, 0), String::new());
    let settled = run.wait_until(|run| {
        gauges = gauges.take().or_else(|| Gauges::of(run.session));
        let Some(gauges) = &gauges else { return false };
        let mut both: Vec<&Proc> = gauges.active().map(|(_, process)| process).collect();
        both.sort_by_key(|process| resident(process));
        let &[idle, busy] = &both[..] else { return false };
        let round = fs::read(&rounds).ok().and_then(|bytes| Some(u64::from_ne_bytes(bytes.try_into().ok()?))).unwrap_or(0);
        let missed = busy.counters.faults_total.load(Ordering::Relaxed);
        seen =
            format!("round {round}, {missed} faults, resident: {} MiB and {} MiB", resident(busy) / MIB, resident(idle) / MIB);
        if missed.abs_diff(begun.1) > MOST_FAULTS || begun.0 == 0 {
            begun = (round, missed);
        }
        round >= begun.0 + ROUNDS && resident(busy) > 190 * MIB
    });
    say(&format!("  an idle and a busy process: {seen}"));
    let _ = fs::write(&go, "");
    let outcome = run.finish();
    assert!(settled && ends_well(&outcome), "{seen}; {outcome:?}");
}

#[test]
fn an_idle_process_gives_way_to_a_busy_one() {
    an_idle_and_a_busy_process(220, &["--swap", "dir:/var/tmp,size=1G", "--pool", "0"]);
}

/// What the idle one has in compressed RAM is in the way too: 50 MiB.
#[test]
fn an_idle_process_gives_up_its_compressed_ram() {
    an_idle_and_a_busy_process(234, &["--swap", "dir:/var/tmp,size=1G"]);
}
