//! What lowtide says that it takes itself is what the kernel says, while programs run.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_config::proc::{self, Stat};
use rustix::process::{Pid, Signal, kill_process};

use crate::check::{Data, ends_well, limits};
use crate::gauges::{Gauges, own};
use crate::machine::{limited_turn, limited_turn_beside, native_only, say, tool, turn};
use crate::measure::{Job, Limit, Outcome, Running, Swap};
use crate::programs::job;

const MIB: u64 = 1 << 20;

/// How far apart the two may be.
fn tolerance(bytes: u64) -> u64 {
    bytes / 50 + MIB
}

/// Private resident bytes of each of lowtide's mappings in a process, from /proc/PID/smaps: those that are left out of core
/// dumps (`dd`; the test programs have none of their own) and not shared, and the data of the agent's library. None: the process
/// is gone.
fn resident(pid: u32) -> Option<Vec<(String, u64)>> {
    // Of a process that ends meanwhile the kernel lists the first mappings only. The stack lies above all that are lowtide's.
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).ok().filter(|text| text.contains(" [stack]\n"))?;
    let mut mappings = Vec::new();
    let (mut at, mut anonymous, mut private, mut library) = ("", 0, false, false);
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next()? {
            "Anonymous:" => anonymous = words.next()?.parse::<u64>().ok()? * 1024,
            "VmFlags:" if private && anonymous > 0 && (library || words.any(|flag| flag == "dd")) => {
                mappings.push((at.to_owned(), anonymous));
            }
            "VmFlags:" => {}
            range if !range.ends_with(':') => {
                at = range;
                private = words.next()?.ends_with('p');
                library = line.contains("/memfd:lowtide-agent");
            }
            _ => {}
        }
    }
    Some(mappings)
}

/// Stops lowtide's threads in a process, wherever they are, until this is dropped. (Threads of the program that wait for a page
/// in a system call can't stop before they have it.)
struct Stopped(Pid);

impl Stopped {
    /// None: the process is gone, or does not stop within a second (in the middle of a fork its threads wait for one another).
    fn new(pid: u32) -> Option<Self> {
        let stopped = Self(i32::try_from(pid).ok().and_then(Pid::from_raw)?);
        kill_process(stopped.0, Signal::STOP).ok()?;
        let goes_on = |thread| {
            let stat = Stat::of_thread(pid, thread);
            stat.is_some_and(|stat| stat.name.starts_with("lowtide-") && !matches!(stat.state, 'T' | 'Z' | 'X'))
        };
        let until = Instant::now() + Duration::from_secs(1);
        while proc::threads(pid)?.into_iter().any(goes_on) {
            if Instant::now() > until {
                return None;
            }
            thread::sleep(Duration::from_micros(100));
        }
        Some(stopped)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// What was seen of a run.
#[derive(Default)]
struct Seen {
    samples: usize,
    /// Most bytes of lowtide's own.
    most: u64,
    /// Furthest apart.
    worst: u64,
    wrong: Vec<String>,
}

impl Seen {
    /// Compares all processes of the run. Each is stopped meanwhile: the kernel takes milliseconds to read out the mappings, in
    /// which megabytes go from one to another and would be counted twice or not at all.
    fn sample(&mut self, gauges: &Gauges) {
        for (pid, process) in gauges.active() {
            let Some(_stopped) = Stopped::new(pid) else { continue };
            let (own, Some(mappings)) = (own(process), resident(pid)) else { continue };
            let kernel = mappings.iter().map(|&(_, bytes)| bytes).sum::<u64>();
            // The process ended, or executed another program, meanwhile.
            if own == 0 || !gauges.active().any(|(p, _)| p == pid) {
                continue;
            }
            let off = own.abs_diff(kernel);
            self.samples += 1;
            self.most = self.most.max(kernel);
            self.worst = self.worst.max(off);
            if off > tolerance(kernel) {
                let get = |gauge: &AtomicU64| gauge.load(Ordering::Relaxed);
                let (staged, pool) = (get(&process.staged_bytes), get(&process.pool_bytes));
                self.wrong.push(format!(
                    "process {pid}: the kernel says {kernel}, lowtide {own} (when last told, {staged} staged, {pool} the pool): {mappings:x?}"
                ));
            }
        }
    }

    /// Watches until the run ends.
    fn watch(&mut self, run: &mut Running) {
        let mut gauges = None;
        run.wait_until(|run| {
            gauges = gauges.take().or_else(|| Gauges::of(run.session));
            let started = Instant::now();
            gauges.iter().for_each(|gauges| self.sample(gauges));
            // It goes on for longer than it was stopped.
            thread::sleep(started.elapsed() * 2);
            false
        });
    }
}

/// Runs a program at each limit and compares all the while. False: it can't be run here.
fn compare(program: &str, arguments: &str) -> bool {
    let Some(job) = job(&format!("accounting {program}"), program, arguments) else { return false };
    let native = job.native();
    if native_only() {
        return true;
    }
    for limit in limits(native.peak, Data::Compressible) {
        let mut seen = Seen::default();
        let mut run = job.start_limited(&limit);
        seen.watch(&mut run);
        let ended = run.finish();
        say(&format!(
            "  {:<28} --ram {} MiB: {} samples, own at most {:.1} MiB, furthest apart {:.2} MiB",
            job.name,
            limit.ram / MIB,
            seen.samples,
            seen.most as f64 / MIB as f64,
            seen.worst as f64 / MIB as f64,
        ));
        let (wrong, samples) = (&seen.wrong, seen.samples);
        assert!(wrong.is_empty(), "{program} {arguments}, {limit:?}: {} of {samples}: {wrong:#?}", wrong.len());
        // That the answer is the right one is what the other tests check.
        assert!(samples > 0 && seen.most > 0, "{program}, {limit:?}: {samples} samples, {ended:?}");
    }
    true
}

#[test]
#[ignore = "takes long: make test-long"]
fn own_memory_is_what_the_kernel_says() {
    let Some(_turn) = turn() else { return };
    let _ = compare("thread_mix", "4 6000 48") && compare("one_malloc", "160 ztw");
}

#[test]
#[ignore = "takes long: make test-long"]
fn a_pool_that_is_too_small_is_full_and_refuses_and_threads_wait_for_locks() {
    let Some(_turn) = limited_turn() else { return };
    let Some(job) = job("accounting, small pool", "thread_mix", "4 6000 48") else { return };
    let options = |pool: &str| ["--swap", "dir:/var/tmp,size=512M", "--pool", pool].map(str::to_owned).to_vec();
    let run = |pool| job.limited(&Limit { ram: 24 * MIB, swap: Swap::Options(options(pool)) });
    let small = run("1M");
    let ended = |outcome: &Outcome| ends_well(outcome) && outcome.stats["warnings"] == serde_json::json!([]);
    assert!(ended(&small), "{small:?}");
    let of = |outcome: &Outcome, path| outcome.stat(path);
    assert!(of(&small, "pool.full_times") > 0.0 && of(&small, "pool.refused") > 0.0, "{}", small.stats);
    // What it refused is on the device, or was, and nothing else is refused.
    assert!(of(&small, "pool.refused") <= of(&small, "evictions.pages"), "{}", small.stats);
    assert!(of(&small, "work.lock_waits") > 0.0, "{}", small.stats);
    let by_lock = small.stats["locks"].as_array().expect("a list");
    let waits: u64 = by_lock.iter().filter_map(|lock| lock["waits"].as_u64()).sum();
    assert_eq!(waits as f64, of(&small, "work.lock_waits"), "{}", small.stats);
    assert!(by_lock.iter().any(|lock| lock["lock"] == "pool shard"), "{}", small.stats);
    // Threads that wait do so for no longer than the run lasts.
    let threads = 32.0;
    assert!(of(&small, "work.lock_wait_seconds") < threads * small.elapsed.as_secs_f64(), "{}", small.stats);
}

#[test]
#[ignore = "takes minutes: make soak"]
fn soak_own_memory_is_what_the_kernel_says() {
    let Some(_turn) = turn() else { return };
    let seconds = std::env::var("SOAK_SECONDS").map_or(300, |text| text.parse().expect("SOAK_SECONDS is a number"));
    let until = Instant::now() + Duration::from_secs(seconds);
    for round in 1u64.. {
        let mix = format!("4 12000 48 {round}");
        for (program, arguments) in [
            ("thread_mix", mix.as_str()),
            ("one_malloc", "192 ztnwtn 10000"),
            ("new_mappings", "mmap 384"),
            ("forks", "stay 128 6"),
        ] {
            if Instant::now() > until || !compare(program, arguments) {
                return;
            }
        }
    }
}

/// `lowtide run` reads what a program begins with that one without hooks executes in an empty environment, and keeps nothing of it.
#[test]
fn lowtide_run_itself_stays_small() {
    let Some(_turn) = limited_turn_beside() else { return };
    let Some(shell) = tool("busybox") else { return };
    let script = "for i in 1 2 3 4 5 6; do busybox env -i /bin/sleep 0.1; done; echo OK";
    let job = Job::new("what a static shell executes", shell).args(["sh", "-c", script]);
    let mut run = job.start_limited(&Limit { ram: 48 * MIB, swap: Swap::Ram });
    let mut most = 0;
    run.wait_until(|run| {
        let supervisor = proc::Status::of(run.session);
        most = most.max(supervisor.and_then(|status| status.value("RssAnon")?.split(' ').next()?.parse().ok()).unwrap_or(0));
        false
    });
    let outcome = run.finish();
    assert!(outcome.status == 0 && outcome.stdout == "OK\n", "{outcome:?}");
    assert!((1..3 << 10).contains(&most), "{most} KiB");
}
