//! The client of the race's redis-server: fills it, asks at random, a few keys often, changes some,
//! verifies every answer.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::fnv::Fnv;
use super::tails::Times;
use super::zipf::Zipf;
use std::hash::Hasher;

const PIPELINE: usize = 64;
/// Timeout of the server's start, and of an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Of this many requests one changes its key.
const REQUESTS_PER_CHANGE: usize = 5;
const ASK_EVERY: Duration = Duration::from_millis(5);

#[derive(Debug, Clone)]
pub struct Client {
    pub socket: PathBuf,
    /// Two or more.
    pub keys: usize,
    /// Requests after filling.
    pub requests: usize,
    /// Background saves meanwhile: each has the same share of the requests, and the next one waits
    /// for its end. So slow saving means no fewer saves.
    pub saves: usize,
}

impl Client {
    /// Does it all, ends the server, and returns a sum over the answers, and the times of rounds of
    /// requests.
    ///
    /// # Errors
    /// A line: the server does not answer, or wrongly.
    pub fn talk(&self) -> Result<(u64, Times), String> {
        self.talk_to(Server::connect(self)?)
    }

    fn talk_to(&self, mut server: Server) -> Result<(u64, Times), String> {
        let mut times = Times::new();
        let mut changes = vec![0u32; self.keys];
        for first in (0..self.keys).step_by(PIPELINE) {
            let keys = first..(first + PIPELINE).min(self.keys);
            let requests: Vec<_> = keys.map(|key| (key, Some(0))).collect();
            server.round(&requests, &changes)?;
        }
        let (zipf, mut random, mut sum) = (Zipf::new(self.keys), fastrand::Rng::with_seed(1), Fnv::new());
        let (rounds, parts) = (self.requests / PIPELINE, self.saves.max(1));
        for part in 0..parts {
            if self.saves > 0 {
                server.begin_save()?;
            }
            for round in rounds * part / parts..rounds * (part + 1) / parts {
                // The server works in order: a key changes before a later request of the same
                // round.
                let mut requests = Vec::with_capacity(PIPELINE);
                for i in 0..PIPELINE {
                    let key = zipf.next(&mut random);
                    let change = (round * PIPELINE + i).is_multiple_of(REQUESTS_PER_CHANGE);
                    requests.push((key, change.then(|| changes[key] + 1 + i as u32)));
                }
                let began = Instant::now();
                sum.write_u64(server.round(&requests, &changes)?);
                times.add(began.elapsed());
                requests.iter().filter_map(|(key, to)| Some((*key, (*to)?))).for_each(|(key, to)| changes[key] = to);
            }
            if self.saves > 0 {
                server.end_save()?;
            }
        }
        server.write(b"SHUTDOWN NOSAVE\r\n")?;
        Ok((sum.finish(), times))
    }
}

struct Server {
    to: UnixStream,
    from: BufReader<UnixStream>,
}

impl Server {
    fn connect(client: &Client) -> Result<Server, String> {
        let began = Instant::now();
        let to = loop {
            match UnixStream::connect(&client.socket) {
                Ok(stream) => break stream,
                Err(e) if began.elapsed() > PATIENCE => return Err(format!("redis-server does not answer: {e}")),
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        Server::over(to)
    }

    fn over(to: UnixStream) -> Result<Server, String> {
        to.set_read_timeout(Some(PATIENCE)).map_err(|e| e.to_string())?;
        let from = to.try_clone().map_err(|e| e.to_string())?;
        Ok(Server { to, from: BufReader::new(from) })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.to.write_all(bytes).map_err(|e| format!("redis-server: {e}"))
    }

    fn read_line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        self.from.read_line(&mut line).map_err(|e| format!("redis-server: {e}"))?;
        Ok(line.trim_end().to_owned())
    }

    fn begin_save(&mut self) -> Result<(), String> {
        self.write(b"BGSAVE\r\n")?;
        let answer = self.read_line()?;
        if answer.starts_with("+Background") { Ok(()) } else { Err(format!("redis-server: can't save: {answer}")) }
    }

    fn end_save(&mut self) -> Result<(), String> {
        loop {
            let state = self.persistence()?;
            let is = |line: &str| state.lines().any(|l| l == line);
            if is("rdb_bgsave_in_progress:0") {
                let is_well = is("rdb_last_bgsave_status:ok");
                return if is_well { Ok(()) } else { Err("redis-server: a save has failed".to_owned()) };
            }
            std::thread::sleep(ASK_EVERY);
        }
    }

    fn persistence(&mut self) -> Result<String, String> {
        self.write(b"INFO persistence\r\n")?;
        let first = self.read_line()?;
        let len: Option<usize> = first.strip_prefix('$').and_then(|len| len.parse().ok());
        let mut text = vec![0; len.ok_or_else(|| format!("redis-server: no answer to INFO: {first}"))?];
        self.from.read_exact(&mut text).map_err(|e| format!("redis-server: {e}"))?;
        self.read_line()?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Sets each key to its value after this many changes, or, without a number, reads it;
    /// `changes` counts them before the round. Returns a sum over the reads.
    fn round(&mut self, requests: &[(usize, Option<u32>)], changes: &[u32]) -> Result<u64, String> {
        let mut text = Vec::new();
        for (key, change) in requests {
            let written = match change {
                Some(change) => {
                    let value = value(*key, *change);
                    write!(text, "*3\r\n$3\r\nSET\r\n$11\r\nkey:{key:07}\r\n${}\r\n{value}\r\n", value.len())
                }
                None => write!(text, "*2\r\n$3\r\nGET\r\n$11\r\nkey:{key:07}\r\n"),
            };
            written.map_err(|e| e.to_string())?;
        }
        self.write(&text)?;
        let (mut sum, mut answer) = (Fnv::new(), Vec::new());
        for (i, (key, change)) in requests.iter().enumerate() {
            let expected = match change {
                Some(_) => "+OK\r\n".to_owned(),
                None => {
                    let earlier = requests[..i].iter().rev().find_map(|(k, to)| (k == key).then_some(*to)?);
                    let value = value(*key, earlier.unwrap_or(changes[*key]));
                    format!("${}\r\n{value}\r\n", value.len())
                }
            };
            answer.resize(expected.len(), 0);
            self.from.read_exact(&mut answer).map_err(|e| format!("redis-server: {e}"))?;
            if answer != expected.as_bytes() {
                return Err(format!("redis-server: wrong answer for key {key}"));
            }
            sum.write(&answer);
        }
        Ok(sum.finish())
    }
}

/// A record as of applications: words that repeat, numbers that don't; 300 to 900 bytes.
fn value(key: usize, change: u32) -> String {
    const PRODUCTS: [&str; 8] = ["bicycle", "lamp", "keyboard", "teapot", "notebook", "umbrella", "telescope", "chair"];
    let mut random = fastrand::Rng::with_seed((key as u64) << 20 | u64::from(change));
    let mut text = format!(r#"{{"customer":{key},"version":{change},"token":"{:016x}","ordered":["#, random.u64(..));
    for _ in 0..random.usize(3..12) {
        text += r#"{"product":""#;
        text += PRODUCTS[random.usize(..PRODUCTS.len())];
        text += r#"","currency":"EUR","status":"shipped","price":"#;
        text += &random.u32(..10_000).to_string();
        text += "},";
    }
    text.pop();
    text += "]}";
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn values_differ_by_key_and_by_change() {
        assert_eq!(value(7, 1), value(7, 1));
        assert!(value(7, 1) != value(8, 1) && value(7, 1) != value(7, 2));
    }

    /// Requests to a server: the count before each save, and in all.
    type Asked = (Vec<usize>, usize);

    /// A server whose saves end at the second poll; `status` is its answer about them.
    fn serve(client: UnixStream, status: &str) -> Asked {
        let mut server = Server::over(client).unwrap();
        let (mut values, mut saves, mut requests, mut looks) = (HashMap::new(), Vec::new(), 0, 0);
        loop {
            let line = server.read_line().unwrap_or_default();
            let answer = match line.as_str() {
                "BGSAVE" => {
                    assert_eq!(looks, 0, "one save at a time");
                    saves.push(requests);
                    looks = 2;
                    "+Background saving started".to_owned()
                }
                "INFO persistence" => {
                    looks -= 1;
                    let state =
                        format!("# Persistence\r\nrdb_bgsave_in_progress:{looks}\r\nrdb_last_bgsave_status:{status}\r\n");
                    format!("${}\r\n{state}", state.len())
                }
                "*2" | "*3" => {
                    requests += 1;
                    let mut word = || (server.read_line().unwrap(), server.read_line().unwrap()).1;
                    let (order, key) = (word(), word());
                    if order == "SET" {
                        values.insert(key, word());
                        "+OK".to_owned()
                    } else {
                        format!("${}\r\n{}", values[&key].len(), values[&key])
                    }
                }
                _ => return (saves, requests),
            };
            server.write(format!("{answer}\r\n").as_bytes()).unwrap();
        }
    }

    fn talk_to_one_that_saves(saves: usize, status: &str) -> (Result<u64, String>, Asked) {
        let client = Client { socket: PathBuf::new(), keys: PIPELINE, requests: 13 * PIPELINE, saves };
        let (one, other) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| serve(other, status));
            (client.talk_to(Server::over(one).unwrap()).map(|(sum, _)| sum), server.join().unwrap())
        })
    }

    #[test]
    fn each_save_has_its_share_of_the_requests_and_comes_to_its_end() {
        let (found, (saves, requests)) = talk_to_one_that_saves(4, "ok");
        assert_eq!((saves, requests), ([1, 4, 7, 10].map(|round| round * PIPELINE).to_vec(), 14 * PIPELINE));
        assert_eq!(found, talk_to_one_that_saves(0, "ok").0, "the same answers as without saves");
    }

    #[test]
    fn a_save_that_fails_is_an_error() {
        let (found, (saves, _)) = talk_to_one_that_saves(4, "err");
        assert_eq!((found, saves.len()), (Err("redis-server: a save has failed".to_owned()), 1));
    }
}
