//! T1: does the slot allocator scale with threads? Cluster locks against one lock for the whole
//! area.
//!
//! Published (the kernel's swap allocator, 2024, a build under memory pressure with 48 threads):
//! waits for the device's lock from 34,948, together 53.6 s, to 91, together 0.2 ms; system time
//! -47.7 %. The later removal of the CPUs' slot caches: -7.6 % with a fast device, -23 % with 64
//! KiB folios.

mod counts;
mod report;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use fastrand::Rng;
use lowtide_core::lock::{self, rank};
use lowtide_core::slot::Policy;

use super::COUNTS;
use crate::experiment::{Experiment, Outcome, Scale};
use crate::measure::{Sample, Stopwatch, in_turn};
use crate::plot::{Chart, Series};
use crate::report::{Finding, Table, Target};
use crate::slots::{Apart, Baseline, Cached, Slots, area};
use crate::threads;

pub const EXPERIMENT: Experiment =
    Experiment { name: "slots-locks", question: "does the slot allocator scale with threads?", run };

const THREADS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Share of the area in use.
const FULL: f64 = 0.7;
/// A thread's deviation from its share of that.
const STRAY: f64 = 0.02;
/// Orders and their frequency in 1000 requests.
type Load = (&'static str, &'static [(u32, u32)]);
const MIXED: Load = ("mixed", &[(0, 940), (2, 35), (4, 24), (9, 1)]);
const PAGES: Load = ("4 KiB only", &[(0, 1000)]);
const FOLIOS: Load = ("64 KiB folios", &[(4, 1000)]);
/// Threads of each load with and without slot caches.
const FEW: [usize; 2] = [1, 2];
/// Operations between two checks of the clock's flag.
const BATCH: usize = 32;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Baseline,
    Cached,
    Ours,
    /// The same without sharing areas: the machine's bound.
    Apart,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Baseline, Kind::Cached, Kind::Ours, Kind::Apart];

    const fn name(self) -> &'static str {
        match self {
            Kind::Baseline => "baseline",
            Kind::Cached => "cached",
            Kind::Ours => "ours",
            Kind::Apart => "apart",
        }
    }
}

pub fn names() -> impl Iterator<Item = &'static str> {
    Kind::ALL.into_iter().map(Kind::name).chain([COUNTS])
}

type Variant = (Kind, usize, Load);

#[derive(Clone, Copy, Default)]
struct Class {
    contended: u64,
    wait_ns: u64,
    max_ns: u64,
    taken: u64,
}

impl Class {
    fn add(&mut self, other: Class) {
        self.contended += other.contended;
        self.wait_ns += other.wait_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
        self.taken += other.taken;
    }
}

/// One measurement, or several added up.
#[derive(Clone, Default)]
struct Cell {
    /// Operations (allocations and frees) per second.
    speed: Sample,
    ops: u64,
    fallbacks: u64,
    shared: Class,
    local: Class,
    /// By rank, of all locks.
    all: [Class; rank::RANKS],
}

impl Cell {
    fn wait_per_op(&self, class: Class) -> f64 {
        class.wait_ns as f64 / self.ops as f64
    }
}

fn run(scale: &Scale) -> Result<Outcome, String> {
    let slots = scale.pick(64 << 10, 256 << 10);
    let window = Duration::from_millis(scale.pick(60, 200));
    let only = &scale.race.only;
    if only.iter().any(|name| name == COUNTS) {
        return Ok(Outcome { tables: vec![counts::table(slots)?], ..Outcome::default() });
    }
    let mut variants = if scale.race.threads.is_empty() { variants() } else { with_threads(&scale.race.threads) };
    variants.retain(|(kind, ..)| only.is_empty() || only.iter().any(|name| name == kind.name()));
    let mut cells = vec![Cell::default(); variants.len()];
    in_turn(&variants, scale.pick(7, 15), |i, &(kind, threads, load)| {
        let run = Run { size: slots, threads, window, load };
        match kind {
            Kind::Baseline => measure(&Baseline::new(slots), run, &mut cells[i]),
            Kind::Cached => measure(&Cached::new(slots)?, run, &mut cells[i]),
            Kind::Ours => measure(&area(slots, Policy::default())?, run, &mut cells[i]),
            Kind::Apart => measure(&Apart::new(slots)?, run, &mut cells[i]),
        }
    })?;
    // Parts of it have nothing to compare with: they are for profilers.
    if !only.is_empty() || !scale.race.threads.is_empty() {
        return Ok(Outcome { tables: vec![report::alone(&variants, &cells)], ..Outcome::default() });
    }
    let of = |kind: Kind| -> Vec<(usize, &Cell)> {
        let all = variants.iter().zip(&cells);
        all.filter(|((k, _, load), _)| *k == kind && *load == MIXED).map(|((_, n, _), cell)| (*n, cell)).collect()
    };
    let mut outcome = report::outcome(&of(Kind::Baseline), &of(Kind::Ours), &of(Kind::Apart));
    outcome.tables.push(counts::table(slots)?);
    let (table, findings) = report::by_load(&variants, &cells);
    outcome.tables.insert(1, table);
    outcome.findings.extend(findings);
    Ok(outcome)
}

fn variants() -> Vec<Variant> {
    let mut variants: Vec<Variant> =
        THREADS.into_iter().flat_map(|n| [(Kind::Baseline, n, MIXED), (Kind::Ours, n, MIXED)]).collect();
    variants.extend(FEW.map(|n| (Kind::Apart, n, MIXED)));
    variants.extend(FEW.map(|n| (Kind::Cached, n, MIXED)));
    for load in [PAGES, FOLIOS] {
        variants.extend(FEW.into_iter().flat_map(|n| [Kind::Baseline, Kind::Cached, Kind::Ours].map(|kind| (kind, n, load))));
    }
    variants
}

/// Everything with each of these numbers of threads.
fn with_threads(threads: &[usize]) -> Vec<Variant> {
    let loads = [MIXED, PAGES, FOLIOS].into_iter();
    let of = |load| threads.iter().flat_map(move |n| Kind::ALL.map(|kind| (kind, *n, load)));
    loads.flat_map(of).collect()
}

#[derive(Clone, Copy)]
struct Run {
    size: u64,
    threads: usize,
    window: Duration,
    load: Load,
}

/// One window of threads at work on `slots`, added to `cell`.
fn measure<S: Slots>(slots: &S, run: Run, cell: &mut Cell) -> Result<(), String> {
    let Run { size, threads, window, load: (_, orders) } = run;
    let (ready, go, stop) = (Barrier::new(threads + 1), Barrier::new(threads + 1), AtomicBool::new(false));
    let own_cpu = threads <= threads::allowed()?.len();
    let share = (size as f64 * FULL / threads as f64) as u64;
    let mut before = slots.taken();
    let work = |number: usize| {
        let rng = Rng::with_seed(number as u64);
        let mut worker = Worker { slots, orders, share, used: 0, held: Vec::new(), rng, fallbacks: 0 };
        worker.settle_in();
        ready.wait();
        go.wait();
        worker.work_until(&stop, own_cpu)
    };
    let began = || {
        ready.wait();
        lock::reset_waits();
        before = slots.taken();
        go.wait();
        std::thread::sleep(window);
        stop.store(true, Relaxed);
    };
    let done = threads::pinned(threads, work, began)?;
    let after = slots.taken();
    let class = |rank: u8, taken: u64| {
        let waits = lock::waits(rank);
        Class { contended: waits.contended, wait_ns: waits.total_ns, max_ns: waits.max_ns, taken }
    };
    (0..).zip(&mut cell.all).for_each(|(rank, all)| all.add(class(rank, 0)));
    cell.shared.add(class(S::SHARED, after.shared - before.shared));
    cell.local.add(class(S::LOCAL, after.local - before.local));
    cell.speed.add(done.iter().map(|d| d.ops as f64 / d.seconds).sum());
    cell.ops += done.iter().map(|d| d.ops).sum::<u64>();
    cell.fallbacks += done.iter().map(|d| d.fallbacks).sum::<u64>();
    Ok(())
}

struct Done {
    ops: u64,
    seconds: f64,
    fallbacks: u64,
}

/// One thread: allocates and frees at random around its share of the area.
struct Worker<'a, S> {
    slots: &'a S,
    orders: &'static [(u32, u32)],
    /// Slots to hold, about.
    share: u64,
    used: u64,
    /// First slot, times 16, plus order.
    held: Vec<u64>,
    rng: Rng,
    fallbacks: u64,
}

impl<S: Slots> Worker<'_, S> {
    /// Fills the share, then replaces its content once, to reach a steady state.
    fn settle_in(&mut self) {
        while self.used < self.share && self.alloc() {}
        for _ in 0..self.held.len() {
            self.step();
        }
        self.fallbacks = 0;
    }

    fn work_until(&mut self, stop: &AtomicBool, own_cpu: bool) -> Done {
        let watch = Stopwatch::start();
        let mut ops = 0;
        while !stop.load(Relaxed) {
            for _ in 0..BATCH {
                self.step();
            }
            ops += BATCH as u64;
        }
        // With more threads than CPUs, waiting for a CPU is part of the experiment.
        let seconds = if own_cpu { watch.own_seconds() } else { watch.seconds() };
        Done { ops, seconds, fallbacks: self.fallbacks }
    }

    fn step(&mut self) {
        let stray = (self.share as f64 * STRAY) as u64 + 1;
        if self.used + stray <= self.share + self.rng.u64(..2 * stray) || self.held.is_empty() {
            self.alloc();
        } else {
            self.free();
        }
    }

    fn alloc(&mut self) -> bool {
        let mut pick = self.rng.u32(..1000);
        let order = self.orders.iter().find(|(_, weight)| {
            let hit = pick < *weight;
            pick = pick.saturating_sub(*weight);
            hit
        });
        let order = order.map_or(0, |(order, _)| *order);
        match self.slots.alloc(order) {
            Some(first) => {
                self.used += 1 << order;
                self.held.push(first << 4 | order as u64);
                true
            }
            None => {
                self.fallbacks += 1;
                false
            }
        }
    }

    fn free(&mut self) {
        let run = self.held.swap_remove(self.rng.usize(..self.held.len()));
        self.used -= 1 << (run & 15);
        self.slots.free(run >> 4, 1 << (run & 15));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_stay_near_their_share_and_hold_what_they_count() {
        let slots = Baseline::new(1 << 14);
        let rng = Rng::with_seed(7);
        let orders = MIXED.1;
        let mut worker = Worker { slots: &slots, orders, share: 8000, used: 0, held: Vec::new(), rng, fallbacks: 0 };
        worker.settle_in();
        for _ in 0..20_000 {
            worker.step();
        }
        assert_eq!(worker.used, worker.held.iter().map(|run| 1 << (run & 15)).sum::<u64>());
        assert!((7000..9000).contains(&worker.used), "{}", worker.used);
        let orders: std::collections::HashSet<u64> = worker.held.iter().map(|run| run & 15).collect();
        assert!([0, 2, 4].iter().all(|o| orders.contains(o)), "{orders:?}");
    }

    #[test]
    fn a_window_counts_operations_and_locks() {
        let slots = Baseline::new(1 << 13);
        let mut cell = Cell::default();
        let run = Run { size: 1 << 13, threads: 3, window: Duration::from_millis(2), load: MIXED };
        measure(&slots, run, &mut cell).unwrap();
        assert!(cell.ops > 0 && cell.shared.taken > 0 && cell.local.taken > 0 && cell.speed.median() > 0.0);
    }
}
