//! Children: those that exec at once, those that stay, those that outlive their parent.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::check::{Data, Growth, compare, ends_well, faults, report};
use crate::gauges::{Gauges, own_tables};
use crate::machine::{limited_turn, limited_turn_beside, native_only, say, turn, turn_beside};
use crate::measure::{Job, Limit, Running, Swap};
use crate::programs::job;

/// A child that stays has as much memory again as its parent: compressed RAM alone can't hold both.
const STAYING: Data = Data::Any;

fn forks(mode: &str, arguments: &str, data: Data) {
    let Some(_turn) = turn() else { return };
    let Some(job) = job(&format!("forks, {mode}"), "forks", &format!("{mode} {arguments}")) else { return };
    // While a child shares its pages, a parent can evict nothing of them, and what it overwrites is new to it: like a stream.
    compare(&job, Growth::Stream, data, ends_well);
}

#[test]
fn fork_and_exec() {
    forks("exec", "128 40", Data::Compressible);
}

#[test]
fn spawn_and_vfork() {
    forks("spawn", "128 100", Data::Compressible);
}

#[test]
fn child_stays() {
    forks("stay", "128 3", STAYING);
}

#[test]
fn child_outlives_its_parent() {
    forks("orphan", "128", STAYING);
}

#[test]
fn fork_from_a_thread() {
    forks("thread", "128 3", STAYING);
}

#[test]
fn three_generations() {
    forks("nested", "96", STAYING);
}

#[test]
fn bare_system_calls() {
    forks("raw", "128 1", STAYING);
}

/// A program that verifies its memory ends well natively, and in 40 MiB, where much of it is evicted.
#[track_caller]
fn verified(label: &str, program: &str, arguments: &str) {
    let Some(_turn) = turn_beside() else { return };
    let Some(job) = job(label, program, arguments) else { return };
    let native = job.native();
    assert!(ends_well(&native), "{native:?}");
    if native_only() {
        return;
    }
    let outcome = job.limited(&Limit { ram: 40 << 20, swap: Swap::Default });
    assert!(ends_well(&outcome) && outcome.left.is_empty(), "{outcome:?}");
    assert!(outcome.stat("evictions.pages") > 1000.0, "{}", outcome.stats);
}

/// What the child maps where it inherited nothing is served like all of its memory.
#[test]
fn holes_in_what_is_inherited() {
    verified("forks, holes", "fork_holes", "64");
}

/// Who forks by a bare system call gives the child what is out, and that lies anywhere.
#[test]
fn what_is_out_among_other_pages() {
    verified("forks, scattered", "fork_scattered", "64");
}

/// Threads hold malloc's locks while they change mappings, and a fork takes these locks: neither waits for the other for ever.
#[test]
fn beside_threads_that_allocate() {
    verified("forks, beside malloc", "fork_malloc", "4 60 48");
}

/// Children and parent together stay under the limit: each page that they share counts once, and the copies as they arise.
/// Both write what they share as fast as they can: the kernel copies it, and nobody can make them wait, as with a stream of new
/// mappings.
fn counted(label: &str, program: &str, arguments: &str, percent: u64, growth: Growth) {
    let Some(_turn) = turn() else { return };
    let Some(job) = job(label, program, arguments).map(Job::with_forks) else { return };
    let native = job.native();
    assert!(ends_well(&native), "{label}: the native run is unsound: {native:?}");
    say(&format!("  {label:<28} native {} MiB, {:.2} s", native.peak >> 20, native.elapsed.as_secs_f64()));
    if native_only() {
        return;
    }
    let limit = Limit { ram: native.peak / 100 * percent, swap: Swap::Default };
    let limited = job.limited(&limit);
    report(&job, &limit, &native, &limited);
    let faults = faults(&native, &limited, &limit, growth);
    assert!(faults.is_empty(), "{label}: {faults:?}\n{}", limited.stderr);
    assert!(limited.samples > 5, "only {} samples", limited.samples);
}

/// 80 equal processes, none of which has more than an 80th of all.
#[test]
#[ignore = "takes long: make test-long"]
fn workers_forked_ahead() {
    counted("forks, workers", "prefork", "96 80 4 2", 70, Growth::Forks);
}

#[test]
fn child_that_stays_is_counted() {
    counted("forks, stay, counted", "forks", "stay 128 3", 60, Growth::Copies);
}

/// The parent loads, forks and goes; all that is left is the child's.
#[test]
fn child_that_outlives_its_parent_is_counted() {
    counted("forks, orphan, counted", "forks", "orphan 128", 60, Growth::Copies);
}

/// What so many share can't be evicted, and a limit that is lowered meanwhile can't be held: until they are gone.
#[test]
fn a_limit_that_many_children_are_in_the_way_of() {
    let Some(_turn) = limited_turn_beside() else { return };
    let Some(job) = job("forks, many that leave", "children_leave", "96 12 52") else { return };
    let mut run = job.start_limited(&Limit { ram: 128 << 20, swap: Swap::Default });
    let forked = job.directory.join("forked");
    assert!(run.wait_until(|_| forked.exists()), "they don't come");
    let lowered = Command::new(env!("CARGO_BIN_EXE_lowtide"))
        .args(["limit", "--no-wait", &run.session.to_string(), "48M"])
        .output()
        .expect("lowtide limit");
    assert!(lowered.status.success(), "{lowered:?}");
    fs::write(job.directory.join("go"), "").expect("written");
    let outcome = run.finish();
    assert!(ends_well(&outcome), "{outcome:?}");
}

/// What lowtide has but for the program's pages in the process whose pid is in the file `name`, which is removed then.
fn tables_of(run: &mut Running, job: &Job, name: &str) -> u64 {
    let file = job.directory.join(name);
    assert!(run.wait_until(|_| file.exists()), "no generation has come so far");
    let pid: u32 = fs::read_to_string(&file).expect("read").parse().expect("a pid");
    let gauges = Gauges::of(run.session).expect("a segment");
    let mut bytes = None;
    // It is measured ten times a second.
    let since = Instant::now();
    run.wait_until(|_| {
        bytes = gauges.active().find(|(active, _)| *active == pid).map(|(_, process)| own_tables(process));
        bytes.is_some() && since.elapsed() > Duration::from_secs(1)
    });
    fs::remove_file(&file).expect("removed");
    bytes.expect("its memory is registered")
}

/// What lowtide's threads in a parent had is of no use in a child that outlives it.
#[test]
fn a_chain_of_forks_does_not_grow() {
    let Some(_turn) = limited_turn() else { return };
    let Some(job) = job("forks, chain", "fork_chain", "200 24") else { return };
    let mut run = job.start_limited(&Limit { ram: 20 << 20, swap: Swap::Default });
    let early = tables_of(&mut run, &job, "early");
    let late = tables_of(&mut run, &job, "late");
    let outcome = run.finish();
    assert!(ends_well(&outcome), "{outcome:?}");
    say(&format!("  forks, chain: own tables {} KiB in the third generation, {} KiB in the last", early >> 10, late >> 10));
    // It varies by 2 MiB; what the chain kept was 40.
    assert!(late < early + (4 << 20), "{early} bytes in the third generation, {late} in the last");
}
