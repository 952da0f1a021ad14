//! The race from outside: what it says to bad usage, and that it leaves the machine as it was however it ends.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(60);
const PREFIX: &str = "lowtide-lab-race.";

fn lab(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lowtide-lab"));
    command.args(args);
    command
}

#[test]
fn bad_usage_is_one_line_and_status_2() {
    for (args, says) in [
        (vec!["race", "--only", "sort,nosuch"], "`nosuch`"),
        (vec!["race", "--percent", "99"], "99"),
        (vec!["race", "--rounds", "0"], "0"),
        (vec!["race", "--swap", "tape"], "tape"),
        (vec!["race", "--only", "random"], "`random` is nothing of `race`"),
        (vec!["region", "--only", "sort"], "`sort` is nothing of `region`"),
        (vec!["region", "--percent", "50"], "`race`"),
        (vec!["zero", "--only", "sort"], "`race`"),
    ] {
        let Output { status, stdout, stderr } = lab(&args).output().unwrap();
        let said = String::from_utf8(stderr).unwrap();
        assert_eq!((status.code(), stdout.len(), said.lines().count()), (Some(2), 0, 1), "{args:?}: {said}");
        assert!(said.contains(says), "{args:?}: {said}");
    }
}

/// All that a race makes or changes: what is left of it, in words.
fn traces(pid: u32) -> Vec<String> {
    let own = format!("{PREFIX}{pid}");
    let mut found: Vec<String> = ["/run", "/sys/fs/cgroup/memory", "/var/tmp"]
        .iter()
        .flat_map(|directory| fs::read_dir(directory).into_iter().flatten().flatten())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&own))
        .map(|entry| entry.path().display().to_string())
        .collect();
    let swaps = fs::read_to_string("/proc/swaps").unwrap();
    found.extend(swaps.lines().skip(1).map(str::to_owned));
    found
}

fn setting() -> String {
    fs::read_to_string("/proc/sys/vm/page-cluster").unwrap()
}

fn devices() -> usize {
    fs::read_dir("/sys/block")
        .unwrap()
        .flatten()
        .filter(|device| device.file_name().to_string_lossy().starts_with("zram"))
        .count()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what}: {:?}", began.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Ends when the test does, also by a failed assertion.
struct Racing(Child);

impl Drop for Racing {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_interrupted_race_leaves_nothing() {
    let able = rustix::process::geteuid().is_root()
        && Path::new("/sys/class/zram-control").exists()
        && Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists()
        && Path::new(env!("CARGO_BIN_EXE_lowtide-lab")).with_file_name("lowtide").exists()
        && fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().count() == 1);
    if !able {
        eprintln!("not tested: it takes root, memory cgroups of version 1, zram, no swap that is on, and lowtide built");
        return;
    }
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let (setting_before, devices_before) = (setting(), devices());
        // Rounds enough not to be over before it is looked at.
        let racing = lab(&["race", "--quick", "--only", "sequential", "--rounds", "99"])
            .env_remove("LOWTIDE_DIR")
            .stderr(Stdio::null())
            .spawn();
        let mut racing = Racing(racing.unwrap());
        let pid = racing.0.id();
        // In the middle: the kernel's group has swapped something out.
        until("swapping", || {
            assert!(racing.0.try_wait().unwrap().is_none(), "it ended");
            let stat = fs::read_to_string(format!("/sys/fs/cgroup/memory/{PREFIX}{pid}/memory.stat")).unwrap_or_default();
            stat.lines().any(|line| line.strip_prefix("swap ").is_some_and(|swapped| swapped != "0"))
        });
        assert_ne!((setting(), devices()), (setting_before.clone(), devices_before), "both are changed now");
        kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
        assert!(!racing.0.wait().unwrap().success());
        until("cleaning up", || traces(pid).is_empty() && devices() == devices_before);
        assert_eq!(setting(), setting_before, "{signal:?}");
    }
}
