//! Fictitious runs, for tests.

use super::app::{App, Next};
use super::sample::Sample;
use super::watch::{Watch, Watched};
use crossterm::event::{KeyCode, KeyEvent};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

/// A busy run's answer after this many seconds.
pub fn stat(program: &str, seconds: u64) -> Value {
    json!({
        "program": program, "elapsed_seconds": seconds as f64, "ram_limit": 512 * MIB, "ram_now": 480 * MIB,
        "ram_peak": 511 * MIB, "resident_bytes": 300 * MIB, "own_bytes": 180 * MIB, "staged_bytes": 24 * MIB,
        "pool_bytes": 150 * MIB, "pool_stored_bytes": 140 * MIB,
        "pages": { "on_device": 40 * 256, "loaded": seconds * 2000 },
        "faults": {
            "first_touch": seconds * 10, "zero": seconds * 20, "staged": seconds * 300, "pool": seconds * 4000,
            "device": seconds * 50, "read_ahead_pages": seconds * 700, "read_ahead_used": seconds * 350,
        },
        "evictions": { "pages": seconds * 2500 }, "refaults": [seconds * 60, seconds * 7, 0, 0],
        "stall_seconds": { "some": seconds as f64 * 0.25 }, "work": { "cpu_seconds": seconds as f64 * 0.5 },
        "fault_latency_histogram": [[8.192, seconds * 4200], [1048.576, seconds * 180]],
        "areas": [
            { "spec": "dir:/var/tmp", "prio": -2, "size": 8192 * MIB, "used": 40 * MIB, "state": "active",
              "read_bytes": seconds * MIB, "write_bytes": seconds * 3 * MIB },
            { "spec": "file:/swap", "prio": -3, "size": 1024 * MIB, "used": 0, "state": "active" },
            { "spec": "dir:/gone", "prio": -4, "size": 1024 * MIB, "used": 0, "state": "off" },
        ],
        "processes": [
            { "pid": 4_100_002, "state": "active", "ram_bytes": 70 * MIB, "out_bytes": 400 * MIB, "on_device_bytes": 40 * MIB },
            { "pid": 4_100_001, "state": "watching", "ram_bytes": 5 * MIB, "out_bytes": 0, "on_device_bytes": 0 },
        ],
    })
}

/// Runs of these programs, each with half a minute of history.
pub fn runs(programs: &[&str]) -> Vec<Watched> {
    let run = |(i, program): (usize, &&str)| {
        let mut run = Watched::new(4_000_000 + i as u32, None);
        (1..=30).for_each(|seconds| run.take(Sample::read(&stat(program, seconds))));
        run
    };
    programs.iter().enumerate().map(run).collect()
}

pub fn app(programs: &[&str]) -> App {
    App::new(Watch::of(runs(programs)))
}

pub fn typed(app: &mut App, text: &str) -> Next {
    text.chars().map(|c| app.key(KeyEvent::from(KeyCode::Char(c)))).last().unwrap_or(Next::Stay)
}
