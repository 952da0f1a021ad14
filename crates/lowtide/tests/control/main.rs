//! The control socket of a run, from outside: what it is asked, who may ask, and what becomes of those who don't know how to.
//!
//! What the processes of a run do about it, moving pages, is in `swapoff.rs`.

mod changing;
mod clients;
#[path = "../live/mod.rs"]
mod live;
mod looking;
mod sockets;

use crate::live::{Run, Scene, program};
use serde_json::Value;
use std::process::Command;

const STAT: &str = r#"{"lowtide":1,"do":"stat"}"#;

/// A run that waits, with little memory.
fn small(scene: &Scene) -> Run {
    scene.sleeper("--ram 64M --quiet", 8, "t").listens()
}

/// The program was not disturbed: what it says is what it says natively.
#[track_caller]
fn ends_well(scene: &Scene, run: Run) {
    scene.wake();
    let (out, err) = run.finish();
    assert!(err.is_empty(), "{err}");
    let native = Command::new(program("sleeps")).args(["8", "t"]).current_dir(scene.dir.path()).output().expect("it starts");
    assert_eq!(out, String::from_utf8_lossy(&native.stdout));
    assert!(!scene.path("runtime/lowtide").exists(), "nothing is left");
}

/// The pids of the runs that there are; others on this machine may have theirs.
fn listed(scene: &Scene) -> Vec<u32> {
    let ps = scene.done("ps");
    ps.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect()
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no {key}: {value}"))
}
