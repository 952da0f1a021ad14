//! `limit`: sets the limit of a live run.
//!
//! A higher limit holds at once, and brings nothing in. A lower one holds at once for background
//! eviction; but a program above it must not wait until all the excess is out. So the program's own
//! faults obey a separate ceiling, which follows the used memory down, a little above it, to the
//! limit.

use super::task::{answer, failure};
use super::{Answer, Live, Step, Task, processes};
use crate::error::Failure;
use crate::host::machine;
use crate::plan;
use lowtide_config::ram::default_pool;
use lowtide_config::size;
use lowtide_wire::segment::Settings;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The ceiling's distance above the used memory.
const HEADROOM: u64 = 8 << 20;
/// Time for the processes to report what they can't move out: they scan all their memory, so each
/// GiB adds as much.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
const ANSWERS_WITHIN_PER_GIB: Duration = Duration::from_millis(30);
/// Time to come below the limit before the answer.
const REACHED_WITHIN: Duration = Duration::from_secs(10);
const REPORTS: Duration = Duration::from_millis(250);

pub struct Limits {
    settings: &'static Settings,
    pool_given: Option<u64>,
}

impl Limits {
    /// The limits of the settings; `pool_given`: the user's pool limit.
    pub fn new(settings: &'static Settings, pool_given: Option<u64>) -> Limits {
        Limits { settings, pool_given }
    }

    pub fn ram(&self) -> u64 {
        self.settings.ram_limit.load(Ordering::Relaxed)
    }

    pub fn pool(&self) -> u64 {
        self.settings.pool_limit.load(Ordering::Relaxed)
    }

    fn set(&self, ram: u64, now: u64) {
        let before = self.settings.ram_ceiling.load(Ordering::Relaxed);
        let ceiling = ceiling(ram, before, now);
        // Order of the stores: the ceiling is never below the limit.
        if ram > self.ram() {
            self.settings.ram_ceiling.store(ceiling, Ordering::Release);
            self.settings.ram_limit.store(ram, Ordering::Release);
        } else {
            self.settings.ram_limit.store(ram, Ordering::Release);
            self.settings.ram_ceiling.store(ceiling, Ordering::Release);
        }
        self.set_pool();
    }

    fn set_pool(&self) {
        let ram = self.ram();
        let pool = self.pool_given.map_or_else(|| default_pool(ram), |given| given.min(ram));
        if pool != self.pool() {
            self.settings.pool_limit.store(pool, Ordering::Release);
        }
    }

    pub fn follow(&self, now: u64) {
        let before = self.settings.ram_ceiling.load(Ordering::Relaxed);
        let ceiling = ceiling(self.ram(), before, now);
        if ceiling != before {
            self.settings.ram_ceiling.store(ceiling, Ordering::Release);
        }
    }
}

fn ceiling(limit: u64, before: u64, now: u64) -> u64 {
    limit.max(before.min(now.saturating_add(HEADROOM)))
}

/// Approximately: the marks are below the limit, and each process measures its memory by itself.
fn is_reached(limit: u64, now: u64) -> bool {
    now <= limit.saturating_add(limit / 50).saturating_add(2 << 20)
}

/// Time for processes with `ram` bytes to report what they can't move out.
fn answers_within(ram: u64) -> Duration {
    ANSWERS_WITHIN + ANSWERS_WITHIN_PER_GIB * u32::try_from(ram >> 30).unwrap_or(u32::MAX >> 5)
}

/// The task of setting and reaching a limit.
struct SetLimit {
    asked: String,
    bytes: u64,
    warning: Option<String>,
    waits: bool,
    stage: Stage,
    started: Instant,
    reported: Option<Instant>,
}

enum Stage {
    Asked(u64),
    Set,
}

pub fn start(asked: &str, waits: bool, run: &mut Live<'_>) -> Result<Box<dyn Task>, Failure> {
    let (bytes, warning) = plan::read_limit("limit", asked, machine::ram_usable())?;
    let stage = if bytes < run.limits.ram() {
        let question = &run.shared.settings().question;
        Stage::Asked(question.fetch_add(1, Ordering::AcqRel) + 1)
    } else {
        run.limits.set(bytes, run.tree.now().ram);
        Stage::Set
    };
    Ok(Box::new(SetLimit { asked: asked.to_owned(), bytes, warning, waits, stage, started: Instant::now(), reported: None }))
}

impl Task for SetLimit {
    fn step(&mut self, run: &mut Live<'_>) -> Step {
        if let Stage::Asked(question) = self.stage {
            // The processes answer only the latest question, and that answer serves here, too.
            let latest = run.shared.settings().question.load(Ordering::Relaxed);
            if !have_answered(run, latest.max(question)) && self.started.elapsed() < answers_within(run.tree.now().ram) {
                return Step::Going(None);
            }
            let fixed = fixed(run, latest.max(question));
            if fixed > self.bytes {
                return Step::Done(Err(self.too_low(fixed)));
            }
            run.limits.set(self.bytes, run.tree.now().ram);
            (self.stage, self.started) = (Stage::Set, Instant::now());
        }
        let (now, limit) = (run.tree.now().ram, run.limits.ram());
        if limit != self.bytes {
            let line = format!("limit {}: another limit was set meanwhile, {}", self.asked, size::show(limit));
            return Step::Done(Err(failure(line)));
        }
        let reached = is_reached(limit, now);
        if reached || !self.waits || self.started.elapsed() >= REACHED_WITHIN {
            return Step::Done(self.answer(run, reached));
        }
        Step::Going(self.report(now, limit))
    }

    /// A limit that is set stays.
    fn cancel(&mut self, run: &mut Live<'_>) -> Answer {
        match self.stage {
            Stage::Asked(_) => Err(failure(format!("limit {}: cancelled, the limit is as before", self.asked))),
            Stage::Set => self.answer(run, is_reached(self.bytes, run.tree.now().ram)),
        }
    }
}

/// Bytes that the processes can't move out, as far as they have answered.
fn fixed(run: &Live<'_>, question: u64) -> u64 {
    let segment = run.shared.segment();
    let answered = processes::alive(segment).filter(|p| p.answered.load(Ordering::Acquire) == question);
    let fixed = answered.fold(0u64, |sum, p| sum.saturating_add(p.fixed_bytes.load(Ordering::Relaxed)));
    fixed.saturating_add(segment.supervisor_bytes.load(Ordering::Relaxed))
}

fn have_answered(run: &Live<'_>, question: u64) -> bool {
    let mut active = processes::alive(run.shared.segment()).filter(|p| processes::is_active(p));
    active.all(|p| p.answered.load(Ordering::Acquire) >= question)
}

impl SetLimit {
    fn too_low(&self, fixed: u64) -> Failure {
        let fixed = size::show(fixed);
        Failure::usage(format!(
            "limit {}: {fixed} can't be moved out (locked or shared memory, a working minimum of each process, what lowtide \
             needs), so the limit can't be lower than that: give it more",
            self.asked
        ))
    }

    fn answer(&self, run: &Live<'_>, reached: bool) -> Answer {
        let warnings: Vec<&String> = self.warning.iter().collect();
        answer(json!({
            "ram_limit": run.limits.ram(),
            "pool_limit": run.limits.pool(),
            "ram_now": run.tree.now().ram,
            "reached": reached,
            "seconds": self.started.elapsed().as_secs_f64(),
            "warnings": warnings,
        }))
    }

    fn report(&mut self, now: u64, limit: u64) -> Option<Value> {
        if self.reported.is_some_and(|at| at.elapsed() < REPORTS) {
            return None;
        }
        self.reported = Some(Instant::now());
        Some(json!({ "ram_now": now, "ram_limit": limit, "seconds": self.started.elapsed().as_secs_f64() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_ceiling_follows_down_and_jumps_up() {
        // 512 -> 256 MiB while 500 are used.
        assert_eq!(ceiling(256 * MIB, 512 * MIB, 500 * MIB), 508 * MIB);
        assert_eq!(ceiling(256 * MIB, 508 * MIB, 400 * MIB), 408 * MIB);
        assert_eq!(ceiling(256 * MIB, 408 * MIB, 450 * MIB), 408 * MIB, "never up");
        assert_eq!(ceiling(256 * MIB, 408 * MIB, 200 * MIB), 256 * MIB);
        assert_eq!(ceiling(600 * MIB, 256 * MIB, 256 * MIB), 600 * MIB);
        assert_eq!(ceiling(600 * MIB, 600 * MIB, 900 * MIB), 600 * MIB, "it is over its limit for other reasons");
    }

    #[test]
    fn who_has_much_memory_may_take_long_to_look_at_it() {
        let seconds = |gib: u64| answers_within(gib << 30).as_secs();
        assert_eq!([0, 10, 200, 1024].map(seconds), [1, 1, 7, 31]);
        answers_within(u64::MAX);
    }

    #[test]
    fn a_limit_is_reached_within_its_tolerance() {
        assert!(is_reached(100 * MIB, 104 * MIB) && !is_reached(100 * MIB, 105 * MIB));
    }
}
