//! After a run nothing of it is left, however it ended: no process, no named file, no shared memory, no unnamed file that
//! someone still holds.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use lowtide_config::proc::{self, Stat};
use rustix::process::Signal;

use crate::machine::{limited_turn, native_only, turn};
use crate::measure::{Job, Limit, Outcome, Running, Swap};
use crate::programs::job;

const LIMIT: Limit = Limit { ram: 40 << 20, swap: Swap::Default };

/// A run of the program `exits`, with directories of its own for whatever lowtide makes.
struct Scene {
    job: Job,
    swap: PathBuf,
    runtime: PathBuf,
    /// Marks every process of the run, wherever it went.
    mark: String,
    before: BTreeSet<PathBuf>,
}

/// Everything in the usual places that is called after lowtide.
fn named_files() -> BTreeSet<PathBuf> {
    ["/tmp", "/var/tmp", "/dev/shm", "/run"]
        .iter()
        .flat_map(|directory| fs::read_dir(directory).into_iter().flatten().flatten())
        .filter(|entry| entry.file_name().to_string_lossy().contains("lowtide"))
        .map(|entry| entry.path())
        .collect()
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Processes that have an open file in `directory`, a file without a name included. Each thread is asked: lowtide's threads
/// have descriptors of their own.
fn holders(directory: &Path) -> Vec<u32> {
    let holds = |pid: u32| {
        let threads = proc::threads(pid).unwrap_or_default().into_iter();
        let files =
            threads.flat_map(|thread| fs::read_dir(format!("/proc/{pid}/task/{thread}/fd")).into_iter().flatten().flatten());
        let opened = files.filter_map(|file| fs::read_link(file.path()).ok()).any(|target| target.starts_with(directory));
        let mapped =
            || fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains(&*directory.to_string_lossy()));
        opened || mapped()
    };
    proc::all().iter().map(|process| process.pid).filter(|&pid| holds(pid)).collect()
}

impl Scene {
    fn new(label: &str, mode: &str) -> Option<Self> {
        let job = job(label, "exits", &format!("{mode} 128"))?;
        let (swap, runtime) = (job.directory.join("swap"), job.directory.join("runtime"));
        let mark = format!("{}-{mode}-{label}", std::process::id()).replace(' ', "_");
        for directory in [&swap, &runtime] {
            fs::create_dir(directory).expect("a directory under target/");
        }
        let job = job.env("LOWTIDE_DIR", &swap).env("XDG_RUNTIME_DIR", &runtime).env("MARK_OF_THE_RUN", &mark);
        Some(Self { job, swap, runtime, mark, before: named_files() })
    }

    /// Starts it and waits until it is over its limit and part of it lies in the swap file.
    fn start(&self) -> Running {
        let mut run = self.job.start_limited(&LIMIT);
        let patience = Instant::now() + Duration::from_secs(20);
        run.wait_until(|_| !holders(&self.swap).is_empty() || Instant::now() > patience);
        if holders(&self.swap).is_empty() {
            run.kill_all();
            panic!("no process opened a swap file in {}: {:?}", self.swap.display(), run.finish());
        }
        thread::sleep(Duration::from_millis(400));
        run
    }

    fn marked(&self) -> Vec<u32> {
        let mark = format!("MARK_OF_THE_RUN={}", self.mark);
        let is_marked = |pid: &u32| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|text| text.split(|&byte| byte == 0).any(|entry| entry == mark.as_bytes()))
        };
        proc::all()
            .iter()
            .filter(|process| !matches!(process.state, 'Z' | 'X'))
            .map(|process| process.pid)
            .filter(is_marked)
            .collect()
    }

    /// Panics unless all is clean within a moment.
    fn verify(&self, outcome: &Outcome) {
        assert!(outcome.left.is_empty(), "processes stay: {:?}", outcome.left);
        let patience = Instant::now() + Duration::from_secs(3);
        loop {
            let fresh: Vec<PathBuf> = named_files().difference(&self.before).cloned().collect();
            let found = [
                ("processes", format!("{:?}", self.marked())),
                ("holders of the swap file", format!("{:?}", holders(&self.swap))),
                ("files in the swap directory", format!("{:?}", entries(&self.swap))),
                ("files in the runtime directory", format!("{:?}", entries(&self.runtime))),
                ("named files", format!("{fresh:?}")),
            ];
            let left: Vec<_> = found.iter().filter(|(_, list)| list != "[]").collect();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < patience, "left behind: {left:?}; standard error: {}", outcome.stderr);
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The program's own process: the one that has the most anonymous memory.
fn program_of(run: &Running) -> Stat {
    let processes = proc::of_session(run.session);
    let others = processes.into_iter().filter(|process| process.pid != run.session);
    others.max_by_key(|process| proc::anonymous(process.pid)).expect("the program runs")
}

#[test]
#[ignore = "takes long: make test-long"]
fn after_a_normal_exit() {
    let Some(_turn) = limited_turn() else { return };
    let Some(scene) = Scene::new("left after exit", "main-thread") else { return };
    let outcome = scene.job.limited(&LIMIT);
    assert_eq!(outcome.status, 5, "{outcome:?}");
    scene.verify(&outcome);
}

#[test]
fn after_a_signal_of_its_own() {
    let Some(_turn) = limited_turn() else { return };
    let Some(scene) = Scene::new("left after abort", "abort") else { return };
    let outcome = scene.job.limited(&LIMIT);
    assert_eq!(outcome.status, 128 + 6, "{outcome:?}");
    scene.verify(&outcome);
}

fn after_signal_to_the_program(label: &str, signal: Signal, status: i32) {
    let Some(_turn) = turn() else { return };
    if native_only() {
        return;
    }
    let Some(scene) = Scene::new(label, "wait") else { return };
    let run = scene.start();
    program_of(&run).signal(signal);
    let outcome = run.finish();
    assert_eq!(outcome.status, status, "{outcome:?}");
    scene.verify(&outcome);
}

#[test]
fn after_sigterm_to_the_program() {
    after_signal_to_the_program("left after SIGTERM", Signal::TERM, 128 + 15);
}

#[test]
fn after_sigkill_of_the_program() {
    after_signal_to_the_program("left after SIGKILL", Signal::KILL, 128 + 9);
}

/// lowtide itself is killed: the program can't go on without it, and nothing stays.
#[test]
fn after_sigkill_of_lowtide() {
    let Some(_turn) = limited_turn() else { return };
    let Some(scene) = Scene::new("left after SIGKILL of lowtide", "wait") else { return };
    let mut run = scene.start();
    run.kill();
    let outcome = run.finish();
    assert_eq!(outcome.status, 128 + 9, "{outcome:?}");
    // Its control socket, on which nobody listens, goes with the next command.
    let ps = Command::new(env!("CARGO_BIN_EXE_lowtide")).arg("ps").env("XDG_RUNTIME_DIR", &scene.runtime).output();
    assert!(ps.expect("lowtide starts").status.success());
    scene.verify(&outcome);
}
