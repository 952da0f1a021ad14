//! Pages on a server: the speed of writing and reading, beside the server's own benchmark with the
//! same sizes and pipelining, on one connection, in turn. Needs redis-server, which it starts on
//! loopback.
//!
//! This is the client of `lowtide run`. A program also waits for the way from its process to
//! `lowtide run` and back.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lowtide_config::server::{Address, Server};
use lowtide_core::device::wire::Run;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_remote::pages::{Pages, Source};
use lowtide_remote::remote::Remote;

use crate::experiment::{Experiment, Outcome, Scale};
use crate::measure::{self, Sample};
use crate::report::{Finding, Table, Target};

pub const EXPERIMENT: Experiment = Experiment {
    name: "remote",
    question: "how fast are pages written to a server and read back, beside the server's own benchmark?",
    run,
};

/// Neighbouring pages at a time.
const RUNS: [u32; 3] = [1, 16, 64];
/// Bytes of an object: an incompressible page, and a compressible one.
const LENGTHS: [usize; 2] = [PAGE_SIZE, 1300];
/// Used slots, one after the other.
const SLOTS: u64 = 8192;
const PATIENCE: Duration = Duration::from_secs(20);

struct Redis(Child, u16);

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start() -> Result<Redis, String> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).map_err(|e| e.to_string())?.port();
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let redis = Redis(child.map_err(|error| format!("redis-server does not start ({error}): install it"))?, port);
    let until = Instant::now() + PATIENCE;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if Instant::now() > until {
            return Err("redis-server does not listen".into());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(redis)
}

/// Pages per second by writing and by reading.
#[derive(Default)]
struct Rates {
    ours: [Sample; 2],
    theirs: [Sample; 2],
}

fn run(scale: &Scale) -> Result<Outcome, String> {
    let redis = start()?;
    let hosts = vec![Address { host: "127.0.0.1".into(), port: redis.1 }];
    let server = Server { user: None, hosts, db: 0, tls: None };
    let mut pages = Pages::new(Arc::new(Remote::new(server, None, PATIENCE)?));
    let (rounds, pages_of_one) = (scale.pick(3, 7), scale.pick(4_000, 20_000));
    let cases: Vec<(usize, u32)> = LENGTHS.iter().flat_map(|length| RUNS.map(|run| (*length, run))).collect();
    let mut rates: Vec<Rates> = cases.iter().map(|_| Rates::default()).collect();
    measure::in_turn(&cases, rounds, |i, (length, run)| {
        let ours = ours(&mut pages, *length, *run, pages_of_one)?;
        let theirs = theirs(redis.1, *length, *run, pages_of_one)?;
        for (kind, (ours, theirs)) in ours.into_iter().zip(theirs).enumerate() {
            rates[i].ours[kind].add(ours);
            rates[i].theirs[kind].add(theirs);
        }
        Ok::<(), String>(())
    })?;
    let mut outcome = Outcome::default();
    let columns = ["bytes", "pages at a time", "write us/page", "redis-benchmark", "read us/page", "redis-benchmark"];
    let mut table = Table::new("one connection on loopback, medians", &columns);
    for ((length, run), rates) in cases.iter().zip(&rates) {
        let us = |sample: &Sample| format!("{:.1}", 1e6 / sample.median());
        let [write, read] = [0, 1].map(|kind| [us(&rates.ours[kind]), us(&rates.theirs[kind])]);
        table.row([length.to_string(), run.to_string()].into_iter().chain(write).chain(read));
        let kinds = ["writes", "reads"].iter().enumerate();
        for (kind, name) in kinds.filter(|_| *run == RUNS[2] || *run == RUNS[0]) {
            let ratio = rates.ours[kind].over(&rates.theirs[kind]);
            let told = format!("{:.0} pages/s", rates.ours[kind].median());
            let finding = Finding::new(format!("{name} of {run}, {length} bytes / redis-benchmark"), told, ratio.median());
            let least = if *run == 1 { 1.0 / 1.5 } else { 0.7 };
            outcome.findings.push(finding.spread(ratio.spread()).target(Target::AtLeast(least)));
        }
    }
    outcome.tables.push(table);
    Ok(outcome)
}

fn ours(pages: &mut Pages, length: usize, run: u32, count: usize) -> Result<[f64; 2], String> {
    let objects = vec![7; length * run as usize];
    let lengths = vec![length; run as usize];
    let turns = count.div_ceil(run as usize);
    let runs = |turn: usize| [Run { slot: turn as u64 * u64::from(run) % SLOTS, pages: run }];
    let began = Instant::now();
    for turn in 0..turns {
        if pages.write("lab:{1:", &runs(turn), &lengths, &objects) != [Ok(())] {
            return Err("a write failed".into());
        }
    }
    let write = (turns * run as usize) as f64 / began.elapsed().as_secs_f64();
    let (mut found, mut into) = (Vec::new(), Vec::new());
    let began = Instant::now();
    for turn in 0..turns.min(SLOTS as usize / run as usize) {
        found.clear();
        into.clear();
        if pages.read("lab:{1:", &runs(turn), Source::Any, &mut found, &mut into, Instant::now()) != [Ok(())]
            || into.len() != objects.len()
        {
            return Err("a read failed".into());
        }
    }
    let read = (turns.min(SLOTS as usize / run as usize) * run as usize) as f64 / began.elapsed().as_secs_f64();
    Ok([write, read])
}

fn theirs(port: u16, length: usize, run: u32, count: usize) -> Result<[f64; 2], String> {
    let mut command = Command::new("redis-benchmark");
    command.args(["-p", &port.to_string(), "-c", "1", "-P", &run.to_string(), "-n", &count.to_string()]);
    command.args(["-d", &length.to_string(), "-r", &SLOTS.to_string(), "-t", "set,get", "--csv"]);
    let output = command.output().map_err(|error| format!("redis-benchmark does not start ({error}): install redis-tools"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let rate = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("\"{name}\",\"")));
        line.and_then(|rest| rest.split('"').next()?.parse().ok())
            .ok_or_else(|| format!("odd output of redis-benchmark: {text}"))
    };
    Ok([rate("SET")?, rate("GET")?])
}
