//! Hundreds of processes that do nothing, beside one that fills the limit: they are to cost next to nothing.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use lowtide_config::proc;

use crate::machine::{native_only, say, turn};
use crate::measure::{Job, Limit, Running, Swap};
use crate::programs::compiled;

const MIB: u64 = 1 << 20;
const SLEEPERS: usize = 300;
/// Naps double from 5 ms to the longest, which is some 9 s for so many.
const SETTLES: Duration = Duration::from_secs(12);
const WATCHED: Duration = Duration::from_secs(6);

/// How often the kernel has put lowtide's threads in the processes of this name to sleep or aside, all together, and how many
/// such processes there are.
fn switches(run: &Running, name: &str) -> (u64, usize) {
    let processes: Vec<u32> = proc::of_session(run.session).iter().filter(|p| p.name == name).map(|p| p.pid).collect();
    let of_thread = |pid: u32, thread: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/task/{thread}/status")).unwrap_or_default();
        if !status.starts_with("Name:\tlowtide") {
            return 0;
        }
        let counts = status.lines().filter_map(|line| line.split_once("ctxt_switches:\t"));
        counts.map(|(_, count)| count.parse::<u64>().expect("a number")).sum()
    };
    let of_process =
        |pid: &u32| -> u64 { proc::threads(*pid).unwrap_or_default().into_iter().map(|thread| of_thread(*pid, thread)).sum() };
    (processes.iter().map(of_process).sum(), processes.len())
}

#[test]
fn hundreds_of_sleepers_wake_once_in_seconds() {
    let Some(_turn) = turn() else { return };
    let Some(filler) = compiled("sleeps") else { return };
    if native_only() {
        return;
    }
    let script = format!(
        "n=0; while [ $n -lt {SLEEPERS} ]; do sleep 1000 & p=\"$p $!\"; n=$((n+1)); done; {} 250 t; kill $p",
        filler.display()
    );
    let job = Job::new("sleepers", "/bin/sh").args(["-c", &script]);
    let ready = job.directory.join("ready");
    let mut run = job.start_limited(&Limit { ram: 256 * MIB, swap: Swap::Default });
    assert!(run.wait_until(|_| ready.exists()), "{:?}", run.finish());
    thread::sleep(SETTLES);
    let (before, began) = (["sleep", "sleeps"].map(|name| switches(&run, name)), Instant::now());
    thread::sleep(WATCHED);
    let (after, seconds) = (["sleep", "sleeps"].map(|name| switches(&run, name)), began.elapsed().as_secs_f64());
    let rates = [0, 1].map(|i| (after[i].0 - before[i].0) as f64 / seconds / before[i].1 as f64);
    say(&format!("  sleepers: {:.2} wakes a second of a small one, {:.1} of the one that is registered", rates[0], rates[1]));
    fs::write(job.directory.join("go"), "").expect("written");
    let outcome = run.finish();
    assert_eq!((before.map(|b| b.1), after.map(|a| a.1)), ([SLEEPERS, 1], [SLEEPERS, 1]), "{outcome:?}");
    assert!(outcome.stdout.starts_with("OK") && outcome.stat("evictions.pages") > 1000.0, "{outcome:?}");
    // Two context switches a wake at most: it is woken, and sleeps again.
    assert!(rates[0] < 0.5, "each small process wakes {:.2} times a second", rates[0]);
    assert!(rates[1] < 60.0, "a registered one in which nothing happens wakes {:.1} times a second", rates[1]);
}
