//! The fault experiment from outside: what it starts ends with it.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lowtide_config::proc::{self, Stat};
use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(60);

/// Ends when the test does, also by a failed assertion.
struct Measuring(Child);

impl Drop for Measuring {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Processes whose first argument is `burn` and which are children of `parent`, or, of the processes `known`, those that still
/// are there.
fn burners(parent: u32, known: &[u32]) -> Vec<u32> {
    let has_burn = |pid: u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        Some(words.split(|byte| *byte == 0).nth(1) == Some(b"burn"))
    };
    let burns = |process: &Stat| {
        !process.is_zombie()
            && (process.parent == parent || known.contains(&process.pid))
            && has_burn(process.pid) == Some(true)
    };
    proc::all().into_iter().filter(burns).map(|process| process.pid).collect()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what}: {:?}", began.elapsed());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn programs_that_burn_end_with_the_experiment_however_it_ends() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not tested: the experiment takes root");
        return;
    }
    // By itself, and in front of a program that it runs beside them.
    for (args, signal) in [
        (&["fault", "--quick"][..], Signal::INT),
        (&["fault", "--quick"], Signal::KILL),
        (&["beside", "2", "sleep", "100"], Signal::TERM),
        (&["beside", "2", "sleep", "100"], Signal::KILL),
    ] {
        // What was started in the background ignores SIGINT.
        let mut command = Command::new("env");
        command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_lowtide-lab")]).args(args);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut measuring = Measuring(command.spawn().unwrap());
        let mut found = Vec::new();
        until("burning", || {
            assert!(measuring.0.try_wait().unwrap().is_none(), "it ended");
            found = burners(measuring.0.id(), &[]);
            !found.is_empty()
        });
        kill_process(Pid::from_raw(measuring.0.id().cast_signed()).unwrap(), signal).unwrap();
        assert!(!measuring.0.wait().unwrap().success());
        until("ending", || burners(measuring.0.id(), &found).is_empty());
    }
}

#[test]
fn a_program_beside_others_keeps_its_status() {
    for (script, status) in [("exit 0", 0), ("exit 7", 7)] {
        let out = Command::new(env!("CARGO_BIN_EXE_lowtide-lab")).args(["beside", "1", "sh", "-c", script]).output().unwrap();
        assert_eq!(out.status.code(), Some(status), "{script}");
    }
}

#[test]
fn nobody_starts_a_program_that_burns_by_mistake() {
    for helper in ["burn", "beside", "fault-load", "scale-subject"] {
        let out = Command::new(env!("CARGO_BIN_EXE_lowtide-lab")).arg(helper).output().unwrap();
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!((out.status.code(), said.lines().count()), (Some(2), 1), "{helper}: {said}");
    }
}
