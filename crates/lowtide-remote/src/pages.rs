//! Pages are written, read and removed: many commands in one piece, then their replies. Each thread has a [`Pages`] of its own,
//! with a connection.
//!
//! A command whose reply did not come may have been carried out, or may be later. So a connection on which something went wrong
//! is given up, and before anything is changed by another one the server is told to end it ([`Remote::fence`]). Then an error
//! means: not there, and it won't come.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lowtide_core::device::wire::Run;
use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;

use crate::keys;
use crate::resp::{self, Reply};
use crate::server::{Link, Remote};

/// A write that can't be done in this time has failed: the page stays where it is, or goes elsewhere.
const WRITING: Duration = Duration::from_secs(5);
/// Between attempts, at first and at most.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How many attempts there is time for at least, if they may last so long: a server that is gone without a word is tried anew.
const ATTEMPTS: u32 = 3;
const SHORTEST_ATTEMPT: Duration = Duration::from_secs(2);
/// Bytes of commands that are gathered before they are sent. (Replies to writes are short: they have room until all is sent.)
const SENT_AT_ONCE: usize = 64 << 10;
/// Slots that are removed by one command.
const REMOVED_AT_ONCE: usize = 512;

/// Who writes, reads and removes.
#[derive(Debug)]
pub struct Pages {
    remote: Arc<Remote>,
    link: Option<Link>,
    out: Vec<u8>,
    key: Vec<u8>,
}

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Nobody waits for long: where there is no server now, the pages go elsewhere.
    Write,
    Read,
    Remove,
}

/// Why an attempt came to nothing.
enum Failed {
    /// Perhaps the next one does better.
    Now,
    /// No other will.
    ForGood(Errno),
}

impl Pages {
    /// Without a connection so far.
    pub fn new(remote: Arc<Remote>) -> Pages {
        Pages { remote, link: None, out: Vec::new(), key: Vec::new() }
    }

    /// How long a read goes on trying.
    pub fn timeout(&self) -> Duration {
        self.remote.timeout
    }

    /// Keeps objects, which lie in `objects` one behind the other, as long as `lengths` say. How each run ended: `NOSPC`: the
    /// server's memory is full. `NOTCONN`: it can't be reached, or takes nothing for another reason.
    pub fn write(&mut self, device: &str, runs: &[Run], lengths: &[usize], objects: &[u8]) -> Vec<Result<(), Errno>> {
        let mut results = vec![Err(Errno::NOTCONN); runs.len()];
        let deadline = Instant::now() + self.remote.timeout.min(WRITING);
        let _ = self.attempts(Kind::Write, deadline, |this, link| {
            results.fill(Err(Errno::NOTCONN));
            this.out.clear();
            let (mut lengths, mut objects) = (lengths.iter(), objects);
            for slot in runs.iter().flat_map(slots) {
                let object;
                (object, objects) = objects.split_at(lengths.next().copied().unwrap_or(0).min(objects.len()));
                keys::slot(&mut this.key, device, slot);
                resp::command(&mut this.out, &[b"SET", &this.key, object]);
                if this.out.len() >= SENT_AT_ONCE {
                    link.connection.send(&this.out)?;
                    this.out.clear();
                }
            }
            link.connection.send(&this.out)?;
            for (run, result) in runs.iter().zip(&mut results) {
                let mut ended = Ok(());
                for _ in 0..run.pages {
                    ended = ended.and(match link.connection.done()? {
                        Ok(()) => Ok(()),
                        Err(text) if text.starts_with("OOM") => Err(Errno::NOSPC),
                        Err(_) => Err(Errno::NOTCONN),
                    });
                }
                *result = ended;
            }
            Ok(Ok(()))
        });
        results
    }

    /// Fetches objects: adds them to `objects`, and their lengths to `lengths`. How each run ended: those that did not end well
    /// have objects of length 0. `NODATA`: the server has no such object. `TIMEDOUT`: it did not answer in time.
    pub fn read(
        &mut self,
        device: &str,
        runs: &[Run],
        lengths: &mut Vec<usize>,
        objects: &mut Vec<u8>,
    ) -> Vec<Result<(), Errno>> {
        let pages: usize = runs.iter().map(|run| run.pages as usize).sum();
        let (lengths_before, objects_before) = (lengths.len(), objects.len());
        let mut results = Vec::new();
        let deadline = Instant::now() + self.remote.timeout;
        let done = self.attempts(Kind::Read, deadline, |this, link| {
            results.clear();
            lengths.truncate(lengths_before);
            objects.truncate(objects_before);
            this.out.clear();
            for slot in runs.iter().flat_map(slots) {
                keys::slot(&mut this.key, device, slot);
                resp::command(&mut this.out, &[b"GET", &this.key]);
            }
            link.connection.send(&this.out)?;
            // All replies are read, or the connection is of no use.
            let mut failed = Ok(());
            for run in runs {
                let mut result = Ok(());
                let (first_length, first_byte) = (lengths.len(), objects.len());
                for _ in 0..run.pages {
                    match link.connection.reply_into(objects, PAGE_SIZE)? {
                        Ok(length) => lengths.push(length),
                        Err(other) => {
                            lengths.push(0);
                            match other {
                                Reply::Nothing => result = Err(Errno::NODATA),
                                Reply::Error(text) if passes(&text) => failed = Err(Failed::Now),
                                Reply::Error(_) => failed = Err(Failed::ForGood(Errno::IO)),
                                _ => result = Err(Errno::BADMSG),
                            }
                        }
                    }
                }
                if result.is_err() {
                    lengths[first_length..].fill(0);
                    objects.truncate(first_byte);
                }
                results.push(result);
            }
            Ok(failed)
        });
        if let Err(errno) = done {
            lengths.truncate(lengths_before);
            lengths.resize(lengths_before + pages, 0);
            objects.truncate(objects_before);
            return vec![Err(errno); runs.len()];
        }
        results
    }

    /// Removes what is kept under slots. `patience`: how long that may come to nothing.
    ///
    /// # Errors
    /// `TIMEDOUT`: it is there still, as far as is known.
    pub fn remove(&mut self, device: &str, runs: &[Run], patience: Duration) -> Result<(), Errno> {
        let deadline = Instant::now() + patience;
        self.attempts(Kind::Remove, deadline, |this, link| {
            let mut slots = runs.iter().flat_map(slots).peekable();
            while slots.peek().is_some() {
                link.connection.until(Instant::now() + patience)?;
                let some: Vec<u64> = slots.by_ref().take(REMOVED_AT_ONCE).collect();
                this.out.clear();
                resp::begin(&mut this.out, 1 + some.len());
                resp::word(&mut this.out, b"UNLINK");
                for slot in some {
                    keys::slot(&mut this.key, device, slot);
                    resp::word(&mut this.out, &this.key);
                }
                link.connection.send(&this.out)?;
                if !matches!(link.connection.reply()?, Reply::Number(_)) {
                    return Ok(Err(Failed::Now));
                }
            }
            Ok(Ok(()))
        })
    }

    /// Does something by a connection, several times if need be, until it is done, or the time is over. What changes something
    /// on the server is done only where it may be trusted with pages, and where no late command can come behind.
    fn attempts(
        &mut self,
        what: Kind,
        deadline: Instant,
        mut attempt: impl FnMut(&mut Pages, &mut Link) -> io::Result<Result<(), Failed>>,
    ) -> Result<(), Errno> {
        let part = (deadline.saturating_duration_since(Instant::now()) / ATTEMPTS).max(SHORTEST_ATTEMPT);
        let mut pause = PAUSE;
        loop {
            if what != Kind::Remove && self.remote.is_over() {
                return Err(Errno::TIMEDOUT);
            }
            let (was_there, until) = (self.link.is_some(), (Instant::now() + part).min(deadline));
            match self.link(until) {
                // What it is told, it is asked again next time.
                Some(link) if what == Kind::Write && link.facts.refusal().is_some() => return Err(Errno::NOTCONN),
                Some(link) if what == Kind::Remove && link.facts.refusal().is_some() => {}
                Some(mut link) => match self.attempt(what, &mut link, until, &mut attempt) {
                    Ok(ended) => {
                        self.link = Some(link);
                        match ended {
                            Ok(()) => return Ok(()),
                            Err(Failed::ForGood(errno)) => return Err(errno),
                            Err(Failed::Now) => {}
                        }
                    }
                    Err(error) => {
                        self.remote.give_up(&link);
                        // It has been closed long ago, most likely.
                        if was_there && error.kind() != ErrorKind::TimedOut {
                            continue;
                        }
                    }
                },
                None if what == Kind::Write => return Err(Errno::NOTCONN),
                None => {}
            }
            if deadline.saturating_duration_since(Instant::now()) <= pause {
                return Err(Errno::TIMEDOUT);
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    fn attempt(
        &mut self,
        what: Kind,
        link: &mut Link,
        until: Instant,
        attempt: &mut impl FnMut(&mut Pages, &mut Link) -> io::Result<Result<(), Failed>>,
    ) -> io::Result<Result<(), Failed>> {
        link.connection.until(until)?;
        if what != Kind::Read {
            self.remote.fence(link)?;
        }
        attempt(self, link)
    }

    /// The connection, made anew if there is none.
    fn link(&mut self, deadline: Instant) -> Option<Link> {
        self.link.take().or_else(|| self.remote.connect(deadline).ok())
    }
}

/// The slots of a run.
fn slots(run: &Run) -> std::ops::Range<u64> {
    run.slot..run.slot + u64::from(run.pages)
}

/// Whether an error of a read is one of a moment: the server has just been started, or another one is about to take its place.
fn passes(error: &str) -> bool {
    ["LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "NOREPLICAS"].iter().any(|word| error.starts_with(word))
}
