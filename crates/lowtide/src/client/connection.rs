//! A connection to a run.

use super::failed;
use crate::control::place::Place;
use crate::control::protocol::{LONGEST_ANSWER, request};
use crate::error::Failure;
use lowtide_config::reason;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use serde_json::Value;
use std::time::{Duration, Instant};

/// A run without a message for this long counts as stopped.
pub const PATIENCE: Duration = Duration::from_secs(10);

pub struct Connection {
    socket: OwnedFd,
    pub pid: u32,
    input: Vec<u8>,
}

#[derive(Debug)]
pub enum Said {
    Progress(Value),
    Answer(Value),
    Error(Failure),
    End,
    Nothing,
}

impl Connection {
    /// None: no run of this pid in this place.
    pub fn new(place: &Place, pid: u32) -> Result<Option<Connection>, Failure> {
        let until = Instant::now() + PATIENCE;
        loop {
            match place.connect(pid) {
                Ok(socket) => return Ok(Some(Connection { socket, pid, input: Vec::new() })),
                Err(Errno::NOENT) => return Ok(None),
                // The run's backlog is full.
                Err(Errno::AGAIN) if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
                Err(Errno::AGAIN) => return Err(silent(pid)),
                Err(error) => {
                    let why = reason(error);
                    return Err(failed(format!("`lowtide run` {pid} can't be reached ({why}): is it your own?")));
                }
            }
        }
    }

    pub fn ask(&mut self, what: &str, fields: &[(&str, Value)]) -> Result<(), Failure> {
        let line = request(what, fields).to_string() + "\n";
        let mut rest = line.as_bytes();
        let until = Instant::now() + PATIENCE;
        while !rest.is_empty() {
            match rustix::net::send(&self.socket, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(n) => rest = &rest[n..],
                Err(Errno::AGAIN) if Instant::now() < until => {
                    wait(&mut [PollFd::new(&self.socket, PollFlags::OUT)], PATIENCE);
                }
                Err(Errno::AGAIN) => return Err(silent(self.pid)),
                Err(Errno::INTR) => {}
                // The run refused the connection; its reason is still to be read.
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    pub fn listen(&mut self, patience: Duration) -> Result<Said, Failure> {
        let until = Instant::now() + patience;
        loop {
            match self.hear()? {
                Said::Nothing if Instant::now() >= until => return Ok(Said::Nothing),
                Said::Nothing => {
                    let left = until.saturating_duration_since(Instant::now());
                    wait(&mut [PollFd::new(&self.socket, PollFlags::IN)], left);
                }
                said => return Ok(said),
            }
        }
    }

    pub fn hear(&mut self) -> Result<Said, Failure> {
        loop {
            if let Some(end) = self.input.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.input.drain(..=end).collect();
                return self.read(&line);
            }
            if self.input.len() > LONGEST_ANSWER {
                return Err(self.nonsense());
            }
            let mut chunk = [0; 16 << 10];
            match rustix::net::recv(&self.socket, &mut chunk[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Ok(Said::End),
                Ok((_, n)) => self.input.extend_from_slice(&chunk[..n]),
                Err(Errno::AGAIN) => return Ok(Said::Nothing),
                Err(Errno::INTR) => {}
                Err(_) => return Ok(Said::End),
            }
        }
    }

    /// Waits for the answer; progress goes to `report`.
    pub fn answer(&mut self, what: &str, fields: &[(&str, Value)], mut report: impl FnMut(&Value)) -> Result<Value, Failure> {
        self.ask(what, fields)?;
        loop {
            match self.listen(PATIENCE)? {
                Said::Progress(progress) => report(&progress),
                Said::Answer(answer) => return Ok(answer),
                Said::Error(failure) => return Err(failure),
                Said::End => return Err(ended(self.pid)),
                Said::Nothing => return Err(silent(self.pid)),
            }
        }
    }

    fn read(&self, line: &[u8]) -> Result<Said, Failure> {
        let value: Value = serde_json::from_slice(line).map_err(|_| self.nonsense())?;
        if let Some(progress) = value.get("progress") {
            return Ok(Said::Progress(progress.clone()));
        }
        if value["ok"] == true {
            return Ok(Said::Answer(value));
        }
        let (Some(line), Some(code)) = (value["error"].as_str(), value["code"].as_u64()) else { return Err(self.nonsense()) };
        Ok(Said::Error(Failure { code: u8::try_from(code).unwrap_or(1).max(1), line: line.to_owned() }))
    }

    fn nonsense(&self) -> Failure {
        failed(format!("`lowtide run` {} says what can't be understood: use the `lowtide` that started it", self.pid))
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Waits until one of them is ready or the time is over.
pub fn wait(polled: &mut [PollFd<'_>], time: Duration) {
    let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    // The caller looks again, interrupted or not.
    let _ = rustix::event::poll(polled, Some(&timeout));
}

pub fn silent(pid: u32) -> Failure {
    failed(format!("`lowtide run` {pid} does not answer: is it stopped? (`kill -CONT {pid}`)"))
}

pub fn ended(pid: u32) -> Failure {
    failed(format!("the run of `lowtide run` {pid} has ended"))
}
