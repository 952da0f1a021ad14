//! How often does a disk that turns have to seek? Threads store pages that do not compress through a store to a swap file, and
//! load them back in the order in which each wrote its own, with a "next" for each CPU and with one for the area. What is
//! recorded is the slots of each write, and of each read, one after the other for all threads: where the head would have been.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Barrier, Mutex};

use lowtide_core::store::{Codec, Entry, FileConfig, Page, Scratch, Store, StoreConfig, StoreError, Stored};
use lowtide_core::vm::PAGE_SIZE;
use rustix::fs::{Mode, OFlags};

use crate::experiment::{Experiment, Outcome, Scale};
use crate::report::{Finding, Table, Target};
use crate::threads;

pub const EXPERIMENT: Experiment =
    Experiment { name: "slots-seeks", question: "how often does a disk that turns have to seek?", run };

/// Where the file is.
const DIR: &str = "/var/tmp";
const WRITERS: [usize; 3] = [1, 2, 8];
/// Pages that a thread stores at a time, and loads at a time: a few, as programs short of memory do.
const BATCH: usize = 16;
/// Further than this, in slots, is a seek: a MiB. Shorter ways the disk's own queue makes up for.
const SEEK: u64 = 256;

/// First slot and length of each transfer, in the order of their ends.
#[derive(Default)]
struct Recorder(Mutex<Vec<(u64, u64)>>);

impl Recorder {
    /// The slots of a batch, as runs.
    fn add(&self, batch: &[Entry]) {
        if let Ok(mut all) = self.0.lock() {
            let runs = batch.chunk_by(|a, b| a.offset() + 1 == b.offset());
            all.extend(runs.map(|run| (run[0].offset(), run.len() as u64)));
        }
    }

    /// Distances in slots from the end of each transfer to the beginning of the next one.
    fn distances(self) -> Vec<u64> {
        let all = self.0.into_inner().unwrap_or_default();
        all.windows(2).map(|pair| (pair[0].0 + pair[0].1).abs_diff(pair[1].0)).collect()
    }
}

/// What one kind of transfers came to.
struct Seeks {
    ios: usize,
    /// Per 1000 transfers: those that did not begin where the one before ended, and those far from there.
    apart: f64,
    seeks: f64,
    median: u64,
    mean: f64,
}

impl Seeks {
    fn of(mut distances: Vec<u64>) -> Seeks {
        distances.sort_unstable();
        let ios = distances.len();
        let share = |beyond: u64| distances.iter().filter(|d| **d > beyond).count() as f64 * 1000.0 / ios.max(1) as f64;
        Seeks {
            ios,
            apart: share(0),
            seeks: share(SEEK),
            median: distances.get(ios / 2).copied().unwrap_or(0),
            mean: distances.iter().sum::<u64>() as f64 / ios.max(1) as f64,
        }
    }
}

fn run(scale: &Scale) -> Result<Outcome, String> {
    let pages = scale.pick(8 << 10, 64 << 10);
    let mut outcome = Outcome::default();
    let columns = ["writers", "next", "I/Os", "apart /1000", "seeks /1000", "median KiB", "mean KiB"];
    let title =
        |what: &str| format!("{what}: {} MiB, {BATCH} pages at a time; a seek is more than 1 MiB", (pages * PAGE_SIZE) >> 20);
    let mut tables =
        ["writes", "reads, each thread its own pages in the order of its writing"].map(|t| Table::new(title(t), &columns));
    for writers in WRITERS {
        let both = [measure(false, writers, pages)?, measure(true, writers, pages)?];
        for (i, table) in tables.iter_mut().enumerate() {
            for (name, seeks) in ["per CPU", "shared"].into_iter().zip(&both) {
                let seeks = &seeks[i];
                table.row([
                    writers.to_string(),
                    name.to_owned(),
                    seeks.ios.to_string(),
                    format!("{:.0}", seeks.apart),
                    format!("{:.0}", seeks.seeks),
                    format!("{}", seeks.median * PAGE_SIZE as u64 / 1024),
                    format!("{:.0}", seeks.mean * PAGE_SIZE as f64 / 1024.0),
                ]);
            }
        }
        for (i, what) in ["writes", "reads"].into_iter().enumerate() {
            let [per_cpu, shared] = both.each_ref().map(|seeks| seeks[i].seeks);
            // One more of each, so that none at all is a number.
            let ratio = (shared + 1.0) / (per_cpu + 1.0);
            let said = format!("{per_cpu:.0} -> {shared:.0} per 1000");
            let finding = Finding::new(format!("{what} of {writers}: seeks with a shared next"), said, ratio);
            let has_target = i == 0 && writers > 1;
            outcome.findings.push(if has_target { finding.target(Target::AtMost(0.5)) } else { finding });
        }
    }
    outcome.tables.extend(tables);
    Ok(outcome)
}

/// Writes `pages` pages by this many threads, and reads them back. The seeks of both.
fn measure(rotating: bool, writers: usize, pages: usize) -> Result<[Seeks; 2], String> {
    let text = |e: StoreError| format!("the store: {e:?}");
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let fd = rustix::fs::open(DIR, flags, Mode::RUSR | Mode::WUSR).map_err(|e| format!("no file in {DIR}: {e}"))?;
    // No pool: each batch is written at once, by the thread that stores it.
    let store = Store::new(StoreConfig { pool_limit: 0, accept_percent: 90, codec: Codec::Lz4 }).map_err(text)?;
    let size = (2 * pages * PAGE_SIZE + (64 << 20)) as u64;
    store.add_file(FileConfig { rotating, ..FileConfig::new(fd, size) }).map_err(text)?;
    let (writes, reads, failed) = (Recorder::default(), Recorder::default(), AtomicU64::new(0));
    let (written, batches) = (Barrier::new(writers), pages / BATCH / writers);
    let work = |number: usize| {
        let entries = write(&store, number, batches, &writes);
        // Those who failed as well: the others wait for them.
        written.wait();
        if !entries.is_some_and(|entries| read(&store, number, &entries, &reads)) {
            failed.fetch_add(1, Relaxed);
        }
    };
    threads::pinned(writers, work, || ())?;
    match failed.into_inner() {
        0 => Ok([writes, reads].map(|recorder| Seeks::of(recorder.distances()))),
        n => Err(format!("{n} threads could not write their pages to {DIR} and read them back")),
    }
}

/// Pages that do not compress, of one thread.
fn noise(number: usize) -> Vec<Page> {
    let mut pages = vec![[0; PAGE_SIZE]; BATCH];
    fastrand::Rng::with_seed(number as u64).fill(pages.as_flattened_mut());
    pages
}

/// Stores this many batches; `None`: one could not be written.
fn write(store: &Store, number: usize, batches: usize, recorder: &Recorder) -> Option<Vec<Vec<Entry>>> {
    let mut scratch = Scratch::new().ok()?;
    let noise = noise(number);
    let pages: Vec<&Page> = noise.iter().collect();
    let mut stored = [const { Err(StoreError::Full) }; BATCH];
    let batch = |_| {
        store.store_run(&pages, &[], &mut stored, &mut scratch);
        let entry = |result: &Result<Stored, StoreError>| match result {
            Ok(Stored::Entry(entry)) => Some(*entry),
            _ => None,
        };
        let entries = stored.iter().map(entry).collect::<Option<Vec<Entry>>>()?;
        recorder.add(&entries);
        Some(entries)
    };
    (0..batches).map(batch).collect()
}

/// Loads batches. False: some page is not what was stored.
fn read(store: &Store, number: usize, batches: &[Vec<Entry>], recorder: &Recorder) -> bool {
    let Ok(mut scratch) = Scratch::new() else { return false };
    let noise = noise(number);
    let mut into = noise.clone();
    let mut loaded = [const { Err(StoreError::Full) }; BATCH];
    batches.iter().all(|batch| {
        into.as_flattened_mut().fill(0);
        store.load_run(batch, &mut into, &mut loaded, &mut scratch);
        recorder.add(batch);
        loaded.iter().all(Result::is_ok) && into == noise
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_from_the_end_of_one_run_to_the_beginning_of_the_next() {
        let recorder = Recorder::default();
        if let Ok(mut all) = recorder.0.lock() {
            all.extend([(10, 5), (15, 1), (1016, 4), (20, 1)]);
        }
        let distances = recorder.distances();
        assert_eq!(distances, [0, 1000, 1000]);
        let seeks = Seeks::of(distances);
        assert_eq!((seeks.ios, seeks.median), (3, 1000));
        assert!((seeks.seeks - 666.7).abs() < 0.1 && seeks.apart == seeks.seeks);
    }
}
