//! Writes, reads and removes pages, with one copy of each or two (`copies.rs`).

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lowtide_config::server::Address;
use lowtide_core::device::wire::Run;
use lowtide_core::device::{WhichCopy as Which, is_length};
use lowtide_core::slot::CLUSTER_SLOTS;
use lowtide_core::vm::PAGE_SIZE;
use rustix::io::Errno;

use crate::client::{Batch, Came, Client, Kind};
use crate::copies::Places;
use crate::harm::Harm;
use crate::keys;
use crate::map::Map;
use crate::remote::{Known, Remote};
use crate::resp::{self, Connection, Reply};

/// Timeout of a write: the page then stays where it is, or goes elsewhere.
const WRITING: Duration = Duration::from_secs(5);
/// Timeout of a discard: freeing room must not wait.
const DISCARDING: Duration = Duration::from_secs(1);
/// Below this time for a read, the first copy gets half of it.
const SHORT: Duration = Duration::from_secs(4);
/// Time to confirm a slot's owner before a copy counts as lost.
const REPORTING: Duration = Duration::from_secs(1);
const REMOVED_AT_ONCE: usize = 64 * CLUSTER_SLOTS;

/// One thread's access to pages, with its connections.
#[derive(Debug)]
pub struct Pages {
    client: Client,
    harmed: Vec<Harmed>,
    /// The map at the last request's start, with two copies.
    asked: Option<Known>,
}

#[derive(Debug)]
struct Harmed {
    slot: u64,
    hash_slot: u16,
    node: Option<Address>,
    harm: Harm,
}

/// The copies to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// First ones, and second ones where those are unavailable.
    Any,
    /// First ones only, if there are two: what came was wrong.
    First,
    /// Second ones only.
    Second,
}

struct Slots<'a> {
    device: &'a str,
    slots: Vec<u64>,
    begun: Option<Arc<Map>>,
    /// The latest cluster's.
    places: Cell<Option<(u64, Places)>>,
    key: Vec<u8>,
}

/// First all first copies, then all second ones.
struct Writing<'a> {
    slots: Slots<'a>,
    /// Indexes into `slots`.
    wanted: Vec<usize>,
    objects: &'a [u8],
    places: Vec<Range<usize>>,
}

struct Reading<'a, 'o> {
    slots: Slots<'a>,
    which: Which,
    /// A node that lacks the key may be wrong.
    is_doubtful: bool,
    /// Indexes into `slots`.
    wanted: Vec<usize>,
    into: &'o mut Vec<u8>,
    places: Vec<Range<usize>>,
}

struct Removing<'a> {
    slots: Slots<'a>,
    commands: Vec<Removal>,
}

/// Copies of consecutive slots of one cluster.
#[derive(Clone)]
struct Removal {
    run: usize,
    slots: Range<usize>,
    which: Which,
}

impl Pages {
    /// Makes no connection yet.
    pub fn new(remote: Arc<Remote>) -> Pages {
        Pages { client: Client::new(remote), harmed: Vec::new(), asked: None }
    }

    /// Writes consecutive `objects`. The result of each run: `NOSPC`: the server's memory is full.
    /// `NOTCONN`: it is unreachable, or refuses for another reason. Success: all copies are there.
    pub fn write(&mut self, device: &str, runs: &[Run], lengths: &[usize], objects: &[u8]) -> Vec<Result<(), Errno>> {
        let mut slots = self.slots(device, runs.iter().flat_map(slots).collect());
        let mut end = 0;
        let mut place = |length: &usize| {
            let begin = end;
            end = (begin + length).min(objects.len());
            begin..end
        };
        let places: Vec<_> = lengths.iter().map(&mut place).collect();
        let (n, deadline) = (slots.slots.len().min(places.len()), Instant::now() + self.client.remote().timeout.min(WRITING));
        slots.slots.truncate(n);
        let copies = if slots.begun.is_some() { 2 } else { 1 };
        let wanted: Vec<usize> = self.writable(&slots, deadline);
        let mut batch = Writing { slots, wanted, objects, places };
        let each = self.client.carry_out(Kind::Write, copies * batch.wanted.len(), deadline, &mut batch);
        let mut results = vec![Err(Errno::NOTCONN); n];
        for (at, i) in batch.wanted.iter().enumerate() {
            results[*i] = each[at..].iter().step_by(batch.wanted.len()).copied().collect();
        }
        self.count_written(&batch.slots, &results, deadline);
        let mut results = results.into_iter();
        let of_run =
            |run: &Run| (0..run.pages).map(|_| results.next().unwrap_or(Err(Errno::NOTCONN))).fold(Ok(()), Result::and);
        runs.iter().map(of_run).collect()
    }

    /// Slots whose copies can all be written: otherwise no node gets a copy.
    fn writable(&self, slots: &Slots<'_>, deadline: Instant) -> Vec<usize> {
        let (all, remote) = (0..slots.slots.len(), self.client.remote());
        let Some(known) = remote.known(deadline).ok().filter(|_| slots.begun.is_some() && remote.has_away()) else {
            return all.collect();
        };
        let is_there = |hash_slot| known.map.owner(hash_slot).is_some_and(|node| !remote.is_away(node));
        let both = |places: Places| is_there(places.first) && places.second.is_none_or(|(_, second)| is_there(second));
        all.filter(|i| both(slots.places(*i))).collect()
    }

    fn count_written(&self, slots: &Slots<'_>, results: &[Result<(), Errno>], deadline: Instant) {
        let remote = self.client.remote();
        let kept = || (0..results.len()).filter(|i| results[*i].is_ok());
        remote.counts.pages_written.add(kept().count() as u64);
        if slots.begun.is_some()
            && let Ok(known) = remote.known(deadline)
        {
            let together = kept().filter(|i| slots.places(*i).are_together(&known.map)).count();
            remote.counts.copies_together.add(together as u64);
        }
    }

    fn slots<'a>(&self, device: &'a str, slots: Vec<u64>) -> Slots<'a> {
        Slots { device, slots, begun: self.client.remote().begun.clone(), places: Cell::new(None), key: Vec::new() }
    }

    /// Appends objects to `objects`, and their lengths to `lengths`: 0 in a failed run. `since`:
    /// the time of the first request. The result of each run: `NODATA`: the server has no such
    /// object. `AGAIN`: unavailable now. `TIMEDOUT`: unavailable for the server's whole timeout.
    /// (Over 70 lines: a round for each copy, and what its replies mean.)
    pub fn read(
        &mut self,
        device: &str,
        runs: &[Run],
        source: Source,
        lengths: &mut Vec<usize>,
        objects: &mut Vec<u8>,
        since: Instant,
    ) -> Vec<Result<(), Errno>> {
        let (before, deadline) = (objects.len(), since + self.client.remote().timeout);
        let slots = self.slots(device, runs.iter().flat_map(slots).collect());
        let (n, has_second) = (slots.slots.len(), slots.begun.is_some());
        let (mut results, mut seconds) = (vec![Err(Errno::NODATA); n], 0);
        let mut harmed = Vec::new();
        self.asked = if has_second { self.client.remote().known(deadline).ok() } else { None };
        let (is_doubtful, wanted) = (true, Vec::new());
        let mut batch = Reading { slots, which: Which::First, is_doubtful, wanted, into: objects, places: vec![0..0; n] };
        // If a first copy is missing, tries the second before doubting that.
        let passes: &[(Which, bool)] = match source {
            Source::Any if has_second => &[(Which::First, false), (Which::Second, true), (Which::First, true)],
            Source::Any => &[(Which::First, true)],
            Source::First if has_second => &[(Which::First, true)],
            Source::Second if has_second => &[(Which::Second, true)],
            Source::First | Source::Second => &[],
        };
        for (pass, (which, is_doubtful)) in passes.iter().copied().enumerate() {
            let is_last = pass == 2;
            batch.wanted.clear();
            batch
                .wanted
                .extend((0..n).filter(|i| if is_last { results[*i] == Err(Errno::NODATA) } else { results[*i].is_err() }));
            if batch.wanted.is_empty() {
                continue;
            }
            (batch.which, batch.is_doubtful) = (which, is_doubtful);
            let left = deadline.saturating_duration_since(Instant::now());
            // Leaves half of a short time to the other copy.
            let is_short = pass == 0 && has_second && left < SHORT;
            let until = if is_short { Instant::now() + left / 2 } else { deadline };
            let ended = self.client.carry_out(Kind::Read, batch.wanted.len(), until, &mut batch);
            for (i, now) in batch.wanted.iter().zip(ended) {
                let before = results[*i];
                let now = if now == Err(Errno::TIMEDOUT) && Instant::now() < deadline { Err(Errno::AGAIN) } else { now };
                if which == Which::Second && now.is_ok() {
                    seconds += 1;
                    if source == Source::Any && !is_away(before) {
                        let harm = if before == Err(Errno::NODATA) { Harm::Lost } else { Harm::Wrong };
                        harmed.push((batch.slots.slots[*i], harm));
                    }
                }
                // A node that is away may have it.
                let is_news = pass != 1 || now.is_ok() || is_away(now) && before != Err(Errno::AGAIN);
                results[*i] = if is_news { now } else { before };
            }
        }
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
            let slots = self.slots(device, harmed.iter().map(|(slot, _)| *slot).collect());
            for (i, (slot, harm)) in harmed.into_iter().enumerate() {
                let hash_slot = slots.hash_slot(i, Which::First);
                let node = self.asked.as_ref().and_then(|asked| asked.map.owner(hash_slot)).cloned();
                self.harmed.push(Harmed { slot, hash_slot, node, harm });
            }
            let counts = &self.client.remote().counts;
            if source == Source::Any {
                counts.read_took(since.elapsed());
            }
            counts.second_copies_read.add(seconds);
            counts.pages_read.add(places.iter().filter(|place| !place.is_empty()).count() as u64);
        }
        ended
    }

    /// Records copies that the opener of the pages has found wrong.
    pub fn found_wrong(&mut self, device: &str, runs: &[Run], which: Which) {
        let remote = self.client.remote().clone();
        let Ok(known) = remote.known(Instant::now() + REPORTING) else { return };
        let slots = self.slots(device, runs.iter().flat_map(slots).collect());
        // Another node may have had the slots at the request's time.
        let is_sure = known.changed.is_none_or(|changed| changed.elapsed() > remote.timeout);
        let harmed = (0..slots.slots.len()).map(|i| {
            let hash_slot = slots.hash_slot(i, which);
            let node = known.map.owner(hash_slot).filter(|_| is_sure).cloned();
            Harmed { slot: slots.slots[i], hash_slot, node, harm: Harm::Wrong }
        });
        let harmed: Vec<Harmed> = harmed.collect();
        self.harmed.extend(harmed);
        self.asked = Some(known);
    }

    /// Counts and reports the lost or wrong copies found so far, in slots that `is_kept` protects
    /// from concurrent removal. May take a second: call it after answering.
    pub fn report(&mut self, is_kept: impl Fn(u64) -> bool) {
        let (harmed, asked, remote) = (std::mem::take(&mut self.harmed), self.asked.take(), self.client.remote());
        let Some(asked) = asked else { return };
        // Asked once for all of them.
        let mut now = None;
        for Harmed { hash_slot, node, harm, .. } in harmed.into_iter().filter(|harmed| is_kept(harmed.slot)) {
            // A primary that was stopped may not know of its successor.
            let mut has_it = |node: &Address| {
                let now = now.get_or_insert_with(|| remote.newer(&asked, Instant::now() + REPORTING));
                now.as_ref().is_ok_and(|now| now.map.owner(hash_slot) == Some(node))
            };
            let node = node.filter(|node| remote.told.has(node, harm) || has_it(node));
            match (node, harm) {
                (Some(node), harm) => remote.harmed(&node, harm),
                // Wrong for certain, whichever node it was.
                (None, Harm::Wrong) => remote.counts.copies_wrong.add(1),
                (None, Harm::Lost) => {}
            }
        }
    }

    /// Removes slots. The result of each run: `TIMEDOUT`: still there, as far as known. `patience`:
    /// the longest fruitless time; none: at once or not at all.
    pub fn remove(&mut self, device: &str, runs: &[Run], patience: Option<Duration>) -> Vec<Result<(), Errno>> {
        let (mut kind, mut patience) = patience.map_or((Kind::Discard, DISCARDING), |patience| (Kind::Remove, patience));
        let mut ended = Vec::with_capacity(runs.len());
        while ended.len() < runs.len() {
            let mut room = REMOVED_AT_ONCE;
            let has_room = |run: &&Run| {
                let had = room;
                room = room.saturating_sub((run.pages as usize).max(1));
                had > 0
            };
            let some: Vec<Run> = runs[ended.len()..].iter().take_while(has_room).copied().collect();
            let removed = self.remove_some(device, &some, kind, Instant::now() + patience);
            if removed.iter().any(Result::is_err) {
                // Waits for an unreachable node once, and delays no others.
                (kind, patience) = (Kind::Discard, DISCARDING);
            }
            ended.extend(removed);
        }
        ended
    }

    fn remove_some(&mut self, device: &str, runs: &[Run], kind: Kind, deadline: Instant) -> Vec<Result<(), Errno>> {
        let all = self.slots(device, runs.iter().flat_map(slots).collect());
        let mut batch = Removing { slots: all, commands: Vec::new() };
        let mut begin = 0;
        for (run, of) in runs.iter().enumerate() {
            let all: Vec<u64> = slots(of).collect();
            for cluster in all.chunk_by(|a, b| cluster_of(*a) == cluster_of(*b)) {
                let slots = begin..begin + cluster.len();
                begin = slots.end;
                batch.commands.push(Removal { run, slots: slots.clone(), which: Which::First });
                if batch.slots.begun.is_some() {
                    batch.commands.push(Removal { run, slots, which: Which::Second });
                }
            }
        }
        let mut ended = vec![Ok(()); runs.len()];
        let results = self.client.carry_out(kind, batch.commands.len(), deadline, &mut batch);
        // A migrating cluster's keys may be on two nodes.
        let mut apart = Vec::new();
        for (command, result) in batch.commands.iter().zip(results) {
            match result {
                Err(Errno::AGAIN) => {
                    apart.extend(command.slots.clone().map(|i| Removal { slots: i..i + 1, ..command.clone() }));
                }
                result => ended[command.run] = ended[command.run].and(result),
            }
        }
        batch.commands = apart;
        let results = self.client.carry_out(kind, batch.commands.len(), deadline, &mut batch);
        batch.commands.iter().zip(results).for_each(|(command, result)| ended[command.run] = ended[command.run].and(result));
        ended
    }
}

/// Moves the objects at `places` together, from `before` on.
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

fn slots(run: &Run) -> Range<u64> {
    run.slot..run.slot + u64::from(run.pages)
}

fn cluster_of(slot: u64) -> u64 {
    slot / CLUSTER_SLOTS as u64
}

/// Whether a retry may find the copy.
fn is_away(result: Result<(), Errno>) -> bool {
    matches!(result, Err(Errno::AGAIN | Errno::TIMEDOUT))
}

impl Slots<'_> {
    fn key(&mut self, i: usize, which: Which) -> &[u8] {
        match self.places(i).second.filter(|_| which == Which::Second) {
            Some((number, _)) => keys::second(&mut self.key, self.device, self.slots[i], number),
            None => keys::slot(&mut self.key, self.device, self.slots[i]),
        }
        &self.key
    }

    fn hash_slot(&self, i: usize, which: Which) -> u16 {
        let places = self.places(i);
        places.second.filter(|_| which == Which::Second).map_or(places.first, |(_, second)| second)
    }

    fn places(&self, i: usize) -> Places {
        let cluster = cluster_of(self.slots[i]);
        if let Some((_, places)) = self.places.get().filter(|(of, _)| *of == cluster) {
            return places;
        }
        let places = Places::of(self.device, cluster, self.begun.as_deref());
        self.places.set(Some((cluster, places)));
        places
    }
}

impl Writing<'_> {
    fn of(&self, number: usize) -> (usize, Which) {
        let n = self.wanted.len();
        let which = if number < n { Which::First } else { Which::Second };
        (self.wanted[number % n], which)
    }
}

impl Batch for Writing<'_> {
    fn hash_slot(&self, number: usize) -> u16 {
        let (i, which) = self.of(number);
        self.slots.hash_slot(i, which)
    }

    fn put(&mut self, number: usize, out: &mut Vec<u8>) {
        let (i, which) = self.of(number);
        let object = &self.objects[self.places[i].clone()];
        resp::command(out, &[b"SET", self.slots.key(i, which), object]);
    }

    fn take(&mut self, _: usize, connection: &mut Connection) -> io::Result<Came> {
        Ok(connection.done()?.map_or_else(Came::Error, |()| Came::Done))
    }
}

impl Batch for Reading<'_, '_> {
    fn hash_slot(&self, number: usize) -> u16 {
        self.slots.hash_slot(self.wanted[number], self.which)
    }

    fn put(&mut self, number: usize, out: &mut Vec<u8>) {
        resp::command(out, &[b"GET", self.slots.key(self.wanted[number], self.which)]);
    }

    fn doubts_missing(&self) -> bool {
        self.is_doubtful
    }

    fn take(&mut self, number: usize, connection: &mut Connection) -> io::Result<Came> {
        let begin = self.into.len();
        let came = connection.reply_into(self.into, PAGE_SIZE).inspect_err(|_| self.into.truncate(begin))?;
        Ok(match came {
            Ok(length) if !is_length(length) => {
                self.into.truncate(begin);
                Came::Odd
            }
            Ok(_) => {
                self.places[self.wanted[number]] = begin..self.into.len();
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
        let Removal { slots, which, .. } = &self.commands[number];
        self.slots.hash_slot(slots.start, *which)
    }

    fn put(&mut self, number: usize, out: &mut Vec<u8>) {
        let Removal { slots, which, .. } = self.commands[number].clone();
        resp::begin(out, 1 + slots.len());
        resp::word(out, b"UNLINK");
        slots.for_each(|i| resp::word(out, self.slots.key(i, which)));
    }

    fn take(&mut self, _: usize, connection: &mut Connection) -> io::Result<Came> {
        Ok(match connection.reply()? {
            Reply::Error(text) => Came::Error(text),
            _ => Came::Done,
        })
    }
}
