//! Finds out whether less pool makes the run faster, where a device holds pages too: a pool that
//! compresses badly costs more resident pages than it saves reads.
//!
//! **The model** asks for a trial. From the depth of refaults (`refault_depth.rs`) it predicts the
//! faults with less pool: the room goes to resident pages, and pages that no longer fit go to the
//! device. Each kind of fault takes what it has taken.
//!
//! **The trial** decides. The program's own user time in a second is its progress. The new size
//! stays if the program makes clearly more progress, else it is taken back. Each further trial that
//! fails doubles the pause.

use core::sync::atomic::{AtomicU64, Ordering};

use lowtide_core::vm::PAGE_SIZE;
use lowtide_wire::refault_depth::Counted;
use lowtide_wire::segment::{EPOCHS_A_LIMIT, FaultKind, Proc, REFAULT_AGES};

/// User time is counted in ticks of some milliseconds.
const WINDOW_US: u64 = 1_500_000;
/// The pool shrinks, and the program fills the room, in these times at least and at most.
const SETTLES_US: [u64; 2] = [1_000_000, 2_000_000];
const PAUSE_US: u64 = 8_000_000;
const LONGEST_PAUSE_US: u64 = 128_000_000;
/// Share of the time that a thread of the program waits for pages: from this on a trial may pay, and
/// up to that the pool's size matters no more.
const WAITS: f64 = 0.5;
const RESTS: f64 = 0.05;
/// Least progress that can be compared, as user time by time.
const LEAST: f64 = 0.01;
/// Least refaults from the pool and devices together, and from devices, that say something.
const ENOUGH: [u64; 2] = [1000, 100];
/// Predicted time of faults, as a part of the time that they take now.
const PROMISES: f64 = 2.0 / 3.0;
/// Progress in a trial, as a multiple of the progress before.
const PAYS: f64 = 1.2;
/// Parts of what the pool holds.
const PARTS: [f64; 3] = [0.5, 0.25, 0.0];
/// Nanoseconds of a fault beside its service, by kind: delivery, and for the pool the compression of
/// the page that leaves for it.
const BESIDE_NS: [f64; 2] = [16_000.0, 8000.0];

/// The pool's size, under trial or after it.
#[derive(Debug, Default)]
pub struct PoolTrial {
    phase: Phase,
    /// None: no trial has paid.
    limit: Option<u64>,
    window: Option<Snapshot>,
    /// The latest trial has: a further step down needs no pause.
    has_paid: bool,
    next_us: u64,
    pause_us: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
enum Phase {
    #[default]
    Watches,
    Settles {
        trial: Trial,
        since_us: u64,
    },
    Measures {
        trial: Trial,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Trial {
    /// The progress without it.
    without: f64,
    /// The limit to go back to.
    back: Option<u64>,
    /// Of a larger pool, which has seemed to pay, the progress with it: now without it once more,
    /// for the program may have changed at the same time.
    with: Option<f64>,
}

#[derive(Debug, Clone)]
struct Snapshot {
    at_us: u64,
    user_us: u64,
    stall_us: u64,
    evicted: u64,
    staged: u64,
    loaded: u64,
    faults: [u64; 2],
    service_ns: [u64; 2],
    /// From the pool, and from devices.
    ages: [[u64; REFAULT_AGES]; 2],
}

const KINDS: [FaultKind; 2] = [FaultKind::Pool, FaultKind::Device];

impl Snapshot {
    fn of(proc: &Proc, at_us: u64, user_us: u64) -> Snapshot {
        let c = &proc.counters;
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Snapshot {
            at_us,
            user_us,
            stall_us: get(&c.stall_some_us),
            evicted: get(&c.evictions_pages),
            staged: get(&c.faults_staged),
            loaded: get(&c.pages_loaded),
            faults: KINDS.map(|kind| get(c.faults(kind))),
            service_ns: KINDS.map(|kind| get(&c.service_ns[kind as usize])),
            ages: [&c.refaults_pool, &c.refaults_device].map(|ages| ages.each_ref().map(get)),
        }
    }
}

/// Sizes in bytes.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    limit: f64,
    pool: f64,
    /// Of a page in the pool, uncompressed over compressed.
    ratio: f64,
    /// Of all pages that are out.
    out: f64,
}

impl PoolTrial {
    /// The pool's limit in bytes, at most `share`. `is_fixed`: others have a say in it, or there is
    /// no device. `user_us`: the user time of the program's threads, in microseconds.
    pub fn look(
        &mut self,
        proc: &Proc,
        ram: u64,
        share: u64,
        is_fixed: bool,
        now_us: u64,
        user_us: impl FnOnce() -> u64,
    ) -> u64 {
        if is_fixed {
            *self = PoolTrial { next_us: self.next_us, pause_us: self.pause_us, ..PoolTrial::default() };
            return share;
        }
        let is_over = |window: &Snapshot| now_us.saturating_sub(window.at_us) >= WINDOW_US;
        let pool = proc.pool_bytes.load(Ordering::Relaxed);
        if let Phase::Settles { trial, since_us } = self.phase {
            let (took_us, is_small) =
                (now_us.saturating_sub(since_us), self.limit.is_none_or(|limit| pool <= limit + ram / 32));
            if took_us >= SETTLES_US[usize::from(!is_small)] {
                self.phase = Phase::Measures { trial };
                self.window = Some(Snapshot::of(proc, now_us, user_us()));
            }
        } else if self.window.as_ref().is_none_or(is_over) {
            let now = Snapshot::of(proc, now_us, user_us());
            if let Some(then) = self.window.replace(now.clone()) {
                self.decide(proc, ram, pool, &then, &now);
            }
        }
        self.limit.unwrap_or(share).min(share)
    }

    fn decide(&mut self, proc: &Proc, ram: u64, pool: u64, then: &Snapshot, now: &Snapshot) {
        let took_us = (now.at_us - then.at_us).max(1) as f64;
        let progress = now.user_us.saturating_sub(then.user_us) as f64 / took_us;
        if let Phase::Measures { trial } = self.phase {
            self.judge(trial, progress, now.at_us);
            return;
        }
        let waits = now.stall_us.saturating_sub(then.stall_us) as f64 / took_us;
        if waits < RESTS {
            self.limit = None;
        }
        let pauses = now.at_us < self.next_us;
        if pauses && !self.has_paid || waits < WAITS || progress < LEAST {
            return;
        }
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed) as f64;
        let (stored, on_device) = (get(&proc.now_stored), get(&proc.now_on_device));
        let ratio = (stored - on_device).max(0.0) * PAGE_SIZE as f64 / (pool as f64).max(1.0);
        let sizes = Sizes { limit: ram as f64, pool: pool as f64, ratio, out: stored * PAGE_SIZE as f64 };
        let better = best(then, now, sizes);
        // What has grown small may have to grow again.
        let wanted = better.map(Some).or(self.limit.filter(|_| !pauses).map(|_| None));
        if let Some(limit) = wanted {
            let back = core::mem::replace(&mut self.limit, limit);
            self.phase = Phase::Settles { trial: Trial { without: progress, back, with: None }, since_us: now.at_us };
        }
    }

    fn judge(&mut self, trial: Trial, progress: f64, now_us: u64) {
        let pays = trial.with.unwrap_or(progress) >= PAYS * trial.with.map_or(trial.without, |_| progress);
        let is_larger = self.limit.is_none();
        if pays && is_larger {
            self.limit = trial.back;
            self.phase = Phase::Settles { trial: Trial { with: Some(progress), ..trial }, since_us: now_us };
            return;
        }
        self.phase = Phase::Watches;
        self.has_paid = pays;
        match (pays, trial.with) {
            (true, Some(_)) => self.limit = None,
            (true, None) => {}
            (false, _) => self.limit = trial.back,
        }
        let twice = if pays { 0 } else { 2 * self.pause_us };
        self.pause_us = twice.clamp(PAUSE_US, LONGEST_PAUSE_US);
        self.next_us = now_us + self.pause_us;
    }

    /// The pool is to shrink soon.
    pub fn settles(&self) -> bool {
        matches!(self.phase, Phase::Settles { .. }) && self.limit.is_some()
    }
}

/// The size with the fewest seconds of faults, if these are far fewer than now.
fn best(then: &Snapshot, now: &Snapshot, sizes: Sizes) -> Option<u64> {
    let faults: [u64; 2] = core::array::from_fn(|kind| now.faults[kind].saturating_sub(then.faults[kind]));
    let ages: [[f64; REFAULT_AGES]; 2] = core::array::from_fn(|kind| {
        core::array::from_fn(|age| now.ages[kind][age].saturating_sub(then.ages[kind][age]) as f64)
    });
    if faults.iter().sum::<u64>() < ENOUGH[0] || faults[1] < ENOUGH[1] {
        return None;
    }
    let each: [f64; 2] = core::array::from_fn(|kind| {
        let service = now.service_ns[kind].saturating_sub(then.service_ns[kind]) as f64;
        service / faults[kind].max(1) as f64 + BESIDE_NS[kind]
    });
    let refaults = core::array::from_fn(|age| ages[0][age] + ages[1][age]);
    let change = |before: u64, after: u64| after.saturating_sub(before) as f64;
    let counted = Counted {
        evicted: change(then.evicted, now.evicted),
        taken_back: change(then.staged, now.staged),
        loaded: change(then.loaded, now.loaded),
        refaults: &refaults,
    };
    let depths = counted.depths().map(|limits| limits * sizes.limit);
    let seconds = |pool: f64| -> f64 {
        // Beyond the resident pages of now.
        let resident = sizes.pool - pool;
        let in_pool = resident + pool * sizes.ratio;
        let half = sizes.limit / EPOCHS_A_LIMIT as f64 / 2.0;
        let of_age = |age: usize| {
            let depth = depths[age].min(sizes.out - half).max(half);
            let above = |edge: f64| ((depth + half - edge) / (2.0 * half)).clamp(0.0, 1.0);
            let (missed, beyond) = (above(resident), above(in_pool));
            // What is on a device now stays there while it is missed.
            ages[0][age] * ((missed - beyond) * each[0] + beyond * each[1]) + ages[1][age] * missed * each[1]
        };
        (0..REFAULT_AGES).map(of_age).sum()
    };
    let today = ages.iter().zip(each).map(|(ages, each)| ages.iter().sum::<f64>() * each).sum::<f64>();
    let sizes = PARTS.map(|part| sizes.pool * part).map(|pool| (seconds(pool), pool));
    let best = sizes.into_iter().min_by(|one, other| one.0.total_cmp(&other.0));
    best.filter(|(seconds, _)| *seconds <= PROMISES * today).map(|(_, pool)| pool as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::accounts::budget::tests::segment;

    const RAM: u64 = 256 << 20;
    const SHARE: u64 = RAM / 2;

    /// Touches its pages at random, from one thread.
    struct Program {
        /// As multiples of [`RAM`].
        footprint: f64,
        ratio: f64,
        /// Microseconds of a fault on the pool and on a device.
        costs: [f64; 2],
        /// User time between two touches.
        works_us: f64,
        second: u64,
        user_us: f64,
    }

    impl Program {
        fn new(footprint: f64, ratio: f64, costs: [f64; 2]) -> Program {
            Program { footprint, ratio, costs, works_us: 2.0, second: 0, user_us: 0.0 }
        }

        fn run_for_a_second(&mut self, proc: &Proc, limit: u64) {
            let pool = limit as f64 / RAM as f64;
            let resident = 1.0 - pool;
            let out = self.footprint - resident;
            let in_pool = (pool * self.ratio).min(out);
            let shares = [in_pool, out - in_pool].map(|part| part / self.footprint);
            let mean_us = self.works_us + shares.iter().zip(self.costs).map(|(share, cost)| share * cost).sum::<f64>();
            let touches = 1e6 / mean_us;
            let c = &proc.counters;
            let add = |counter: &AtomicU64, n: f64| _ = counter.fetch_add(n as u64, Ordering::Relaxed);
            let faults = touches * out / self.footprint;
            for counter in [&c.evictions_pages, &c.pages_loaded] {
                add(counter, faults);
            }
            let left = |age: f64| (-age / EPOCHS_A_LIMIT as f64 / out).exp();
            for age in 0..REFAULT_AGES {
                let count = faults * (left(age as f64) - left(age as f64 + 1.0));
                // The pool has what left last.
                let is_in_pool = out * (1.0 - left(age as f64 + 0.5)) < in_pool;
                add(if is_in_pool { &c.refaults_pool[age] } else { &c.refaults_device[age] }, count);
            }
            for (kind, (share, cost)) in KINDS.into_iter().zip(shares.into_iter().zip(self.costs)) {
                add(c.faults(kind), touches * share);
                add(
                    &c.service_ns[kind as usize],
                    touches * share * (cost * 1e3 - BESIDE_NS[kind as usize - FaultKind::Pool as usize]),
                );
            }
            add(&c.stall_some_us, 1e6 * (1.0 - self.works_us / mean_us));
            let pages = |part: f64| (part * RAM as f64) as u64 / PAGE_SIZE as u64;
            proc.now_stored.store(pages(out), Ordering::Relaxed);
            proc.now_on_device.store(pages(out - in_pool), Ordering::Relaxed);
            proc.pool_bytes.store(limit, Ordering::Relaxed);
            self.second += 1;
            self.user_us += touches * self.works_us;
        }
    }

    /// The pool's limit after each second.
    fn limits(trial: &mut PoolTrial, program: &mut Program, seconds: usize) -> std::vec::Vec<u64> {
        let run = segment();
        let proc = run.claim(1).unwrap();
        let mut limit = SHARE;
        let a_second = |_| {
            program.run_for_a_second(proc, limit);
            let now_us = program.second * 1_000_000;
            limit = trial.look(proc, RAM, SHARE, false, now_us, || program.user_us as u64);
            limit
        };
        (0..seconds).map(a_second).collect()
    }

    #[test]
    fn a_pool_that_costs_more_pages_than_it_saves_reads_goes() {
        let mut trial = PoolTrial::default();
        let limits = limits(&mut trial, &mut Program::new(1.25, 1.3, [20.0, 30.0]), 10);
        assert!(limits[9] <= SHARE / 4, "{limits:?}");
    }

    #[test]
    fn a_pool_that_holds_much_stays() {
        let mut trial = PoolTrial::default();
        let limits = limits(&mut trial, &mut Program::new(2.0, 3.0, [20.0, 60.0]), 60);
        assert_eq!(limits, [SHARE; 60]);
    }

    #[test]
    fn a_trial_that_does_not_pay_is_taken_back_and_the_next_one_comes_later() {
        // Its progress falls with the pool.
        let mut trial = PoolTrial::default();
        let run = segment();
        let proc = run.claim(1).unwrap();
        let (mut program, mut limit, mut user_us, mut tried) = (Program::new(1.25, 1.3, [20.0, 30.0]), SHARE, 0, std::vec![]);
        for second in 0..100 {
            program.run_for_a_second(proc, SHARE);
            proc.pool_bytes.store(limit, Ordering::Relaxed);
            user_us += limit / 1024;
            let before =
                core::mem::replace(&mut limit, trial.look(proc, RAM, SHARE, false, program.second * 1_000_000, || user_us));
            if limit < before {
                tried.push(second);
            }
        }
        assert_eq!(limit, SHARE);
        let pauses: std::vec::Vec<_> = tried.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(pauses.len() >= 2 && pauses.windows(2).all(|two| two[1] > two[0] * 3 / 2), "{tried:?}");
    }

    #[test]
    fn a_program_that_changes_gets_its_pool_back() {
        let mut trial = PoolTrial::default();
        let run = segment();
        let proc = run.claim(1).unwrap();
        let (mut program, mut limit) = (Program::new(1.25, 1.3, [20.0, 30.0]), SHARE);
        for second in 0..100 {
            if second == 10 {
                assert!(limit < SHARE / 2);
                program = Program { ratio: 6.0, costs: [20.0, 200.0], footprint: 2.0, ..program };
            }
            program.run_for_a_second(proc, limit);
            limit = trial.look(proc, RAM, SHARE, false, program.second * 1_000_000, || program.user_us as u64);
        }
        assert_eq!(limit, SHARE);
    }

    #[test]
    fn a_program_that_waits_no_more_has_its_share() {
        let mut trial = PoolTrial::default();
        let mut program = Program::new(1.25, 1.3, [20.0, 30.0]);
        assert!(limits(&mut trial, &mut program, 10)[9] < SHARE);
        program.works_us = 1000.0;
        assert_eq!(limits(&mut trial, &mut program, 5)[4], SHARE);
    }

    #[test]
    fn where_the_size_is_not_this_processs_to_choose_it_has_its_share() {
        let mut trial = PoolTrial::default();
        let mut program = Program::new(1.25, 1.3, [20.0, 30.0]);
        assert!(limits(&mut trial, &mut program, 10)[9] < SHARE);
        let run = segment();
        let proc = run.claim(1).unwrap();
        let never = || panic!("asked in vain");
        assert_eq!(trial.look(proc, RAM, SHARE, true, program.second * 1_000_000 + 1, never), SHARE);
    }
}
