//! Many commands in one piece, each to the node that has its key, then their replies: with a connection to each node, for one
//! thread. What the nodes say of keys that are elsewhere, or on their way, is followed.
//!
//! A command whose reply did not come may have been carried out, or may be later. So a connection on which something went wrong
//! is given up, and before anything is changed at that node the node is told to end it ([`Remote::fence`]). Then an error means:
//! not there, and it won't come.

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

/// How long a first attempt may take; each has twice the time of the one before. A node that is gone without a word, or hangs, is
/// tried anew: perhaps another has taken its place.
const ATTEMPT: Duration = Duration::from_secs(2);
/// What is left of the time of an attempt for each node, however long another took: what it has sent is here already.
const GRACE: Duration = Duration::from_millis(100);
/// How often a command is sent where a node says that the key is, without a pause.
const REDIRECTS: u32 = 16;
/// Bytes of commands that are gathered before they are sent. (Replies to writes are short: they have room until all is sent.)
const SENT_AT_ONCE: usize = 64 << 10;
/// How old may be what a server says of itself when pages are trusted to it: its policy may have been changed.
const FACTS_LAST: Duration = Duration::from_secs(5);

/// Who sends commands.
#[derive(Debug)]
pub struct Client {
    remote: Arc<Remote>,
    links: HashMap<Address, Link>,
    out: Vec<u8>,
    /// The last thing that went wrong.
    problem: Option<Problem>,
}

/// What kind of commands these are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Pages are kept. Nobody waits for long: where there is no server now, they go elsewhere.
    Write,
    /// Pages are fetched. Nobody waits here for those that can't be had now: that holds up others.
    Read,
    /// Pages are removed.
    Remove,
    /// The same, if it can be done at once.
    Discard,
    /// Something else is asked, or done: an error is final.
    Ask,
}

impl Kind {
    /// Whether it goes on until the deadline.
    fn waits(self) -> bool {
        matches!(self, Kind::Remove | Kind::Ask)
    }
}

/// What a node replied to a command.
#[derive(Debug, PartialEq, Eq)]
pub enum Came {
    /// What was wanted.
    Done,
    /// It has no such key.
    Missing,
    /// What no server sends.
    Odd,
    /// It did not do it.
    Error(String),
}

/// Commands, by number.
pub trait Batch {
    /// In which hash slot the key of a command is.
    fn hash_slot(&self, number: usize) -> u16;
    /// Adds a command to what is to be sent.
    fn put(&mut self, number: usize, out: &mut Vec<u8>);
    /// Whether who has no such key may be wrong: it is asked anew who has its slot, and that one a second time.
    fn doubts_missing(&self) -> bool {
        true
    }
    /// Takes its reply.
    ///
    /// # Errors
    /// Those of the connection.
    fn take(&mut self, number: usize, connection: &mut Connection) -> io::Result<Came>;
}

/// A command that is not done yet.
#[derive(Debug, Clone)]
struct Todo {
    number: usize,
    hash_slot: u16,
    /// The next time it is to be sent there, although the slot is not there yet.
    ask: Option<Address>,
    /// A node said that there is no such key: it is asked for a second time by who knows where the slot is now.
    was_missing: bool,
}

/// What is to be done next with a command that was not carried out.
enum Next {
    /// At once, where it is said to be now.
    Again,
    /// After a while.
    Wait,
    Never(Errno),
}

/// Commands for one node, with the connection while they are under way.
struct Group {
    to: Address,
    todo: Vec<Todo>,
    link: Option<Link>,
    /// The connection is from before: it may have been closed long ago.
    is_old: bool,
}

/// How a round went, beside what it has done.
#[derive(Default)]
struct Round {
    /// To be sent again at once.
    again: Vec<Todo>,
    /// To be sent again in a while.
    wait: Vec<Todo>,
    /// To be sent again when it is known what has become of the node.
    gone: Vec<(Address, Todo)>,
    /// Another node has, or may have, a slot. That is asked, but not each time.
    may_have_moved: bool,
    /// The same, and before that is known nothing can be said.
    is_doubtful: bool,
    /// Some attempt took all the time that it had.
    is_slow: bool,
}

impl Client {
    /// Without a connection so far.
    pub fn new(remote: Arc<Remote>) -> Client {
        Client { remote, links: HashMap::new(), out: Vec::new(), problem: None }
    }

    /// What it is a client of.
    pub fn remote(&self) -> &Arc<Remote> {
        &self.remote
    }

    /// Carries out `n` commands. How each ended: `NOSPC`: the node's memory is full. `NOTCONN`: it was not written, and won't be.
    /// `NODATA`: there is no such key. `TIMEDOUT`: it was not done in time, as far as is known. `AGAIN`: of reads: it can't be
    /// had now, and there is time left; of removals: some of several keys are on their way to another node.
    /// `BADMSG`, `IO`: the node replied what it never should.
    pub fn carry_out(&mut self, kind: Kind, n: usize, deadline: Instant, batch: &mut impl Batch) -> Vec<Result<(), Errno>> {
        let mut results = vec![Err(if kind == Kind::Write { Errno::NOTCONN } else { Errno::TIMEDOUT }); n];
        let mut todo: Vec<Todo> =
            (0..n).map(|number| Todo { number, hash_slot: batch.hash_slot(number), ask: None, was_missing: false }).collect();
        let (mut pause, mut part, mut redirects) = (Pause::default(), ATTEMPT, 0);
        if kind == Kind::Read {
            // Of what was asked before: it takes longer, perhaps.
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
            // Replies may be taken in this order without a copy.
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

    /// Sends each command once to the node that has its slot, and takes the replies.
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
        // What can be sent at once does not wait for a node that is slow to let us in.
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
                    // Another has taken its place, perhaps.
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
            // What the time is set for can only fail where reading does, too.
            let _ = link.connection.until(until());
            let ended = loop {
                let Some(one) = left.next() else { break Ok(()) };
                match received(&one, &mut link.connection, batch) {
                    Ok(Came::Missing) if known.map.is_cluster && !one.was_missing && batch.doubts_missing() => {
                        // A primary that was stopped for a while may not know yet that another has taken its place.
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

    /// After a round: finds out where slots are, if that is in doubt, and what is to be done with the commands to nodes that are
    /// gone.
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
            // Nobody can say it now.
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

    /// A connection to a node is of no use any more.
    fn broken(&mut self, link: &Link, error: &io::Error, is_old: bool, todo: &mut Vec<Todo>, round: &mut Round) {
        self.remote.give_up(link);
        round.is_slow |= error.kind() == ErrorKind::TimedOut;
        self.failed(Problem::of_connection(error), &link.address);
        if is_old && error.kind() != ErrorKind::TimedOut {
            round.again.extend(todo.drain(..).map(|todo| Todo { ask: None, ..todo }));
        }
    }

    /// Whether commands may be sent: what changes something is done only where it may be trusted with pages, and where no late
    /// command can come behind.
    fn ready(&mut self, kind: Kind, known: &Known, link: &mut Link) -> io::Result<bool> {
        if kind == Kind::Write {
            if link.changes != Some(known.changes) || link.asked.elapsed() > FACTS_LAST {
                link.ask_again().map_err(|_| ErrorKind::ConnectionAborted)?;
                link.changes = Some(known.changes);
            }
            if let Some(why) = link.facts.refusal() {
                // What it is told, it is asked again next time.
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

    /// Sees to a reply.
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
                // Rights may be changed for a moment, with a password for example.
                Kind::Read | Kind::Remove | Kind::Discard => Next::Wait,
            },
        }
    }

    /// The connection to a node, made anew if there is none.
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

    /// Something went wrong at a node.
    fn failed(&mut self, problem: Problem, node: &Address) {
        // Of a single server it is known which.
        let is_one = self.remote.server.hosts.as_slice() == std::slice::from_ref(node);
        self.problem = Some(if is_one { problem } else { problem.of(node) });
    }

    /// Asks one thing of who has a key.
    ///
    /// # Errors
    /// It does not answer, or won't do it.
    pub fn ask(&mut self, key: &str, words: &[&[u8]], deadline: Instant) -> Result<Reply, Problem> {
        let mut one = One { hash_slot: keys::hash_slot(key.as_bytes()), words, reply: None };
        let done = self.carry_out(Kind::Ask, 1, deadline, &mut one);
        match (done.as_slice(), one.reply) {
            ([Ok(())], Some(reply)) => Ok(reply),
            _ => Err(self.problem()),
        }
    }

    /// What went wrong last with commands of which some did not end well.
    pub fn problem(&mut self) -> Problem {
        self.problem.take().unwrap_or_else(|| Problem::Away("it does not answer".to_owned()))
    }
}

fn received(todo: &Todo, connection: &mut Connection, batch: &mut impl Batch) -> io::Result<Came> {
    if todo.ask.is_some() {
        // If it is refused, so is what follows.
        let _ = connection.done()?;
    }
    batch.take(todo.number, connection)
}

/// A single command.
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
