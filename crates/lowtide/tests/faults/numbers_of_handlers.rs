//! Other numbers of fault handler threads than a process would have on this machine: what many CPUs make of them is seen on few.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use lowtide_core::faults::{Fault, Faults, Op};

use crate::gauges::{Gauges, own_tables};
use crate::measure::{Limit, Outcome, Swap};
use crate::programs::job;
use crate::run::Plan;
use crate::{handlers, machine};

/// A run of a program with so many handlers at first and at most, ended once they are as expected, which is asked with its
/// folder; those that there were, by their CPUs.
fn run(
    program: &str,
    first: u64,
    most: u64,
    expected: impl Fn(&Path, &[BTreeSet<usize>]) -> bool,
) -> Option<(Vec<BTreeSet<usize>>, Outcome)> {
    let job = job(&format!("{program} handlers {first} {most}"), program, "48")?;
    let (directory, plan) = (job.directory.clone(), job.directory.join("plan"));
    let _plan = Plan::write(&plan, Faults::new(Op::Device, Fault::Io, u64::MAX).with_handlers(first, most));
    let [variable, monitor] = handlers::NEEDED;
    let job = job.env("LOWTIDE_FAULTS", &plan).env(variable, monitor);
    let mut run = job.start_limited(&Limit { ram: 24 << 20, swap: Swap::Ram });
    let mut seen = Vec::new();
    run.wait_until(|run| {
        seen = handlers::of(run.session);
        expected(&directory, &seen)
    });
    fs::write(directory.join("go"), "").expect("written");
    Some((seen, run.finish()))
}

/// It serves all of them, and no fault waits for one that is not there.
#[test]
fn a_handler_of_several_cpus() {
    let Some(_turn) = machine::turn() else { return };
    let Some((seen, outcome)) = run("pinned", 1, 1, |_, seen| !seen.is_empty()) else { return };
    assert!(outcome.status == 0 && outcome.stdout.starts_with("OK"), "{outcome:?}");
    assert_eq!(seen, [handlers::own_cpus()]);
    // Most come with others, ahead.
    assert!(outcome.stat("pages.loaded") > 6_000.0 && outcome.stat("faults.total") > 50.0, "{}", outcome.stats);
}

/// One at first, and the others when threads fault on their CPUs.
#[test]
fn handlers_start_where_threads_wait() {
    let Some(_turn) = machine::turn() else { return };
    let cpus = handlers::own_cpus();
    let each = cpus.len().min(16);
    let Some((seen, outcome)) = run("pinned", 1, 16, |_, seen| seen.len() == each) else { return };
    assert!(outcome.status == 0 && outcome.stdout.starts_with("OK"), "{outcome:?}");
    assert_eq!(seen.len(), each, "{seen:?}");
    assert_eq!(seen.into_iter().flatten().collect::<BTreeSet<usize>>(), cpus);
}

/// A program of one thread, wherever that runs, waits for one page at a time: it has no more than it began with.
#[test]
fn one_thread_has_no_handler_on_each_cpu() {
    let Some(_turn) = machine::turn() else { return };
    let Some((seen, outcome)) = run("wanders", 1, 16, |directory, _| directory.join("ready").exists()) else { return };
    assert!(outcome.status == 0 && outcome.stdout.starts_with("OK"), "{outcome:?}");
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert!(outcome.stat("faults.total") > 50.0, "{}", outcome.stats);
}

/// Before the first burst of faults: 64 processes that are compiled on 64 CPUs take their limit for what they compile.
#[test]
fn little_is_lowtides_own_on_64_cpus() {
    let Some(_turn) = machine::turn() else { return };
    let Some(job) = job("64 CPUs", "sleeps", "29 t") else { return };
    let plan = job.directory.join("plan");
    let _plan = Plan::write(&plan, Faults::new(Op::Device, Fault::Io, u64::MAX).with_cpus(64));
    let (ready, go) = (job.directory.join("ready"), job.directory.join("go"));
    let mut run = job.env("LOWTIDE_FAULTS", &plan).start_limited(&Limit { ram: 32 << 20, swap: Swap::Default });
    let (mut gauges, mut bytes, mut since) = (None, 0, None);
    run.wait_until(|run| {
        gauges = gauges.take().or_else(|| Gauges::of(run.session));
        bytes = gauges.iter().flat_map(Gauges::active).map(|(_, process)| own_tables(process)).sum();
        if bytes > 0 && ready.exists() {
            since.get_or_insert_with(Instant::now);
        }
        since.is_some_and(|since| since.elapsed() > Duration::from_secs(1))
    });
    fs::write(go, "").expect("written");
    let outcome = run.finish();
    assert!(outcome.status == 0 && outcome.stdout.starts_with("OK"), "{outcome:?}");
    machine::say(&format!("  64 CPUs: {} KiB of lowtide's own beside pages", bytes >> 10));
    assert!((1..=1536 << 10).contains(&bytes), "{bytes} bytes");
}
