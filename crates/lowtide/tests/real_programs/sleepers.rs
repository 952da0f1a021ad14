//! Hundreds of processes that do nothing, beside one that fills the limit: they are to cost next to nothing.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use lowtide_config::proc;
use rustix::process::Signal;

use crate::check::Growth;
use crate::machine::{limited_turn, say};
use crate::measure::{Job, Limit, Running, Swap};
use crate::programs::{compiled, compiled_statically};

const MIB: u64 = 1 << 20;
const SLEEPERS: usize = 300;
/// Naps double from 5 ms to the longest, which is some 14 s for so many.
const SETTLES: Duration = Duration::from_secs(12);
const NAPS_ARE_LONG: Duration = Duration::from_secs(4);
const WATCHED: Duration = Duration::from_secs(6);
/// A process that has done nothing for so long takes the longest naps that it may.
const STILL: Duration = Duration::from_secs(3);
/// Wakes a second of a registered process in which nothing happens.
const MOST_WAKES: f64 = 60.0;

/// What lowtide's threads have had in the processes of one name, all together.
#[derive(Clone, Copy)]
struct Seen {
    /// How often the kernel has put one to sleep or aside.
    switches: u64,
    cpu_ns: u64,
    processes: usize,
}

fn seen(run: &Running, name: &str) -> Seen {
    let mut seen = Seen { switches: 0, cpu_ns: 0, processes: 0 };
    for process in proc::of_session(run.session).iter().filter(|p| p.name == name) {
        seen.processes += 1;
        for thread in proc::threads(process.pid).unwrap_or_default() {
            let read = |file| fs::read_to_string(format!("/proc/{}/task/{thread}/{file}", process.pid)).unwrap_or_default();
            let (status, times) = (read("status"), read("schedstat"));
            if status.starts_with("Name:\tlowtide") {
                let counts = status.lines().filter_map(|line| line.split_once("ctxt_switches:\t"));
                seen.switches += counts.map(|(_, count)| count.parse::<u64>().expect("a number")).sum::<u64>();
                seen.cpu_ns += times.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).expect("the time on the CPU");
            }
        }
    }
    seen
}

/// So many processes of `sleeper`, a command, beside one that has filled so many MiB and waits for the file `go`; once that is
/// there.
fn start(name: &str, sleepers: usize, sleeper: &str, mib: u64, ram: u64) -> Option<(Running, PathBuf)> {
    let filler = compiled("sleeps")?;
    let script = format!(
        "n=0; while [ $n -lt {sleepers} ]; do {sleeper} & p=\"$p $!\"; n=$((n+1)); done; {} {mib} t; kill $p",
        filler.display()
    );
    let job = Job::new(name, "/bin/sh").args(["-c", &script]);
    let (ready, go) = (job.directory.join("ready"), job.directory.join("go"));
    let mut run = job.start_limited(&Limit { ram, swap: Swap::Default });
    assert!(run.wait_until(|_| ready.exists()), "{:?}", run.finish());
    Some((run, go))
}

#[test]
fn hundreds_of_sleepers_wake_once_in_seconds() {
    let Some(_turn) = limited_turn() else { return };
    wake_once_in_seconds("sleepers", "sleep 1000", "sleep");
}

/// Nobody counts what they map, so the kernel says when one runs.
#[test]
fn hundreds_of_static_sleepers_wake_once_in_seconds() {
    let Some(_turn) = limited_turn() else { return };
    let Some(program) = compiled_statically("pauses") else { return };
    wake_once_in_seconds("static sleepers", &program.display().to_string(), "pauses.static");
}

/// `process`: what the processes of `sleeper` are called.
fn wake_once_in_seconds(name: &str, sleeper: &str, process: &str) {
    let Some((run, go)) = start(name, SLEEPERS, sleeper, 250, 256 * MIB) else { return };
    thread::sleep(SETTLES);
    // The last is `lowtide run`.
    let all = || [process, "sleeps", "lowtide"].map(|name| seen(&run, name));
    let watch = || {
        let (before, began) = (all(), Instant::now());
        thread::sleep(WATCHED);
        let (after, seconds) = (all(), began.elapsed().as_secs_f64());
        let rates = [0, 1].map(|i| (after[i].switches - before[i].switches) as f64 / seconds / before[i].processes as f64);
        (before, after, seconds, rates)
    };
    // Whatever disturbs the registered one makes its naps short for a second or two: then once more, three times in all.
    let (before, after, seconds, rates) =
        (0..2).map(|_| watch()).find(|(.., rates)| rates[1] < MOST_WAKES).unwrap_or_else(watch);
    let cpu = [0, 1, 2].map(|i| (after[i].cpu_ns - before[i].cpu_ns) as f64 / seconds / 1e7);
    say(&format!(
        "  {name}: {:.2} wakes a second of a small one, {:.1} of the one that is registered; the small ones together take \
         {:.2} % of a CPU, the registered one {:.2} %, lowtide run {:.2} %",
        rates[0], rates[1], cpu[0], cpu[1], cpu[2]
    ));
    fs::write(go, "").expect("written");
    let outcome = run.finish();
    assert_eq!([before, after].map(|seen| seen.map(|s| s.processes)), [[SLEEPERS, 1, 1]; 2], "{outcome:?}");
    assert!(outcome.stdout.starts_with("OK") && outcome.stat("evictions.pages") > 1000.0, "{outcome:?}");
    // Two context switches a wake at most: it is woken, and sleeps again.
    assert!(rates[0] < 0.5, "each small process wakes {:.2} times a second", rates[0]);
    assert!(rates[1] < MOST_WAKES, "a registered one in which nothing happens wakes {:.1} times a second", rates[1]);
}

/// One of many that have slept for long, and that nobody counts, fills memory at once: its reclaimer is there in time.
#[test]
fn a_static_sleeper_that_wakes_up_keeps_the_limit() {
    const RAM: u64 = 128 * MIB;
    const MANY: usize = 200;
    let Some(_turn) = limited_turn() else { return };
    let Some(program) = compiled_statically("pauses") else { return };
    let sleeper = format!("{} 400 w", program.display());
    let Some((mut run, go)) = start("static sleepers, one wakes up", MANY, &sleeper, 90, RAM) else { return };
    thread::sleep(NAPS_ARE_LONG);
    let sleepers = |run: &Running| {
        proc::of_session(run.session).into_iter().filter(|p| p.name == "pauses.static" && p.is_alive()).collect::<Vec<_>>()
    };
    sleepers(&run)[0].signal(Signal::USR1);
    assert!(run.wait_until(|run| sleepers(run).len() == MANY - 1), "{:?}", run.finish());
    fs::write(go, "").expect("written");
    let outcome = run.finish();
    say(&format!("  a static sleeper that wakes up: {:.1} MiB of {} at most", outcome.peak as f64 / MIB as f64, RAM / MIB));
    assert_eq!(outcome.stdout.matches("OK").count(), 2, "{outcome:?}");
    assert!(outcome.stat("evictions.pages") > 20_000.0 && outcome.peak <= Growth::Stream.bound(RAM), "{outcome:?}");
}

/// What it maps nobody counts: when it has been still for long, the kernel is to say when it runs.
#[test]
fn a_still_program_without_hooks_that_grows_keeps_the_limit() {
    const RAM: u64 = 48 * MIB;
    let Some(_turn) = limited_turn() else { return };
    let Some(program) = compiled_statically("still") else { return };
    let job = Job::new("still", &program).words("60 t 200");
    let (ready, go) = (job.directory.join("ready"), job.directory.join("go"));
    let mut run = job.start_limited(&Limit { ram: RAM, swap: Swap::Default });
    assert!(run.wait_until(|_| ready.exists()), "{:?}", run.finish());
    thread::sleep(STILL);
    let timers = || fs::read_to_string(format!("/proc/{}/timers", run.session)).unwrap_or_default();
    let has_alarm = (0..20).any(|_| {
        thread::sleep(Duration::from_millis(50));
        timers().contains("ClockID: -")
    });
    let (before, began) = (seen(&run, "still.static"), Instant::now());
    thread::sleep(WATCHED / 3);
    let rate = (seen(&run, "still.static").switches - before.switches) as f64 / began.elapsed().as_secs_f64();
    fs::write(go, "").expect("written");
    let outcome = run.finish();
    say(&format!("  a still static program: {rate:.0} wakes a second, then {:.1} MiB", outcome.peak as f64 / MIB as f64));
    assert!(outcome.stdout.starts_with("OK") && outcome.left.is_empty(), "{outcome:?}");
    assert!(has_alarm, "nothing says when it runs");
    // The program wakes 20 times a second, which takes its reclaimer out of its nap now and then.
    assert!(rate < 3.0 * MOST_WAKES, "it wakes {rate:.0} times a second");
    assert!(outcome.peak < Growth::Stream.bound(RAM), "{outcome:?}");
}
