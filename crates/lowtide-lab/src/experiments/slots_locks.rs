//! T1: does the slot allocator scale with threads? Cluster locks against one lock for the whole area.
//!
//! Published (the kernel's swap allocator, 2024, a build under memory pressure with 48 threads): waits for the device's lock
//! from 34,948, together 53.6 s, to 91, together 0.2 ms; system time -47.7 %. After that the slot caches of the CPUs went:
//! -7.6 % with a fast device, -23 % with 64 KiB folios.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use fastrand::Rng;
use lowtide_core::lock;
use lowtide_core::slot::Policy;

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
/// How far a thread strays from its share of that, either way.
const STRAY: f64 = 0.02;
/// Orders and how often they are asked for, of 1000.
type Load = (&'static str, &'static [(u32, u32)]);
const MIXED: Load = ("mixed", &[(0, 940), (2, 35), (4, 24), (9, 1)]);
const PAGES: Load = ("4 KiB only", &[(0, 1000)]);
const FOLIOS: Load = ("64 KiB folios", &[(4, 1000)]);
/// How many threads run each load with and without slot caches.
const FEW: [usize; 2] = [1, 2];
/// Operations between two looks at the clock's flag.
const BATCH: usize = 32;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Baseline,
    /// Ours behind slot caches.
    Cached,
    Ours,
    /// The same in areas that the threads do not share: what the machine allows.
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

/// What `--only` can name.
pub fn names() -> impl Iterator<Item = &'static str> {
    Kind::ALL.into_iter().map(Kind::name)
}

/// Something that is measured.
type Variant = (Kind, usize, Load);

/// What one class of locks saw.
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
    /// Allocations that found no run.
    fallbacks: u64,
    shared: Class,
    local: Class,
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
    let variants: Vec<Variant> = variants()
        .into_iter()
        .filter(|(kind, threads, _)| {
            let is_named = only.is_empty() || only.iter().any(|name| name == kind.name());
            is_named && scale.race.threads.is_none_or(|wanted| wanted == *threads)
        })
        .collect();
    if variants.is_empty() {
        return Err(format!("slots-locks: nothing runs so; `apart` and `cached` have 1 or 2 threads, the others {THREADS:?}"));
    }
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
    // Parts of it have nothing to be compared with: they are for profilers.
    if !only.is_empty() || scale.race.threads.is_some() {
        return Ok(Outcome { tables: vec![alone(&variants, &cells)], ..Outcome::default() });
    }
    let of = |kind: Kind| -> Vec<(usize, &Cell)> {
        let all = variants.iter().zip(&cells);
        all.filter(|((k, _, load), _)| *k == kind && *load == MIXED).map(|((_, n, _), cell)| (*n, cell)).collect()
    };
    let mut outcome = outcome(&of(Kind::Baseline), &of(Kind::Ours), &of(Kind::Apart));
    let (table, findings) = by_load(&variants, &cells);
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

/// What one window is like.
#[derive(Clone, Copy)]
struct Run {
    /// Slots of the area.
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
    cell.shared.add(class(S::SHARED, after.shared - before.shared));
    cell.local.add(class(S::LOCAL, after.local - before.local));
    cell.speed.add(done.iter().map(|d| d.ops as f64 / d.seconds).sum());
    cell.ops += done.iter().map(|d| d.ops).sum::<u64>();
    cell.fallbacks += done.iter().map(|d| d.fallbacks).sum::<u64>();
    Ok(())
}

/// What one thread did.
struct Done {
    ops: u64,
    seconds: f64,
    fallbacks: u64,
}

/// One thread: allocates and frees at random about its share of the area.
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
    /// Fills the share, then replaces what is in it once, so that the area is as it will be from then on.
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

fn outcome(baseline: &[(usize, &Cell)], ours: &[(usize, &Cell)], apart: &[(usize, &Cell)]) -> Outcome {
    let tables = vec![
        throughput(baseline, ours),
        locks("the lock that all share: the baseline's area lock, our lists lock", |cell| cell.shared, baseline, ours),
        locks("the other locks: the baseline's caches, our clusters", |cell| cell.local, baseline, ours),
    ];
    let findings = findings(baseline, ours, apart);
    let curve = |name: &str, cells: &[(usize, &Cell)], y: &dyn Fn(&Cell) -> f64| Series {
        name: name.to_owned(),
        points: cells.iter().map(|(n, cell)| ((*n as f64).log2(), y(cell))).collect(),
    };
    let speed = |cell: &Cell| cell.speed.median() / 1e6;
    let wait = |cell: &Cell| cell.wait_per_op(cell.shared);
    let chart = |title: &str, y, f: &dyn Fn(&Cell) -> f64| Chart {
        title: title.to_owned(),
        x: "threads (log2)",
        y,
        series: vec![curve("one area lock", baseline, f), curve("lowtide", ours, f)],
    };
    let charts = vec![
        chart("Throughput", "million operations per second", &speed),
        chart("Wait for the shared lock", "ns per operation", &wait),
    ];
    Outcome { tables, findings, charts }
}

fn throughput(baseline: &[(usize, &Cell)], ours: &[(usize, &Cell)]) -> Table {
    let columns =
        ["threads", "baseline Mop/s", "ours Mop/s", "ours/baseline", "baseline vs 1", "ours vs 1", "fallbacks, base", "ours"];
    let mut table = Table::new("throughput: medians of runs in turn, speedups and ratios within a round", &columns);
    for ((n, base), (_, our)) in baseline.iter().zip(ours) {
        table.row([
            n.to_string(),
            format!("{:.2}", base.speed.median() / 1e6),
            format!("{:.2}", our.speed.median() / 1e6),
            format!("{:.2}", our.speed.over(&base.speed).median()),
            format!("{:.2}", base.speed.over(&baseline[0].1.speed).median()),
            format!("{:.2}", our.speed.over(&ours[0].1.speed).median()),
            format!("{:.3} %", base.fallbacks as f64 * 100.0 / base.ops as f64),
            format!("{:.3} %", our.fallbacks as f64 * 100.0 / our.ops as f64),
        ]);
    }
    table
}

/// Of each load what slot caches make of it.
fn by_load(variants: &[Variant], cells: &[Cell]) -> (Table, Vec<Finding>) {
    let columns =
        ["load", "threads", "baseline Mop/s", "cached Mop/s", "ours Mop/s", "ours/baseline", "ours/cached", "fallbacks, ours"];
    let mut table = Table::new("loads apart: one area lock, cluster locks behind slot caches, cluster locks alone", &columns);
    let mut findings = Vec::new();
    for load in [PAGES, FOLIOS, MIXED] {
        for n in FEW {
            let of = |kind| variants.iter().zip(cells).find(|(variant, _)| **variant == (kind, n, load)).map(|(_, cell)| cell);
            let (Some(base), Some(cached), Some(ours)) = (of(Kind::Baseline), of(Kind::Cached), of(Kind::Ours)) else {
                continue;
            };
            let speed = |cell: &Cell| format!("{:.2}", cell.speed.median() / 1e6);
            let without = ours.speed.over(&cached.speed);
            table.row([
                load.0.to_owned(),
                n.to_string(),
                speed(base),
                speed(cached),
                speed(ours),
                format!("{:.2}", ours.speed.over(&base.speed).median()),
                format!("{:.2}", without.median()),
                format!("{:.3} %", ours.fallbacks as f64 * 100.0 / ours.ops as f64),
            ]);
            let published = match (n, load) {
                (2, PAGES) => "dropped: -7.6 % of the time, fast device",
                (2, FOLIOS) => "dropped: -23 % of the time",
                _ => continue,
            };
            let what = format!("{}, 2 threads: without slot caches, of with them", load.0);
            let told = format!("{} Mop/s against {}", speed(ours), speed(cached));
            findings.push(Finding::new(what, told, without.median()).published(published).spread(without.spread()));
        }
    }
    (table, findings)
}

/// What was measured of a part.
fn alone(variants: &[Variant], cells: &[Cell]) -> Table {
    let mut table = Table::new("a part of it, compared with nothing", &["", "load", "threads", "Mop/s"]);
    for ((kind, threads, load), cell) in variants.iter().zip(cells) {
        let speed = format!("{:.2}", cell.speed.median() / 1e6);
        table.row([kind.name().to_owned(), load.0.to_owned(), threads.to_string(), speed]);
    }
    table
}

fn locks(title: &str, class: fn(&Cell) -> Class, baseline: &[(usize, &Cell)], ours: &[(usize, &Cell)]) -> Table {
    let columns = ["", "threads", "contended", "total wait ms", "max wait us", "avg wait us", "wait ns/op", "taken/op"];
    let mut table = Table::new(title, &columns);
    for (name, cells) in [("baseline", baseline), ("ours", ours)] {
        for (n, cell) in cells {
            let c = class(cell);
            table.row([
                name.to_owned(),
                n.to_string(),
                c.contended.to_string(),
                format!("{:.3}", c.wait_ns as f64 / 1e6),
                format!("{:.1}", c.max_ns as f64 / 1e3),
                format!("{:.2}", c.wait_ns as f64 / c.contended.max(1) as f64 / 1e3),
                format!("{:.3}", cell.wait_per_op(c)),
                format!("{:.3}", c.taken as f64 / cell.ops as f64),
            ]);
        }
    }
    table
}

fn findings(baseline: &[(usize, &Cell)], ours: &[(usize, &Cell)], apart: &[(usize, &Cell)]) -> Vec<Finding> {
    // Waits per operation, summed over the thread counts, so that a faster allocator is not blamed for doing more.
    let waits = |cells: &[(usize, &Cell)]| -> (f64, u64) {
        let several = cells.iter().filter(|(n, _)| *n > 1);
        several.fold((0.0, 0), |(ns, times), (_, c)| (ns + c.wait_per_op(c.shared), times + c.shared.contended))
    };
    let ((base_ns, base_times), (our_ns, our_times)) = (waits(baseline), waits(ours));
    let (one, two) = (&ours[0].1.speed, &ours[1].1.speed);
    let single = one.over(&baseline[0].1.speed);
    let scaling = two.over(one);
    let allowed = apart[1].1.speed.over(&apart[0].1.speed);
    let best =
        ours.iter().map(|(n, cell)| (*n, cell.speed.over(one).median())).fold((1, 1.0), |a, b| if b.1 > a.1 { b } else { a });
    vec![
        Finding::new(
            "wait for the shared lock, per operation",
            format!("{base_times} waits -> {our_times}; {base_ns:.1} -> {our_ns:.3} ns/op"),
            base_ns / our_ns,
        )
        .published("34,948 waits, 53.6 s -> 91, 0.2 ms")
        .target(Target::AtLeast(100.0)),
        Finding::new("1 thread, ours over baseline", format!("{:.2} Mop/s", one.median() / 1e6), single.median())
            .published("not slower")
            .spread(single.spread())
            .target(Target::AtLeast(1.0)),
        Finding::new("2 threads over 1 thread", format!("{:.2} Mop/s", two.median() / 1e6), scaling.median())
            .spread(scaling.spread())
            .target(Target::AtLeast(1.7)),
        Finding::new("the same in areas of their own", "what this machine allows", allowed.median()).spread(allowed.spread()),
        Finding::new("most threads pay", format!("at {} threads", best.0), best.1).published("system time -47.7 %, 48 threads"),
    ]
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
