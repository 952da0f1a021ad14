//! T5, first part: the cost of the lock around a CPU's lists of free frames. Compares frames with
//! the same lists owned by a thread without a lock, and with the buddy alone.
//!
//! Published (the kernel's per-CPU page lists under locks, 2021): -0.5 % to +2 % on the path that
//! allocates a page. There it is a part of a page fault; here the path is measured bare, in parts,
//! and as a part of storing a page. The lock-free allocator llfree is missing: it is not published
//! as a package.

use std::sync::Barrier;

use lowtide_core::codec::Codec;
use lowtide_core::frame::{Buddy, CpuLists, FrameNo, Frames, ListedRun, Run, Runs, kind_of};
use lowtide_core::lock::{Lock, rank};
use lowtide_core::percpu;
use lowtide_core::store::{Page, Scratch, Store, StoreConfig, StoreError, Stored};
use lowtide_core::vm::PAGE_SIZE;

use crate::experiment::{Experiment, Outcome, Scale};
use crate::measure::{Sample, Stopwatch, cpu_ns, in_turn};
use crate::plot::{Chart, Series};
use crate::report::{Finding, Table, Target};
use crate::threads;

pub const EXPERIMENT: Experiment =
    Experiment { name: "frames", question: "what does the lock around a CPU's free frames cost?", run };

const FRAMES: usize = 1 << 18;
const THREADS: [usize; 5] = [1, 2, 4, 8, 16];
const ORDERS: [u32; 4] = [0, 1, 2, 3];
/// Most frames in the lists of one CPU or thread.
const PER_CPU: usize = 4096;

type SharedBuddy = Lock<Buddy, { rank::BUDDY }>;

trait Worker {
    /// First frame of `n`.
    fn alloc(&mut self, n: u32) -> Option<u32>;
    fn free(&mut self, start: u32, n: u32);
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    /// Lists that belong to a thread.
    Local,
    /// The same, each under an uncontended lock.
    LocalLocked,
    /// lowtide's: a CPU's lists, found by its number, under a lock; frees are checked, and memory
    /// is counted.
    Ours,
    Buddy,
}

const KINDS: [Kind; 4] = [Kind::Local, Kind::LocalLocked, Kind::Ours, Kind::Buddy];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Local => "a thread's lists, no lock",
            Kind::LocalLocked => "a thread's lists, locked",
            Kind::Ours => "lowtide: a CPU's lists",
            Kind::Buddy => "buddy alone",
        }
    }
}

struct Local<'a> {
    lists: CpuLists,
    buddy: &'a SharedBuddy,
}

fn pop(lists: &mut CpuLists, buddy: &SharedBuddy, n: u32) -> Option<u32> {
    let kind = kind_of(n)?;
    lists.pop(kind).or_else(|| lists.refill(kind, &mut buddy.lock())).map(ListedRun::start)
}

fn push(lists: &mut CpuLists, buddy: &SharedBuddy, start: u32, n: u32) {
    let Some(kind) = kind_of(n) else { return };
    if !lists.push(kind, ListedRun::new(start, true)) {
        spill(lists, buddy, kind, Run { start, frames: n });
    }
}

#[cold]
fn spill(lists: &mut CpuLists, buddy: &SharedBuddy, kind: usize, run: Run) {
    let mut out = Runs::new();
    lists.make_room(kind, &mut out);
    let kept = lists.push(kind, ListedRun::new(run.start, true));
    let mut buddy = buddy.lock();
    out.iter().for_each(|(run, _)| buddy.put(run));
    if !kept {
        buddy.put(run);
    }
}

impl Worker for Local<'_> {
    fn alloc(&mut self, n: u32) -> Option<u32> {
        pop(&mut self.lists, self.buddy, n)
    }

    fn free(&mut self, start: u32, n: u32) {
        push(&mut self.lists, self.buddy, start, n);
    }
}

struct LocalLocked<'a> {
    lists: Lock<CpuLists, { rank::CPU_FRAMES }>,
    buddy: &'a SharedBuddy,
}

impl Worker for LocalLocked<'_> {
    fn alloc(&mut self, n: u32) -> Option<u32> {
        pop(&mut self.lists.lock(), self.buddy, n)
    }

    fn free(&mut self, start: u32, n: u32) {
        push(&mut self.lists.lock(), self.buddy, start, n);
    }
}

impl Worker for &Frames {
    fn alloc(&mut self, n: u32) -> Option<u32> {
        self.alloc_run(n).map(|f| f.0)
    }

    fn free(&mut self, start: u32, n: u32) {
        let freed = self.free_run(FrameNo(start), n);
        debug_assert_eq!(freed, Ok(()));
    }
}

impl Worker for &SharedBuddy {
    fn alloc(&mut self, n: u32) -> Option<u32> {
        self.lock().take(n)
    }

    fn free(&mut self, start: u32, n: u32) {
        self.lock().put(Run { start, frames: n });
    }
}

/// Allocates and frees `pairs` runs of `n` frames, a few at a time.
fn work(worker: &mut impl Worker, n: u32, pairs: usize, start: &Barrier, seconds: impl Fn(&Stopwatch) -> f64) -> Option<f64> {
    let mut held = [0; 8];
    let burst = if n == 512 { 2 } else { held.len() };
    let mut rounds = |count: usize| {
        for _ in 0..count {
            for place in &mut held[..burst] {
                *place = worker.alloc(n)?;
            }
            for start in &held[..burst] {
                worker.free(*start, n);
            }
        }
        Some(())
    };
    let settled = rounds(1000);
    start.wait();
    settled?;
    let watch = Stopwatch::start();
    rounds(pairs / burst)?;
    Some(seconds(&watch))
}

/// Nanoseconds per pair of an allocation and a free, over all threads.
fn measure(kind: Kind, threads: usize, order: u32, pairs: usize) -> Result<f64, String> {
    let own_cpu = threads <= threads::allowed()?.len();
    let seconds = |watch: &Stopwatch| if own_cpu { watch.own_seconds() } else { watch.seconds() };
    let no_memory = |e| format!("no memory for the allocator: {e}");
    let buddy = SharedBuddy::new(Buddy::new(FRAMES).map_err(no_memory)?);
    let frames = Frames::with_list_frames(FRAMES, PER_CPU * percpu::count()).map_err(no_memory)?;
    let start = Barrier::new(threads);
    let run = |_| {
        let lists = CpuLists::new(PER_CPU as u32);
        let n = 1 << order;
        match kind {
            Kind::Local => work(&mut Local { lists, buddy: &buddy }, n, pairs, &start, seconds),
            Kind::LocalLocked => work(&mut LocalLocked { lists: Lock::new(lists), buddy: &buddy }, n, pairs, &start, seconds),
            Kind::Ours => work(&mut &frames, n, pairs, &start, seconds),
            Kind::Buddy => work(&mut &buddy, n, pairs, &start, seconds),
        }
    };
    let done: Option<Vec<f64>> = threads::pinned(threads, run, || ())?.into_iter().collect();
    let done = done.ok_or("the allocator had no frames left")?;
    Ok(1e9 / done.iter().map(|seconds| pairs as f64 / seconds).sum::<f64>())
}

fn cpu_number_ns() -> Result<f64, String> {
    const TIMES: usize = 100_000;
    threads::on_one_cpu(|| {
        cpu_ns(|| (0..TIMES).map(|_| std::hint::black_box(percpu::current())).sum::<usize>()).1 / TIMES as f64
    })
}

/// Nanoseconds to store and free an incompressible page, which takes and frees one frame.
fn store_ns(pages: usize) -> Result<f64, String> {
    let cfg = StoreConfig { pool_limit: 64 << 20, accept_percent: 90, codec: Codec::Lz4 };
    let fail = |e: StoreError| format!("a page can't be stored: {e:?}");
    let store = Store::new(cfg).map_err(fail)?;
    threads::on_one_cpu(|| {
        let mut scratch = Scratch::new().map_err(fail)?;
        let mut page: Page = [0; PAGE_SIZE];
        fastrand::Rng::with_seed(1).fill(&mut page);
        let (done, ns) = cpu_ns(|| {
            (0..pages).try_for_each(|_| {
                let mut out = [Err(StoreError::NoMemory)];
                store.store_run(&[&page], &[], &mut out, &mut scratch);
                if let Stored::Entry(entry) = out[0].map_err(fail)? {
                    store.free(entry);
                }
                Ok(())
            })
        });
        done.map(|()| ns / pages as f64)
    })?
}

fn run(scale: &Scale) -> Result<Outcome, String> {
    let pairs = scale.pick(100_000, 500_000);
    let rounds = scale.pick(7, 15);
    let mut cases: Vec<(u32, usize)> = ORDERS.map(|order| (order, 1)).to_vec();
    cases.extend(THREADS[1..].iter().map(|threads| (0, *threads)));
    let variants: Vec<_> = cases.iter().flat_map(|case| KINDS.map(|kind| (*case, kind))).collect();
    let mut cells = vec![Sample::default(); variants.len()];
    let (mut store, mut number) = (Sample::default(), Sample::default());
    in_turn(&variants, rounds, |i, &((order, threads), kind)| {
        cells[i].add(measure(kind, threads, order, pairs)?);
        if i == 0 {
            store.add(store_ns(pairs / 100)?);
            number.add(cpu_number_ns()?);
        }
        Ok::<(), String>(())
    })?;
    Ok(outcome(&cases, &cells, &store, &number))
}

fn outcome(cases: &[(u32, usize)], cells: &[Sample], store: &Sample, number: &Sample) -> Outcome {
    let of = |case: usize, kind: Kind| &cells[case * KINDS.len() + KINDS.iter().position(|k| *k == kind).unwrap_or(0)];
    let columns = ["order", "threads", "no lock", "locked", "lowtide", "buddy", "lowtide/no lock", "buddy/lowtide"];
    let mut table = Table::new("nanoseconds per allocation and free, of all threads together", &columns);
    for (i, (order, threads)) in cases.iter().enumerate() {
        let ns = KINDS.map(|kind| format!("{:.2}", of(i, kind).median()));
        let ours = of(i, Kind::Ours);
        let ratios = [ours.over(of(i, Kind::Local)), of(i, Kind::Buddy).over(ours)].map(|r| format!("{:.2}", r.median()));
        table.row([order.to_string(), threads.to_string()].into_iter().chain(ns).chain(ratios));
    }
    let mut parts = Table::new("where it goes: order 0, 1 thread, nanoseconds per allocation and free", &["part", "ns"]);
    let (local, locked, ours) = (of(0, Kind::Local), of(0, Kind::LocalLocked), of(0, Kind::Ours));
    let lock = locked.median() - local.median();
    let both_numbers = 2.0 * number.median();
    parts.row(["the lists themselves".to_owned(), format!("{:.2}", local.median())]);
    parts.row(["two locks: 4 read-modify-writes".to_owned(), format!("{lock:.2}")]);
    parts.row(["the CPU's number, twice".to_owned(), format!("{both_numbers:.2}")]);
    let rest = ours.median() - locked.median() - both_numbers;
    parts.row(["finding the lists, counts, the check of frees".to_owned(), format!("{rest:.2}")]);

    let bare = ours.over(local);
    let extra = ours.median() - local.median();
    let two = cases.iter().position(|case| *case == (0, 2)).unwrap_or(0);
    let against_buddy = of(two, Kind::Buddy).over(of(two, Kind::Ours));
    let findings = vec![
        Finding::new("bare path over a thread's lists", format!("{:.1} ns", ours.median()), bare.median())
            .spread(bare.spread()),
        Finding::new(
            "storing a page: lists under locks over a thread's own",
            format!("{extra:.1} ns of {:.0} ns", store.median()),
            store.median() / (store.median() - extra),
        )
        .published("-0.5 % to +2 %")
        .spread(ours.spread())
        .target(Target::AtMost(1.02)),
        Finding::new("buddy alone over lowtide, 2 threads", "one lock for all", against_buddy.median())
            .spread(against_buddy.spread())
            .target(Target::AtLeast(1.0)),
    ];
    let points = |kind: Kind| -> Vec<(f64, f64)> {
        let single = cases.iter().enumerate().filter(|(_, (order, _))| *order == 0);
        single.map(|(i, (_, threads))| ((*threads as f64).log2(), 1e3 / of(i, kind).median())).collect()
    };
    let series = KINDS.map(|kind| Series { name: kind.name().to_owned(), points: points(kind) }).to_vec();
    let (title, x, y) = ("Single frames".to_owned(), "threads (log2)", "million allocations and frees per second");
    Outcome { tables: vec![table, parts], findings, charts: vec![Chart { title, x, y, series }] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_hands_out_and_takes_back() {
        for kind in KINDS {
            for order in [0, 3] {
                assert!(measure(kind, 2, order, 5_000).unwrap() > 0.0, "{kind:?} {order}");
            }
        }
        assert!(store_ns(10).unwrap() > 0.0 && cpu_number_ns().unwrap() > 0.0);
    }
}
