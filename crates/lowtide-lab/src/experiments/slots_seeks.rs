//! Seeks of a rotational disk. Threads store incompressible pages through a store to a swap file,
//! and load them back in the order of their own writes, with a "next" for each CPU and with one for
//! the area. A recorder notes the slots of each write and read in the order of all threads, the
//! head's path; a model of a disk, as there is none here, computes the time.
//!
//! Published (the kernel's swap allocator, 2024, a build on a rotational disk): elapsed time -4 %,
//! inputs -12 %.

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

const DIR: &str = "/var/tmp";
const MOST: usize = 8;
const WRITERS: [usize; 3] = [1, 2, MOST];
/// Pages that a thread stores or loads at a time: a few, as programs short of memory do.
const BATCH: usize = 16;
/// Slots of the shortest seek: a MiB. The disk's queue absorbs shorter ways.
const SEEK: u64 = 256;

/// First slot and length of each transfer, in the order of their ends.
#[derive(Default)]
struct Recorder(Mutex<Vec<(u64, u64)>>);

impl Recorder {
    fn add(&self, batch: &[Entry]) {
        if let Ok(mut all) = self.0.lock() {
            let runs = batch.chunk_by(|a, b| a.offset() + 1 == b.offset());
            all.extend(runs.map(|run| (run[0].offset(), run.len() as u64)));
        }
    }

    /// For each transfer but the first: the distance in slots from the previous one's end, and its
    /// length.
    fn transfers(self) -> Vec<(u64, u64)> {
        let all = self.0.into_inner().unwrap_or_default();
        all.windows(2).map(|pair| ((pair[0].0 + pair[0].1).abs_diff(pair[1].0), pair[1].1)).collect()
    }
}

struct Seeks {
    ios: usize,
    /// Per 1000 transfers: those that did not continue the one before, and the seeks.
    apart: f64,
    seeks: f64,
    median: u64,
    mean: f64,
    seconds: f64,
}

/// Milliseconds of a disk for a transfer of `slots` after a way of `distance` slots: 7200 turns a
/// minute, 1 TB, reads 150 MB a second, 1 ms to the next track and 16 ms from end to end. A seek
/// ends half a turn away from its slot; on a shorter way the disk turns past the slots between, at
/// most half a turn.
fn disk_ms(distance: u64, slots: u64) -> f64 {
    const TURN: f64 = 60_000.0 / 7200.0;
    const NEXT_TRACK: f64 = 1.0;
    const END_TO_END: f64 = 16.0;
    const BYTES: f64 = 1e12;
    const BYTES_A_MS: f64 = 150e3;
    let bytes = |slots: u64| slots as f64 * PAGE_SIZE as f64;
    let seek = NEXT_TRACK + (END_TO_END - NEXT_TRACK) * (bytes(distance) / BYTES).sqrt();
    let way = if distance > SEEK { seek + TURN / 2.0 } else { (bytes(distance) / BYTES_A_MS).min(TURN / 2.0) };
    way + bytes(slots) / BYTES_A_MS
}

impl Seeks {
    fn of(transfers: &[(u64, u64)]) -> Seeks {
        let seconds = transfers.iter().map(|(distance, slots)| disk_ms(*distance, *slots)).sum::<f64>() / 1e3;
        let mut distances: Vec<u64> = transfers.iter().map(|(distance, _)| *distance).collect();
        distances.sort_unstable();
        let ios = distances.len();
        let share = |beyond: u64| distances.iter().filter(|d| **d > beyond).count() as f64 * 1000.0 / ios.max(1) as f64;
        Seeks {
            ios,
            apart: share(0),
            seeks: share(SEEK),
            median: distances.get(ios / 2).copied().unwrap_or(0),
            mean: distances.iter().sum::<u64>() as f64 / ios.max(1) as f64,
            seconds,
        }
    }
}

fn run(scale: &Scale) -> Result<Outcome, String> {
    let pages = scale.pick(8 << 10, 64 << 10);
    let mut outcome = Outcome::default();
    let columns = ["writers", "next", "I/Os", "apart /1000", "seeks /1000", "median KiB", "mean KiB", "disk s"];
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
                    format!("{:.2}", seeks.seconds),
                ]);
            }
        }
        for (i, what) in ["writes", "reads"].into_iter().enumerate() {
            let [per_cpu, shared] = both.each_ref().map(|seeks| seeks[i].seeks);
            // One more of each avoids a division by zero.
            let ratio = (shared + 1.0) / (per_cpu + 1.0);
            let said = format!("{per_cpu:.0} -> {shared:.0} per 1000");
            let finding = Finding::new(format!("{what} of {writers}: seeks with a shared next"), said, ratio);
            let has_target = i == 0 && writers > 1;
            outcome.findings.push(if has_target { finding.target(Target::AtMost(0.5)) } else { finding });
        }
        let [per_cpu, shared] = both.each_ref().map(|[writes, reads]| writes.seconds + reads.seconds);
        let told = format!("{per_cpu:.1} s -> {shared:.1} s");
        let elapsed = Finding::new(
            format!("writes and reads of {writers} threads: time on a disk that turns, by a model"),
            told,
            shared / per_cpu,
        );
        let [per_cpu, shared] = both.each_ref().map(|[_, reads]| reads.ios as f64);
        let told = format!("{per_cpu:.0} -> {shared:.0}, as many pages");
        let inputs = Finding::new(format!("reads of {writers} threads: how many"), told, shared / per_cpu);
        outcome.findings.extend(match writers {
            MOST => [
                elapsed
                    .published("a build: elapsed time -4 %")
                    .reproduced_if(Target::AtMost(0.96))
                    .better_if(Target::AtMost(0.9)),
                inputs
                    .published("a build: inputs -12 %")
                    .reproduced_if(Target::AtMost(0.88))
                    .because("no neighbours are read that nobody asked for, so no fewer of them"),
            ],
            _ => [elapsed, inputs],
        });
    }
    outcome.tables.extend(tables);
    Ok(outcome)
}

/// Writes `pages` pages by this many threads, and reads them back. Returns the seeks of both.
fn measure(rotating: bool, writers: usize, pages: usize) -> Result<[Seeks; 2], String> {
    let text = |e: StoreError| format!("the store: {e:?}");
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let fd = rustix::fs::open(DIR, flags, Mode::RUSR | Mode::WUSR).map_err(|e| format!("no file in {DIR}: {e}"))?;
    // No pool: the storing thread writes each batch at once.
    let store = Store::new(StoreConfig { pool_limit: 0, accept_percent: 90, codec: Codec::Lz4 }).map_err(text)?;
    let size = (2 * pages * PAGE_SIZE + (64 << 20)) as u64;
    store.add_file(FileConfig { rotating, ..FileConfig::new(fd, size) }).map_err(text)?;
    let (writes, reads, failed) = (Recorder::default(), Recorder::default(), AtomicU64::new(0));
    let (written, batches) = (Barrier::new(writers), pages / BATCH / writers);
    let work = |number: usize| {
        let entries = write(&store, number, batches, &writes);
        // Failed threads wait as well: the others need them at the barrier.
        written.wait();
        if !entries.is_some_and(|entries| read(&store, number, &entries, &reads)) {
            failed.fetch_add(1, Relaxed);
        }
    };
    threads::pinned(writers, work, || ())?;
    match failed.into_inner() {
        0 => Ok([writes, reads].map(|recorder| Seeks::of(&recorder.transfers()))),
        n => Err(format!("{n} threads could not write their pages to {DIR} and read them back")),
    }
}

fn noise(number: usize) -> Vec<Page> {
    let mut pages = vec![[0; PAGE_SIZE]; BATCH];
    fastrand::Rng::with_seed(number as u64).fill(pages.as_flattened_mut());
    pages
}

/// `None`: a batch could not be written.
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

/// False: some page has other content.
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
        let transfers = recorder.transfers();
        assert_eq!(transfers, [(0, 1), (1000, 4), (1000, 1)]);
        let seeks = Seeks::of(&transfers);
        assert_eq!((seeks.ios, seeks.median), (3, 1000));
        assert!((seeks.seeks - 666.7).abs() < 0.1 && seeks.apart == seeks.seeks);
        assert!((0.010..0.012).contains(&seeks.seconds), "two seeks of half a turn and a track: {}", seeks.seconds);
    }

    #[test]
    fn the_disk_takes_longer_for_what_is_farther_away() {
        let ways = [0, 1, SEEK, SEEK + 1, 1 << 20, 1 << 27].map(|distance| disk_ms(distance, 0));
        assert!(ways.is_sorted() && ways[0] == 0.0 && ways[5] < 20.0, "{ways:?}");
        // 16 MiB in a row: as fast as the disk reads.
        assert!((disk_ms(0, 4096) - 111.8).abs() < 0.1);
    }
}
