//! Swapping's share of a disk's throughput. Incompressible pages go through a store to a file and
//! back, in the pager's batches, against consecutive plain O_DIRECT reads and writes of the same
//! size, as of dd.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use lowtide_core::store::{Codec, FileConfig, Page, Scratch, Store, StoreConfig, StoreError, Stored};
use lowtide_core::vm::{self, Mapping, OnFork, PAGE_SIZE};
use rustix::fs::{Mode, OFlags};

use crate::experiment::{Experiment, Outcome, Scale};
use crate::measure::{Sample, Stopwatch, in_turn};
use crate::report::{Finding, Table, Target};

pub const EXPERIMENT: Experiment =
    Experiment { name: "disk", question: "how much of the disk's throughput do writeback and sequential read-back get?", run };

const DIR: &str = "/var/tmp";
/// Bytes of a plain read or write: lowtide's longest transfer.
const BLOCK: usize = 256 << 10;
/// Neighbours that the pager stores at a time, and loads at a time in a sequential stream.
const STORED: usize = 128;
const LOADED: usize = 64;
const MIB: f64 = 1048576.0;
/// Share of waiting for a CPU above which the machine counts as busy.
const BUSY: f64 = 0.05;

#[derive(Clone, Copy)]
enum Kind {
    Plain,
    Dd,
    Ours,
}

fn run(scale: &Scale) -> Result<Outcome, String> {
    let pages = scale.pick(24 << 10, 128 << 10);
    let memory = vm::map(pages * PAGE_SIZE, OnFork::Copy).map_err(|e| format!("no memory: {e}"))?;
    let into = vm::map(BLOCK, OnFork::Copy).map_err(|e| format!("no memory: {e}"))?;
    let (noise, into) = (pages_of(memory), pages_of(into));
    fastrand::Rng::with_seed(5).fill(noise.as_flattened_mut());
    let kinds = [("plain loop", Kind::Plain), ("dd", Kind::Dd), ("lowtide", Kind::Ours)];
    let mut speed: [[Sample; 2]; 3] = Default::default();
    let watch = Stopwatch::start();
    in_turn(&kinds, scale.pick(5, 9), |which, (_, kind)| {
        let seconds = match kind {
            Kind::Plain => plain(noise, into)?,
            Kind::Dd => match dd(pages) {
                Some(seconds) => seconds,
                None => return Ok(()),
            },
            Kind::Ours => ours(noise, into)?,
        };
        for (sample, seconds) in speed[which].iter_mut().zip(seconds) {
            sample.add((pages * PAGE_SIZE) as f64 / MIB / seconds);
        }
        Ok::<(), String>(())
    })?;
    let is_busy = watch.own_seconds() < watch.seconds() * (1.0 - BUSY);
    let mut outcome = Outcome::default();
    let title = format!("MiB/s, {} MiB in {DIR}, blocks of {} KiB", (pages * PAGE_SIZE) >> 20, BLOCK >> 10);
    let mut table = Table::new(title, &["", "write", "read"]);
    for ((name, _), speed) in kinds.iter().zip(&speed) {
        let cell = |s: &Sample| if s.median().is_nan() { "-".to_owned() } else { format!("{:.0}", s.median()) };
        table.row([(*name).to_owned(), cell(&speed[0]), cell(&speed[1])]);
    }
    outcome.tables.push(table);
    for (i, what) in ["writeback", "sequential read-back"].into_iter().enumerate() {
        let ratio = speed[2][i].over(&speed[0][i]);
        let ours = format!("{:.0} against {:.0} MiB/s", speed[2][i].median(), speed[0][i].median());
        let finding = Finding::new(format!("{what}, of the plain loop"), ours, ratio.median()).spread(ratio.spread());
        let finding = finding.target(Target::AtLeast(0.7));
        let busy = if is_busy { "others have the CPUs, and lowtide needs one to encrypt, the plain loop none" } else { "" };
        outcome.findings.push(finding.known_miss(busy));
    }
    Ok(outcome)
}

/// The pages of a mapping without another user.
fn pages_of(map: Mapping) -> &'static mut [Page] {
    // SAFETY: fresh, page-aligned, all bytes are valid, lives as long as the process, and only this
    // refers to it.
    unsafe { std::slice::from_raw_parts_mut(map.as_ptr().cast(), map.len() / PAGE_SIZE) }
}

fn unnamed(flags: OFlags) -> Result<File, String> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | flags;
    rustix::fs::open(DIR, flags, Mode::RUSR | Mode::WUSR).map(File::from).map_err(|e| format!("no file in {DIR}: {e}"))
}

/// Seconds of writing all pages, and of reading them.
fn plain(pages: &[Page], into: &mut [Page]) -> Result<[f64; 2], String> {
    let file = unnamed(OFlags::DIRECT)?;
    let text = |e: std::io::Error| format!("{DIR}: {e}");
    let began = Instant::now();
    for (i, block) in pages.as_flattened().chunks(BLOCK).enumerate() {
        file.write_all_at(block, (i * BLOCK) as u64).map_err(text)?;
    }
    let written = began.elapsed();
    let began = Instant::now();
    for (i, block) in pages.as_flattened().chunks(BLOCK).enumerate() {
        let into = &mut into.as_flattened_mut()[..block.len()];
        file.read_exact_at(into, (i * BLOCK) as u64).map_err(text)?;
        black_box(into);
    }
    Ok([written, began.elapsed()].map(|time| time.as_secs_f64()))
}

/// The same by dd, of zeros, its start included; `None`: no dd.
fn dd(pages: usize) -> Option<[f64; 2]> {
    let path = format!("{DIR}/lowtide-lab-{}", std::process::id());
    let run = |arguments: [String; 3]| {
        let began = Instant::now();
        let mut dd = Command::new("dd");
        dd.args(arguments).arg(format!("bs={BLOCK}")).arg(format!("count={}", pages * PAGE_SIZE / BLOCK));
        let done = dd.stdin(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        done.then(|| began.elapsed().as_secs_f64())
    };
    let write = run(["if=/dev/zero".to_owned(), format!("of={path}"), "oflag=direct".to_owned()]);
    let read = run([format!("if={path}"), "of=/dev/null".to_owned(), "iflag=direct".to_owned()]);
    let _ = std::fs::remove_file(&path);
    Some([write?, read?])
}

/// The same through a store: compression is tried, pages are sealed, written, read and opened.
fn ours(pages: &[Page], into: &mut [Page]) -> Result<[f64; 2], String> {
    let fd = unnamed(OFlags::empty())?.into();
    let size = ((pages.len() + 1024) * PAGE_SIZE) as u64;
    let text = |e: StoreError| format!("the store: {e:?}");
    let cfg = StoreConfig { pool_limit: 64 << 20, accept_percent: 90, codec: Codec::Lz4 };
    let store = Store::new(cfg).map_err(text)?;
    store.add_file(FileConfig::new(fd, size)).map_err(text)?;
    let mut scratch = Scratch::new().map_err(|e| format!("no memory: {e:?}"))?;
    let mut entries = Vec::with_capacity(pages.len());
    let mut stored = [const { Err(StoreError::Full) }; STORED];
    let began = Instant::now();
    for run in pages.chunks(STORED) {
        let run: Vec<&Page> = run.iter().collect();
        store.store_run(&run, &[], &mut stored[..run.len()], &mut scratch);
        for result in &stored[..run.len()] {
            match result.map_err(text)? {
                Stored::Entry(entry) => entries.push(entry),
                Stored::Zero => return Err("noise is no zero page".to_owned()),
            }
        }
    }
    let written = began.elapsed();
    let mut loaded = [const { Err(StoreError::Full) }; LOADED];
    let began = Instant::now();
    for run in entries.chunks(LOADED) {
        store.load_run(run, &mut into[..run.len()], &mut loaded[..run.len()], &mut scratch);
        loaded[..run.len()].iter().try_for_each(|result| result.map(drop)).map_err(text)?;
        black_box(&into);
    }
    let read = began.elapsed();
    if store.stats().on_device_now != pages.len() as u64 {
        return Err("pages that do not compress were not written".to_owned());
    }
    Ok([written, read].map(|time| time.as_secs_f64()))
}
