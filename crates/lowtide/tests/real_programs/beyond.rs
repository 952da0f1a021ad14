//! Where the limit can't be held: memory that can't be moved, and data that no tier takes. The program runs on at its own
//! speed, the user is told once, and nobody moves pages about in vain.

use std::time::Duration;

use crate::check::ends_well;
use crate::machine::{native_only, say, tool, turn};
use crate::measure::{Job, Limit, Outcome, Swap};
use crate::programs::{compiled, job};

const MIB: u64 = 1 << 20;

/// Runs a program natively and with these options; both end well.
fn run(job: &Job, ram: u64, swap: Swap) -> Option<(Outcome, Outcome)> {
    let native = job.native();
    assert!(ends_well(&native), "natively: {native:?}");
    if native_only() {
        return None;
    }
    let limited = job.limited(&Limit { ram, swap });
    say(&format!(
        "  {:<28} --ram {} MiB  native {} MiB {:.2?}; limited {} MiB {:.2?}; {} pages out, {} in",
        job.name,
        ram / MIB,
        native.peak / MIB,
        native.elapsed,
        limited.peak / MIB,
        limited.elapsed,
        limited.stat("evictions.pages"),
        limited.stat("faults.total"),
    ));
    Some((native, limited))
}

fn warnings(outcome: &Outcome) -> Vec<String> {
    let list = outcome.stats["warnings"].as_array().expect("a list");
    list.iter().map(|text| text.as_str().unwrap_or_default().to_owned()).collect()
}

/// Code that a compiler has made, for one: the little that can be moved must not be moved out and in for ever.
#[test]
fn memory_that_cant_be_moved_is_said_and_the_program_runs() {
    let Some(_turn) = turn() else { return };
    let Some(job) = job("immovable", "immovable", "160 24 40") else { return };
    let Some((native, limited)) = run(&job, 110 * MIB, Swap::Default) else { return };
    assert_eq!((limited.status, &limited.stdout), (0, &native.stdout), "{}", limited.stderr);
    let said = warnings(&limited);
    assert!(said.len() == 1 && said[0].contains("can't be moved out") && said[0].contains("110 MiB"), "{said:?}");
    // 20,000 touches of 24 MiB, of which some 7 are in memory, and the working minimum is found out in a few rounds.
    assert!(limited.stat("evictions.pages") < 60_000.0, "{}", limited.stats);
    assert!(limited.elapsed < native.elapsed * 10 + Duration::from_secs(5), "{:?}", limited.elapsed);
}

/// A stack that grows is no call and no fault that lowtide hears of.
#[test]
fn the_main_threads_stack_is_said() {
    let Some(_turn) = turn() else { return };
    let (Some(program), Some(sh)) = (compiled("deep"), tool("sh")) else { return };
    let job = Job::new("deep stack", program).words("96").around(sh, &["-c", "ulimit -s unlimited; exec \"$@\"", "sh"]);
    let Some((native, limited)) = run(&job, 48 * MIB, Swap::Default) else { return };
    assert_eq!((limited.status, &limited.stdout), (0, &native.stdout), "{}", limited.stderr);
    let said = warnings(&limited);
    assert_eq!(said.iter().filter(|line| line.contains("are the main thread's stack")).count(), 1, "{said:?}");
}

/// Noise in RAM only: there is no room for it, and that is found out once, not at each fault.
#[test]
fn a_full_pool_is_said_and_the_program_runs() {
    let Some(_turn) = turn() else { return };
    let Some(job) = job("full pool", "one_malloc", "160 n 200000") else { return };
    let Some((native, limited)) = run(&job, 96 * MIB, Swap::Ram) else { return };
    assert_eq!((limited.status, &limited.stdout), (0, &native.stdout), "{}", limited.stderr);
    let said = warnings(&limited);
    assert!(said.len() == 1 && said[0].contains("swap is full"), "{said:?}");
    let stored = limited.stat("pages.stored");
    assert!(
        limited.stat("evictions.pages") < 3.0 * stored + 20_000.0,
        "{} pages out for {stored} stored",
        limited.stat("evictions.pages")
    );
}

/// Zeros leave all the same. (The program fills its memory faster than they are found, so it passes its limit at first; by less
/// than is worth a warning.)
#[test]
fn zeros_leave_where_all_is_full() {
    let Some(_turn) = turn() else { return };
    let Some(job) = job("zeros and a full pool", "one_malloc", "160 nz 200000") else { return };
    let options = ["--swap", "ram", "--pool", "256K"].map(str::to_owned).to_vec();
    let Some((native, limited)) = run(&job, 120 * MIB, Swap::Options(options)) else { return };
    assert_eq!((limited.status, &limited.stdout), (0, &native.stdout), "{}", limited.stderr);
    assert!(warnings(&limited).iter().all(|line| line.contains("swap is full")), "{}", limited.stderr);
    let (zeros, all) = (limited.stat("pages.zero"), limited.stat("evictions.pages"));
    assert!(zeros > 20_000.0 && zeros > all / 2.0, "{zeros} pages of zeros are out, of {all}");
}

/// With RAM only the pool takes what the data need: half of the limit would not do.
#[test]
fn ram_alone_is_enough_where_half_of_it_is_not() {
    let Some(_turn) = turn() else { return };
    // Text packs 4:1 or better, noise not at all: 200 MiB become 75.
    let Some(job) = job("pool over half", "one_malloc", "200 tttn 20000") else { return };
    let Some((native, limited)) = run(&job, 110 * MIB, Swap::Ram) else { return };
    assert_eq!((limited.status, &limited.stdout), (0, &native.stdout), "{}", limited.stderr);
    assert_eq!(warnings(&limited), [""; 0]);
    assert!(limited.peak <= 110 * MIB * 21 / 20 + 16 * MIB, "{} MiB", limited.peak / MIB);
}

/// `--when-full stop` is for the limit: a pool that is full below it stops nobody.
#[test]
fn full_below_the_limit_does_not_stop_the_program() {
    let Some(_turn) = turn() else { return };
    let Some(job) = job("full below the limit", "one_malloc", "90 n 1000") else { return };
    let stop = |pool: &str| Swap::Options(["--swap", "ram", "--when-full", "stop", "--pool", pool].map(str::to_owned).to_vec());
    // It touches 90 of 96 MiB: more than the mark at which eviction begins, less than the limit.
    let Some((native, limited)) = run(&job, 96 * MIB, stop("256K")) else { return };
    assert_eq!((limited.status, &limited.stdout), (0, &native.stdout), "{}", limited.stderr);
    // Above it for seconds: also where the machine has other work, that is noticed before the program ends.
    let Some(longer) = self::job("full above the limit", "one_malloc", "90 n 4000000") else { return };
    let limited = longer.limited(&Limit { ram: 64 * MIB, swap: stop("256K") });
    assert_eq!(limited.status, 125, "{}", limited.stderr);
    assert!(limited.stderr.contains("swap is full and --when-full stop was given"), "{}", limited.stderr);
}

/// What is in the pool can go to a device: the pool must not take the program's place, nor pass the limit and be called
/// immovable.
#[test]
fn a_pool_that_a_device_relieves_keeps_within_the_limit() {
    let Some(_turn) = turn() else { return };
    let Some(job) = job("more than the pool may hold", "one_malloc", "160 t 60000") else { return };
    let Some((native, limited)) = run(&job, 32 * MIB, Swap::Default) else { return };
    assert_eq!((limited.status, &limited.stdout), (0, &native.stdout), "{}", limited.stderr);
    assert_eq!(warnings(&limited), Vec::<String>::new());
    let (peak, device) = (limited.stat("ram_peak"), limited.stat("faults.device"));
    // That a measured total is over the limit by a sixteenth is let pass.
    assert!(peak < (32 * MIB) as f64 * 7.0 / 6.0 && device > 1000.0, "{}", limited.stats);
}
