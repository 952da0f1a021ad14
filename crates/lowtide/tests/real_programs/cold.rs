//! A program that leaves its memory alone for a while: what is in compressed RAM gets smaller while a CPU has nothing else to
//! do, and is what it was.

use std::fs;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::check::ends_well;
use crate::gauges::Gauges;
use crate::machine::{limited_turn, say};
use crate::measure::{Job, Limit, Swap};
use crate::programs::job;

const MIB: u64 = 1 << 20;
/// How long to wait for lowtide to have nothing more to do.
const PATIENCE: Duration = Duration::from_secs(90);
/// On a machine without a free CPU, nothing comes of waiting.
const BUSY_PATIENCE: Duration = Duration::from_secs(15);
/// Nothing more is to do when nothing was done for longer than a round of the hand takes.
const STEADY: Duration = Duration::from_secs(7);
/// So many looks at the machine must have found a free CPU before it counts that nothing was done.
const LOOKS: usize = 1000;

#[derive(Default, Debug)]
struct Seen {
    /// Bytes of objects, at most, and pages compressed again, at last, with bytes of objects then.
    most_stored: u64,
    recompressed: u64,
    stored: u64,
    looks_with_free_cpu: usize,
}

fn is_cpu_free() -> bool {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let running = text.split_whitespace().nth(3).and_then(|field| field.split('/').next()?.parse::<usize>().ok());
    // This thread runs too.
    running.is_some_and(|running| running < cpus)
}

/// Starts the program, watches it while it sleeps, and wakes it.
fn watch(job: &Job, options: &[&str]) -> Seen {
    let limit = Limit { ram: 40 * MIB, swap: Swap::Options(options.iter().map(|o| (*o).to_owned()).collect()) };
    let (ready, go) = (job.directory.join("ready"), job.directory.join("go"));
    for file in [&ready, &go] {
        let _ = fs::remove_file(file);
    }
    let mut run = job.start_limited(&limit);
    let (mut seen, mut gauges, mut asleep) = (Seen::default(), None, None);
    let mut changed = Instant::now();
    let watched = run.wait_until(|run| {
        gauges = gauges.take().or_else(|| Gauges::of(run.session));
        let Some((_, process)) = gauges.as_ref().and_then(|gauges: &Gauges| gauges.active().next()) else { return false };
        if !ready.exists() {
            return false;
        }
        seen.stored = process.pool_stored_bytes.load(Ordering::Relaxed);
        seen.most_stored = seen.most_stored.max(seen.stored);
        let pages = process.counters.recompressed_pages.load(Ordering::Relaxed);
        if pages != seen.recompressed || asleep.is_none() {
            (seen.recompressed, changed) = (pages, Instant::now());
        }
        seen.looks_with_free_cpu += usize::from(is_cpu_free());
        let since = *asleep.get_or_insert_with(Instant::now);
        // On a busy machine it may take its time to begin, and pause.
        let patience = if seen.looks_with_free_cpu == 0 { BUSY_PATIENCE } else { PATIENCE };
        since.elapsed() > patience || seen.looks_with_free_cpu >= LOOKS && changed.elapsed() > STEADY
    });
    let _ = fs::write(&go, "");
    let outcome = run.finish();
    assert!(watched && ends_well(&outcome), "{outcome:?}");
    assert_eq!(outcome.stat("pages.recompressed"), seen.recompressed as f64, "{}", outcome.stats);
    seen
}

#[test]
#[ignore = "takes long: make test-long"]
fn memory_that_nobody_wants_is_compressed_again() {
    let Some(_turn) = limited_turn() else { return };
    let Some(job) = job("cold memory", "sleeps", "96 zwtt") else { return };
    for options in [&["--swap", "ram"][..], &["--swap", "dir:/var/tmp,size=256M"], &["--swap", "ram", "--codec", "zstd:1"]] {
        let seen = watch(&job, options);
        say(&format!("  cold memory, {options:?}: {seen:?}"));
        if options.contains(&"zstd:1") {
            assert_eq!(seen.recompressed, 0, "it is packed as tight already");
        } else if seen.looks_with_free_cpu >= LOOKS {
            assert!(seen.recompressed > 5000, "{seen:?}");
            assert!(seen.stored < seen.most_stored - seen.most_stored / 8, "{seen:?}");
        } else {
            assert!(std::env::var_os("CI").is_none(), "no CPU was ever free: {seen:?}");
            say("  cold memory: not tested, no CPU is free");
        }
    }
}
