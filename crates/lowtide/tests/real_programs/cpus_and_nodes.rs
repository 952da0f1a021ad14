//! The CPUs that a process may use change while it runs, and its memory is to be on certain nodes. (With one node that is where
//! it is anyway; `tests/vm/vm` has guests of two: `NODES=2`.)

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use lowtide_config::proc;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::cgroup::Cgroup;
use crate::check::{Data, Growth, compare, ends_well};
use crate::handlers;
use crate::machine::{native_only, say, skip, turn};
use crate::measure::{Job, Limit, Running, Swap};
use crate::programs::job;

const LIMIT: Limit = Limit { ram: 24 << 20, swap: Swap::Ram };
/// lowtide looks once a second which CPUs there are.
const LOOKS: Duration = Duration::from_millis(2500);

/// The CPUs of this test, if there are two at least; and threads that wait for pages on whatever CPU they are.
fn on_several_cpus(name: &str) -> Option<(BTreeSet<usize>, Job)> {
    let cpus = handlers::own_cpus();
    if cpus.len() < 2 {
        skip("there is one CPU");
        return None;
    }
    let (threads, [variable, monitor]) = (cpus.len() * 2, handlers::NEEDED);
    Some((cpus, job(name, "pinned", &format!("48 {threads}"))?.env(variable, monitor))).filter(|_| !native_only())
}

/// Waits until the handlers of a run are on all of these CPUs and no others, each on its own (or those of its group).
fn follow(run: &mut Running, cpus: &BTreeSet<usize>) -> Vec<BTreeSet<usize>> {
    let mut seen = Vec::new();
    run.wait_until(|run| {
        seen = handlers::of(run.session);
        let are_apart = cpus.len() == 1 || seen.iter().all(|handler| handler.len() <= cpus.len().div_ceil(16));
        seen.iter().flatten().copied().collect::<BTreeSet<usize>>() == *cpus && are_apart
    });
    seen
}

fn ends(run: Running, job: &Job) {
    fs::write(job.directory.join("go"), "").expect("written");
    let outcome = run.finish();
    assert!(ends_well(&outcome) && outcome.left.is_empty() && outcome.stat("evictions.pages") > 1000.0, "{outcome:?}");
}

/// All of a program's threads are sent to one CPU, lowtide's among them (`taskset -a`), and may use all again.
#[test]
fn handlers_follow_the_cpus_of_a_process() {
    let Some(_turn) = turn() else { return };
    let Some((cpus, job)) = on_several_cpus("CPUs of a process") else { return };
    let mut run = job.start_limited(&LIMIT);
    follow(&mut run, &cpus);
    let send = |run: &Running, cpus: &BTreeSet<usize>| {
        let mut set = CpuSet::new();
        cpus.iter().for_each(|cpu| set.set(*cpu));
        let program = proc::of_session(run.session).into_iter().filter(|p| p.name == "pinned");
        for thread in program.flat_map(|p| proc::threads(p.pid).unwrap_or_default()) {
            // One that has just ended needs none.
            let _ = sched_setaffinity(Pid::from_raw(thread as i32), &set);
        }
    };
    let one = cpus.iter().copied().skip(1).take(1).collect();
    send(&run, &one);
    std::thread::sleep(LOOKS);
    assert_eq!(handlers::of(run.session).into_iter().collect::<BTreeSet<_>>(), BTreeSet::from([one]));
    send(&run, &cpus);
    let seen = follow(&mut run, &cpus);
    assert_eq!(seen.iter().flatten().copied().collect::<BTreeSet<usize>>(), cpus, "{seen:?}");
    assert!(seen.iter().all(|handler| handler.len() <= cpus.len().div_ceil(16)), "each is to be on its own again: {seen:?}");
    ends(run, &job);
}

/// A run begins with one CPU of a control group, gets more, and then has another one.
#[test]
fn handlers_follow_a_cpuset() {
    let Some(_turn) = turn() else { return };
    let Some((cpus, job)) = on_several_cpus("a cpuset") else { return };
    let list = |cpus: &BTreeSet<usize>| cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let [first, second] = [0, 1].map(|i| cpus.iter().copied().skip(i).take(1).collect::<BTreeSet<usize>>());
    let Some(cgroup) = Cgroup::of_cpus(&list(&first)) else { return };
    let Some(job) = cgroup.around(job) else { return };
    let mut run = job.start_limited(&LIMIT);
    for now in [first, cpus, second] {
        assert!(cgroup.set("cpuset.cpus", &list(&now)));
        let seen = follow(&mut run, &now);
        assert_eq!(seen.iter().flatten().copied().collect::<BTreeSet<usize>>(), now, "{seen:?}");
        // It goes on there.
        std::thread::sleep(LOOKS);
    }
    ends(run, &job);
}

fn has_nodes() -> bool {
    let has = Path::new("/sys/devices/system/node/node0").exists();
    if !has {
        skip("the kernel knows no nodes");
    }
    has
}

/// What a program has bound to a node by mbind is there each time that it comes back, and so is all of one that was started
/// with such a policy (numactl).
#[test]
fn memory_that_is_bound_to_a_node_comes_back_there() {
    let Some(_turn) = turn() else { return };
    if !has_nodes() {
        return;
    }
    for way in ["bound", "process"] {
        let Some(job) = job(&format!("policies, {way}"), "policies", &format!("{way} 96 3")) else { return };
        compare(&job, Growth::Existing, Data::Compressible, ends_well);
    }
}

/// Pages come in on the node of the thread that waits for them, by and large, whatever policy it has set for itself since:
/// docs/limits.md says so.
#[test]
fn pages_come_in_where_they_are_used() {
    let Some(_turn) = turn() else { return };
    if !has_nodes() {
        return;
    }
    for way in ["local", "thread"] {
        let Some(job) = job(&format!("policies, {way}"), "policies", &format!("{way} 96 3")) else { return };
        let native = job.native();
        assert!(ends_well(&native), "{native:?}");
        if native_only() {
            continue;
        }
        let outcome = job.limited(&Limit { ram: 48 << 20, swap: Swap::Ram });
        assert!(ends_well(&outcome) && outcome.stat("evictions.pages") > 1000.0, "{outcome:?}");
        let said = outcome.stderr.lines().find(|line| line.starts_with(way)).expect("it says so");
        say(&format!("  {said}"));
        let [right, looked] =
            [1, 3].map(|word| said.split(' ').nth(word).and_then(|n| n.parse::<u64>().ok()).expect("a number"));
        // Half of them, with two nodes, would be there by chance. (66 and 73 % in a guest whose four CPUs are two.)
        assert!(way == "thread" || right * 5 > looked * 3, "{said}");
    }
}
