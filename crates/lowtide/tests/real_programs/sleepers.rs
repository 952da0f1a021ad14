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
/// Naps double from 5 ms to the longest, which is some 14 s for so many.
const SETTLES: Duration = Duration::from_secs(12);
const WATCHED: Duration = Duration::from_secs(6);
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
    // The last is `lowtide run`.
    let all = || ["sleep", "sleeps", "lowtide"].map(|name| seen(&run, name));
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
        "  sleepers: {:.2} wakes a second of a small one, {:.1} of the one that is registered; the small ones together take \
         {:.2} % of a CPU, the registered one {:.2} %, lowtide run {:.2} %",
        rates[0], rates[1], cpu[0], cpu[1], cpu[2]
    ));
    fs::write(job.directory.join("go"), "").expect("written");
    let outcome = run.finish();
    assert_eq!([before, after].map(|seen| seen.map(|s| s.processes)), [[SLEEPERS, 1, 1]; 2], "{outcome:?}");
    assert!(outcome.stdout.starts_with("OK") && outcome.stat("evictions.pages") > 1000.0, "{outcome:?}");
    // Two context switches a wake at most: it is woken, and sleeps again.
    assert!(rates[0] < 0.5, "each small process wakes {:.2} times a second", rates[0]);
    assert!(rates[1] < MOST_WAKES, "a registered one in which nothing happens wakes {:.1} times a second", rates[1]);
}
