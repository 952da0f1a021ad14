//! Real programs at 40 % of what they take natively, with their pages on a cluster.

use crate::check::{Data, Growth, faults, limits, report};
use crate::live::turn_alone;
use crate::machine::{python, tool};
use crate::measure::{Job, Limit, Swap};
use crate::servers::{Cluster, PRIMARIES};
use std::path::Path;
use std::time::Duration;

/// Natively it takes some ten seconds.
const DEADLINE: Duration = Duration::from_secs(400);

/// The same answer as natively, which says `sound`, within the limit, by pages on the cluster, where nothing is left.
#[track_caller]
fn at_40_percent(job: &Job, growth: Growth, sound: &str) {
    let native = job.native();
    assert!(native.status == 0 && native.stdout.contains(sound), "the native run is unsound: {native:?}");
    let cluster = Cluster::start("");
    let options = ["--quiet", "--pool", "4M", "--swap", &cluster.spec()].map(str::to_owned).to_vec();
    let ram = limits(native.peak, Data::Any)[0].ram;
    let limit = Limit { ram, swap: Swap::Options(options) };
    let limited = job.limited(&limit);
    report(job, &limit, &native, &limited);
    let faults = faults(&native, &limited, &limit, growth);
    assert!(faults.is_empty(), "{faults:?}: {}", limited.stderr);
    let area = &limited.stats["areas"][0];
    let bytes = |name: &str| area[name].as_u64().unwrap_or(0);
    assert!(bytes("write_bytes") > 16 << 20 && bytes("read_bytes") > 4 << 20, "{area}");
    assert_eq!(cluster.keys(), [0; PRIMARIES]);
}

fn script(name: &str, file: &str) -> Option<Job> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs").join(file);
    let mut job = Job::new(name, python()?).args([path]);
    job.deadline = DEADLINE;
    Some(job)
}

#[test]
#[ignore = "takes long: make remote"]
fn numpy_arrays() {
    let (Some(_turn), Some(job)) = (turn_alone(), script("cluster, numpy", "numpy_arrays.py")) else { return };
    at_40_percent(&job.words("random 192"), Growth::Existing, "OK");
}

#[test]
#[ignore = "takes long: make remote"]
fn a_database_of_sqlite() {
    let (Some(_turn), Some(job)) = (turn_alone(), script("cluster, SQLite", "sqlite_rows.py")) else { return };
    at_40_percent(&job.words("150000"), Growth::Existing, "OK");
}

/// The server is a program of the run, and its pages are on others.
#[test]
#[ignore = "takes long: make remote"]
fn a_server_that_saves() {
    let (Some(_turn), Some(job)) = (turn_alone(), script("cluster, redis", "redis_saves.py")) else { return };
    let directory = job.directory.clone();
    at_40_percent(&job.with_forks().args([directory]).words("3 60000"), Growth::Forks, "OK");
}

/// Many processes, each with pages of its own there.
#[test]
#[ignore = "takes long: make remote"]
fn make_with_large_compilers() {
    let (Some(_turn), Some(make)) = (turn_alone(), tool("make")) else { return };
    let mut job = Job::new("cluster, make", make).words("--no-print-directory -B -j4").with_forks();
    job.deadline = DEADLINE;
    let Some(units) = script("cluster, units", "many_units.py") else { return };
    let written = units.args([&job.directory]).words("2").native();
    assert_eq!(written.status, 0, "{written:?}");
    at_40_percent(&job, Growth::Forks, "beta-");
}
