//! `reclaim`: moves pages out below the limit.

use super::task::{answer, failure};
use super::{Answer, Live, Step, Task, processes};
use crate::error::Failure;
use crate::host::machine;
use lowtide_config::size;
use lowtide_wire::segment::Segment;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Wait for processes without registered memory, which may have to register some first.
const WATCHERS: Duration = Duration::from_secs(2);
const AT_MOST: Duration = Duration::from_secs(30);
const REPORTS: Duration = Duration::from_millis(250);

struct Reclaim {
    asked: String,
    bytes: u64,
    /// None: it waits for its turn.
    given: Option<Given>,
}

struct Given {
    number: u64,
    at: Instant,
    ram_before: u64,
    moved: Moved,
    reported: Option<Instant>,
}

/// Bytes that each process has moved out by requests: before this one, and at the latest look.
#[derive(Default)]
struct Moved(HashMap<u32, (u64, u64)>);

impl Moved {
    fn look(&mut self, segment: &Segment, is_first: bool) {
        for p in processes::alive(segment) {
            let now = p.reclaimed_bytes.load(Ordering::Relaxed);
            let entry = self.0.entry(processes::pid(p)).or_insert((if is_first { now } else { 0 }, now));
            if now < entry.1 {
                // Another program in the same process, or another process: keep the earlier count.
                entry.0 = entry.0.wrapping_sub(entry.1);
            }
            entry.1 = now;
        }
    }

    fn bytes(&self) -> u64 {
        self.0.values().fold(0, |sum: u64, (before, now)| sum.saturating_add(now.wrapping_sub(*before)))
    }
}

pub fn start(asked: &str, _: &mut Live<'_>) -> Result<Box<dyn Task>, Failure> {
    let bytes = size::parse(asked, machine::ram_usable()).map_err(|why| Failure::usage(format!("reclaim {why}")))?;
    if bytes == 0 {
        return Err(Failure::usage(format!("reclaim {asked}: nothing is to be moved out: say how much, like 64M")));
    }
    Ok(Box::new(Reclaim { asked: asked.to_owned(), bytes, given: None }))
}

impl Task for Reclaim {
    fn step(&mut self, run: &mut Live<'_>) -> Step {
        let segment = run.shared.segment();
        let Some(given) = &mut self.given else {
            if !run.reclaiming {
                run.reclaiming = true;
                self.given = Some(Given::new(self.bytes, run));
            }
            return Step::Going(None);
        };
        given.moved.look(segment, false);
        let silent = given.silent(segment);
        if silent.is_empty() || given.at.elapsed() >= AT_MOST {
            run.reclaiming = false;
            return Step::Done(given.answer(&self.asked, &silent, run));
        }
        Step::Going(given.report(run))
    }

    /// Withdraws the request; what is out stays out.
    fn cancel(&mut self, run: &mut Live<'_>) -> Answer {
        let moved = self.given.as_ref().map_or(0, |given| given.moved.bytes());
        if self.given.take().is_some() {
            run.reclaiming = false;
        }
        Err(failure(format!("reclaim {}: cancelled: {} were moved out so far", self.asked, size::show(moved))))
    }
}

impl Given {
    fn new(bytes: u64, run: &Live<'_>) -> Given {
        let (segment, reclaim, ram_before) = (run.shared.segment(), &run.shared.settings().reclaim, run.tree.now().ram);
        let mut moved = Moved::default();
        moved.look(segment, true);
        reclaim.bytes.store(bytes, Ordering::Relaxed);
        reclaim.of.store(ram_before, Ordering::Relaxed);
        let number = reclaim.number.fetch_add(1, Ordering::Release) + 1;
        Given { number, at: Instant::now(), ram_before, moved, reported: None }
    }

    /// Processes that have not handled the request and may still do so.
    fn silent(&self, segment: &Segment) -> Vec<u32> {
        let waits_for_watchers = self.at.elapsed() < WATCHERS;
        let list = processes::alive(segment)
            .filter(|p| p.reclaimed.load(Ordering::Acquire) != self.number && (waits_for_watchers || processes::is_active(p)));
        list.map(processes::pid).collect()
    }

    fn answer(&self, asked: &str, silent: &[u32], run: &Live<'_>) -> Answer {
        let moved = self.moved.bytes();
        if let Some(pid) = silent.first() {
            let (moved, seconds) = (size::show(moved), AT_MOST.as_secs());
            let line = format!("reclaim {asked}: process {pid} has not answered within {seconds} s; {moved} were moved out");
            return Err(failure(line));
        }
        answer(json!({
            "moved_bytes": moved,
            "ram_before": self.ram_before,
            "ram_now": run.tree.now().ram,
            "seconds": self.at.elapsed().as_secs_f64(),
        }))
    }

    fn report(&mut self, run: &Live<'_>) -> Option<Value> {
        if self.reported.is_some_and(|at| at.elapsed() < REPORTS) {
            return None;
        }
        self.reported = Some(Instant::now());
        Some(json!({ "moved_bytes": self.moved.bytes(), "ram_now": run.tree.now().ram }))
    }
}
