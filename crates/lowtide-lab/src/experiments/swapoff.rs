//! swapoff (T4): an area on a file, past the page cache, is emptied page by page and in runs, with
//! owners in the order of the slots and scattered.
//!
//! The published results (FreeBSD, 2017-19) page in: each page goes from the area into its owner's
//! memory. So does the first table. The second one moves the pages to another area, as lowtide
//! does. The last one is of the command `lowtide swapoff` and a real run, with its CPU time, quiet
//! and beside a build.

use std::time::Instant;

use lowtide_core::device::DeviceName;
use lowtide_core::slot::Entry;
use lowtide_core::store::{Codec, FileConfig, Page, Scratch, Store, StoreConfig, StoreError, Stored};
use lowtide_core::vm::{self, Mapping, OnFork, PAGE_SIZE};
use rustix::fs::{Mode, OFlags};

use crate::experiment::{Experiment, Outcome, Scale};
use crate::measure::{Sample, in_turn};
use crate::report::{Finding, Table, Target};
use crate::swapoff::{Setup, To as RunTo, measure};

pub const EXPERIMENT: Experiment =
    Experiment { name: "swapoff", question: "how long does it take to empty a swap area, page by page and in runs?", run };

const DIR: &str = "/var/tmp";
/// Pages moved at a time: one; the mean of FreeBSD's runs; and the pager's swapoff.
const RUNS: [usize; 3] = [1, 18, 128];
const MOST: usize = 128;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owners {
    Sequential,
    Scattered,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum To {
    Memory,
    Area,
}

const WAYS: [(Owners, To); 3] =
    [(Owners::Sequential, To::Memory), (Owners::Scattered, To::Memory), (Owners::Sequential, To::Area)];

#[derive(Default)]
struct Measured {
    seconds: Sample,
    reads: f64,
    writes: f64,
}

fn run(scale: &Scale) -> Result<Outcome, String> {
    let pages = scale.pick(16 << 10, 256 << 10);
    let memory = pages_of(map(pages * PAGE_SIZE)?);
    fastrand::Rng::with_seed(5).fill(memory.as_flattened_mut());
    let kinds: Vec<_> = WAYS.iter().flat_map(|way| RUNS.map(|run| (*way, run))).collect();
    let mut all: Vec<Measured> = kinds.iter().map(|_| Measured::default()).collect();
    in_turn(&kinds, scale.pick(3, 3), |i, ((owners, to), run)| {
        let once = empty(memory, *owners, *to, *run)?;
        all[i].seconds.add(once.seconds);
        (all[i].reads, all[i].writes) = (once.reads, once.writes);
        Ok::<(), String>(())
    })?;
    let mut outcome = Outcome::default();
    for (way, of) in WAYS.iter().zip(all.chunks(RUNS.len())) {
        let (owners, to) = way;
        let title = format!("{} MiB in {DIR}, owners {owners:?}, to {to:?}", (pages * PAGE_SIZE) >> 20).to_lowercase();
        let mut table =
            Table::new(title, &["pages at a time", "seconds", "spread", "MiB/s", "reads", "pages a read", "writes"]);
        for (run, m) in RUNS.iter().zip(of) {
            let seconds = m.seconds.median();
            table.row([
                run.to_string(),
                format!("{seconds:.2}"),
                format!("{:.0} %", m.seconds.spread() * 100.0),
                format!("{:.0}", (pages * PAGE_SIZE) as f64 / 1048576.0 / seconds),
                format!("{:.0}", m.reads),
                format!("{:.1}", pages as f64 / m.reads),
                format!("{:.0}", m.writes),
            ]);
        }
        outcome.tables.push(table);
        let [one, .., batched] = of else { continue };
        let ratio = one.seconds.over(&batched.seconds);
        let ours = format!("{:.2} s against {:.2} s", one.seconds.median(), batched.seconds.median());
        let fewer = one.reads / batched.reads;
        let what = format!("{owners:?} owners, to {to:?}").to_lowercase();
        let mut time =
            Finding::new(format!("time, page by page over batched: {what}"), ours, ratio.median()).spread(ratio.spread());
        let mut ios = Finding::new(format!("reads: {what}"), format!("{:.0} against {:.0}", one.reads, batched.reads), fewer);
        if (*owners, *to) == (Owners::Sequential, To::Memory) {
            time = time.published("47.5 s -> 7.9 s").target(Target::AtLeast(7.0)).reproduced_if(Target::AtLeast(47.5 / 7.9));
            time = time.known_miss("the disk decides: one that reads a page at once fast gains less by runs");
            ios = ios.published("18 x fewer").target(Target::AtLeast(18.0)).better_if(Target::AtLeast(36.0));
        }
        outcome.findings.extend([time, ios]);
    }
    real(scale, &mut outcome)?;
    Ok(outcome)
}

#[derive(Default)]
struct Real {
    seconds: Sample,
    user: Sample,
    system: Sample,
    reads: Sample,
    read_bytes: Sample,
    files: Sample,
    bytes: Sample,
}

fn real(scale: &Scale, outcome: &mut Outcome) -> Result<(), String> {
    const KINDS: [(RunTo, bool); 4] = [(RunTo::Area, false), (RunTo::Area, true), (RunTo::Pool, false), (RunTo::Pool, true)];
    let bytes: u64 = scale.pick(128 << 20, 1 << 30);
    let mut all: [Real; KINDS.len()] = Default::default();
    in_turn(&KINDS, scale.pick(1, 3), |i, (to, building)| {
        let taken = measure(Setup { bytes, to: *to, building: *building }, DIR.as_ref())?;
        let of = &mut all[i];
        of.seconds.add(taken.seconds);
        of.user.add(taken.cpu.user);
        of.system.add(taken.cpu.system);
        of.reads.add(taken.reads as f64);
        of.read_bytes.add(taken.read_bytes as f64);
        of.files.add(taken.files as f64);
        of.bytes.add(taken.bytes as f64);
        Ok::<(), String>(())
    })?;
    let title = format!("lowtide swapoff of a run that has {} MiB in {DIR}", bytes >> 20);
    let columns = [
        "pages go to",
        "beside it",
        "MiB out",
        "seconds",
        "spread",
        "user s",
        "system s",
        "reads",
        "KiB a read",
        "files compiled",
    ];
    let mut table = Table::new(title, &columns);
    for ((to, building), of) in KINDS.iter().zip(&all) {
        table.row([
            format!("{to:?}").to_lowercase(),
            if *building { "a build" } else { "nothing" }.to_owned(),
            format!("{:.0}", of.bytes.median() / 1048576.0),
            format!("{:.2}", of.seconds.median()),
            format!("{:.0} %", of.seconds.spread() * 100.0),
            format!("{:.2}", of.user.median()),
            format!("{:.2}", of.system.median()),
            format!("{:.0}", of.reads.median()),
            format!("{:.0}", of.read_bytes.median() / of.reads.median() / 1024.0),
            format!("{:.0}", of.files.median()),
        ]);
    }
    outcome.tables.push(table);
    for ((to, building), of) in KINDS.iter().zip(&all) {
        let what = format!("lowtide swapoff to {to:?}{}: system s a GiB", if *building { ", beside a build" } else { "" });
        let ours = format!("{:.2} s of {:.2} s", of.system.median(), of.seconds.median());
        let a_gib = of.system.median() * f64::from(1 << 30) / bytes as f64;
        let finding = Finding::new(what.to_lowercase(), ours, a_gib).spread(of.system.spread());
        let first = (*to, *building) == KINDS[0];
        outcome.findings.push(if first {
            finding.published("11.35 s -> 0.77 s with runs").reproduced_if(Target::AtMost(0.77)).better_if(Target::AtMost(0.6))
        } else {
            finding
        });
    }
    // Pages of a read: fewer where they are not in a row (split folios, partly filled clusters).
    let (quiet, pages) = (&all[0], 4096.0);
    let a_read = quiet.read_bytes.median() / quiet.reads.median() / pages;
    outcome.findings.push(
        Finding::new("lowtide swapoff of a run: pages a read", format!("{a_read:.0}"), a_read)
            .published("18 x fewer reads")
            .target(Target::AtLeast(18.0))
            .better_if(Target::AtLeast(36.0)),
    );
    Ok(())
}

struct Once {
    seconds: f64,
    reads: f64,
    writes: f64,
}

/// Stores all pages in one area, with `owners`, and then takes it off.
fn empty(pages: &[Page], owners: Owners, to: To, run: usize) -> Result<Once, String> {
    let text = |e: StoreError| format!("the store: {e:?}");
    // No pool: the device is measured.
    let store = Store::new(StoreConfig { pool_limit: 0, accept_percent: 90, codec: Codec::Lz4 }).map_err(text)?;
    store.add_file(file(0, pages.len())?).map_err(text)?;
    let mut scratch = Scratch::new().map_err(|e| format!("no memory: {e:?}"))?;
    let mut order: Vec<usize> = (0..pages.len()).collect();
    if owners == Owners::Scattered {
        fastrand::Rng::with_seed(7).shuffle(&mut order);
    }
    // Stands for a page map: by page, the entry.
    let mut entries: Vec<Option<Entry>> = vec![None; pages.len()];
    let mut stored = [const { Err(StoreError::Full) }; MOST];
    for some in order.chunks(MOST) {
        let run: Vec<&Page> = some.iter().map(|i| &pages[*i]).collect();
        store.store_run(&run, &[], &mut stored[..run.len()], &mut scratch);
        for (i, result) in some.iter().zip(&stored) {
            let Stored::Entry(entry) = result.map_err(text)? else { return Err("noise is no zero page".to_owned()) };
            entries[*i] = Some(entry);
        }
    }
    if to == To::Area {
        store.add_file(file(1, pages.len())?).map_err(text)?;
    }
    let maps = [map(pages.len() * PAGE_SIZE)?, map(MOST * PAGE_SIZE)?];
    let [home, buffer] = maps.map(pages_of);
    let before = store.stats();
    let began = Instant::now();
    store.close_area(0);
    let used = by_slot(&store, &entries)?;
    let mut loaded = [const { Err(StoreError::Full) }; MOST];
    for some in used.chunks(run) {
        let from: Vec<Entry> = some.iter().filter_map(|page| entries[*page]).collect();
        match to {
            To::Memory => {
                store.load_run(&from, &mut buffer[..some.len()], &mut loaded, &mut scratch);
                for (i, page) in some.iter().enumerate() {
                    loaded[i].map_err(text)?;
                    home[*page] = buffer[i];
                    entries[*page] = None;
                }
            }
            To::Area => {
                store.move_out(&from, &mut buffer[..some.len()], &mut stored[..some.len()], &mut scratch);
                for (page, result) in some.iter().zip(&stored) {
                    let Stored::Entry(entry) = result.map_err(text)? else { return Err("noise is no zero page".to_owned()) };
                    entries[*page] = Some(entry);
                }
            }
        }
        from.into_iter().for_each(|entry| store.free(entry));
    }
    if !store.remove_area(0) {
        return Err("the area is not empty".to_owned());
    }
    let seconds = began.elapsed().as_secs_f64();
    let after = store.stats();
    if to == To::Memory && home != pages {
        return Err("pages came back with other bytes".to_owned());
    }
    let count = |f: fn(&lowtide_core::store::StoreStats) -> u64| (f(&after) - f(&before)) as f64;
    let once = Once { seconds, reads: count(|s| s.device_read_ios), writes: count(|s| s.device_write_ios) };
    // SAFETY: nothing refers to them any more.
    maps.into_iter().for_each(|map| unsafe { map.retire() });
    Ok(once)
}

/// The pages of the first area in the order of their slots.
fn by_slot(store: &Store, entries: &[Option<Entry>]) -> Result<Vec<usize>, String> {
    let area = store.next_emptying(0, 0).ok_or("the area is not there")?;
    let mut table: Vec<usize> = vec![usize::MAX; area.slots as usize];
    for (page, entry) in entries.iter().enumerate() {
        if let Some(entry) = entry {
            table[entry.offset() as usize] = page;
        }
    }
    Ok(table.into_iter().filter(|page| *page != usize::MAX).collect())
}

/// An unnamed file for the area `number`, of twice as many pages.
fn file(number: u8, pages: usize) -> Result<FileConfig, String> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let fd = rustix::fs::open(DIR, flags, Mode::RUSR | Mode::WUSR).map_err(|e| format!("no file in {DIR}: {e}"))?;
    let name = DeviceName { kind: "dir:", path: DIR.as_bytes(), number };
    Ok(FileConfig { name, ..FileConfig::new(fd, (2 * pages * PAGE_SIZE) as u64) })
}

fn map(bytes: usize) -> Result<Mapping, String> {
    vm::map(bytes, OnFork::Copy).map_err(|e| format!("no memory: {e}"))
}

/// The pages of a mapping without another user.
fn pages_of(map: Mapping) -> &'static mut [Page] {
    // SAFETY: fresh, page-aligned, all bytes are valid, stays until `empty` gives it back, and only
    // this refers to it.
    unsafe { std::slice::from_raw_parts_mut(map.as_ptr().cast(), map.len() / PAGE_SIZE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_brings_all_pages_out_and_runs_take_few_reads() {
        let memory = pages_of(map(600 * PAGE_SIZE).unwrap());
        fastrand::Rng::with_seed(5).fill(memory.as_flattened_mut());
        for (owners, to) in WAYS {
            let [one, .., long] = RUNS.map(|run| empty(memory, owners, to, run).unwrap());
            assert_eq!(one.reads, 600.0, "{owners:?} {to:?}");
            assert!(long.reads < 20.0, "{owners:?} {to:?}: {}", long.reads);
        }
    }
}
