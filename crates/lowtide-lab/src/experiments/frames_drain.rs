//! T5, second part: the time to empty all CPUs' lists of free frames, and the disturbance of a
//! thread that makes no system call.
//!
//! Published (the kernel's per-CPU page lists under locks, 2021): undisturbed CPUs stay so. Before,
//! a drain ran work on each CPU; that is the baseline here: a thread that visits each CPU in turn
//! and drains there.
//!
//! Returning a frame with memory to the kernel interrupts the CPUs on which the process runs,
//! whoever does it, because they may cache its translation. So that is measured apart from emptying
//! the lists.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use lowtide_core::frame::{FrameNo, Frames, LIST_FRAMES};
use lowtide_core::vm::PAGE_SIZE;

use crate::experiment::{Experiment, Outcome, Scale};
use crate::measure::{Sample, Stopwatch, in_turn};
use crate::report::{Finding, Table, Target};
use crate::threads;

pub const EXPERIMENT: Experiment =
    Experiment { name: "frames-drain", question: "does draining the lists of all CPUs disturb a thread that spins?", run };

const FRAMES: usize = 1 << 14;
/// Single frames that a thread puts into its CPU's lists.
const LISTED: usize = 40;
/// The spinning thread is observed for this long after a drain's start, or until its end.
const AROUND: Duration = Duration::from_micros(100);
/// Shorter gaps are the spinning itself.
const SHORTEST_GAP: Duration = Duration::from_nanos(200);
const MOST_GAPS: usize = 1 << 16;
/// Microseconds: longer gaps without a drain, or gaps whose difference exceeds their length, show
/// other load on the CPUs.
const BUSY_US: f64 = 1000.0;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Drain {
    /// None, for comparison.
    Not,
    Empty,
    Filled,
    /// The baseline: run on each CPU. Frames that were never written.
    OnEachCpu,
}

const DRAINS: [Drain; 4] = [Drain::Not, Drain::Empty, Drain::Filled, Drain::OnEachCpu];

impl Drain {
    fn name(self) -> &'static str {
        match self {
            Drain::Not => "no drain",
            Drain::Empty => "drain, frames without memory",
            Drain::Filled => "drain, frames with memory",
            Drain::OnEachCpu => "baseline: work on each CPU",
        }
    }
}

fn list_some(frames: &Frames, fill: bool) -> Result<(), String> {
    let held: Option<Vec<FrameNo>> = (0..LISTED).map(|_| frames.alloc_run(1)).collect();
    for f in held.ok_or("no frames left")? {
        if fill {
            // SAFETY: the frame was just handed out to this thread.
            unsafe { frames.ptr(f).write_bytes(1, PAGE_SIZE) };
        }
        frames.free_run(f, 1).map_err(|e| format!("a frame can't be freed: {e:?}"))?;
    }
    Ok(())
}

/// Returns the drain's microseconds: without starting its thread, with moving from CPU to CPU.
fn drain(frames: &Frames, how: Drain, cpus: &[usize]) -> Result<f64, String> {
    let watch = Stopwatch::start();
    match how {
        Drain::Not => {}
        Drain::Empty | Drain::Filled => frames.drain(),
        Drain::OnEachCpu => cpus.iter().try_for_each(|cpu| threads::pin(*cpu).map(|()| frames.drain()))?,
    }
    Ok(watch.seconds() * 1e6)
}

fn new_frames() -> Result<Frames, String> {
    Frames::with_list_frames(FRAMES, LIST_FRAMES.max(2 * LISTED * lowtide_core::percpu::count()))
        .map_err(|e| format!("no memory for frames: {e}"))
}

/// Microseconds of one drain while the threads that filled the lists, one for each CPU, sleep.
fn while_all_sleep(how: Drain) -> Result<f64, String> {
    let frames = new_frames()?;
    let cpus = threads::allowed()?;
    let (filled, done) = (AtomicUsize::new(0), Barrier::new(cpus.len() + 1));
    let role = |i: usize| {
        if i < cpus.len() {
            let listed = list_some(&frames, how == Drain::Filled);
            filled.fetch_add(1, Release);
            done.wait();
            return listed.map(|()| None);
        }
        while filled.load(Acquire) < cpus.len() {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(1));
        let took = drain(&frames, how, &cpus);
        done.wait();
        took.map(Some)
    };
    one(threads::pinned(cpus.len() + 1, role, || ())?)
}

/// The result of the one thread that measured.
fn one<T>(results: Vec<Result<Option<T>, String>>) -> Result<T, String> {
    let all: Vec<Option<T>> = results.into_iter().collect::<Result<_, _>>()?;
    all.into_iter().flatten().next().ok_or_else(|| "nothing was measured".to_owned())
}

/// A window with a spinning thread, in microseconds.
struct Window {
    /// The longest time without progress of the spinning thread, during the drain and up to
    /// [`AROUND`] after its start.
    gap: f64,
    drain: f64,
}

/// A thread spins on the last CPU; on the first, another drains in the middle of that.
fn while_one_spins(how: Drain, window: Duration) -> Result<Window, String> {
    let frames = new_frames()?;
    let cpus = threads::allowed()?;
    if cpus.len() < 2 {
        return Err("needs two CPUs: one for the thread that spins, one for the drain".to_owned());
    }
    let (spinning, gaps, began) = (AtomicBool::new(false), Mutex::new(Vec::new()), Instant::now());
    let role = |i: usize| {
        if i == cpus.len() - 1 {
            let listed = list_some(&frames, how == Drain::Filled);
            let mut found = Vec::with_capacity(MOST_GAPS);
            spinning.store(true, Release);
            spin(began, window, &mut found);
            gaps.lock().map_err(|e| e.to_string())?.append(&mut found);
            return listed.map(|()| None);
        }
        if i > 0 {
            return Ok(None);
        }
        while !spinning.load(Acquire) {
            std::thread::yield_now();
        }
        std::thread::sleep(window / 3);
        let at = began.elapsed();
        drain(&frames, how, &cpus).map(|took| Some((at, took)))
    };
    let (at, drain) = one(threads::pinned(cpus.len(), role, || ())?)?;
    let until = at + AROUND.max(Duration::from_nanos((drain * 1e3) as u64));
    let gaps = gaps.into_inner().map_err(|e| e.to_string())?;
    let during = gaps.iter().filter(|(from, to)| *from < until && *to > at).map(|(from, to)| *to - *from);
    Ok(Window { gap: during.max().unwrap_or(SHORTEST_GAP).as_nanos() as f64 / 1e3, drain })
}

/// Reads the clock, without system calls, again and again; notes the gaps between two reads, as
/// times since `origin`.
fn spin(origin: Instant, window: Duration, gaps: &mut Vec<(Duration, Duration)>) {
    let began = origin.elapsed();
    let mut last = began;
    while last - began < window {
        let now = origin.elapsed();
        if now - last > SHORTEST_GAP && gaps.len() < MOST_GAPS {
            gaps.push((last, now));
        }
        last = now;
    }
}

#[derive(Clone, Default)]
struct Cell {
    asleep: Sample,
    spun: Sample,
    gap: Sample,
}

fn run(scale: &Scale) -> Result<Outcome, String> {
    let window = Duration::from_millis(scale.pick(6, 12));
    let mut cells = vec![Cell::default(); DRAINS.len()];
    in_turn(&DRAINS, scale.pick(31, 201), |i, &how| {
        if how != Drain::Not {
            cells[i].asleep.add(while_all_sleep(how)?);
        }
        let seen = while_one_spins(how, window)?;
        if how != Drain::Not {
            cells[i].spun.add(seen.drain);
        }
        cells[i].gap.add(seen.gap);
        Ok::<(), String>(())
    })?;
    Ok(outcome(&cells))
}

fn outcome(cells: &[Cell]) -> Outcome {
    let columns = ["", "drain, all asleep", "drain, one spins", "longest gap meanwhile"];
    let mut table = Table::new("microseconds, medians", &columns);
    let us = |sample: &Sample| if sample.median().is_nan() { "-".to_owned() } else { format!("{:.1}", sample.median()) };
    for (how, cell) in DRAINS.iter().zip(cells) {
        table.row([how.name().to_owned(), us(&cell.asleep), us(&cell.spun), us(&cell.gap)]);
    }
    let [none, empty, filled, baseline] = cells else { return Outcome::default() };
    let is_busy = none.gap.median() > BUSY_US || none.gap.spread() > 1.0;
    let in_time = |what: &str, sample: &Sample| {
        Finding::new(format!("drain, {what}, in 100 us"), format!("{} us", us(sample)), sample.median() / 100.0)
            .target(Target::AtMost(1.0))
            .known_miss(if is_busy { "others have the CPUs: there are such gaps without any drain" } else { "" })
    };
    // Medians: the machine's other work makes gaps in some windows.
    let gap = |what: &str, cell: &Cell| {
        let ours = format!("{} us, {} without", us(&cell.gap), us(&none.gap));
        Finding::new(
            format!("longest gap of a thread that spins: {what}, over no drain"),
            ours,
            cell.gap.median() / none.gap.median(),
        )
        .spread(none.gap.spread())
    };
    let findings = vec![
        in_time("all asleep", &filled.asleep),
        in_time("one spins", &filled.spun),
        gap("frames without memory", empty).published("not disturbed").target(Target::AtMost(1.0)),
        gap("frames with memory", filled),
        gap("work on each CPU", baseline),
        Finding::new(
            "baseline's drain over ours, one spins",
            format!("{} us, ours {}", us(&baseline.spun), us(&empty.spun)),
            baseline.spun.median() / empty.spun.median(),
        )
        .target(Target::AtLeast(1.0)),
    ];
    Outcome { tables: vec![table], findings, charts: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drains_empty_what_the_threads_listed() {
        let (frames, cpus) = (new_frames().unwrap(), threads::allowed().unwrap());
        for how in [Drain::Empty, Drain::Filled, Drain::OnEachCpu] {
            threads::on_one_cpu(|| list_some(&frames, how == Drain::Filled)).unwrap().unwrap();
            assert!(frames.held_bytes() >= LISTED * PAGE_SIZE);
            assert!(threads::on_one_cpu(|| drain(&frames, how, &cpus)).unwrap().unwrap() > 0.0);
            assert_eq!(frames.held_bytes(), 0, "{how:?}");
        }
    }
}
