//! One client: answers its requests in order, each before the next is read.
//!
//! Neither buffer grows beyond one message: requests stay in the socket while an answer is unread.
//! A client that reads nothing for a while is dropped.

use super::dispatch::{self, Reply};
use super::protocol::{self, LONGEST_REQUEST, Request};
use crate::error::Failure;
use crate::live::{Answer, Live, Step, Task};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use serde_json::{Map, Value};
use std::time::{Duration, Instant};

/// Longest time without reading of a pending answer.
const READS_WITHIN: Duration = Duration::from_secs(5);
/// Longest time without a request.
const ASKS_WITHIN: Duration = Duration::from_secs(30);
/// Longest silence towards a client that waits for an answer.
const SAYS_WITHIN: Duration = Duration::from_secs(2);
const CHUNK: usize = 16 << 10;

pub struct Connection {
    socket: OwnedFd,
    input: Vec<u8>,
    output: Vec<u8>,
    task: Option<Box<dyn Task>>,
    /// End of input.
    has_ended: bool,
    /// Close after sending `output`.
    is_closing: bool,
    seen: Instant,
}

impl Connection {
    pub fn new(socket: OwnedFd) -> Connection {
        let (input, output) = (Vec::new(), Vec::new());
        Connection { socket, input, output, task: None, has_ended: false, is_closing: false, seen: Instant::now() }
    }

    /// A client that gets one error, and may not ask.
    pub fn refuse(socket: OwnedFd, why: Failure) -> Connection {
        Connection { output: protocol::answer(Err(why)), is_closing: true, ..Connection::new(socket) }
    }

    pub fn waits_for(&self) -> (BorrowedFd<'_>, PollFlags) {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, self.has_room());
        flags.set(PollFlags::OUT, !self.output.is_empty());
        (self.socket.as_fd(), flags)
    }

    /// Reads, answers and writes without waiting; false: close the connection.
    pub fn serve(&mut self, run: &mut Live<'_>) -> bool {
        let is_there = self.send() && self.receive() && {
            self.answer(run);
            self.send()
        };
        if self.output.is_empty() && self.task.is_none() && !self.is_closing && self.seen.elapsed() > ASKS_WITHIN {
            self.end_with(Failure { code: 1, line: "nothing was asked for a while: connect again".to_owned() });
        }
        let is_stuck = !self.output.is_empty() && self.seen.elapsed() > READS_WITHIN;
        let has_nothing = self.has_ended && !self.input.contains(&b'\n');
        let is_done = self.output.is_empty() && self.task.is_none() && (self.is_closing || has_nothing);
        let goes_on = is_there && !is_stuck && !is_done;
        if !goes_on && let Some(mut task) = self.task.take() {
            let _ = task.cancel(run);
        }
        goes_on
    }

    pub fn step(&mut self, run: &mut Live<'_>) {
        let Some(task) = &mut self.task else { return };
        match task.step(run) {
            Step::Done(answer) => self.finish(answer),
            // Only once the client has read the last report.
            Step::Going(Some(report)) if self.output.is_empty() => {
                self.output = protocol::progress(report);
                self.seen = Instant::now();
            }
            // Keepalive: a silent run counts as stopped.
            Step::Going(None) if self.output.is_empty() && self.seen.elapsed() > SAYS_WITHIN => {
                self.output = protocol::progress(Value::Object(Map::new()));
                self.seen = Instant::now();
            }
            Step::Going(_) => {}
        }
    }

    /// Tells waiting clients without blocking that the run is over.
    pub fn end(&mut self) {
        if self.task.take().is_some() {
            self.finish(Err(Failure { code: 1, line: "the run has ended".to_owned() }));
        }
        self.send();
    }

    fn has_room(&self) -> bool {
        !self.has_ended && !self.is_closing && self.input.len() < LONGEST_REQUEST
    }

    fn receive(&mut self) -> bool {
        if !self.has_room() {
            return true;
        }
        let mut chunk = [0; CHUNK];
        let most = CHUNK.min(LONGEST_REQUEST - self.input.len());
        match rustix::net::recv(&self.socket, &mut chunk[..most], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => self.has_ended = true,
            Ok((_, n)) => {
                self.input.extend_from_slice(&chunk[..n]);
                // With a pending answer, sending alone does not count as activity.
                if self.output.is_empty() {
                    self.seen = Instant::now();
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => return false,
        }
        true
    }

    fn send(&mut self) -> bool {
        if self.output.is_empty() {
            return true;
        }
        match rustix::net::send(&self.socket, &self.output, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(n) if n == self.output.len() => {
                self.output = Vec::new();
                self.seen = Instant::now();
            }
            Ok(n) => {
                self.output.drain(..n);
                self.seen = Instant::now();
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => return false,
        }
        true
    }

    /// Handles the next line unless an answer is pending.
    fn answer(&mut self, run: &mut Live<'_>) {
        if !self.output.is_empty() || self.is_closing {
            return;
        }
        match self.input.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                let request = Request::parse(&self.input[..end]);
                self.input.drain(..=end);
                self.input.shrink_to(CHUNK);
                match request {
                    Ok(request) => self.start(request, run),
                    Err(bad) if bad.is_garbage => self.end_with(bad.failure),
                    Err(bad) => self.say(Err(bad.failure)),
                }
            }
            None if self.input.len() >= LONGEST_REQUEST => {
                let line = format!("the request is longer than {LONGEST_REQUEST} bytes: send less, and end it with a newline");
                self.end_with(Failure::usage(line));
            }
            None if self.has_ended => {
                if let Some(task) = &mut self.task {
                    // A client that has shut down its writing side may still read.
                    if is_gone(&self.socket) {
                        let answer = task.cancel(run);
                        self.finish(answer);
                    }
                } else if !self.input.is_empty() {
                    self.end_with(Failure::usage("the request is cut off: end it with a newline"));
                }
            }
            None => {}
        }
    }

    fn start(&mut self, request: Request, run: &mut Live<'_>) {
        match (request, &mut self.task) {
            (Request::Cancel, Some(task)) => {
                let answer = task.cancel(run);
                self.finish(answer);
            }
            (Request::Cancel, None) => self.say(Err(Failure::usage("there is nothing to cancel on this connection"))),
            (_, Some(_)) => {
                self.say(Err(Failure::usage("this connection waits for an answer already: cancel that, or connect once more")));
            }
            (request, None) => match dispatch::start(request, run) {
                Reply::Now(answer) => self.finish(answer),
                Reply::Later(task) => self.task = Some(task),
            },
        }
    }

    fn finish(&mut self, answer: Answer) {
        self.task = None;
        self.say(answer);
    }

    /// Appends to the output, which holds at most one progress report.
    fn say(&mut self, answer: Answer) {
        self.output.extend(protocol::answer(answer));
        self.seen = Instant::now();
    }

    fn end_with(&mut self, why: Failure) {
        self.is_closing = true;
        self.say(Err(why));
    }
}

fn is_gone(socket: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let polled = rustix::event::poll(&mut polled, Some(&now)).map(|_| polled[0].revents());
    polled.is_ok_and(|events| events.intersects(PollFlags::HUP | PollFlags::ERR))
}
