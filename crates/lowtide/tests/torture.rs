//! The torture program (tests/programs/torture): natively, which proves that it knows what memory must hold, and in runs whose
//! limit and swap areas change all the while.
//!
//! `TORTURE_SECONDS` says how long (15), `LOWTIDE_SEED` repeats what was chosen. When a round fails, its line says how it is
//! run by hand.

mod live;
mod progress;

use live::{MIB, Run, Scene, go_program, musl_program, program, static_program, turn};
use progress::Progress;
use rustix::process::{Pid, Signal};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

const THREADS: u64 = 4;
/// What each thread has at most.
const MIB_EACH: u64 = 24;
const ALL_MIB: u64 = THREADS * MIB_EACH;
/// How long a round takes.
const ROUND: u64 = 20;
const SHORTEST_ROUND: u64 = 5;
/// How much longer it may take: at the end all pages are looked at, in as little memory as there may be by then. (Beside ten busy
/// programs 90 s were not enough once in 60 rounds.)
const PATIENCE: Duration = Duration::from_secs(300);

/// What the program is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Of C, with the hooks of memory calls. The others have none.
    Hooked,
    Static,
    Musl,
    /// Another program of the same kind.
    Go,
}

impl Kind {
    fn program(self) -> PathBuf {
        match self {
            Kind::Hooked => program("torture"),
            Kind::Static => static_program("torture"),
            Kind::Musl => musl_program("torture"),
            Kind::Go => go_program("torture"),
        }
    }
}

fn seconds(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number of seconds")))
}

/// What the threads of a run that hangs are doing.
fn threads(pids: &[u32]) -> String {
    pids.iter().map(|pid| lowtide_config::proc::describe_threads(*pid)).collect()
}

/// Changes the run until its time is over.
fn change(scene: &Scene, run: &mut Run, random: &mut fastrand::Rng, areas: &[String; 3], until: Instant) -> [u32; 3] {
    // Limits, areas on, areas off.
    let mut done = [0; 3];
    while Instant::now() < until && run.is_alive() {
        thread::sleep(Duration::from_millis(random.u64(50..900)));
        let pid = run.pid;
        let (which, words) = match random.u32(..8) {
            0..3 => (0, format!("limit {pid} {}M", random.u64(ALL_MIB / 4..ALL_MIB))),
            3 => (0, format!("reclaim {pid} {}M", random.u64(1..ALL_MIB / 4))),
            4..6 => (1, format!("swapon {pid} {}", areas[random.usize(..3)])),
            _ => (2, format!("swapoff {pid} {}", areas[random.usize(..3)])),
        };
        let mut command = scene.lowtide();
        let client =
            command.args(words.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
        if which == 2 && random.u32(..3) == 0 {
            thread::sleep(Duration::from_millis(random.u64(..120)));
            let _ = rustix::process::kill_process(Pid::from_raw(client.id() as i32).expect("a pid"), Signal::INT);
        }
        let output = client.wait_with_output().expect("waited for");
        let line = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => done[which] += 1,
            // Refused, cancelled, or the run has ended; which of them is decided, the other tests say.
            Some(1 | 2 | 130) => assert!(line.starts_with("lowtide: ") && line.matches('\n').count() == 1, "{words}: {line}"),
            None if which == 2 => {}
            code => panic!("{words}: {code:?}: {line}"),
        }
    }
    done
}

/// What ends programs without hooks: see docs/limits.md. In 25 runs of 15 s it was one.
const CANT_TELL: &str = "was stopped: memory was moved (mremap) while the program forked";
/// Rounds that may end so for each that does not.
const MOST_ENDED: u32 = 2;

/// One run of the program, all of it chosen by the seed. False: it was ended with [`CANT_TELL`].
fn round(program: &Path, has_hooks: bool, seed: u64, seconds: u64) -> bool {
    let mut random = fastrand::Rng::with_seed(seed);
    let scene = Scene::new();
    let areas = [scene.swap_dir("a"), scene.swap_dir("b"), scene.swap_file("c", 512 * MIB)];
    let ram = ALL_MIB * random.u64(25..=40) / 100;
    let swap = match random.u32(..4) {
        0 => "--swap ram".to_owned(),
        1 => String::new(),
        2 => format!("--pool {}M --swap {}", random.u64(1..8), areas[0]),
        _ => format!("--pool {}M --swap {} --swap {},prio=5", random.u64(4..ram), areas[0], areas[2]),
    };
    let codec = if random.u32(..4) == 0 { "--codec zstd" } else { "" };
    let options = format!("--quiet --ram {ram}M {swap} {codec} --stats stats.json");
    let arguments = format!("--seed {seed} --threads {THREADS} --seconds {seconds} --mib {MIB_EACH}");
    let how =
        format!("LOWTIDE_SEED={seed} TORTURE_SECONDS={seconds}: lowtide run {options} -- {} {arguments}", program.display());
    eprintln!("{how}");
    let mut run = scene.start(&options, program, &arguments).listens();
    let done = change(&scene, &mut run, &mut random, &areas, Instant::now() + Duration::from_secs(seconds));
    let Some(output) = run.ended_within(PATIENCE) else {
        panic!("{how}: it hangs\n{}", threads(&run.processes(&scene)));
    };
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    if !has_hooks && output.status.code() == Some(125) && err.contains(CANT_TELL) {
        eprintln!("  ended: {err}");
        return false;
    }
    assert!(output.status.success() && out.ends_with("\nOK\n"), "{how}: {:?}\n{out}{err}", output.status);
    assert!(err.lines().all(|line| line.starts_with("lowtide: warning: ")), "{how}: {err}");
    let stats = std::fs::read(scene.path("stats.json")).expect("statistics");
    let stats: Value = serde_json::from_slice(&stats).expect("JSON");
    let evicted = stats["evictions"]["pages"].as_u64().expect("a number");
    assert!(evicted > 1000, "{how}: only {evicted} pages were evicted: {stats}");
    let [limits, on, off] = done;
    let warnings = err.lines().count();
    eprintln!(
        "  {evicted} pages out, limits {limits}, areas on {on}, off {off}, warnings {warnings}; {}",
        out.trim().replace('\n', " | ")
    );
    true
}

fn torture(kind: Kind, all: u64, progress: Option<Progress>) {
    let Some(_turn) = turn() else { return };
    let program = kind.program();
    let given = std::env::var("LOWTIDE_SEED").ok().and_then(|text| text.parse().ok());
    let first = given.unwrap_or_else(|| fastrand::u64(1..1 << 32));
    let native = std::process::Command::new(&program)
        .args(["--seed", &first.to_string(), "--seconds", &(all / 20 + 1).to_string()])
        .current_dir("/var/tmp")
        .output()
        .expect("it starts");
    assert!(native.status.success(), "natively: {native:?}");
    let began = Instant::now();
    let (mut right, mut ended) = (0, 0);
    for seed in first.. {
        let left = all.saturating_sub(began.elapsed().as_secs());
        progress
            .iter()
            .for_each(|progress| progress.at(began.elapsed().as_secs(), format!("seconds: round {}", seed - first + 1)));
        // In less than a second or two it may not come to its limit.
        match round(&program, kind == Kind::Hooked, seed, left.clamp(SHORTEST_ROUND, ROUND)) {
            true => right += 1,
            false => ended += 1,
        }
        assert!(ended <= MOST_ENDED * (right + 1), "{ended} rounds were ended, {right} were right");
        if left < ROUND + SHORTEST_ROUND && right > 0 {
            break;
        }
    }
}

/// As long as `make soak` says; `name`: by which it tells how far it is.
fn soak(kind: Kind, name: &'static str) {
    let all = seconds("SOAK_SECONDS", 300);
    torture(kind, all, Some(Progress::new(name, all)));
}

#[test]
fn every_byte_stays_right() {
    torture(Kind::Hooked, seconds("TORTURE_SECONDS", 15), None);
}

/// Without hooks.
#[test]
fn every_byte_of_a_static_program_stays_right() {
    torture(Kind::Static, seconds("TORTURE_SECONDS", 10), None);
}

#[test]
fn every_byte_of_a_program_with_musl_stays_right() {
    torture(Kind::Musl, seconds("TORTURE_SECONDS", 10), None);
}

#[test]
#[ignore = "takes long: make test-long"]
fn every_byte_stays_right_for_a_minute() {
    torture(Kind::Hooked, 60, None);
}

#[test]
#[ignore = "takes minutes: make soak"]
fn soak_every_byte_stays_right() {
    soak(Kind::Hooked, "torture");
}

#[test]
#[ignore = "takes minutes: make soak"]
fn soak_every_byte_of_a_static_program_stays_right() {
    soak(Kind::Static, "torture, static");
}

#[test]
#[ignore = "takes minutes: make soak"]
fn soak_every_byte_of_a_go_program_stays_right() {
    soak(Kind::Go, "torture, Go");
}

#[test]
#[ignore = "takes minutes: make soak"]
fn soak_every_byte_of_a_program_with_musl_stays_right() {
    soak(Kind::Musl, "torture, musl");
}
