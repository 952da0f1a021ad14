//! Threads of real programs bring their pages in themselves: with `--faults in-thread`, and by default. Where the kernel lets no
//! BPF program be loaded, that is said in one line and before the program starts, or by default not at all, and the rest is
//! skipped; `make kernels` runs it in guests.

mod live;

use live::{Scene, assert_refused, program, skip, turn};
use serde_json::Value;
use std::process::Output;

/// What a process has of workers at least: four, with a buffer and a stack each.
const LEAST_LENT: usize = 8;

/// Threads serve their faults only where one of these runs; the refusal, where it can't be.
fn refusal(scene: &Scene) -> Option<Output> {
    let output = scene.ask("run --quiet --ram 64M --faults in-thread -- true");
    (!output.status.success()).then_some(output)
}

/// What the statistics say of a run's faults.
struct Faults {
    total: u64,
    /// Those that threads served themselves.
    own: u64,
    /// What went to handler threads, by why.
    records: Value,
}

/// Says SKIPPED where it can't be, which has to be said in one line. (Not `skip`: on most machines of CI it can't be. Those of
/// `make kernels` have to.)
#[track_caller]
fn can_be(scene: &Scene) -> bool {
    let Some(refused) = refusal(scene) else { return true };
    assert_refused(&refused, "--faults in-thread", 125, &["--faults in-thread can't be had here: "]);
    live::skipped::skipped(String::from_utf8_lossy(&refused.stderr).trim());
    false
}

/// Runs `own_faults CASE MIB` under a limit of 16 MiB; its faults.
#[track_caller]
fn faults_of(case: &str, mib: u32, places: &str) -> Option<Faults> {
    let _turn = turn()?;
    let scene = Scene::new();
    if !can_be(&scene) {
        return None;
    }
    Some(faults_with(&scene, &format!("{places} --faults in-thread"), case, mib))
}

/// The same with these options, and nobody says anything but the program.
#[track_caller]
fn faults_with(scene: &Scene, options: &str, case: &str, mib: u32) -> Faults {
    let stats = scene.path("stats");
    let mut command = scene.lowtide();
    command.env_remove("LOWTIDE_PAGE_FAULTS").args(["run", "--quiet", "--ram", "16M", "--stats"]).arg(&stats);
    command.args(options.split_whitespace()).arg("--").arg(program("own_faults")).args([case, &mib.to_string()]);
    let (out, err) = scene.started(command).finish();
    assert_eq!((out, err.as_str()), (format!("{case}: right\n"), ""), "{case}");
    let stats: Value = serde_json::from_str(&std::fs::read_to_string(stats).expect("statistics")).expect("JSON");
    let count = |name: &str| stats["faults"][name].as_u64().expect("a count");
    Faults { total: count("total"), own: count("in_thread"), records: stats["ring_records"].clone() }
}

/// Most faults are served in the thread.
#[track_caller]
fn most_of(case: &str) {
    if let Some(Faults { total, own, .. }) = faults_of(case, 24, "--swap ram") {
        assert!(own > total / 2, "{case}: {own} of {total} faults were served by their threads");
    }
}

/// Some faults are; the others are what the case is about, and went to handler threads for these reasons (those of the
/// statistics).
#[track_caller]
fn some_of(case: &str, reasons: &[&str]) {
    some_with(case, 24, "--swap auto", reasons);
}

/// The same with so much memory, and pages in these places.
#[track_caller]
fn some_with(case: &str, mib: u32, places: &str, reasons: &[&str]) {
    if let Some(Faults { total, own, records }) = faults_of(case, mib, places) {
        assert!(own > 0, "{case}: none of {total} faults was served by its thread");
        for why in reasons {
            assert!(records[why].as_u64() > Some(0), "{case}: nothing went to handler threads for {why}: {records}");
        }
    }
}

macro_rules! cases {
    (most_of: $($case:ident)+) => { $(#[test] fn $case() { most_of(stringify!($case)) })+ };
    (some_of: $($case:ident [$($why:ident)*])+) => { $(#[test] fn $case() { some_of(stringify!($case), &[$(stringify!($why)),*]) })+ };
}

cases!(most_of: touches threads registers unqueued);
cases!(some_of:
    calls [kernel_mode]
    blocked [signal_blocked]
    handlers [signal_blocked]
    storm [signal_blocked]
    takes_signal [another_handler]
    sent []
    waits []
    filtered [seccomp]
    strict [seccomp]
    zeros [protected]
    dispatch [user_dispatch]
    rings [io_uring]
    serves [declined]
    killed [another_process]
    stacks [no_stack]
    brims [no_stack]
    children [another_process event]
    closes [another_handler]
    closes_and_forks [another_handler]
    ends []
    events [event]
    traced [traced]
);

/// Without `--faults` threads serve their own where that can be; where it can't, nobody is told, and no process asks for it.
#[test]
fn by_default_as_can_be() {
    as_can_be("while_worthwhile");
}

/// The same of a thread that is not the main one.
#[test]
fn by_default_threads_as_can_be() {
    as_can_be("thread_while_worthwhile");
}

#[track_caller]
fn as_can_be(case: &str) {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let can_be = refusal(&scene).is_none();
    let Faults { total, own, records } = faults_with(&scene, "--swap ram", case, 24);
    if can_be {
        assert!(own > total / 2, "{own} of {total} faults were served by their threads");
    } else {
        let counts = records.as_object().expect("counts by reason");
        assert!(own == 0 && !counts.is_empty() && counts.values().all(|count| *count == 0), "{own}, {records}");
    }
}

/// By default no thread gets a signal on a stack that the program made for a coroutine, which may have no room for it.
#[test]
fn coroutines() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let can_be = can_be(&scene);
    let Faults { total, own, records } = faults_with(&scene, "--swap ram", "coroutines", 24);
    if can_be {
        assert!(own > total / 8, "{own} of {total} faults were served by their threads");
        assert!(records["unknown_stack"].as_u64() > Some(0), "nothing went to handler threads for an unknown stack: {records}");
    }
}

/// The command that says what a machine can do and the one that does it give the same reason.
#[test]
fn doctor_says_who_serves_faults() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let report = scene.done("doctor");
    let line = report.lines().find(|line| line.trim_start().starts_with("faults ")).expect("a line about faults");
    match refusal(&scene) {
        None => assert!(line.contains("each thread serves its own here") && line.contains("the default"), "{line}"),
        Some(refused) => {
            let said = String::from_utf8_lossy(&refused.stderr);
            let why = said.trim().split_once("can't be had here: ").expect("why").1;
            assert!(line.contains("by threads of lowtide") && line.contains(why), "{line}: {why}");
        }
    }
}

/// Pages on a device are left to handler threads. (Few, as each takes long in a guest.)
#[test]
fn devices() {
    some_with("touches", 18, "--swap auto --pool 0", &["declined"]);
}

/// A child that is forked while its parent waits for the answer of `lowtide run` has nothing of what that got for serving faults.
#[test]
fn a_child_has_no_workers_of_its_parents() {
    let Some(_turn) = turn() else { return };
    // Elsewhere nobody asks.
    if !can_be(&Scene::new()) {
        return;
    }
    let own_faults = program("own_faults");
    let of = |faults: &str| {
        let (out, err) =
            Scene::new().start(&format!("--quiet --ram 16M --swap ram --faults {faults}"), &own_faults, "asked 24").finish();
        assert_eq!(err, "", "--faults {faults}");
        let numbers: Vec<usize> = out.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let &[parent, child] = numbers.as_slice() else { panic!("{out}") };
        (parent, child)
    };
    let (with, without) = (of("auto"), of("monitor"));
    if with.0 < without.0 + LEAST_LENT {
        // It has filters, or a C library without a `struct rseq`.
        return skip(&format!("this process does not ask for its faults: {with:?}, {without:?}"));
    }
    assert!(with.1 < without.1 + LEAST_LENT, "{with:?}, and where none was asked {without:?}");
}

#[test]
fn an_unknown_way_is_refused() {
    let Some(_turn) = turn() else { return };
    Scene::new().refused("run --ram 64M --faults kernel -- true", 2, &["--faults kernel: use auto, in-thread or monitor"]);
}
