//! Forks whose parent does not stay: daemons, parents that are killed in the middle, children that are stopped. The child's
//! every byte is right, or the run ends with one message; nothing hangs and nothing is left.

use lowtide_config::proc;

use crate::check::ends_well;
use crate::gauges::Gauges;
use crate::machine::{limited_turn, limited_turn_beside, native_only, say, turn, turn_beside};
use crate::measure::{Job, Limit, Outcome, Swap};
use crate::programs::job;

const MIB: u64 = 1 << 20;

fn limited(job: &Job, ram: u64) -> Outcome {
    job.limited(&Limit { ram: ram * MIB, swap: Swap::Default })
}

fn daemon(mode: &str) {
    let Some(_turn) = turn_beside() else { return };
    let Some(job) = job(&format!("daemon {mode}"), "daemonize", &format!("96 {mode}")) else { return };
    if native_only() {
        return;
    }
    let outcome = limited(&job, 40);
    assert!(ends_well(&outcome) && outcome.left.is_empty(), "{mode}: {outcome:?}");
    assert!(outcome.stat("evictions.pages") > 1000.0, "{mode}: {}", outcome.stats);
    // The statistics come when all is over: what the daemon read is in them.
    assert!(outcome.stat("elapsed_seconds") > 0.5 && outcome.stat("faults.total") > 100.0, "{mode}: {}", outcome.stats);
}

#[test]
fn a_parent_that_leaves_at_once() {
    daemon("once");
}

#[test]
fn twice_in_a_row() {
    daemon("twice");
}

#[test]
fn a_parent_that_exits() {
    daemon("exit");
}

#[test]
fn a_parent_that_executes_another_program() {
    daemon("execs");
}

/// By system calls that no hook sees: who forks is held there until the child has all of its memory.
#[test]
fn daemons_by_bare_system_calls() {
    let Some(_turn) = limited_turn_beside() else { return };
    let modes = ["once", "execs", "twice", "both", "after", "child"].map(|mode| ("fork", mode));
    for (call, mode) in modes.into_iter().chain(["clone", "clone3"].map(|call| (call, "once"))) {
        let name = format!("daemon {mode}, by a bare {call}");
        let Some(job) = job(&name, "daemonize", &format!("96 {mode} 500 0 {call}")) else { return };
        let outcome = limited(&job, 40);
        assert!(ends_well(&outcome) && outcome.left.is_empty() && !outcome.stderr.contains("FAILED"), "{name}: {outcome:?}");
        assert!(outcome.stat("evictions.pages") > 1000.0, "{name}: {}", outcome.stats);
    }
}

/// By another thread, while the program forks. If it does so by a bare system call, the child finds out: nothing waits for
/// ever.
#[test]
fn a_parent_of_which_a_thread_executes_another_program() {
    let Some(_turn) = limited_turn_beside() else { return };
    let mut daemons = 0;
    for (mode, delay) in ["fexec", "rawexec"].into_iter().flat_map(|mode| (0..6u32).map(move |i| (mode, i * i * 60))) {
        let Some(job) = job("daemon, a thread executes", "daemonize", &format!("64 {mode} 100 {delay}")) else { return };
        let outcome = limited(&job, 32);
        // The run's status is that of what the parent executes: a daemon that finds wrong bytes begins and does not end.
        let right = match outcome.stdout.as_str() {
            "" => outcome.status == 0,
            said => said == "begun\nOK the daemon\n",
        } && !outcome.stderr.contains("FAILED");
        let stopped =
            mode == "rawexec" && outcome.status == 125 && outcome.stderr.contains(" was stopped: the parent was killed");
        daemons += u32::from(right && !outcome.stdout.is_empty());
        assert!((right || stopped) && outcome.left.is_empty(), "{mode} after {delay} us: {outcome:?}");
    }
    assert!(daemons > 0, "each parent executed its program before it had a child");
}

/// A process of the run that has another session and no parent any more ends with lowtide as the program itself does.
#[test]
fn daemons_end_when_lowtide_is_killed() {
    let Some(_turn) = limited_turn() else { return };
    let Some(job) = job("daemon, lowtide killed", "daemonize", "96 twice 30000") else { return };
    let mut run = job.start_limited(&Limit { ram: 40 * MIB, swap: Swap::Default });
    let lowtide = run.session;
    let daemons = || proc::all().into_iter().filter(|p| p.name == "daemonize" && !p.is_zombie()).count();
    assert!(run.wait_until(|_| Gauges::of(lowtide).is_some_and(|gauges| gauges.active().count() == 1) && daemons() == 1));
    run.kill();
    let outcome = run.finish();
    assert_eq!((outcome.stdout.as_str(), daemons()), ("", 0), "{outcome:?}");
}

#[test]
fn a_parent_that_is_killed_at_every_point_of_the_fork() {
    let Some(_turn) = limited_turn_beside() else { return };
    let (mut right, mut stopped, mut none) = (0, 0, 0);
    // In steps of a quarter, from before the fork to when its child is whole: how long that takes is the machine's affair.
    let mut delay = 0;
    while right < 3 && delay < 10_000_000 {
        let Some(job) = job("killed fork", "killed_fork", &format!("64 {delay}")) else { return };
        let outcome = limited(&job, 32);
        assert!(outcome.left.is_empty(), "after {delay} us: {outcome:?}");
        let begun = outcome.stdout.contains("begun");
        let message = outcome.stderr.contains("was stopped: ");
        match (begun, outcome.stdout.contains("OK the child"), message) {
            (_, true, false) => right += 1,
            (_, false, true) => {
                stopped += 1;
                assert_eq!(outcome.status, 125, "{outcome:?}");
            }
            (false, false, false) => none += 1,
            _ => panic!("after {delay} us: {outcome:?}"),
        }
        delay += 50.max(delay / 4);
    }
    say(&format!("  killed forks: {right} children right, {stopped} runs stopped with a message, {none} without a child"));
    assert!(right == 3);
}

/// Natively, and under a limit of so many MiB, where it ends well and leaves nobody behind. None: only natively, or not at all.
fn ends_well_both_ways(name: &str, program: &str, arguments: &str, ram_mib: u64) -> Option<Outcome> {
    let job = job(name, program, arguments)?;
    let native = job.native();
    assert!(ends_well(&native), "{native:?}");
    if native_only() {
        return None;
    }
    let outcome = limited(&job, ram_mib);
    assert!(ends_well(&outcome) && outcome.left.is_empty(), "{outcome:?}");
    Some(outcome)
}

#[test]
fn a_child_that_is_stopped_holds_up_nobody() {
    let Some(_turn) = turn_beside() else { return };
    let Some(outcome) = ends_well_both_ways("stopped child", "stopped_child", "64", 40) else { return };
    assert!(outcome.stat("evictions.pages") > 1000.0, "{}", outcome.stats);
    assert!(outcome.stderr.contains("a forked child was brought in whole"), "{}", outcome.stderr);
}

/// It is waited for: all of its memory would be far more than the limit.
#[test]
fn a_child_that_gets_hardly_any_cpu() {
    let Some(_turn) = turn() else { return };
    let Some(outcome) = ends_well_both_ways("starved child", "starved_child", "160", 40) else { return };
    assert!(!outcome.stderr.contains("brought in whole"), "{}", outcome.stderr);
    assert!(outcome.peak < 64 * MIB, "{} MiB", outcome.peak >> 20);
}

/// Its parent has given it all of its memory, and is gone before it wakes.
#[test]
fn a_child_that_is_stopped_until_its_parent_is_gone() {
    let Some(_turn) = limited_turn_beside() else { return };
    let Some(job) = job("stopped child, parent gone", "stopped_child", "64 leaves") else { return };
    let outcome = limited(&job, 40);
    assert!(outcome.status == 0 && outcome.stdout.contains("OK the child") && outcome.left.is_empty(), "{outcome:?}");
}

/// Children in which lowtide can't work, or has not what it needs: they get all of their memory at once, and nothing ends.
fn hindered(how: &str, is_limited: bool) {
    let Some(_turn) = turn() else { return };
    let Some(outcome) = ends_well_both_ways(&format!("hindered child, {how}"), "fork_hindered", &format!("48 {how}"), 32)
    else {
        return;
    };
    assert!(outcome.stat("evictions.pages") > 1000.0, "{}", outcome.stats);
    assert_eq!(outcome.stderr.contains("was brought in whole"), !is_limited, "{}", outcome.stderr);
}

#[test]
fn a_child_without_proc() {
    hindered("root", false);
}

#[test]
fn a_child_that_can_start_no_thread() {
    hindered("threads", false);
}

#[test]
fn a_child_that_can_open_nothing() {
    hindered("files", false);
}

/// The fork event brings a descriptor, for which there is no number: the run ends with a message, and nothing hangs.
#[test]
fn a_program_without_descriptors() {
    let Some(_turn) = limited_turn() else { return };
    let Some(job) = job("forks without descriptors", "fork_hindered", "48 limit") else { return };
    let outcome = limited(&job, 32);
    assert!(outcome.status == 125 && outcome.left.is_empty(), "{outcome:?}");
    assert!(outcome.stderr.contains("there is no descriptor left for it"), "{}", outcome.stderr);
}

#[test]
fn signals_during_forks() {
    let Some(_turn) = turn() else { return };
    ends_well_both_ways("fork signals", "fork_signals", "48 60", 32);
}

/// A handler that leaves fork by siglongjmp finds the gate open again.
#[test]
fn a_jump_out_of_a_fork() {
    let Some(_turn) = limited_turn() else { return };
    let Some(job) = job("jump out of fork", "fork_longjmp", "48 20") else { return };
    let outcome = limited(&job, 40);
    assert!(ends_well(&outcome) && outcome.left.is_empty(), "{outcome:?}");
    assert!(!outcome.stderr.contains(" 0 jumps") && !outcome.stderr.starts_with("0 jumps"), "{}", outcome.stderr);
}

/// What children that are gone had of a swap file is given out again: a file that is large enough without forks is large enough
/// with them.
#[test]
fn a_hundred_forks_leave_no_slots_behind() {
    let Some(_turn) = limited_turn() else { return };
    let run = |forks: usize| {
        let job = job(&format!("churn {forks} forks"), "fork_churn", &format!("48 {forks}"))?;
        let dir = format!("dir:{},size=192M", job.directory.display());
        let options = ["--swap", &dir, "--pool", "0"].map(str::to_owned).to_vec();
        let limit = Limit { ram: 28 * MIB, swap: Swap::Options(options) };
        let outcome = job.limited(&limit);
        assert!(ends_well(&outcome) && outcome.left.is_empty(), "{outcome:?}");
        assert_eq!(outcome.stats["warnings"], serde_json::json!([]), "{}", outcome.stderr);
        outcome.stats["areas"][0]["used"].as_u64()
    };
    let (Some(none), Some(hundred)) = (run(0), run(100)) else { return };
    say(&format!("  used after 100 forks: {} KiB, after none {} KiB", hundred >> 10, none >> 10));
    assert!(hundred < none + 8 * MIB, "{hundred} bytes used after 100 forks, {none} after none");
}
