//! Layouts of pages on a server: a key for each page, as lowtide has it, a hash for each cluster of
//! 512 slots, or a string for each cluster with fixed places. Measures memory, the speed of writing
//! and reading, and the cost of freeing a cluster. Needs redis-server, which it starts on loopback.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lowtide_core::slot::CLUSTER_SLOTS;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_remote::resp::{self, Connection, Reply};
use lowtide_remote::stream::{Socket, Stream};

use super::remote::{PATIENCE, start};
use crate::experiment::{Experiment, Outcome, Scale};
use crate::measure::{self, Sample};
use crate::report::Table;

pub const EXPERIMENT: Experiment = Experiment {
    name: "remote-layouts",
    question: "what do pages take on a server, and what do they cost, as keys, in hashes and in strings?",
    run,
};

/// Neighbouring pages at a time.
const RUNS: [usize; 3] = [1, 16, 64];
/// Bytes of an object: an incompressible page, and a compressible one.
const LENGTHS: [usize; 2] = [PAGE_SIZE, 1300];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    KeyPerPage,
    HashPerCluster,
    StringPerCluster,
}

const LAYOUTS: [Layout; 3] = [Layout::KeyPerPage, Layout::HashPerCluster, Layout::StringPerCluster];

struct Client {
    connection: Connection,
    out: Vec<u8>,
    replies: usize,
}

impl Layout {
    fn name(self) -> &'static str {
        match self {
            Layout::KeyPerPage => "a key for each page",
            Layout::HashPerCluster => "a hash for each cluster",
            Layout::StringPerCluster => "a string for each cluster",
        }
    }

    /// The pages of a string that one command carries: consecutive if they fill their places.
    fn pieces(slots: &[usize], length: usize) -> impl Iterator<Item = &[usize]> {
        slots.chunk_by(move |a, b| length == PAGE_SIZE && a + 1 == *b)
    }

    fn write(self, client: &mut Client, cluster: usize, slots: &[usize], object: &[u8]) {
        match self {
            Layout::KeyPerPage => {
                slots.iter().for_each(|slot| client.put(&[b"SET", &page(cluster, *slot), object]));
            }
            Layout::HashPerCluster => {
                let fields: Vec<Vec<u8>> = slots.iter().map(|slot| field(*slot)).collect();
                let mut words: Vec<&[u8]> = vec![b"HSET"];
                let key = whole(cluster);
                words.push(&key);
                fields.iter().for_each(|field| words.extend([field.as_slice(), object]));
                client.put(&words);
            }
            Layout::StringPerCluster => {
                for piece in Layout::pieces(slots, object.len()) {
                    let at = (piece[0] * PAGE_SIZE).to_string();
                    client.put(&[b"SETRANGE", &whole(cluster), at.as_bytes(), &object.repeat(piece.len())]);
                }
            }
        }
    }

    fn read(self, client: &mut Client, cluster: usize, slots: &[usize], length: usize) {
        match self {
            Layout::KeyPerPage => slots.iter().for_each(|slot| client.put(&[b"GET", &page(cluster, *slot)])),
            Layout::HashPerCluster => {
                let fields: Vec<Vec<u8>> = slots.iter().map(|slot| field(*slot)).collect();
                let key = whole(cluster);
                let words: Vec<&[u8]> =
                    [b"HMGET".as_slice(), &key].into_iter().chain(fields.iter().map(Vec::as_slice)).collect();
                client.put(&words);
            }
            Layout::StringPerCluster => {
                for piece in Layout::pieces(slots, length) {
                    let first = piece[0] * PAGE_SIZE;
                    let (first, last) = (first.to_string(), (first + piece.len() * length - 1).to_string());
                    client.put(&[b"GETRANGE", &whole(cluster), first.as_bytes(), last.as_bytes()]);
                }
            }
        }
    }

    fn free(self, client: &mut Client, cluster: usize) {
        let keys = match self {
            Layout::KeyPerPage => (0..CLUSTER_SLOTS).map(|slot| page(cluster, slot)).collect(),
            Layout::HashPerCluster | Layout::StringPerCluster => vec![whole(cluster)],
        };
        let words: Vec<&[u8]> = std::iter::once(b"UNLINK".as_slice()).chain(keys.iter().map(Vec::as_slice)).collect();
        client.put(&words);
    }
}

/// As long as lowtide's names.
fn page(cluster: usize, slot: usize) -> Vec<u8> {
    format!("lowtide:{{0123456789abcdef:1:{cluster:x}}}:{slot:x}").into_bytes()
}

fn whole(cluster: usize) -> Vec<u8> {
    format!("lowtide:{{0123456789abcdef:1:{cluster:x}}}").into_bytes()
}

fn field(slot: usize) -> Vec<u8> {
    format!("{slot:x}").into_bytes()
}

impl Client {
    fn put(&mut self, words: &[&[u8]]) {
        resp::command(&mut self.out, words);
        self.replies += 1;
    }

    /// Sends all, and takes the replies; returns their bytes.
    fn done(&mut self) -> Result<usize, String> {
        let failed = |error: std::io::Error| format!("redis-server: {error}");
        self.connection.until(Instant::now() + PATIENCE).map_err(failed)?;
        self.connection.send(&self.out).map_err(failed)?;
        self.out.clear();
        let mut bytes = 0;
        for _ in 0..std::mem::take(&mut self.replies) {
            bytes += bytes_of(&self.connection.reply().map_err(failed)?)?;
        }
        Ok(bytes)
    }

    fn info(&mut self, name: &str) -> Result<f64, String> {
        let failed = |error: std::io::Error| format!("redis-server: {error}");
        let mut ask = Vec::new();
        resp::command(&mut ask, &[b"INFO"]);
        self.connection.until(Instant::now() + PATIENCE).map_err(failed)?;
        self.connection.send(&ask).map_err(failed)?;
        let Reply::Bytes(text) = self.connection.reply().map_err(failed)? else { return Err("redis-server: no INFO".into()) };
        let text = String::from_utf8_lossy(&text).into_owned();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok());
        value.ok_or_else(|| format!("redis-server does not say its {name}"))
    }
}

fn bytes_of(reply: &Reply) -> Result<usize, String> {
    match reply {
        Reply::Bytes(bytes) => Ok(bytes.len()),
        Reply::List(all) => all.iter().map(bytes_of).sum(),
        Reply::Error(why) => Err(format!("redis-server: {why}")),
        Reply::Nothing => Err("redis-server has lost something".into()),
        Reply::Simple(_) | Reply::Number(_) => Ok(0),
    }
}

fn run(scale: &Scale) -> Result<Outcome, String> {
    let redis = start()?;
    let stream = TcpStream::connect(("127.0.0.1", redis.1)).map_err(|error| error.to_string())?;
    let socket = Socket::new(stream, Arc::default(), Instant::now() + PATIENCE).map_err(|error| error.to_string())?;
    let mut client = Client { connection: Connection::new(Stream::Plain(socket)), out: Vec::new(), replies: 0 };
    let (clusters, rounds) = (scale.pick(8, 32), scale.pick(3, 7));
    let tables =
        vec![memory(&mut client, clusters)?, rates(&mut client, clusters, rounds)?, freeing(&mut client, clusters, rounds)?];
    Ok(Outcome { tables, ..Outcome::default() })
}

/// Memory of a page beside its own bytes.
fn memory(client: &mut Client, clusters: usize) -> Result<Table, String> {
    let columns =
        ["layout", "bytes", "all slots in use: memory a page", "of its bytes", "each fourth: memory a page", "of its bytes"];
    let mut table = Table::new("memory", &columns);
    for length in LENGTHS {
        for layout in LAYOUTS {
            let mut cells = vec![layout.name().to_owned(), length.to_string()];
            for step in [1, 4] {
                let before = client.info("used_memory")?;
                let slots: Vec<usize> = (0..CLUSTER_SLOTS).step_by(step).collect();
                for cluster in 0..clusters {
                    for some in slots.chunks(64) {
                        layout.write(client, cluster, some, &vec![7; length]);
                        client.done()?;
                    }
                }
                let each = (client.info("used_memory")? - before) / (clusters * slots.len()) as f64;
                cells.extend([format!("{each:.0}"), format!("{:.2}", each / length as f64)]);
                clear(client, layout, clusters)?;
            }
            table.row(cells);
        }
    }
    Ok(table)
}

/// Frees all, and waits for the end of that.
fn clear(client: &mut Client, layout: Layout, clusters: usize) -> Result<(), String> {
    (0..clusters).for_each(|cluster| layout.free(client, cluster));
    client.done()?;
    let until = Instant::now() + PATIENCE;
    while client.info("lazyfree_pending_objects")? > 0.0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn rates(client: &mut Client, clusters: usize, rounds: usize) -> Result<Table, String> {
    let mut cases: Vec<(usize, usize, Layout)> = Vec::new();
    for length in LENGTHS {
        RUNS.iter().for_each(|run| cases.extend(LAYOUTS.map(|layout| (length, *run, layout))));
    }
    let mut found: Vec<[Sample; 2]> = cases.iter().map(|_| Default::default()).collect();
    measure::in_turn(&cases, rounds, |i, (length, run, layout)| {
        let object = vec![7; *length];
        let mut us = |is_read: bool| {
            let began = Instant::now();
            // Fewer single pages: they are slow.
            let slots = if *run == 1 { CLUSTER_SLOTS / 8 } else { CLUSTER_SLOTS };
            for cluster in 0..clusters {
                for first in (0..slots).step_by(*run) {
                    let some: Vec<usize> = (first..first + run).collect();
                    match is_read {
                        true => layout.read(client, cluster, &some, *length),
                        false => layout.write(client, cluster, &some, &object),
                    }
                    if client.done()? != if is_read { run * length } else { 0 } {
                        return Err("redis-server replied something else".to_owned());
                    }
                }
            }
            Ok(began.elapsed().as_secs_f64() * 1e6 / (clusters * slots) as f64)
        };
        let both = [us(false)?, us(true)?];
        found[i].iter_mut().zip(both).for_each(|(sample, us)| sample.add(us));
        clear(client, *layout, clusters)
    })?;
    let mut table = Table::new("time", &["bytes", "pages at a time", "layout", "write us/page", "read us/page"]);
    for ((length, run, layout), [write, read]) in cases.iter().zip(&found) {
        let us = [write, read].map(|sample| format!("{:.1} ± {:.0} %", sample.median(), sample.spread() * 100.0));
        table.row([length.to_string(), run.to_string(), layout.name().to_owned()].into_iter().chain(us));
    }
    Ok(table)
}

/// The cost of freeing a cluster, for the client and for the server.
fn freeing(client: &mut Client, clusters: usize, rounds: usize) -> Result<Table, String> {
    let mut found: Vec<[Sample; 2]> = LAYOUTS.iter().map(|_| Default::default()).collect();
    measure::in_turn(&LAYOUTS, rounds, |i, layout| {
        let all: Vec<usize> = (0..CLUSTER_SLOTS).collect();
        for cluster in 0..clusters {
            for some in all.chunks(64) {
                layout.write(client, cluster, some, &[7; PAGE_SIZE]);
                client.done()?;
            }
        }
        let cpu = |client: &mut Client| Ok::<_, String>(client.info("used_cpu_user")? + client.info("used_cpu_sys")?);
        let (before, began) = (cpu(client)?, Instant::now());
        for cluster in 0..clusters {
            layout.free(client, cluster);
            client.done()?;
        }
        let waited = began.elapsed().as_secs_f64();
        clear(client, *layout, 1)?;
        let each = |seconds: f64| seconds * 1e6 / clusters as f64;
        found[i][0].add(each(waited));
        found[i][1].add(each(cpu(client)? - before));
        Ok::<(), String>(())
    })?;
    let mut table = Table::new("to free 512 pages of 4 KiB", &["layout", "us until it is done", "us of the server's CPUs"]);
    for (layout, both) in LAYOUTS.iter().zip(&found) {
        let us = both.each_ref().map(|sample| format!("{:.0} ± {:.0} %", sample.median(), sample.spread() * 100.0));
        table.row(std::iter::once(layout.name().to_owned()).chain(us));
    }
    Ok(table)
}
