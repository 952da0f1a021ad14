//! redis-server: DEBUG DIGEST as natively, BGSAVE while everything is overwritten, the saved file loaded again.

use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::check::{Data, Growth, faults, limits, report};
use crate::machine::{be_alone, native_only, say, tool, turn};
use crate::measure::{Job, Limit, Outcome, Running, Swap};

const KEYS: u64 = 150_000;
/// Commands sent before their replies are read.
const BATCH: u64 = 500;
const PATIENCE: Duration = Duration::from_secs(60);

struct Client {
    stream: UnixStream,
    replies: BufReader<UnixStream>,
}

impl Client {
    fn connect(socket: &Path) -> Option<Self> {
        let stream = UnixStream::connect(socket).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let replies = BufReader::new(stream.try_clone().ok()?);
        Some(Self { stream, replies })
    }

    /// One line of a reply; the line after it for a bulk string.
    fn reply(&mut self) -> Result<String, String> {
        let mut line = String::new();
        self.replies.read_line(&mut line).map_err(|error| error.to_string())?;
        if let Some(length) = line.strip_prefix('$') {
            let length: usize = length.trim().parse().map_err(|_| format!("reply {line:?}"))?;
            let mut bytes = vec![0; length + 2];
            self.replies.read_exact(&mut bytes).map_err(|error| error.to_string())?;
            return Ok(String::from_utf8_lossy(&bytes[..length]).into_owned());
        }
        match line.trim_end() {
            "" => Err("the server hung up".to_owned()),
            error if error.starts_with('-') => Err(error.to_owned()),
            reply => Ok(reply.to_owned()),
        }
    }

    fn ask(&mut self, command: &str) -> Result<String, String> {
        self.stream.write_all(format!("{command}\r\n").as_bytes()).map_err(|error| error.to_string())?;
        self.reply()
    }

    /// Asks again and again until the reply is as wished.
    fn wait(&mut self, command: &str, wished: impl Fn(&Result<String, String>) -> bool) -> Result<(), String> {
        let patience = Instant::now() + PATIENCE;
        loop {
            let reply = self.ask(command);
            if wished(&reply) {
                return Ok(());
            }
            if Instant::now() > patience {
                return Err(format!("{command} still says {reply:?}"));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until a background save is over.
    fn wait_for_save(&mut self) -> Result<(), String> {
        self.wait("INFO persistence", |reply| matches!(reply, Ok(text) if text.contains("rdb_bgsave_in_progress:0")))?;
        let state = self.ask("INFO persistence")?;
        if state.contains("rdb_last_bgsave_status:ok") { Ok(()) } else { Err(format!("BGSAVE failed: {state}")) }
    }

    /// Writes all keys, in batches: mostly strings, some hashes and lists; `version` decides about the content.
    fn write_all_keys(&mut self, version: u64) -> Result<(), String> {
        self.write_keys(version, 0..KEYS)
    }

    fn write_keys(&mut self, version: u64, keys: Range<u64>) -> Result<(), String> {
        for first in keys.step_by(BATCH as usize) {
            let mut commands = String::new();
            for key in first..first + BATCH {
                let word = (key + version) % 17;
                let text = format!("version-{version}-of-{key}-is-{word};").repeat(8 + (key % 40) as usize);
                commands += &match key % 10 {
                    8 => format!("HSET hash:{} field{word} {text}\r\n", key / 50),
                    9 => format!("RPUSH list:{} {text}\r\n", key / 50),
                    _ => format!("SET key:{key} {text}\r\n"),
                };
            }
            self.stream.write_all(commands.as_bytes()).map_err(|error| error.to_string())?;
            for _ in 0..BATCH {
                self.reply()?;
            }
        }
        Ok(())
    }
}

/// What a session with the server shows. The same natively and under any limit.
#[derive(Debug, PartialEq, Eq)]
struct Digests {
    before: String,
    after: String,
    /// Of the file that was saved while the keys were overwritten, loaded by a second server.
    loaded: String,
}

struct Server {
    job: Job,
    socket: PathBuf,
}

impl Server {
    /// Alone from now on: all servers have one socket and one directory.
    fn new() -> Option<Self> {
        be_alone();
        // A socket's path may have 107 bytes: the test's directory can be deeper than that.
        let socket = std::env::temp_dir().join(format!("real-programs-{}.sock", std::process::id()));
        let job = Job::new("redis", tool("redis-server")?)
            .args(["--save", "", "--appendonly", "no", "--dbfilename", "dump.rdb", "--enable-debug-command", "yes"])
            .args(["--port", "0", "--unixsocket"])
            .args([&socket]);
        Some(Self { job, socket })
    }

    /// The same, and what its children have in memory while they save counts.
    fn that_saves() -> Option<Self> {
        let Self { job, socket } = Self::new()?;
        Some(Self { job: job.with_forks(), socket })
    }

    fn connect(&self, run: &mut Running) -> Result<Client, String> {
        let mut client = None;
        run.wait_until(|_| {
            client = Client::connect(&self.socket);
            client.is_some()
        });
        let mut client = client.ok_or("the server does not listen")?;
        // While a file is loaded, PING is refused.
        client.wait("PING", |reply| matches!(reply, Ok(pong) if pong == "+PONG"))?;
        Ok(client)
    }

    /// Talks with a server that was just started, then ends it.
    fn talk<T>(
        &self,
        mut run: Running,
        dialogue: impl FnOnce(&mut Client) -> Result<T, String>,
    ) -> Result<(T, Outcome), String> {
        let said = self.connect(&mut run).and_then(|mut client| {
            let said = dialogue(&mut client)?;
            // The server answers by hanging up.
            let _ = client.ask("SHUTDOWN NOSAVE");
            Ok(said)
        });
        if said.is_err() {
            run.kill_all();
        }
        let outcome = run.finish();
        match said {
            Ok(said) => Ok((said, outcome)),
            Err(error) => Err(format!("{error}; {outcome:?}")),
        }
    }

    /// Two servers, one after the other: the second loads what the first saved.
    fn session(&self, start: impl Fn(&Job) -> Running) -> Result<(Digests, [Outcome; 2]), String> {
        let _ = std::fs::remove_file(self.job.directory.join("dump.rdb"));
        let ((before, after), first) = self.talk(start(&self.job), |client| {
            client.write_all_keys(1)?;
            let before = client.ask("DEBUG DIGEST")?;
            client.ask("BGSAVE")?;
            client.write_all_keys(2)?;
            client.wait_for_save()?;
            Ok((before, client.ask("DEBUG DIGEST")?))
        })?;
        let (loaded, second) = self.talk(start(&self.job), |client| client.ask("DEBUG DIGEST"))?;
        Ok((Digests { before, after, loaded }, [first, second]))
    }
}

/// How often the server saves, one time after the other.
const SAVES: u64 = 10;

/// Saves again and again, while a third of the keys are overwritten each time; what is there in the end, and what the last file
/// holds.
fn saves_in_a_row(server: &Server, start: impl Fn(&Job) -> Running) -> Result<((String, String), Outcome), String> {
    let _ = std::fs::remove_file(server.job.directory.join("dump.rdb"));
    let (after, outcome) = server.talk(start(&server.job), |client| {
        client.write_all_keys(1)?;
        for save in 0..SAVES {
            client.ask("BGSAVE")?;
            let third = KEYS / 3;
            client.write_keys(2 + save, save % 3 * third..(save % 3 + 1) * third)?;
            client.wait_for_save()?;
        }
        client.ask("DEBUG DIGEST")
    })?;
    let (loaded, _) = server.talk(server.job.start_native(), |client| client.ask("DEBUG DIGEST"))?;
    Ok(((after, loaded), outcome))
}

/// What the child that saves has in memory counts, its part of what it shares with its parent and the copies that arise.
#[test]
#[ignore = "takes long: make test-long"]
fn ten_background_saves_in_a_row() {
    let Some(_turn) = turn() else { return };
    let Some(server) = Server::that_saves() else { return };
    let (expected, native) = saves_in_a_row(&server, Job::start_native).unwrap_or_else(|error| panic!("natively: {error}"));
    say(&format!("  redis, ten saves: native {} MiB, {:.2} s", native.peak >> 20, native.elapsed.as_secs_f64()));
    if native_only() {
        return;
    }
    let limit = Limit { ram: native.peak / 100 * 65, swap: Swap::Default };
    let (digests, limited) = saves_in_a_row(&server, |job| job.start_limited(&limit))
        .unwrap_or_else(|error| panic!("at --ram {}: {error}", limit.ram));
    report(&server.job, &limit, &native, &limited);
    assert_eq!(digests, expected);
    let mut wrong = faults(&native, &limited, &limit, Growth::Forks);
    wrong.retain(|fault| !fault.starts_with("prints"));
    assert!(wrong.is_empty(), "at --ram {}: {wrong:?}\n{}", limit.ram, limited.stderr);
    assert!(limited.samples > 50, "only {} samples", limited.samples);
}

#[test]
#[ignore = "takes long: make test-long"]
fn digests_and_background_save() {
    let Some(_turn) = turn() else { return };
    let Some(server) = Server::new() else { return };
    let (expected, native) = server.session(Job::start_native).unwrap_or_else(|error| panic!("natively: {error}"));
    assert_eq!(expected.before, expected.loaded, "natively, the saved file holds what was there at BGSAVE");
    assert_ne!(expected.before, expected.after);
    if native_only() {
        say(&format!("  redis: native {} MiB, {:.2} s", native[0].peak >> 20, native[0].elapsed.as_secs_f64()));
        return;
    }
    for limit in limits(native[1].peak, Data::Compressible) {
        let (digests, limited) = server
            .session(|job| job.start_limited(&limit))
            .unwrap_or_else(|error| panic!("at --ram {} ({:?}): {error}", limit.ram, limit.swap));
        assert_eq!(digests, expected, "at --ram {} ({:?})", limit.ram, limit.swap);
        for (native, limited) in native.iter().zip(&limited) {
            report(&server.job, &limit, native, limited);
            // What the server prints has times and pids in it; the digests are its answer.
            let mut wrong = faults(native, limited, &limit, Growth::Stream);
            wrong.retain(|fault| !fault.starts_with("prints"));
            assert!(wrong.is_empty(), "at --ram {} ({:?}): {wrong:?}\n{}", limit.ram, limit.swap, limited.stderr);
        }
    }
}
