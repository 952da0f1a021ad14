//! Distinguishes the keys of live runs from those of killed ones: each run renews a key that
//! expires minutes later. Pages never expire: a server that is slow for a while must not drop them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::client::{Batch, Came, Client, Kind};
use lowtide_config::server::Address;

use crate::keys::{self, Listed, Other, PAGES, RUNS, RunName};
use crate::map::Map;
use crate::remote::{Known, Remote};
use crate::resp::{self, Connection, Reply};
use crate::server::{Problem, asked};

/// In seconds: a cleaner may remove the pages of a `lowtide run` that is stopped for longer.
const LEASE: u64 = 600;
/// Period of renewal.
pub const RENEWED_EVERY: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_secs(5);
/// Keys of one step of a scan.
const SCANNED_AT_ONCE: &[u8] = b"1000";

/// Nodes that were not scanned, and why.
pub type Left = Vec<(Address, Problem)>;

/// The result of cleaning.
#[derive(Debug, Default)]
pub struct Cleaned {
    /// Dead runs.
    pub runs: usize,
    /// Their removed keys.
    pub keys: usize,
    /// Nodes whose keys were left.
    pub left: Left,
    /// Runs that may be live according to the missing nodes.
    pub undecided: usize,
}

/// Renews a run's lease, and with two copies one on another node, too: losing one node does not
/// make a run seem dead.
///
/// # Errors
/// A node does not answer, or takes no writes.
pub fn renew(client: &mut Client, run: RunName, deadline: Instant) -> Result<(), Problem> {
    let listed = listed(client.remote(), run);
    let (leases, mut renewed) = (listed.leases(), Ok(()));
    for (i, lease) in leases.iter().enumerate() {
        // A node that is away must not use up the time.
        let left = deadline.saturating_duration_since(Instant::now());
        let deadline = Instant::now() + left / (leases.len() - i) as u32;
        renewed = renewed.and(extend(client, lease, deadline));
    }
    // In this order: a listed run without a lease counts as dead.
    renewed?;
    list(client, listed, deadline)
}

fn extend(client: &mut Client, lease: &str, deadline: Instant) -> Result<(), Problem> {
    let seconds = LEASE.to_string();
    // A server with full memory refuses SET, but takes EXPIRE.
    let is_there = client.ask(lease, &[b"EXPIRE", lease.as_bytes(), seconds.as_bytes()], deadline)?;
    if is_there == Reply::Number(0) {
        client.ask(lease, &[b"SET", lease.as_bytes(), b"1", b"EX", seconds.as_bytes()], deadline)?;
    }
    Ok(())
}

fn list(client: &mut Client, listed: Listed, deadline: Instant) -> Result<(), Problem> {
    client.ask(RUNS, &[b"SADD", RUNS.as_bytes(), listed.text().as_bytes()], deadline).map(drop)
}

/// The lease beside the list, and with two copies one on another node.
fn listed(remote: &Remote, run: RunName) -> Listed {
    let owner = |map: &Map, key: &str| map.owner(keys::hash_slot(key.as_bytes())).cloned();
    let first = run.lease();
    let other = remote.begun.as_deref().and_then(|map| {
        let leases = run.other_leases();
        leases.iter().zip(0..).find(|(key, _)| owner(map, key) != owner(map, &first)).map(|(_, number)| number)
    });
    Listed { run, other: other.map_or(Other::None, Other::Numbered) }
}

/// Ends a run whose pages are removed.
///
/// # Errors
/// A node does not answer.
pub fn end(client: &mut Client, run: RunName, deadline: Instant) -> Result<(), Problem> {
    for lease in listed(client.remote(), run).leases() {
        client.ask(&lease, &[b"UNLINK", lease.as_bytes()], deadline)?;
    }
    unlist(client, run, deadline)
}

fn unlist(client: &mut Client, run: RunName, deadline: Instant) -> Result<(), Problem> {
    let all: Vec<String> = Listed::all(run).map(Listed::text).collect();
    let words: Vec<&[u8]> = [b"SREM".as_slice(), RUNS.as_bytes()].into_iter().chain(all.iter().map(String::as_bytes)).collect();
    client.ask(RUNS, &words, deadline).map(drop)
}

/// Removes the keys of dead runs; if there are any, scans all keys. Leaves the keys of nodes that
/// are away, and runs whose lease may be on one of those.
///
/// # Errors
/// The node with the list of runs is away.
pub fn clean(remote: &Arc<Remote>, patience: Duration) -> Result<Cleaned, Problem> {
    let (mut client, mut cleaned) = (Client::new(remote.clone()), Cleaned::default());
    let deadline = || Instant::now() + patience;
    let known = remote.known(deadline())?;
    cleaned.left = away(remote, &known, patience);
    let is_away = |left: &Left, key: &str| {
        let owner = known.map.owner(keys::hash_slot(key.as_bytes()));
        owner.is_none_or(|owner| left.iter().any(|(node, _)| node == owner))
    };
    let has_list = known.map.owner(keys::hash_slot(RUNS.as_bytes()));
    if let Some((node, problem)) = cleaned.left.iter().find(|(node, _)| Some(node) == has_list) {
        return Err(problem.clone().of(&format!("{node}, which has the list of runs")));
    }
    for (run, leases) in runs(&mut client, deadline())? {
        if leases.iter().any(|lease| is_away(&cleaned.left, lease)) {
            cleaned.undecided += 1;
            continue;
        }
        let leases: Vec<String> = leases.into_iter().collect();
        let mut is_counted = false;
        // A scan may miss keys that migrate between nodes: repeat until it finds none.
        while !goes_on(&mut client, &leases, deadline())? {
            let removed = remove_all(&mut client, run, &leases, &mut cleaned.left, patience)?;
            cleaned.keys += removed;
            cleaned.runs += usize::from(!is_counted);
            is_counted = true;
            if removed == 0 {
                if cleaned.left.is_empty() {
                    unlist(&mut client, run, deadline())?;
                }
                break;
            }
        }
    }
    Ok(cleaned)
}

fn away(remote: &Remote, known: &Known, patience: Duration) -> Left {
    let tried = known.map.primaries().into_iter().filter_map(|(node, _)| {
        let soon = Instant::now() + patience.min(LOOK);
        Some((node.address.clone(), remote.connect_to_node(&node.address, &known.map, soon).err()?))
    });
    tried.collect()
}

/// The listed runs, with the possible leases of each.
fn runs(client: &mut Client, deadline: Instant) -> Result<BTreeMap<RunName, BTreeSet<String>>, Problem> {
    let mut runs: BTreeMap<RunName, BTreeSet<String>> = BTreeMap::new();
    let Reply::List(names) = client.ask(RUNS, &[b"SMEMBERS", RUNS.as_bytes()], deadline)? else { return Ok(runs) };
    for name in names {
        let Reply::Bytes(name) = name else { continue };
        let Some(listed) = std::str::from_utf8(&name).ok().and_then(Listed::parse) else { continue };
        runs.entry(listed.run).or_default().extend(listed.leases());
    }
    Ok(runs)
}

/// Removes what is left of this ended run on all nodes: a failover may have restored keys. Scans
/// all keys.
///
/// # Errors
/// A node does not answer.
pub fn sweep(remote: &Arc<Remote>, run: RunName, patience: Duration) -> Result<(), Problem> {
    let (mut client, mut left) = (Client::new(remote.clone()), Left::new());
    scan(remote, &run.prefix(), &mut left, patience, |keys| remove(&mut client, keys, patience).map(|_| true))?;
    left.pop().map_or(Ok(()), |(node, problem)| Err(problem.of(&node)))
}

fn remove(client: &mut Client, keys: &[&[u8]], patience: Duration) -> Result<usize, Problem> {
    let mut keys = Keys(keys, 0);
    let removed = client.carry_out(Kind::Remove, keys.0.len(), Instant::now() + patience, &mut keys);
    if removed.iter().any(Result::is_err) {
        return Err(Problem::Away("it does not remove what it is told to".to_owned()));
    }
    Ok(keys.1)
}

/// Whether a run has one of these leases. A stopped run may continue and renew its lease.
///
/// # Errors
/// A node that may have one does not answer.
fn goes_on(client: &mut Client, leases: &[String], deadline: Instant) -> Result<bool, Problem> {
    let mut leases = Leases(leases, false);
    let done = client.carry_out(Kind::Ask, leases.0.len(), deadline, &mut leases);
    if done.iter().any(Result::is_err) {
        return Err(client.problem());
    }
    Ok(leases.1)
}

/// Removes the keys of a run while it has no lease, from nodes not in `left`, and adds failing
/// nodes to that. Returns their count.
fn remove_all(
    client: &mut Client,
    run: RunName,
    leases: &[String],
    left: &mut Left,
    patience: Duration,
) -> Result<usize, Problem> {
    let deadline = || Instant::now() + patience;
    let (remote, mut removed) = (client.remote().clone(), 0);
    scan(&remote, &run.prefix(), left, patience, |keys| {
        if goes_on(client, leases, deadline())? {
            return Ok(false);
        }
        removed += remove(client, keys, patience)?;
        Ok(true)
    })?;
    Ok(removed)
}

/// Enters runs that have keys into the list, from which they were lost with its node, with a new
/// lease: a live run renews it, and another one's keys are removed after its end. Returns their
/// count. Scans the nodes not in `left`, and adds failing ones to that.
///
/// # Errors
/// The node with the list does not answer, or takes no writes.
pub fn find_lost(remote: &Arc<Remote>, left: &mut Left, patience: Duration) -> Result<usize, Problem> {
    let (mut client, deadline) = (Client::new(remote.clone()), || Instant::now() + patience);
    let (mut seen, mut lost) = (HashSet::new(), 0);
    scan(remote, PAGES, left, patience, |keys| {
        for run in keys.iter().filter_map(|key| RunName::of_key(key)) {
            // A run is in the list before it has keys.
            if seen.insert(run) && !runs(&mut client, deadline())?.contains_key(&run) {
                extend(&mut client, &run.lease(), deadline())?;
                list(&mut client, Listed { run, other: Other::Unknown }, deadline())?;
                lost += 1;
            }
        }
        Ok(true)
    })?;
    Ok(lost)
}

/// Passes keys with `prefix` of nodes not in `left` to `look` in portions, until that returns
/// false. Adds failing nodes to `left`.
///
/// # Errors
/// No node knows the nodes.
fn scan(
    remote: &Remote,
    prefix: &str,
    left: &mut Left,
    patience: Duration,
    mut look: impl FnMut(&[&[u8]]) -> Result<bool, Problem>,
) -> Result<(), Problem> {
    let known = remote.known(Instant::now() + patience)?;
    for (node, _) in known.map.primaries() {
        if left.iter().any(|(one, _)| *one == node.address) {
            continue;
        }
        match scan_node(remote, &known.map, &node.address, prefix, patience, &mut look) {
            Ok(true) => {}
            Ok(false) => break,
            Err(problem) => left.push((node.address.clone(), problem)),
        }
    }
    Ok(())
}

/// False: stop.
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

/// Keys to remove, and the count of removed ones.
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
