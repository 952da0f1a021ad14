//! `make remote`: a program that verifies every byte, while nodes of its cluster are killed, started again, stopped for a while,
//! replaced, and slots move between them, at random. Each round is right, or ends with the message.

use crate::live::{Run, Scene, program, turn, verifier};
use crate::servers::{Cluster, PRIMARIES};
use fastrand::Rng;
use rustix::process::Signal;
use std::fmt::Write as _;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// In which a round must end once nothing more is done to its cluster. Pages are waited for up to 30 seconds.
const ROUND: Duration = Duration::from_secs(180);
/// The longest that a node is stopped: its replica takes its place or not.
const LONGEST_STOP: u64 = 6000;

/// Rounds at a time for each CPU.
const ROUNDS_OF_A_CPU: u64 = 3;

/// What is done to a cluster.
struct Trouble {
    cluster: Cluster,
    random: Rng,
    /// The node that is not there. A second one would be the end of the cluster.
    dead: Option<usize>,
    /// Moves slots.
    reshards: Vec<Child>,
    /// What was done, and when.
    told: String,
    began: Instant,
}

impl Trouble {
    fn new(seed: u64) -> Trouble {
        let (cluster, random) = (Cluster::start(""), Rng::with_seed(seed));
        Trouble { cluster, random, dead: None, reshards: Vec::new(), told: String::new(), began: Instant::now() }
    }

    /// Something, at random.
    fn make(&mut self) {
        // The others may not know yet that one is dead.
        let primaries = self.cluster.primaries().into_iter().filter(|i| Some(*i) != self.dead).collect::<Vec<_>>();
        let Some(&primary) = self.random.choice(&primaries) else { return };
        let what = match (self.random.u8(..4), self.dead) {
            (0, None) => {
                self.cluster.nodes[primary].kill();
                self.dead = Some(primary);
                format!("{primary} is killed")
            }
            (0, Some(dead)) => {
                self.cluster.nodes[dead].start_again();
                self.dead = None;
                format!("{dead} is started again")
            }
            (1, _) => {
                let stop = self.random.u64(100..LONGEST_STOP);
                self.cluster.nodes[primary].signal(Signal::STOP);
                thread::sleep(Duration::from_millis(stop));
                self.cluster.nodes[primary].signal(Signal::CONT);
                format!("{primary} was stopped for {stop} ms")
            }
            (2, dead) => {
                let replicas = (0..2 * PRIMARIES).filter(|i| !primaries.contains(i) && Some(*i) != dead);
                let Some(replica) = self.random.choice(replicas.collect::<Vec<_>>()) else { return };
                let said = self.cluster.nodes[replica].ask("CLUSTER FAILOVER");
                format!("{replica} is to take its primary's place: {said}")
            }
            _ => {
                let others = primaries.iter().filter(|other| **other != primary);
                let Some(&to) = self.random.choice(others.collect::<Vec<_>>()) else { return };
                let ids = [primary, to].map(|i| self.cluster.nodes[i].ask("CLUSTER MYID"));
                let place = format!("127.0.0.1:{}", self.cluster.nodes[primary].port);
                let slots = self.random.u16(50..1000);
                let mut command = Command::new("redis-cli");
                command.args(["--cluster", "reshard", &place, "--cluster-from", &ids[0], "--cluster-to", &ids[1]]);
                command.args(["--cluster-yes", "--cluster-slots", &slots.to_string()]);
                command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                self.reshards.push(command.spawn().expect("redis-cli is installed (`make setup`)"));
                format!("{slots} slots go from {primary} to {to}")
            }
        };
        let _ = writeln!(self.told, "  {:5.1} s: {what}", self.began.elapsed().as_secs_f64());
    }
}

impl Drop for Trouble {
    fn drop(&mut self) {
        for reshard in &mut self.reshards {
            let _ = reshard.kill();
            let _ = reshard.wait();
        }
    }
}

/// Whether the run ended with the message, and not well.
fn ended_with_the_message(output: &Output) -> Result<bool, String> {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    match output.status.code() {
        Some(0) if out == "OK\n" => Ok(false),
        Some(125) if out.is_empty() && err.contains("was stopped: a page of the program could not be read back: ") => Ok(true),
        _ => Err(format!("{:?}: {out}{err}", output.status)),
    }
}

/// One round; what it ended with, if not well.
fn round(scene: &Scene, trouble: &mut Trouble) -> Result<Option<String>, String> {
    let copies = given("COPIES").unwrap_or(1);
    let options = format!("--ram 40M --pool 4M --swap {},copies={copies}", trouble.cluster.spec());
    let mut run: Run = verifier(scene, &options, "64 n");
    trouble.began = Instant::now();
    for _ in 0..trouble.random.u8(1..5) {
        thread::sleep(Duration::from_millis(trouble.random.u64(..3000)));
        if run.is_alive() {
            trouble.make();
        }
    }
    thread::sleep(Duration::from_millis(trouble.random.u64(..5000)));
    scene.wake();
    let output = run.ended_within(ROUND).ok_or_else(|| format!("it has not ended {ROUND:?} later"))?;
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    ended_with_the_message(&output).map(|is_so| is_so.then_some(err))
}

fn given(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// How rounds have ended.
#[derive(Default)]
struct Ended {
    right: u64,
    with_the_message: u64,
    wrong: Vec<u64>,
}

/// A round, by its seed, and what is said of it.
fn one(seed: u64, ended: &Mutex<Ended>) {
    let (scene, mut trouble) = (Scene::new(), Trouble::new(seed));
    let how = round(&scene, &mut trouble);
    let (told, mut ended) = (&trouble.told, ended.lock().expect("no round panics with it"));
    match how {
        Ok(None) => {
            ended.right += 1;
            eprintln!("SEED={seed}: right\n{told}");
        }
        Ok(Some(message)) => {
            ended.with_the_message += 1;
            let nodes = trouble.cluster.nodes.iter().map(|node| node.ask("CLUSTER NODES")).find(|text| !text.is_empty());
            eprintln!("SEED={seed}: ended with the message\n{told}  {}\n{}", message.trim(), nodes.unwrap_or_default());
        }
        Err(why) => {
            eprintln!("SEED={seed}: WRONG: {why}\n{told}");
            ended.wrong.push(seed);
        }
    }
}

/// `ROUNDS` of them, `SEED` the first one's, `JOBS` at a time, because they wait most of the time; with `COPIES` of each page.
#[test]
#[ignore = "takes long: make remote"]
fn rounds_of_random_failures() {
    let Some(_turn) = turn() else { return };
    let (rounds, first) = (given("ROUNDS").unwrap_or(100), given("SEED").unwrap_or_else(|| Rng::new().u64(..1 << 32)));
    let cpus = thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
    let jobs = given("JOBS").unwrap_or(ROUNDS_OF_A_CPU * cpus).clamp(1, rounds);
    // It is compiled by one.
    program("verifies");
    let (next, ended) = (AtomicU64::new(0), Mutex::<Ended>::default());
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                let seeds = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed)).take_while(|n| *n < rounds);
                seeds.for_each(|n| one(first + n, &ended));
            });
        }
    });
    let Ended { right, with_the_message, wrong } = ended.into_inner().expect("no round panicked with it");
    eprintln!("{rounds} rounds: {right} right, {with_the_message} ended with the message, {} wrong", wrong.len());
    assert!(wrong.is_empty(), "wrong: SEED={wrong:?}");
    assert!(right > 0, "none was right: is anything of the area used at all?");
}
