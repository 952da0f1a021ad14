//! Sends many commands in one piece, each to the node that has its key, and takes the replies, over
//! one thread's connections. Follows redirections.
//!
//! A command without a reply may have been carried out, or may be later. So a failed connection is
//! given up, and the node must close it before its next change ([`Remote::fence`]). Then an error
//! means: not there, and it won't come.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lowtide_config::server::Address;
use rustix::io::Errno;

use crate::keys;
use crate::map;
use crate::pause::Pause;
use crate::remote::{Known, Remote};
use crate::resp::{self, Connection, Reply};
use crate::server::{Link, Problem};

/// Duration of the first attempt; each further one has twice as long. A retry may find another node
/// in the place of a dead one.
const ATTEMPT: Duration = Duration::from_secs(2);
/// Least time for each node in an attempt: its replies may have arrived already.
const GRACE: Duration = Duration::from_millis(100);
/// Redirections followed without a pause.
const REDIRECTS: u32 = 16;
/// Bytes sent together. (The socket buffers the short replies to writes until then.)
const SENT_AT_ONCE: usize = 64 << 10;
/// Greatest age of a server's facts for trusting pages to it: its policy may change.
const FACTS_LAST: Duration = Duration::from_secs(5);

/// A sender of commands.
#[derive(Debug)]
pub struct Client {
    remote: Arc<Remote>,
    links: HashMap<Address, Link>,
    out: Vec<u8>,
    problem: Option<Problem>,
}

/// The kind of commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Writes pages. Fails soon without a server: the pages go elsewhere.
    Write,
    /// Reads pages, without waiting for a node that is away.
    Read,
    /// Removes pages.
    Remove,
    /// Removes pages, if possible at once.
    Discard,
    /// Anything else: an error is final.
    Ask,
}

impl Kind {
    /// Whether it retries until the deadline.
    fn waits(self) -> bool {
        matches!(self, Kind::Remove | Kind::Ask)
    }
}

/// A node's reply to a command.
#[derive(Debug, PartialEq, Eq)]
pub enum Came {
    /// Success.
    Done,
    /// No such key.
    Missing,
    /// An invalid reply.
    Odd,
    /// An error.
    Error(String),
}

/// Commands, by number.
pub trait Batch {
    /// The hash slot of a command's key.
    fn hash_slot(&self, number: usize) -> u16;
    /// Appends a command.
    fn put(&mut self, number: usize, out: &mut Vec<u8>);
    /// Whether a missing key needs confirmation by the slot's confirmed owner.
    fn doubts_missing(&self) -> bool {
        true
    }
    /// Takes its reply.
    ///
    /// # Errors
    /// Those of the connection.
    fn take(&mut self, number: usize, connection: &mut Connection) -> io::Result<Came>;
}

#[derive(Debug, Clone)]
struct Todo {
    number: usize,
    hash_slot: u16,
    /// The target of an ASK redirection, for one attempt.
    ask: Option<Address>,
    /// The retry goes to the confirmed owner of the slot.
    was_missing: bool,
}

enum Next {
    Again,
    Wait,
    Never(Errno),
}

struct Group {
    to: Address,
    todo: Vec<Todo>,
    link: Option<Link>,
    /// The server may have closed a reused connection.
    is_old: bool,
}

#[derive(Default)]
struct Round {
    again: Vec<Todo>,
    /// After a pause.
    wait: Vec<Todo>,
    /// Once the node's fate is known.
    gone: Vec<(Address, Todo)>,
    /// A slot may have another owner: ask, at most once a second.
    may_have_moved: bool,
    /// The same, and no result is valid before the answer.
    is_doubtful: bool,
    /// An attempt used up its time.
    is_slow: bool,
}

impl Client {
    /// Makes no connection yet.
    pub fn new(remote: Arc<Remote>) -> Client {
        Client { remote, links: HashMap::new(), out: Vec::new(), problem: None }
    }

    /// The shared state.
    pub fn remote(&self) -> &Arc<Remote> {
        &self.remote
    }

    /// Carries out `n` commands and returns the result of each. `NOSPC`: the node's memory is full.
    /// `NOTCONN`: not written, and won't be. `NODATA`: no such key. `TIMEDOUT`: not done in time,
    /// as far as known. `AGAIN`: for reads, not available now, with time left; for removals, some
    /// of several keys are migrating. `BADMSG`, `IO`: an invalid reply.
    pub fn carry_out(&mut self, kind: Kind, n: usize, deadline: Instant, batch: &mut impl Batch) -> Vec<Result<(), Errno>> {
        let mut results = vec![Err(if kind == Kind::Write { Errno::NOTCONN } else { Errno::TIMEDOUT }); n];
        let mut todo: Vec<Todo> =
            (0..n).map(|number| Todo { number, hash_slot: batch.hash_slot(number), ask: None, was_missing: false }).collect();
        let (mut pause, mut part, mut redirects) = (Pause::default(), ATTEMPT, 0);
        if kind == Kind::Read {
            // A repeated request may need longer.
            part = part.max(self.remote.timeout.saturating_sub(deadline.saturating_duration_since(Instant::now())));
        }
        let mut late = Vec::new();
        self.problem = None;
        while !(todo.is_empty() || self.remote.is_over() && matches!(kind, Kind::Write | Kind::Read)) {
            let until = deadline.min(Instant::now() + part);
            let mut round = Round::default();
            match self.remote.known(until) {
                Ok(known) => {
                    self.round(kind, &known, todo, until, batch, &mut results, &mut round);
                    self.learn(&known, deadline, &mut round);
                }
                Err(problem) => {
                    self.problem = Some(problem);
                    round.wait = todo;
                }
            }
            if !kind.waits() {
                late.append(&mut round.wait);
            }
            let must_wait = !round.wait.is_empty() || redirects >= REDIRECTS;
            redirects = if must_wait { 0 } else { redirects + 1 };
            if round.is_slow {
                part *= 2;
            }
            todo = round.again;
            todo.append(&mut round.wait);
            // Replies in this order need no copy.
            todo.sort_by_key(|todo| todo.number);
            if todo.is_empty() || !must_wait {
                continue;
            }
            if !kind.waits() || deadline.saturating_duration_since(Instant::now()) <= pause.length() {
                break;
            }
            pause.wait();
        }
        if kind == Kind::Read && Instant::now() < deadline {
            late.iter().chain(&todo).for_each(|todo| results[todo.number] = Err(Errno::AGAIN));
        }
        results
    }

    /// Sends each command once. (Over 70 lines: a reply may send its command elsewhere.)
    #[allow(clippy::too_many_arguments)] // all of them are the caller's
    fn round(
        &mut self,
        kind: Kind,
        known: &Known,
        todo: Vec<Todo>,
        until: Instant,
        batch: &mut impl Batch,
        results: &mut [Result<(), Errno>],
        round: &mut Round,
    ) {
        let mut groups: Vec<Group> = Vec::new();
        for todo in todo {
            let Some(to) = todo.ask.as_ref().or_else(|| known.map.owner(todo.hash_slot)) else {
                round.may_have_moved = true;
                round.wait.push(todo);
                continue;
            };
            if !kind.waits() && self.remote.is_away(to) {
                round.wait.push(Todo { ask: None, ..todo });
                continue;
            }
            match groups.iter_mut().find(|group| group.to == *to) {
                Some(group) => group.todo.push(todo),
                None => groups.push(Group { to: to.clone(), todo: vec![todo], link: None, is_old: false }),
            }
        }
        // Connected nodes first: a slow connection delays no others.
        groups.sort_by_key(|group| !self.links.contains_key(&group.to));
        let until = || until.max(Instant::now() + GRACE);
        for group in &mut groups {
            let until = until();
            group.is_old = self.links.contains_key(&group.to);
            let Some(mut link) = self.link(&group.to, known, until) else { continue };
            let sent = link.connection.until(until).and_then(|()| self.ready(kind, known, &mut link)).and_then(|is_ready| {
                if is_ready {
                    self.send(group, &mut link, batch)?;
                }
                Ok(is_ready)
            });
            match sent {
                Ok(true) => group.link = Some(link),
                Ok(false) => {
                    // Another node may have taken its place.
                    round.may_have_moved = true;
                    round.wait.append(&mut group.todo);
                    self.links.insert(group.to.clone(), link);
                }
                Err(error) => self.broken(&link, &error, group.is_old, &mut group.todo, round),
            }
        }
        for group in groups {
            let Group { to, todo, link, is_old } = group;
            let Some(mut link) = link else {
                round.gone.extend(todo.into_iter().map(|todo| (to.clone(), todo)));
                continue;
            };
            let mut left = todo.into_iter();
            // A failure shows at the next read as well.
            let _ = link.connection.until(until());
            let ended = loop {
                let Some(one) = left.next() else { break Ok(()) };
                match received(&one, &mut link.connection, batch) {
                    Ok(Came::Missing) if known.map.is_cluster && !one.was_missing && batch.doubts_missing() => {
                        // A primary that was stopped may not know of its successor.
                        round.is_doubtful = true;
                        round.again.push(Todo { was_missing: true, ask: None, ..one });
                    }
                    Ok(came) => self.sort(kind, came, one, &to, results, round),
                    Err(error) => break Err((one, error)),
                }
            };
            match ended {
                Ok(()) => _ = self.links.insert(to, link),
                Err((first, error)) => {
                    let mut todo: Vec<Todo> = std::iter::once(first).chain(left).collect();
                    self.broken(&link, &error, is_old, &mut todo, round);
                    round.gone.extend(todo.into_iter().map(|todo| (to.clone(), todo)));
                }
            }
        }
    }

    /// Updates the map if in doubt, and decides about commands to nodes that are gone.
    fn learn(&self, known: &Known, deadline: Instant, round: &mut Round) {
        let soon = deadline.min(Instant::now() + ATTEMPT);
        let newer = if !round.gone.is_empty() || round.is_doubtful {
            self.remote.newer(known, soon).ok()
        } else {
            if round.may_have_moved {
                let _ = self.remote.newer_soon(known, soon);
            }
            None
        };
        if round.is_doubtful && newer.is_none() {
            // No node can answer now.
            let again = std::mem::take(&mut round.again).into_iter();
            let (doubtful, again): (Vec<_>, Vec<_>) = again.partition(|todo| todo.was_missing);
            round.wait.extend(doubtful.into_iter().map(|todo| Todo { was_missing: false, ..todo }));
            round.again = again;
        }
        for (from, mut todo) in std::mem::take(&mut round.gone) {
            todo.ask = None;
            let is_elsewhere = newer.as_ref().is_some_and(|now| now.map.owner(todo.hash_slot).is_some_and(|to| *to != from));
            if is_elsewhere {
                round.again.push(todo);
            } else {
                self.remote.set_away(&from);
                round.wait.push(todo);
            }
        }
    }

    fn broken(&mut self, link: &Link, error: &io::Error, is_old: bool, todo: &mut Vec<Todo>, round: &mut Round) {
        self.remote.give_up(link);
        round.is_slow |= error.kind() == ErrorKind::TimedOut;
        self.failed(Problem::of_connection(error), &link.address);
        if is_old && error.kind() != ErrorKind::TimedOut {
            round.again.extend(todo.drain(..).map(|todo| Todo { ask: None, ..todo }));
        }
    }

    /// Whether commands may be sent: changes need a trusted node, and a fence against late
    /// commands.
    fn ready(&mut self, kind: Kind, known: &Known, link: &mut Link) -> io::Result<bool> {
        if kind == Kind::Write {
            if link.changes != Some(known.changes) || link.asked.elapsed() > FACTS_LAST {
                link.ask_again().map_err(|_| ErrorKind::ConnectionAborted)?;
                link.changes = Some(known.changes);
            }
            if let Some(why) = link.facts.refusal() {
                // The facts are asked again next time.
                link.changes = None;
                self.failed(Problem::Refused(why), &link.address);
                return Ok(false);
            }
        }
        if kind != Kind::Read {
            self.remote.fence(link)?;
            link.has_changes = true;
        }
        Ok(true)
    }

    fn send(&mut self, group: &Group, link: &mut Link, batch: &mut impl Batch) -> io::Result<()> {
        self.out.clear();
        for todo in &group.todo {
            if todo.ask.is_some() {
                resp::command(&mut self.out, &[b"ASKING"]);
            }
            batch.put(todo.number, &mut self.out);
            if self.out.len() >= SENT_AT_ONCE {
                link.connection.send(&self.out)?;
                self.out.clear();
            }
        }
        link.connection.send(&self.out)
    }

    fn sort(
        &mut self,
        kind: Kind,
        came: Came,
        mut todo: Todo,
        from: &Address,
        results: &mut [Result<(), Errno>],
        round: &mut Round,
    ) {
        todo.ask = None;
        let next = match came {
            Came::Done => {
                results[todo.number] = Ok(());
                return;
            }
            Came::Missing => Next::Never(Errno::NODATA),
            Came::Odd => Next::Never(Errno::BADMSG),
            Came::Error(text) => {
                let next = self.after_error(kind, &text, &mut todo, from, round);
                if !matches!(next, Next::Again) {
                    self.failed(Problem::Refused(text), from);
                }
                next
            }
        };
        match next {
            Next::Again => round.again.push(todo),
            Next::Wait => round.wait.push(todo),
            Next::Never(errno) => results[todo.number] = Err(errno),
        }
    }

    fn after_error(&self, kind: Kind, text: &str, todo: &mut Todo, from: &Address, round: &mut Round) -> Next {
        let mut words = text.split(' ');
        let word = words.next().unwrap_or_default();
        match word {
            "MOVED" | "ASK" => {
                let Some(to) = words.nth(1).and_then(|to| map::address(to, from)) else { return Next::Never(Errno::BADMSG) };
                let to = self.remote.meant(to);
                if word == "ASK" {
                    todo.ask = Some(to);
                } else {
                    self.remote.moved(todo.hash_slot, &to);
                    round.may_have_moved = true;
                }
                Next::Again
            }
            "TRYAGAIN" if matches!(kind, Kind::Remove | Kind::Discard) => Next::Never(Errno::AGAIN),
            "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "BUSY" | "NOREPLICAS" | "READONLY" => {
                round.may_have_moved = true;
                if kind == Kind::Write { Next::Never(Errno::NOTCONN) } else { Next::Wait }
            }
            "OOM" if kind == Kind::Write => Next::Never(Errno::NOSPC),
            _ => match kind {
                Kind::Write => Next::Never(Errno::NOTCONN),
                Kind::Ask => Next::Never(Errno::IO),
                // Access rights may change for a moment, with a password for example.
                Kind::Read | Kind::Remove | Kind::Discard => Next::Wait,
            },
        }
    }

    fn link(&mut self, to: &Address, known: &Known, deadline: Instant) -> Option<Link> {
        if let Some(link) = self.links.remove(to) {
            return Some(link);
        }
        match self.remote.connect_to_node(to, &known.map, deadline) {
            Ok(link) => Some(Link { changes: Some(known.changes), ..link }),
            Err(problem) => {
                self.failed(problem, to);
                None
            }
        }
    }

    fn failed(&mut self, problem: Problem, node: &Address) {
        // A single server needs no name.
        let is_one = self.remote.server.hosts.as_slice() == std::slice::from_ref(node);
        self.problem = Some(if is_one { problem } else { problem.of(node) });
    }

    /// Sends one command to the owner of a key.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub fn ask(&mut self, key: &str, words: &[&[u8]], deadline: Instant) -> Result<Reply, Problem> {
        let mut one = One { hash_slot: keys::hash_slot(key.as_bytes()), words, reply: None };
        let done = self.carry_out(Kind::Ask, 1, deadline, &mut one);
        match (done.as_slice(), one.reply) {
            ([Ok(())], Some(reply)) => Ok(reply),
            _ => Err(self.problem()),
        }
    }

    /// The latest failure.
    pub fn problem(&mut self) -> Problem {
        self.problem.take().unwrap_or_else(|| Problem::Away("it does not answer".to_owned()))
    }
}

fn received(todo: &Todo, connection: &mut Connection, batch: &mut impl Batch) -> io::Result<Came> {
    if todo.ask.is_some() {
        // If ASKING fails, so does the command.
        let _ = connection.done()?;
    }
    batch.take(todo.number, connection)
}

struct One<'a> {
    hash_slot: u16,
    words: &'a [&'a [u8]],
    reply: Option<Reply>,
}

impl Batch for One<'_> {
    fn hash_slot(&self, _: usize) -> u16 {
        self.hash_slot
    }

    fn put(&mut self, _: usize, out: &mut Vec<u8>) {
        resp::command(out, self.words);
    }

    fn take(&mut self, _: usize, connection: &mut Connection) -> io::Result<Came> {
        Ok(match connection.reply()? {
            Reply::Error(text) => Came::Error(text),
            reply => {
                self.reply = Some(reply);
                Came::Done
            }
        })
    }
}
