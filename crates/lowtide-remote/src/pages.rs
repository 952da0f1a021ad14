//! Pages are written, read and removed. Each thread has a [`Pages`] of its own, with connections.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lowtide_core::device::wire::Run;
use lowtide_core::slot::CLUSTER_SLOTS;
use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;

use crate::client::{Batch, Came, Client, Kind};
use crate::keys;
use crate::remote::Remote;
use crate::resp::{self, Connection, Reply};

/// A write that can't be done in this time has failed: the page stays where it is, or goes elsewhere.
const WRITING: Duration = Duration::from_secs(5);
/// A discard that can't be done in this time is left: whoever makes room does not wait.
const DISCARDING: Duration = Duration::from_secs(1);
/// Slots that are removed together, in several commands.
const REMOVED_AT_ONCE: usize = 64 * CLUSTER_SLOTS;

/// Who writes, reads and removes.
#[derive(Debug)]
pub struct Pages {
    client: Client,
}

/// The slots of a request, and their keys.
struct Slots<'a> {
    device: &'a str,
    slots: Vec<u64>,
    /// Of the cluster of slots that was looked at last.
    hash_slot: std::cell::Cell<Option<(u64, u16)>>,
    key: Vec<u8>,
}

struct Writing<'a> {
    slots: Slots<'a>,
    objects: &'a [u8],
    /// Where each object is.
    places: Vec<Range<usize>>,
}

struct Reading<'a, 'o> {
    slots: Slots<'a>,
    into: &'o mut Vec<u8>,
    /// Where each object is, once it has come.
    places: Vec<Range<usize>>,
}

/// Each command removes consecutive slots of one cluster.
struct Removing<'a> {
    slots: Slots<'a>,
    commands: Vec<Range<usize>>,
}

impl Pages {
    /// Without a connection so far.
    pub fn new(remote: Arc<Remote>) -> Pages {
        Pages { client: Client::new(remote) }
    }

    /// Keeps objects, which lie in `objects` one behind the other, as long as `lengths` say. How each run ended: `NOSPC`: the
    /// server's memory is full. `NOTCONN`: it can't be reached, or takes nothing for another reason.
    pub fn write(&mut self, device: &str, runs: &[Run], lengths: &[usize], objects: &[u8]) -> Vec<Result<(), Errno>> {
        let slots = Slots::of(device, runs);
        let mut end = 0;
        let mut place = |length: &usize| {
            let begin = end;
            end = (begin + length).min(objects.len());
            begin..end
        };
        let places: Vec<_> = lengths.iter().map(&mut place).collect();
        let (n, deadline) = (slots.slots.len().min(places.len()), Instant::now() + self.client.remote().timeout.min(WRITING));
        let mut batch = Writing { slots, objects, places };
        let results = self.client.carry_out(Kind::Write, n, deadline, &mut batch);
        self.client.remote().counts.pages_written.add(results.iter().filter(|result| result.is_ok()).count() as u64);
        let mut results = results.into_iter();
        let of_run =
            |run: &Run| (0..run.pages).map(|_| results.next().unwrap_or(Err(Errno::NOTCONN))).fold(Ok(()), Result::and);
        runs.iter().map(of_run).collect()
    }

    /// Fetches objects: adds them to `objects`, and their lengths to `lengths`. `since`: when they were asked for first. How each
    /// run ended: those that did not end well have objects of length 0. `NODATA`: the server has no such object. `AGAIN`: they
    /// can't be had now, and are to be asked for again. `TIMEDOUT`: that has lasted for as long as the server is waited for.
    pub fn read(
        &mut self,
        device: &str,
        runs: &[Run],
        lengths: &mut Vec<usize>,
        objects: &mut Vec<u8>,
        since: Instant,
    ) -> Vec<Result<(), Errno>> {
        let (slots, before, deadline) = (Slots::of(device, runs), objects.len(), since + self.client.remote().timeout);
        let n = slots.slots.len();
        let mut batch = Reading { slots, into: objects, places: vec![0..0; n] };
        let results = self.client.carry_out(Kind::Read, n, deadline, &mut batch);
        let Reading { mut places, .. } = batch;
        let mut ended = Vec::with_capacity(runs.len());
        let mut first = 0;
        for run in runs {
            let of_run = first..first + run.pages as usize;
            first = of_run.end;
            let result: Result<(), Errno> = results[of_run.clone()].iter().copied().collect();
            if result.is_err() {
                places[of_run].fill(0..0);
            }
            ended.push(result);
        }
        in_order(objects, before, &places);
        lengths.extend(places.iter().map(Range::len));
        if !ended.contains(&Err(Errno::AGAIN)) {
            let counts = &self.client.remote().counts;
            counts.read_took(since.elapsed());
            counts.pages_read.add(places.iter().filter(|place| !place.is_empty()).count() as u64);
        }
        ended
    }

    /// Removes what is kept under slots. `patience`: how long that may come to nothing; none: it is done at once, or not.
    ///
    /// # Errors
    /// `TIMEDOUT`: it is there still, as far as is known.
    pub fn remove(&mut self, device: &str, runs: &[Run], patience: Option<Duration>) -> Result<(), Errno> {
        let (mut kind, mut patience) = patience.map_or((Kind::Discard, DISCARDING), |patience| (Kind::Remove, patience));
        let (mut all, mut done) = (runs.iter().flat_map(slots).peekable(), Ok(()));
        while all.peek().is_some() {
            let some: Vec<u64> = all.by_ref().take(REMOVED_AT_ONCE).collect();
            let removed = self.remove_some(device, some, kind, Instant::now() + patience);
            if removed.is_err() {
                // A node that is away holds up nothing on the others, and is waited for once.
                (kind, patience) = (Kind::Discard, DISCARDING);
            }
            done = done.and(removed);
        }
        done
    }

    fn remove_some(&mut self, device: &str, some: Vec<u64>, kind: Kind, deadline: Instant) -> Result<(), Errno> {
        let mut commands: Vec<Range<usize>> = Vec::new();
        for cluster in some.chunk_by(|a, b| cluster_of(*a) == cluster_of(*b)) {
            let begin = commands.last().map_or(0, |last| last.end);
            commands.push(begin..begin + cluster.len());
        }
        let mut batch = Removing { slots: Slots::new(device, some), commands };
        let results = self.client.carry_out(kind, batch.commands.len(), deadline, &mut batch);
        // Of keys that are on their way to another node some may be here and some there: then one after the other.
        let apart = batch.commands.iter().zip(&results).filter(|(_, result)| **result == Err(Errno::AGAIN));
        let apart: Vec<Range<usize>> = apart.flat_map(|(command, _)| command.clone().map(|i| i..i + 1)).collect();
        let whole = results.into_iter().filter(|result| *result != Err(Errno::AGAIN)).fold(Ok(()), Result::and);
        batch.commands = apart;
        let results = self.client.carry_out(kind, batch.commands.len(), deadline, &mut batch);
        results.into_iter().fold(whole, Result::and)
    }
}

/// Makes `objects`, from `before` on, what lies at `places` there, one behind the other.
fn in_order(objects: &mut Vec<u8>, before: usize, places: &[Range<usize>]) {
    let mut end = before;
    let are_in_order = places.iter().filter(|place| !place.is_empty()).all(|place| {
        let follows = place.start == end;
        end = place.end;
        follows
    });
    if are_in_order {
        objects.truncate(end);
        return;
    }
    let came = objects.split_off(before);
    places.iter().for_each(|place| objects.extend_from_slice(&came[place.start.saturating_sub(before)..][..place.len()]));
}

/// The slots of a run.
fn slots(run: &Run) -> Range<u64> {
    run.slot..run.slot + u64::from(run.pages)
}

fn cluster_of(slot: u64) -> u64 {
    slot / CLUSTER_SLOTS as u64
}

impl Slots<'_> {
    fn of<'a>(device: &'a str, runs: &[Run]) -> Slots<'a> {
        Slots::new(device, runs.iter().flat_map(slots).collect())
    }

    fn new(device: &str, slots: Vec<u64>) -> Slots<'_> {
        Slots { device, slots, hash_slot: std::cell::Cell::new(None), key: Vec::new() }
    }

    fn key(&mut self, number: usize) -> &[u8] {
        keys::slot(&mut self.key, self.device, self.slots[number]);
        &self.key
    }

    fn hash_slot(&self, number: usize) -> u16 {
        let slot = self.slots[number];
        if let Some((_, hash_slot)) = self.hash_slot.get().filter(|(cluster, _)| *cluster == cluster_of(slot)) {
            return hash_slot;
        }
        let mut key = Vec::new();
        keys::slot(&mut key, self.device, slot);
        let hash_slot = keys::hash_slot(&key);
        self.hash_slot.set(Some((cluster_of(slot), hash_slot)));
        hash_slot
    }
}

impl Batch for Writing<'_> {
    fn hash_slot(&self, number: usize) -> u16 {
        self.slots.hash_slot(number)
    }

    fn put(&mut self, number: usize, out: &mut Vec<u8>) {
        let object = &self.objects[self.places[number].clone()];
        resp::command(out, &[b"SET", self.slots.key(number), object]);
    }

    fn take(&mut self, _: usize, connection: &mut Connection) -> io::Result<Came> {
        Ok(connection.done()?.map_or_else(Came::Error, |()| Came::Done))
    }
}

impl Batch for Reading<'_, '_> {
    fn hash_slot(&self, number: usize) -> u16 {
        self.slots.hash_slot(number)
    }

    fn put(&mut self, number: usize, out: &mut Vec<u8>) {
        resp::command(out, &[b"GET", self.slots.key(number)]);
    }

    fn take(&mut self, number: usize, connection: &mut Connection) -> io::Result<Came> {
        let begin = self.into.len();
        let came = connection.reply_into(self.into, PAGE_SIZE).inspect_err(|_| self.into.truncate(begin))?;
        Ok(match came {
            Ok(_) => {
                self.places[number] = begin..self.into.len();
                Came::Done
            }
            Err(Reply::Nothing) => Came::Missing,
            Err(Reply::Error(text)) => Came::Error(text),
            Err(_) => Came::Odd,
        })
    }
}

impl Batch for Removing<'_> {
    fn hash_slot(&self, number: usize) -> u16 {
        self.slots.hash_slot(self.commands[number].start)
    }

    fn put(&mut self, number: usize, out: &mut Vec<u8>) {
        let slots = self.commands[number].clone();
        resp::begin(out, 1 + slots.len());
        resp::word(out, b"UNLINK");
        slots.for_each(|i| resp::word(out, self.slots.key(i)));
    }

    fn take(&mut self, _: usize, connection: &mut Connection) -> io::Result<Came> {
        Ok(match connection.reply()? {
            Reply::Error(text) => Came::Error(text),
            _ => Came::Done,
        })
    }
}
