//! One run of a load: in a session of its own, sampled, aborted when it takes too long, its output
//! summed up.

use std::ffi::OsString;
use std::hash::Hasher;
use std::io::{ErrorKind, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lowtide_config::proc;
use lowtide_config::sampler::{Memfds, Sampler};
use rustix::process::Signal;

use super::fnv::Fnv;
use super::redis::Client;
use super::tails::{self, Tails, Times};

const SAMPLE_EVERY: Duration = Duration::from_millis(4);

#[derive(Debug, Clone)]
pub struct Task {
    pub command: Vec<OsString>,
    pub directory: PathBuf,
    /// A server's client, outside of the limit.
    pub client: Option<Client>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Done {
    /// Its own report of the duration, or else its wall time.
    pub seconds: f64,
    pub wall: f64,
    /// Of its output, and of its client's result.
    pub checksum: u64,
    /// Highest sample of its memory in bytes; under lowtide including lowtide's own.
    pub peak: u64,
    /// Its own report of single faults, or its client's of requests.
    pub tails: Option<Tails>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Ended {
    Well(Done),
    /// Aborted after this many seconds; `peak` until then.
    TooLong {
        seconds: f64,
        peak: u64,
    },
    /// The kernel killed it, or a part of it, for lack of memory. Only the owner of its group knows
    /// that.
    Killed {
        seconds: f64,
        peak: u64,
    },
}

impl Ended {
    /// Highest sample of its memory in bytes.
    pub fn peak(self) -> u64 {
        match self {
            Ended::Well(Done { peak, .. }) | Ended::TooLong { peak, .. } | Ended::Killed { peak, .. } => peak,
        }
    }

    pub fn seconds_in_all(self) -> f64 {
        match self {
            Ended::Well(done) => done.wall,
            Ended::TooLong { seconds, .. } | Ended::Killed { seconds, .. } => seconds,
        }
    }

    /// A completed run.
    ///
    /// # Errors
    /// Another end.
    pub fn done(self) -> Result<Done, String> {
        match self {
            Ended::Well(done) => Ok(done),
            Ended::TooLong { seconds, .. } => Err(format!("takes too long: not done after {seconds:.0} s")),
            Ended::Killed { seconds, .. } => Err(format!("was ended for lack of memory after {seconds:.1} s")),
        }
    }
}

/// Runs a task after the words of `before`, which put it under a limit; calls `watch` with the
/// session every few milliseconds.
///
/// # Errors
/// A line: it can't be started or it failed.
pub fn run(task: &Task, before: &[OsString], deadline: Duration, mut watch: impl FnMut(u32)) -> Result<Ended, String> {
    let began = Instant::now();
    let mut running = Running::start(task, before)?;
    let mut sampler = Sampler::new(running.child.id(), Memfds::OfAll);
    let status = loop {
        match running.child.try_wait().map_err(|e| e.to_string())? {
            Some(status) => break status,
            None if began.elapsed() > deadline => {
                return Ok(Ended::TooLong { seconds: began.elapsed().as_secs_f64(), peak: sampler.peak });
            }
            None => {
                running.client_goes_on()?;
                sampler.sample();
                watch(running.child.id());
                std::thread::sleep(SAMPLE_EVERY);
            }
        }
    };
    let wall = began.elapsed().as_secs_f64();
    // Children that hold the output would keep the readers waiting.
    end_session(running.child.id());
    let said = joined(running.said.take())?;
    let last = said.lines().last().unwrap_or("no message");
    let found = running.found();
    let tails = tails::of(&said).or(running.tails);
    if !status.success() {
        return Err(format!("{} ended with {status}: {last}", running.name));
    }
    let mut hasher = Fnv(found?);
    hasher.write_u64(joined(running.output.take())?);
    let seconds = own_seconds(&said).unwrap_or(wall);
    Ok(Ended::Well(Done { seconds, wall, checksum: hasher.finish(), peak: sampler.peak, tails }))
}

/// What a job says of its own time on standard error.
pub fn own_seconds(said: &str) -> Option<f64> {
    said.lines().find_map(|line| line.strip_prefix("seconds ")?.parse().ok())
}

/// Drop ends its session.
struct Running {
    child: Child,
    name: String,
    output: Option<JoinHandle<u64>>,
    said: Option<JoinHandle<String>>,
    /// Until it has ended.
    client: Option<JoinHandle<Result<(u64, Times), String>>>,
    found: u64,
    tails: Option<Tails>,
}

impl Running {
    fn start(task: &Task, before: &[OsString]) -> Result<Running, String> {
        let name = task.command.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
        let mut words = before.iter().chain(&task.command);
        let mut command = Command::new(words.next().ok_or("nothing to run")?);
        command.args(words).current_dir(&task.directory).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Only the limit may differ, between runs and between machines.
        for (variable, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("LOWTIDE_")) {
            command.env_remove(variable);
        }
        command.env("LC_ALL", "C").env("PYTHONHASHSEED", "0").env("TMPDIR", &task.directory).env_remove("LD_PRELOAD");
        let own_session = || {
            rustix::process::setsid()?;
            // Dies with the experiment, however that ends.
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            Ok(())
        };
        // SAFETY: two system calls that touch no memory.
        unsafe { command.pre_exec(own_session) };
        let mut child = command.spawn().map_err(|e| format!("{name} can't be started: {e}"))?;
        let output = child.stdout.take().map(sum_of);
        let said = child.stderr.take().map(text_of);
        let client = task.client.clone().map(|client| std::thread::spawn(move || client.talk()));
        Ok(Running { child, name, output, said, client, found: Fnv::START, tails: None })
    }

    /// Checks the client: a server without one would wait for ever.
    ///
    /// # Errors
    /// Why it gave up.
    fn client_goes_on(&mut self) -> Result<(), String> {
        match self.client.take_if(|client| client.is_finished()) {
            Some(client) => self.ask(client),
            None => Ok(()),
        }
    }

    /// The client's result, when it has ended.
    ///
    /// # Errors
    /// Why it gave up.
    fn found(&mut self) -> Result<u64, String> {
        if let Some(client) = self.client.take() {
            self.ask(client)?;
        }
        Ok(self.found)
    }

    fn ask(&mut self, client: JoinHandle<Result<(u64, Times), String>>) -> Result<(), String> {
        let times;
        (self.found, times) = joined(Some(client))??;
        self.tails = times.tails();
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        end_session(self.child.id());
        let _ = self.child.wait();
    }
}

fn end_session(session: u32) {
    proc::of_session(session).iter().for_each(|process| process.signal(Signal::KILL));
}

fn joined<T>(thread: Option<JoinHandle<T>>) -> Result<T, String> {
    thread.and_then(|thread| thread.join().ok()).ok_or_else(|| "a thread of the race failed".to_owned())
}

fn text_of(mut from: ChildStderr) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Sums up the output as it comes, as it may be large.
fn sum_of(mut from: ChildStdout) -> JoinHandle<u64> {
    std::thread::spawn(move || {
        let (mut hasher, mut buffer) = (Fnv(Fnv::START), vec![0; 1 << 16]);
        // The ends of reads must not matter, but may split a word.
        let mut rest = 0;
        loop {
            match from.read(&mut buffer[rest..]) {
                Ok(0) => break,
                Ok(more) => {
                    let (filled, whole) = (rest + more, (rest + more) / 8 * 8);
                    buffer[..whole].chunks_exact(8).for_each(|word| hasher.add(word));
                    buffer.copy_within(whole..filled, 0);
                    rest = filled - whole;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        hasher.add(&buffer[..rest]);
        hasher.finish()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Task {
        let command = ["sh", "-c", script].map(OsString::from).to_vec();
        Task { command, directory: std::env::temp_dir(), client: None }
    }

    fn done(script: &str) -> Done {
        run(&sh(script), &[], Duration::from_secs(60), |_| ()).unwrap().done().unwrap()
    }

    #[test]
    fn the_same_output_has_the_same_sum_however_it_comes() {
        let sum = done("echo one line; echo another").checksum;
        assert_eq!(done("printf 'one li'; sleep 0.05; printf 'ne\\nanoth'; sleep 0.05; echo er").checksum, sum);
        assert_ne!(done("echo one line; echo anothes").checksum, sum);
        assert_ne!(done("echo another; echo one line").checksum, sum);
    }

    #[test]
    fn own_seconds_count_and_else_those_of_the_clock() {
        assert_eq!(done("echo seconds 0.125 >&2; sleep 0.05").seconds, 0.125);
        assert!(done("sleep 0.05").seconds >= 0.05);
    }

    #[test]
    fn failure_is_a_line_and_a_run_that_hangs_is_ended() {
        let failed = run(&sh("echo why >&2; exit 3"), &[], Duration::from_secs(60), |_| ()).unwrap_err();
        assert!(failed.contains("exit status: 3") && failed.ends_with("why"), "{failed}");
        let began = Instant::now();
        let ended = run(&sh("sleep 100 & sleep 100"), &[], Duration::from_millis(50), |_| ()).unwrap();
        assert!(matches!(ended, Ended::TooLong { .. }) && began.elapsed() < Duration::from_secs(20));
    }
}
