//! Runs a program, natively or under a limit, and samples its memory from outside.
//!
//! What is counted every few milliseconds: see [`lowtide_config::sampler`]. Lowtide's own process is counted too.
//! Where forked children stay ([`Job::with_forks`]), they are counted too, each page divided by how many processes map it
//! (`Pss_Anon`), but not in the first 100 ms after a fork of a large process.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use lowtide_config::proc::{self, Stat};
use lowtide_config::sampler::{Memfds, Sampler};
use rustix::process::Signal;
use serde_json::Value;

use crate::machine::be_alone;

const SAMPLE_EVERY: Duration = Duration::from_millis(3);
const DEADLINE: Duration = Duration::from_secs(120);
/// A process that has so much when it is forked is a large one.
const LARGE: u64 = 16 << 20;
/// How long after a fork of a large process nothing is counted, where forked processes are.
const SETTLING: Duration = Duration::from_millis(100);
/// For the children that outlive the first process.
const CHILDRENS_DEADLINE: Duration = Duration::from_secs(60);

/// Where evicted pages go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Swap {
    Ram,
    Default,
    /// What the command line says.
    Options(Vec<String>),
}

/// The limit of a run.
#[derive(Debug, Clone)]
pub struct Limit {
    pub ram: u64,
    pub swap: Swap,
}

/// What to run.
#[derive(Debug, Clone)]
pub struct Job {
    pub name: String,
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    /// What starts all of it, lowtide included.
    around: Vec<OsString>,
    pub directory: PathBuf,
    /// Forked children that stay are counted: see [`Job::with_forks`].
    forks: bool,
    /// A run that takes longer hangs.
    pub deadline: Duration,
}

/// The name, or one like it: another test, which may run at the same time, has none of its directories.
fn own(name: String) -> String {
    static OWNERS: Mutex<BTreeMap<String, ThreadId>> = Mutex::new(BTreeMap::new());
    let mut owners = OWNERS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut names = std::iter::once(name.clone()).chain((2..).map(|n| format!("{name}-{n}")));
    let this = thread::current().id();
    names.find(|name| *owners.entry(name.clone()).or_insert(this) == this).expect("there are always more")
}

impl Job {
    /// A program that runs in an own, empty directory.
    pub fn new(name: &str, program: impl Into<PathBuf>) -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("run").join(own(name.replace(' ', "_")));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("a directory under target/");
        Self {
            name: name.to_owned(),
            program: program.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            around: Vec::new(),
            directory,
            forks: false,
            deadline: DEADLINE,
        }
    }

    /// Counts forked children too, and all pages in proportion to how many processes map them. Takes 5 ms for a GiB that is in
    /// the memory of one process, so there are fewer samples.
    pub fn with_forks(mut self) -> Self {
        self.forks = true;
        self
    }

    pub fn args<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Arguments in one text, separated by spaces.
    pub fn words(self, arguments: &str) -> Self {
        self.args(arguments.split_whitespace())
    }

    /// The same program, started by another one.
    pub fn behind(mut self, wrapper: PathBuf, arguments: &[&str]) -> Self {
        let program = std::mem::replace(&mut self.program, wrapper);
        let inner = std::mem::take(&mut self.arguments);
        self.arguments.extend(arguments.iter().map(OsString::from));
        self.arguments.push(program.into());
        self.arguments.extend(inner);
        self
    }

    /// The same run, started by another program: natively it is between the two, under a limit before lowtide.
    pub fn around(mut self, wrapper: PathBuf, arguments: &[&str]) -> Self {
        self.around = vec![wrapper.into()];
        self.around.extend(arguments.iter().map(OsString::from));
        self
    }

    /// The command that starts `program`, which is the first of the run.
    fn command(&self, program: &Path) -> Command {
        let Some((wrapper, arguments)) = self.around.split_first() else { return Command::new(program) };
        let mut command = Command::new(wrapper);
        command.args(arguments).arg(program);
        command
    }

    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    pub fn start_native(&self) -> Running {
        if self.forks {
            // Beside others fewer of its processes have their peaks at the same time.
            be_alone();
        }
        let mut command = self.command(&self.program);
        command.args(&self.arguments);
        Running::start(self, command, None)
    }

    pub fn start_limited(&self, limit: &Limit) -> Running {
        be_alone();
        let stats = self.directory.join("stats.json");
        let _ = fs::remove_file(&stats);
        let mut command = self.command(Path::new(env!("CARGO_BIN_EXE_lowtide")));
        command.args(["run", "--ram", &limit.ram.to_string()]);
        match &limit.swap {
            Swap::Ram => drop(command.args(["--swap", "ram"])),
            Swap::Default => {}
            Swap::Options(options) => drop(command.args(options)),
        }
        command.arg("--stats").arg(&stats).arg("--").arg(&self.program).args(&self.arguments);
        Running::start(self, command, Some(stats))
    }

    pub fn native(&self) -> Outcome {
        self.start_native().finish()
    }

    pub fn limited(&self, limit: &Limit) -> Outcome {
        self.start_limited(limit).finish()
    }
}

/// What came out.
#[derive(Debug)]
pub struct Outcome {
    /// As a shell sees it: 128+N after signal N.
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
    /// Highest sample of the memory that a limit is for.
    pub peak: u64,
    /// How many samples there were.
    pub samples: usize,
    pub elapsed: Duration,
    /// Processes of the run that were still there a while after its end (they have been ended since).
    pub left: Vec<String>,
    /// lowtide's final statistics; Null for a native run.
    pub stats: Value,
}

impl Outcome {
    /// A number of the statistics, as in `evictions.pages`; 0 where there is none.
    pub fn stat(&self, path: &str) -> f64 {
        path.split('.').fold(&self.stats, |value, key| &value[key]).as_f64().unwrap_or(0.0)
    }
}

/// A run that goes on.
pub struct Running {
    child: Child,
    /// Also the pid of the first process: the program natively, lowtide under a limit.
    pub session: u32,
    started: Instant,
    sampler: JoinHandle<(u64, usize)>,
    stop: Arc<AtomicBool>,
    stdout: JoinHandle<String>,
    stderr: JoinHandle<String>,
    stats: Option<PathBuf>,
    name: String,
    deadline: Duration,
}

impl Running {
    fn start(job: &Job, mut command: Command, stats: Option<PathBuf>) -> Self {
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("LOWTIDE_")) {
            command.env_remove(name);
        }
        command.env("LC_ALL", "C").env_remove("LD_PRELOAD").envs(job.environment.iter().map(|(name, value)| (name, value)));
        command.current_dir(&job.directory).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let own_session = || {
            rustix::process::setsid()?;
            // Whoever ends the tests ends the run.
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            Ok(())
        };
        // SAFETY: two system calls that touch no memory.
        unsafe { command.pre_exec(own_session) };
        let started = Instant::now();
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{}: {command:?}: {error}", job.name));
        let session = child.id();
        let stop = Arc::new(AtomicBool::new(false));
        let sampler = {
            let (stop, limited, forks) = (stop.clone(), stats.is_some(), job.forks);
            thread::spawn(
                move || {
                    if forks { sample_with_forks(session, limited, &stop) } else { sample(session, limited, &stop) }
                },
            )
        };
        let stdout = read_all(child.stdout.take().expect("stdout is piped"));
        let stderr = read_all(child.stderr.take().expect("stderr is piped"));
        Self { child, session, started, sampler, stop, stdout, stderr, stats, name: job.name.clone(), deadline: job.deadline }
    }

    /// Waits until `condition` holds; false if the run ended or the deadline passed before.
    pub fn wait_until(&mut self, mut condition: impl FnMut(&Self) -> bool) -> bool {
        while !condition(self) {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) || self.started.elapsed() > self.deadline {
                return false;
            }
            thread::sleep(SAMPLE_EVERY);
        }
        true
    }

    /// SIGKILL for the first process: the program natively, lowtide under a limit.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// SIGKILL for every process of the run.
    pub fn kill_all(&mut self) {
        proc::of_session(self.session).iter().for_each(|process| process.signal(Signal::KILL));
    }

    /// Waits for the end, the first process's and that of everyone who holds its standard output.
    pub fn finish(mut self) -> Outcome {
        let ended = self.wait_for(self.started + self.deadline, |run| matches!(run.child.try_wait(), Ok(Some(_))));
        let elapsed = self.started.elapsed();
        let last = Instant::now() + CHILDRENS_DEADLINE;
        let silent = ended && self.wait_for(last, |run| run.stdout.is_finished() && run.stderr.is_finished());
        if !silent {
            let threads = describe(self.session);
            self.kill_all();
            let _ = self.child.wait();
            let (stdout, stderr) = (self.stdout.join(), self.stderr.join());
            let what = if ended { "children that do not end" } else { "no end" };
            panic!("{}: {what} after {elapsed:?}\n{threads}\nstdout: {stdout:?}\nstderr: {stderr:?}", self.name);
        }
        let left = end_session(self.session);
        self.stop.store(true, Ordering::Relaxed);
        let status = self.child.wait().expect("the child is ours");
        let (peak, samples) = self.sampler.join().expect("the sampler does not panic");
        let stats = self.stats.and_then(|path| fs::read(path).ok());
        Outcome {
            status: status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
            stdout: self.stdout.join().expect("the reader does not panic"),
            stderr: self.stderr.join().expect("the reader does not panic"),
            peak,
            samples,
            elapsed,
            left,
            stats: stats.map_or(Value::Null, |bytes| serde_json::from_slice(&bytes).expect("--stats is JSON")),
        }
    }

    fn wait_for(&mut self, until: Instant, mut condition: impl FnMut(&mut Self) -> bool) -> bool {
        while !condition(self) {
            if Instant::now() > until {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

fn read_all(mut source: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = source.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Gives the processes of a session a moment to go, then ends those that stay, and names them.
fn end_session(session: u32) -> Vec<String> {
    let patience = Instant::now() + Duration::from_secs(3);
    while !proc::of_session(session).is_empty() && Instant::now() < patience {
        thread::sleep(Duration::from_millis(5));
    }
    let left = proc::of_session(session);
    for process in &left {
        process.signal(Signal::KILL);
    }
    left.iter().map(|process| format!("{} ({}, state {})", process.pid, process.name, process.state)).collect()
}

/// What the threads of a session are doing: for the message when a run hangs.
fn describe(session: u32) -> String {
    let describe = |process: Stat| format!("pid {} ({}):\n{}", process.pid, process.name, proc::describe_threads(process.pid));
    proc::of_session(session).into_iter().map(describe).collect()
}

/// Samples until told to stop; returns the highest sum seen, and of how many.
fn sample(session: u32, limited: bool, stop: &AtomicBool) -> (u64, usize) {
    let mut sampler = Sampler::new(session, if limited { Memfds::OfLeader } else { Memfds::None });
    while !stop.load(Ordering::Relaxed) {
        sampler.sample();
        thread::sleep(SAMPLE_EVERY);
    }
    (sampler.peak, sampler.samples)
}

/// The same with forked children, by parts of pages, and without the samples shortly after forks of large processes.
fn sample_with_forks(session: u32, limited: bool, stop: &AtomicBool) -> (u64, usize) {
    let (mut peak, mut count) = (0, 0);
    let mut known: Vec<u32> = Vec::new();
    let mut last_fork = Instant::now();
    // The processes as they are now, and when a large one was last forked.
    let mut look = || {
        let processes = proc::of_session(session);
        let is_new = |process: &&Stat| !known.contains(&process.pid);
        if processes.iter().filter(is_new).any(|process| proc::anonymous(process.pid) >= LARGE) {
            last_fork = Instant::now();
        }
        known = processes.iter().map(|process| process.pid).collect();
        (processes, last_fork)
    };
    while !stop.load(Ordering::Relaxed) {
        let (processes, before) = look();
        let settled = before.elapsed() > SETTLING;
        let shared = if limited { proc::memfd_bytes(&[session]) } else { 0 };
        let sum = shared + processes.iter().map(|process| proc::part_of_anonymous(process.pid)).sum::<u64>();
        // Of a sum that a fork came between, a page may be in it twice.
        if settled && look().1 == before {
            peak = peak.max(sum);
            count += 1;
        }
        thread::sleep(SAMPLE_EVERY);
    }
    (peak, count)
}
