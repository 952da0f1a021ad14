//! Programs without hooks whose threads move memory (`mremap`), make guards or free pages (`madvise`): `lowtide run` refuses these
//! calls, where a filter tells of them.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;

use crate::check::ends_well;
use crate::machine::{Turn, limited_turn, limited_turn_beside, native_only, say, turn_beside};
use crate::measure::{Job, Limit, Outcome, Swap};
use crate::programs::{compiled, compiled_statically, with_musl};
use crate::without_hooks::may_be_followed;

fn limit(mib: u64) -> Limit {
    Limit { ram: mib << 20, swap: Swap::Default }
}

pub fn exact_moves(on_or_off: &str, mib: u64) -> Limit {
    Limit { ram: mib << 20, swap: Swap::Options(vec!["--exact-moves".to_owned(), on_or_off.to_owned()]) }
}

/// The turn of a test without a native half, where lowtide may follow programs without hooks.
pub fn following_turn() -> Option<Turn> {
    let turn = limited_turn()?;
    may_be_followed().then_some(turn)
}

/// The same beside others.
pub fn following_turn_beside() -> Option<Turn> {
    let turn = limited_turn_beside()?;
    may_be_followed().then_some(turn)
}

fn job(name: &str, program: impl Into<PathBuf>, words: &str) -> Job {
    Job::new(name, program).words(words)
}

/// Runs one of them, which must end well.
fn runs(name: &str, program: PathBuf, words: &str, mib: u64) -> Outcome {
    let outcome = job(name, program, words).limited(&limit(mib));
    assert!(ends_well(&outcome) && outcome.left.is_empty(), "{outcome:?}");
    assert!(outcome.stat("evictions.pages") > 500.0, "{}", outcome.stats);
    outcome
}

/// Runs one that moves memory all the time.
fn moves(name: &str, program: PathBuf, words: &str, mib: u64) -> Outcome {
    let outcome = runs(name, program, words, mib);
    assert!(outcome.stat("work.calls_refused") > 100.0, "{}", outcome.stats);
    outcome
}

/// Of eight such runs seven were ended with a message where each thread made its own calls.
#[test]
fn threads_that_enlarge_blocks_of_their_own() {
    let Some(_turn) = following_turn_beside() else { return };
    for program in [compiled_statically("own_blocks"), with_musl("own_blocks", true), with_musl("own_blocks", false)] {
        let Some(program) = program else { return };
        for seed in 1..=3 {
            moves("own blocks without hooks", program.clone(), &format!("4 600 16 {seed}"), 24);
        }
    }
}

/// Nothing is refused to a single thread: what each call returns, to a given place as well, and what is mapped afterwards, is the same
/// natively.
#[test]
fn all_cases_of_a_program_with_one_thread() {
    let Some(_turn) = turn_beside() else { return };
    let Some(program) = compiled_statically("mremap_cases") else { return };
    let job = job("mremap without hooks", program, "64");
    let native = job.native();
    assert!(ends_well(&native), "{native:?}");
    if native_only() || !may_be_followed() {
        return;
    }
    let outcome = job.limited(&limit(32));
    assert_eq!((outcome.status, &outcome.stdout), (native.status, &native.stdout), "{}", outcome.stderr);
    assert!(outcome.stat("evictions.pages") > 500.0 && outcome.stat("work.calls_refused") == 0.0, "{}", outcome.stats);
}

/// Files are not registered.
#[test]
fn threads_may_move_mappings_of_files() {
    let Some(_turn) = following_turn_beside() else { return };
    let Some(program) = compiled_statically("file_grows") else { return };
    runs("a file that grows without hooks", program, "64", 32);
}

#[test]
fn threads_that_move_memory_beside_others() {
    let Some(_turn) = following_turn_beside() else { return };
    for program in [compiled_statically("moves"), with_musl("moves", false)] {
        let Some(program) = program else { return };
        moves("moves", program, "plain 4 800 64 48", 32);
    }
}

/// A thread that may lock more memory gets it, also where that moves; one that may not does not.
#[test]
fn locked_memory_grows_as_far_as_its_thread_may_lock() {
    let Some(_turn) = turn_beside() else { return };
    let Some(program) = compiled("locked_moves") else { return };
    let job = job("locked moves", program, "64");
    let native = job.native();
    assert!(ends_well(&native), "{native:?}");
    if native_only() {
        return;
    }
    let outcome = job.limited(&limit(32));
    assert_eq!((outcome.status, &outcome.stdout), (native.status, &native.stdout), "{}", outcome.stderr);
}

/// Where that is asked for, threads make their own calls.
#[test]
fn threads_make_their_own_calls_where_that_is_asked_for() {
    let Some(_turn) = limited_turn_beside() else { return };
    let Some(program) = compiled_statically("moves") else { return };
    let outcome = job("moves, off", program, "plain 1 50 64 48").limited(&exact_moves("off", 32));
    assert!(ends_well(&outcome) && outcome.stat("work.calls_refused") == 0.0, "{outcome:?}");
}

/// None fails with EINTR for a signal whose handler asks for restarts.
#[test]
fn signals_while_memory_is_moved() {
    let Some(_turn) = following_turn_beside() else { return };
    let Some(program) = compiled_statically("moves") else { return };
    moves("moves, signals", program.clone(), "signals 4 800 64 48", 32);
    let outcome = moves("moves, interrupts", program, "interrupts 4 800 64 48", 32);
    say(&format!("  moves, interrupts: {}", outcome.stderr.trim()));
}

/// One thread, which has nobody to meet; and a child has all that its parent had.
#[test]
fn forks_while_memory_is_moved() {
    let Some(_turn) = following_turn_beside() else { return };
    let Some(program) = compiled_statically("moves") else { return };
    for threads in [1, 4] {
        moves("moves, forks", program.clone(), &format!("forks {threads} 400 64 40"), 32);
    }
}

/// With `lowtide run` all of a run ends; while it is stopped, calls wait.
#[test]
fn lowtide_run_is_stopped_and_killed_while_memory_is_moved() {
    let Some(_turn) = following_turn_beside() else { return };
    let Some(program) = compiled_statically("moves") else { return };
    let mut run = job("moves, killed run", program, "plain 4 100000 64 48").start_limited(&limit(32));
    std::thread::sleep(Duration::from_millis(500));
    let lowtide = rustix::process::Pid::from_raw(run.session as i32).expect("a pid");
    for signal in [Signal::STOP, Signal::CONT] {
        rustix::process::kill_process(lowtide, signal).expect("sent");
        std::thread::sleep(Duration::from_millis(300));
    }
    run.kill();
    let outcome = run.finish();
    assert!(outcome.status == 128 + 9 && outcome.left.is_empty(), "{outcome:?}");
    // A call may fail so before the program is killed as well (docs/limits.md).
    let failed = |line: &&str| line.contains("FAILED") && !line.contains("(Function not implemented)");
    assert_eq!(outcome.stderr.lines().find(failed), None, "{}", outcome.stderr);
}

/// Guards drop pages without an event: what was out would be back when they are taken away.
#[test]
fn guards_are_refused() {
    let Some(_turn) = following_turn_beside() else { return };
    for program in [compiled_statically("dropped_pages"), with_musl("dropped_pages", true)] {
        let Some(program) = program else { return };
        let outcome = runs("guards without hooks", program, "guard 0 96 8", 40);
        assert!(outcome.stat("work.calls_refused") >= 8.0, "{}", outcome.stats);
    }
}

/// What is freed lazily (MADV_FREE) and written again is memory like any other: it can be evicted.
#[test]
fn pages_that_were_freed_leave_again() {
    let Some(_turn) = following_turn() else { return };
    const PAGES: usize = 24 * 256;
    for program in [compiled_statically("dropped_pages"), with_musl("dropped_pages", true)] {
        let Some(program) = program else { return };
        let outcome = runs("MADV_FREE without hooks", program, "again 24 64 4", 40);
        let there =
            outcome.stdout.lines().filter_map(|line| line.strip_suffix(" in memory")?.parse().ok()).collect::<Vec<usize>>();
        // Twice as much has been written since as there is room for. What can't be evicted is all there, each time; on a busy machine
        // a part is that could be.
        let can_leave = there.iter().all(|pages| *pages < PAGES * 9 / 10) && there.iter().any(|pages| *pages < PAGES / 4);
        assert!(there.len() == 4 && can_leave, "{there:?} of {PAGES}: {}", outcome.stderr);
    }
}
