//! Programs without hooks that grow by many small mappings: what they map is found by looking, and where they pass the limit like
//! that `lowtide run` holds their threads until there is room.

use std::time::Duration;

use lowtide_config::proc::{self, Stat};
use rustix::process::{Pid, Signal};

use crate::check::ends_well;
use crate::machine::{limited_turn, limited_turn_beside, tool};
use crate::measure::{Job, Limit, Outcome, Swap};
use crate::programs::{compiled, compiled_statically, with_musl};

const RAM: u64 = 64 << 20;
const LIMIT: Limit = Limit { ram: RAM, swap: Swap::Default };

fn right(outcome: &Outcome) {
    assert!(ends_well(outcome) && outcome.left.is_empty(), "{outcome:?}");
    assert!(outcome.stat("evictions.pages") > 10_000.0, "{}", outcome.stats);
}

/// Without being held 64 MiB came to 280 and more.
#[test]
fn what_grows_piece_by_piece_is_held() {
    let Some(_turn) = limited_turn() else { return };
    for program in [compiled_statically("grows"), with_musl("grows", false)] {
        let Some(program) = program else { return };
        let outcome = Job::new("grows", program).words("512 1 0").limited(&LIMIT);
        right(&outcome);
        assert!(outcome.peak <= 2 * RAM, "{outcome:?}");
    }
}

/// Of four threads each may touch something before the last of them is held. (344 MiB where none is.)
#[test]
fn threads_that_grow_are_held() {
    let Some(_turn) = limited_turn() else { return };
    let Some(program) = compiled_statically("grows") else { return };
    let outcome = Job::new("grows, threads", program).words("512 4 0").limited(&LIMIT);
    right(&outcome);
    assert!(outcome.peak <= RAM * 5 / 2, "{outcome:?}");
}

/// Whether `lowtide run` has the thread that holds while it runs a program.
fn has_holder(program: std::path::PathBuf) -> bool {
    let mut run = Job::new("grows, holder", program).words("256 1 0").start_limited(&LIMIT);
    let mut names = std::collections::BTreeSet::new();
    run.wait_until(|run| {
        let threads = proc::threads(run.session).unwrap_or_default();
        names.extend(threads.into_iter().filter_map(|thread| Some(Stat::of_thread(run.session, thread)?.name)));
        false
    });
    let outcome = run.finish();
    assert!(ends_well(&outcome), "{outcome:?}");
    names.contains("lowtide-hold")
}

/// A program with hooks waits by itself.
#[test]
fn only_where_there_are_no_hooks_there_is_who_holds() {
    let Some(_turn) = limited_turn_beside() else { return };
    let (Some(without), Some(with)) = (compiled_statically("grows"), compiled("grows")) else { return };
    assert_eq!([without, with].map(has_holder), [true, false]);
}

/// Each comes once, and who is stopped meanwhile is until it is continued.
#[test]
fn signals_to_who_is_held() {
    let Some(_turn) = limited_turn_beside() else { return };
    let Some(program) = compiled_statically("grows") else { return };
    for threads in [1, 4] {
        right(&Job::new("grows, signals", &program).words(&format!("512 {threads} 3000")).limited(&LIMIT));
    }
}

/// It is let go with `lowtide run`'s end, and ends; and goes on when that is continued.
#[test]
fn lowtide_run_is_stopped_and_killed_while_it_holds() {
    let Some(_turn) = limited_turn_beside() else { return };
    let Some(program) = compiled_statically("grows") else { return };
    let job = || Job::new("grows, run stopped", &program).words("1024 2 0");
    let signals = |run: &crate::measure::Running, signal, ms| {
        let lowtide = Pid::from_raw(run.session as i32).expect("a pid");
        rustix::process::kill_process(lowtide, signal).expect("sent");
        std::thread::sleep(Duration::from_millis(ms));
    };
    let run = job().start_limited(&LIMIT);
    std::thread::sleep(Duration::from_millis(200));
    for _ in 0..10 {
        signals(&run, Signal::STOP, 30);
        signals(&run, Signal::CONT, 30);
    }
    right(&run.finish());
    for step in 1..6 {
        let mut run = job().start_limited(&LIMIT);
        std::thread::sleep(Duration::from_millis(200 + 50 * step));
        run.kill();
        let outcome = run.finish();
        assert!(outcome.status == 128 + 9 && outcome.left.is_empty(), "{outcome:?}");
    }
}

/// At any time of it.
#[test]
fn who_is_held_is_killed() {
    let Some(_turn) = limited_turn_beside() else { return };
    let (Some(program), Some(timeout)) = (compiled_statically("grows"), tool("timeout")) else { return };
    for step in 2..7 {
        let job = Job::new("grows, killed", &program).words("4096 2 0");
        let outcome = job.behind(timeout.clone(), &["-s", "KILL", &format!("0.{step}")]).limited(&LIMIT);
        assert!(outcome.status == 137 && outcome.left.is_empty(), "{outcome:?}");
    }
}
