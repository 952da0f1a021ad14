//! The answer to `stat`, as numbers.

use crate::client::number;
use crate::stats::REFAULT_KINDS;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_wire::segment::{LATENCY_BUCKETS, latency_bucket};
use serde_json::Value;

const PAGE: u64 = PAGE_SIZE as u64;

/// Ways in which a page comes in, by cost.
pub const KINDS: usize = 5;
/// Their keys in the statistics.
const KIND_KEYS: [&str; KINDS] = ["first_touch", "zero", "staged", "pool", "device"];

/// A run at one moment. Sizes in bytes. Missing fields are 0: a run may be older or newer than this
/// program.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// As the user gave it; not escaped.
    pub program: String,
    /// Seconds since the start of the run.
    pub elapsed: f64,
    pub memory: Memory,
    pub counts: Counts,
    /// By duration, in the buckets of [`latency_bucket`].
    pub latency: [u64; LATENCY_BUCKETS],
    /// Areas that are off come last.
    pub areas: Vec<Area>,
    /// In no order.
    pub processes: Vec<Process>,
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)] // docs/statistics.md says what they are
pub struct Memory {
    pub limit: u64,
    pub now: u64,
    pub peak: u64,
    pub resident: u64,
    pub own: u64,
    pub staged: u64,
    pub pool: u64,
    pub pool_stored: u64,
    /// Pages in the pool and on devices, uncompressed.
    pub out: u64,
    /// Of these, on devices.
    pub on_device: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counts {
    /// First touch, zero, staged, pool, device.
    pub faults: [u64; KINDS],
    pub evicted: u64,
    pub loaded: u64,
    /// Of these, by read-ahead.
    pub read_ahead: u64,
    /// Of these, used by the program.
    pub read_ahead_used: u64,
    /// By distance: how much more RAM would have kept the page.
    pub refaults: [u64; REFAULT_KINDS],
    pub cpu_seconds: f64,
    /// Time in which a thread of the program waited.
    pub stall_seconds: f64,
}

#[derive(Debug, Clone, Default, PartialEq)]
#[allow(missing_docs)]
pub struct Area {
    pub spec: String,
    pub prio: i64,
    pub size: u64,
    pub used: u64,
    pub state: String,
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub errors: u64,
    pub remote: Option<Remote>,
}

/// Traffic between `lowtide run` and the servers of an area.
#[derive(Debug, Clone, Default, PartialEq)]
#[allow(missing_docs)]
pub struct Remote {
    pub p50_us: f64,
    pub p99_us: f64,
    pub reconnects: u64,
    pub failovers: u64,
    pub copies_lost: u64,
    pub copies_wrong: u64,
}

impl Area {
    pub fn is_on(&self) -> bool {
        self.state != "off"
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub ram: u64,
    /// Bytes of its pages that are out; ...
    pub out: u64,
    /// ... of those, on a device.
    pub on_device: u64,
    /// `watching` or `active`.
    pub state: String,
    /// Its name and its parent, if the run has them.
    pub kin: Option<(String, u32)>,
}

impl Sample {
    pub fn read(stat: &Value) -> Sample {
        let processes: Vec<Process> = list(stat, "processes").map(process).collect();
        Sample {
            program: text(stat, "program"),
            elapsed: stat["elapsed_seconds"].as_f64().unwrap_or(0.0),
            memory: Memory {
                limit: number(stat, "ram_limit"),
                now: number(stat, "ram_now"),
                peak: number(stat, "ram_peak"),
                resident: number(stat, "resident_bytes"),
                own: number(stat, "own_bytes"),
                staged: number(stat, "staged_bytes"),
                pool: number(stat, "pool_bytes"),
                pool_stored: number(stat, "pool_stored_bytes"),
                out: processes.iter().map(|process| process.out).sum(),
                on_device: number(&stat["pages"], "on_device").saturating_mul(PAGE),
            },
            counts: counts(stat),
            latency: latency(stat),
            areas: list(stat, "areas").map(area).collect(),
            processes,
            warnings: list(stat, "warnings").filter_map(Value::as_str).map(str::to_owned).collect(),
        }
    }
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or("?").to_owned()
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

fn counts(stat: &Value) -> Counts {
    let (faults, mut refaults) = (&stat["faults"], [0; REFAULT_KINDS]);
    for (to, from) in refaults.iter_mut().zip(list(stat, "refaults")) {
        *to = from.as_u64().unwrap_or(0);
    }
    Counts {
        faults: KIND_KEYS.map(|key| number(faults, key)),
        evicted: number(&stat["evictions"], "pages"),
        loaded: number(&stat["pages"], "loaded"),
        read_ahead: number(faults, "read_ahead_pages"),
        read_ahead_used: number(faults, "read_ahead_used"),
        refaults,
        cpu_seconds: stat["work"]["cpu_seconds"].as_f64().unwrap_or(0.0),
        stall_seconds: stat["stall_seconds"]["some"].as_f64().unwrap_or(0.0),
    }
}

fn latency(stat: &Value) -> [u64; LATENCY_BUCKETS] {
    let mut buckets = [0; LATENCY_BUCKETS];
    for pair in list(stat, "fault_latency_histogram") {
        let (Some(floor_us), Some(count)) = (pair[0].as_f64(), pair[1].as_u64()) else { continue };
        // The bound is rounded to a nanosecond; half of one more is still in the bucket, the
        // narrowest of which has 32.
        buckets[latency_bucket((floor_us * 1e3 + 0.5) as u64)] += count;
    }
    buckets
}

fn area(area: &Value) -> Area {
    Area {
        spec: text(area, "spec"),
        prio: area["prio"].as_i64().unwrap_or(0),
        size: number(area, "size"),
        used: number(area, "used"),
        state: text(area, "state"),
        read_bytes: number(area, "read_bytes"),
        write_bytes: number(area, "write_bytes"),
        errors: number(area, "errors"),
        remote: area.get("remote").filter(|remote| remote.is_object()).map(remote),
    }
}

fn remote(remote: &Value) -> Remote {
    let us = |key: &str| remote["read_latency_us"][key].as_f64().unwrap_or(0.0);
    Remote {
        p50_us: us("p50"),
        p99_us: us("p99"),
        reconnects: number(remote, "reconnects"),
        failovers: number(remote, "failovers"),
        copies_lost: number(remote, "copies_lost"),
        copies_wrong: number(remote, "copies_wrong"),
    }
}

fn process(process: &Value) -> Process {
    let pid = |key| u32::try_from(number(process, key)).unwrap_or(0);
    Process {
        pid: pid("pid"),
        ram: number(process, "ram_bytes"),
        out: number(process, "out_bytes"),
        on_device: number(process, "on_device_bytes"),
        state: text(process, "state"),
        kin: process["name"].as_str().filter(|_| pid("parent") > 0).map(|name| (name.to_owned(), pid("parent"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_wire::segment::latency_floor_ns;
    use serde_json::json;

    #[test]
    fn an_answer_is_read() {
        let sample = Sample::read(&json!({
            "program": "/bin/sort", "elapsed_seconds": 2.5, "ram_limit": 100, "ram_now": 90, "own_bytes": 30,
            "pages": { "on_device": 2, "loaded": 7 }, "faults": { "pool": 3, "device": 4 }, "refaults": [1, 2, 3, 4],
            "areas": [{ "spec": "dir:/x", "state": "active", "read_bytes": 5, "prio": -2 }],
            "processes": [{ "pid": 9, "out_bytes": 4096 }, { "pid": 10, "out_bytes": 8192 }],
            "warnings": ["odd"],
        }));
        assert_eq!((sample.memory.out, sample.memory.on_device, sample.memory.limit), (12_288, 8192, 100));
        assert_eq!((sample.counts.faults, sample.counts.refaults), ([0, 0, 0, 3, 4], [1, 2, 3, 4]));
        assert_eq!((sample.areas[0].prio, sample.areas[0].read_bytes, sample.areas[0].is_on()), (-2, 5, true));
        assert_eq!((sample.processes[1].pid, sample.warnings[0].as_str()), (10, "odd"));
    }

    #[test]
    fn each_bucket_of_the_histogram_comes_back_to_its_place() {
        let pairs: Vec<_> = (0..LATENCY_BUCKETS).map(|i| json!([latency_floor_ns(i) as f64 / 1e3, i])).collect();
        let sample = Sample::read(&json!({ "fault_latency_histogram": pairs }));
        assert!(sample.latency.iter().enumerate().all(|(i, count)| *count == i as u64), "{:?}", sample.latency);
    }

    #[test]
    fn what_is_not_said_is_nothing() {
        let sample = Sample::read(&json!({ "refaults": "?", "areas": [7], "processes": { "pid": 1 }, "ram_now": -1 }));
        assert_eq!((sample.memory, sample.counts), (Memory::default(), Counts::default()));
        assert_eq!(sample.areas.len(), 1);
    }
}
