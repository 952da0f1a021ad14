//! What tells the keys of a run that goes on from those of one that was killed: a key that is renewed, and is gone some minutes
//! after nobody renews it. Pages never have such a time: a server that is slow for a while must not forget them.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::client::{Batch, Came, Client, Kind};
use lowtide_config::server::Address;

use crate::keys::{self, PAGES, RUNS, RunName};
use crate::map::Map;
use crate::remote::Remote;
use crate::resp::{self, Connection, Reply};
use crate::server::{Problem, asked};

/// How long a lease lasts, in seconds: a `lowtide run` that is stopped for longer may lose its pages to a cleaner.
const LEASE: u64 = 600;
/// How often it is to be renewed.
pub const RENEWED_EVERY: Duration = Duration::from_secs(60);
/// Keys that a scan looks at in one step.
const SCANNED_AT_ONCE: &[u8] = b"1000";

/// What was removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Runs that were gone.
    pub runs: usize,
    /// Their keys.
    pub keys: usize,
}

/// Tells the server that a run goes on, and if there are two copies of its pages, another node of it, too: for that one is away no
/// run is taken for dead.
///
/// # Errors
/// One does not answer, or takes no writes.
pub fn renew(client: &mut Client, run: RunName, deadline: Instant) -> Result<(), Problem> {
    let seconds = LEASE.to_string();
    let mut renewed = Ok(());
    let leases = leases(client.remote(), run);
    for (i, lease) in leases.iter().enumerate() {
        // Who is away does not take all of the time.
        let left = deadline.saturating_duration_since(Instant::now());
        let deadline = Instant::now() + left / (leases.len() - i) as u32;
        // A server whose memory is full takes no SET, but this.
        let is_there = client.ask(lease, &[b"EXPIRE", lease.as_bytes(), seconds.as_bytes()], deadline);
        let set: [&[u8]; 5] = [b"SET", lease.as_bytes(), b"1", b"EX", seconds.as_bytes()];
        renewed = renewed.and(match is_there {
            Ok(Reply::Number(0)) => client.ask(lease, &set, deadline).map(drop),
            other => other.map(drop),
        });
    }
    // In this order: a run in the list without a lease is taken for dead.
    renewed?;
    client.ask(RUNS, &[b"SADD", RUNS.as_bytes(), run.text().as_bytes()], deadline).map(drop)
}

/// The leases that a run has: where the list is, and on another node.
fn leases(remote: &Remote, run: RunName) -> Vec<String> {
    let first = run.lease();
    let begun = remote.begun.as_deref();
    let owner = |map: &Map, key: &str| map.owner(keys::hash_slot(key.as_bytes())).cloned();
    let other = begun.and_then(|map| run.other_leases().into_iter().find(|key| owner(map, key) != owner(map, &first)));
    [first].into_iter().chain(other).collect()
}

/// The run is over, and its pages are removed.
///
/// # Errors
/// One does not answer.
pub fn end(client: &mut Client, run: RunName, deadline: Instant) -> Result<(), Problem> {
    for lease in leases(client.remote(), run) {
        client.ask(&lease, &[b"UNLINK", lease.as_bytes()], deadline)?;
    }
    client.ask(RUNS, &[b"SREM", RUNS.as_bytes(), run.text().as_bytes()], deadline).map(drop)
}

/// Removes what runs have left that are gone. Looks through all keys of each node if there are such.
///
/// # Errors
/// One does not answer.
pub fn clean(remote: &Arc<Remote>, patience: Duration) -> Result<Cleaned, Problem> {
    let (mut client, mut cleaned) = (Client::new(remote.clone()), Cleaned::default());
    let deadline = || Instant::now() + patience;
    let names = client.ask(RUNS, &[b"SMEMBERS", RUNS.as_bytes()], deadline())?;
    let Reply::List(names) = names else { return Ok(cleaned) };
    for name in names {
        let Reply::Bytes(name) = name else { continue };
        let Some(run) = std::str::from_utf8(&name).ok().and_then(RunName::parse) else { continue };
        // What is on its way to another node while these are looked through may be in neither: until there is nothing anywhere.
        while !goes_on(&mut client, run, deadline())? {
            let removed = remove_all(&mut client, run, patience)?;
            cleaned.keys += removed;
            if removed == 0 {
                cleaned.runs += 1;
                end(&mut client, run, deadline())?;
                break;
            }
        }
    }
    Ok(cleaned)
}

/// Removes what is left of this run, which is over, on all nodes: a failover may have brought back what had been removed. Looks
/// through all keys of each node.
///
/// # Errors
/// One does not answer.
pub fn sweep(remote: &Arc<Remote>, run: RunName, patience: Duration) -> Result<(), Problem> {
    let mut client = Client::new(remote.clone());
    scan(remote, &run.prefix(), patience, |keys| remove(&mut client, keys, patience).map(|_| true))
}

/// Removes keys; how many there were.
fn remove(client: &mut Client, keys: &[&[u8]], patience: Duration) -> Result<usize, Problem> {
    let mut keys = Keys(keys, 0);
    let removed = client.carry_out(Kind::Remove, keys.0.len(), Instant::now() + patience, &mut keys);
    if removed.iter().any(Result::is_err) {
        return Err(Problem::Away("it does not remove what it is told to".to_owned()));
    }
    Ok(keys.1)
}

/// Whether a run has a lease, wherever it may be. One that was stopped may go on, and have one again.
///
/// # Errors
/// A node that may have one does not say.
fn goes_on(client: &mut Client, run: RunName, deadline: Instant) -> Result<bool, Problem> {
    let others = run.other_leases();
    let all: Vec<String> = [run.lease()].into_iter().chain(others).collect();
    let mut leases = Leases(&all, false);
    let done = client.carry_out(Kind::Ask, all.len(), deadline, &mut leases);
    if done.iter().any(Result::is_err) {
        return Err(client.problem());
    }
    Ok(leases.1)
}

/// Removes all keys of a run, as long as it has no lease. How many there were.
fn remove_all(client: &mut Client, run: RunName, patience: Duration) -> Result<usize, Problem> {
    let deadline = || Instant::now() + patience;
    let (remote, mut removed) = (client.remote().clone(), 0);
    scan(&remote, &run.prefix(), patience, |keys| {
        if goes_on(client, run, deadline())? {
            return Ok(false);
        }
        removed += remove(client, keys, patience)?;
        Ok(true)
    })?;
    Ok(removed)
}

/// Finds runs that have keys and are not in the list, which was lost with its node, and puts them there, with a lease: a run that
/// goes on renews it, and what another has left is removed when it is over. How many. Looks through all keys of each node.
///
/// # Errors
/// One does not answer, or takes no writes.
pub fn find_lost(remote: &Arc<Remote>, patience: Duration) -> Result<usize, Problem> {
    let (mut client, deadline) = (Client::new(remote.clone()), || Instant::now() + patience);
    let (mut seen, mut lost) = (HashSet::new(), 0);
    scan(remote, PAGES, patience, |keys| {
        for run in keys.iter().filter_map(|key| RunName::of_key(key)) {
            let name = run.text();
            let is_known = [b"SISMEMBER".as_slice(), RUNS.as_bytes(), name.as_bytes()];
            if seen.insert(run) && client.ask(RUNS, &is_known, deadline())? == Reply::Number(0) {
                renew(&mut client, run, deadline())?;
                lost += 1;
            }
        }
        Ok(true)
    })?;
    Ok(lost)
}

/// Looks through the keys of all nodes that begin with `prefix`: `look` gets some of them at a time, and says whether to go on.
/// A node that does not answer does not keep it from the others.
///
/// # Errors
/// The first of them.
fn scan(
    remote: &Remote,
    prefix: &str,
    patience: Duration,
    mut look: impl FnMut(&[&[u8]]) -> Result<bool, Problem>,
) -> Result<(), Problem> {
    let known = remote.known(Instant::now() + patience)?;
    let mut done = Ok(());
    for (node, _) in known.map.primaries() {
        match scan_node(remote, &known.map, &node.address, prefix, patience, &mut look) {
            Ok(true) => {}
            Ok(false) => break,
            Err(problem) => done = done.and(Err(if known.map.is_cluster { problem.of(&node.address) } else { problem })),
        }
    }
    done
}

/// The same, of one node; whether to go on.
fn scan_node(
    remote: &Remote,
    map: &Map,
    node: &Address,
    prefix: &str,
    patience: Duration,
    look: &mut impl FnMut(&[&[u8]]) -> Result<bool, Problem>,
) -> Result<bool, Problem> {
    let deadline = || Instant::now() + patience;
    let pattern = format!("{prefix}*");
    let mut link = remote.connect_to_node(node, map, deadline())?;
    let mut cursor = b"0".to_vec();
    loop {
        link.connection.until(deadline()).map_err(|error| Problem::of_connection(&error))?;
        let words = [b"SCAN", cursor.as_slice(), b"MATCH", pattern.as_bytes(), b"COUNT", SCANNED_AT_ONCE];
        let Reply::List(parts) = asked(&mut link.connection, &words)? else {
            return Err(Problem::Refused("SCAN is not for us".to_owned()));
        };
        let [Reply::Bytes(next), Reply::List(keys)] = parts.as_slice() else { return Ok(true) };
        let keys = keys.iter().filter_map(|key| match key {
            Reply::Bytes(key) if key.starts_with(prefix.as_bytes()) => Some(key.as_slice()),
            _ => None,
        });
        if !look(&keys.collect::<Vec<_>>())? {
            return Ok(false);
        }
        if next == b"0" {
            return Ok(true);
        }
        cursor.clone_from(next);
    }
}

/// Keys to be removed, and how many were.
struct Keys<'a>(&'a [&'a [u8]], usize);

impl Batch for Keys<'_> {
    fn hash_slot(&self, number: usize) -> u16 {
        keys::hash_slot(self.0[number])
    }

    fn put(&mut self, number: usize, out: &mut Vec<u8>) {
        resp::command(out, &[b"UNLINK", self.0[number]]);
    }

    fn take(&mut self, _: usize, connection: &mut Connection) -> io::Result<Came> {
        Ok(match connection.reply()? {
            Reply::Error(text) => Came::Error(text),
            Reply::Number(n) => {
                self.1 += usize::try_from(n).unwrap_or(0);
                Came::Done
            }
            _ => Came::Odd,
        })
    }
}

/// Leases that are looked for, and whether there is one.
struct Leases<'a>(&'a [String], bool);

impl Batch for Leases<'_> {
    fn hash_slot(&self, number: usize) -> u16 {
        keys::hash_slot(self.0[number].as_bytes())
    }

    fn put(&mut self, number: usize, out: &mut Vec<u8>) {
        resp::command(out, &[b"EXISTS", self.0[number].as_bytes()]);
    }

    fn take(&mut self, _: usize, connection: &mut Connection) -> io::Result<Came> {
        Ok(match connection.reply()? {
            Reply::Error(text) => Came::Error(text),
            Reply::Number(n) => {
                self.1 |= n > 0;
                Came::Done
            }
            _ => Came::Odd,
        })
    }
}
