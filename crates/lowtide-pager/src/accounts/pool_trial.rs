//! Finds out whether less pool makes the run faster, where a device holds pages too: a pool that
//! compresses badly costs more resident pages than it saves reads.
//!
//! **The model** asks for a smaller pool. From the depth of refaults (`refault_depth.rs`) it
//! predicts the faults: the room goes to resident pages, and pages that no longer fit go to the
//! device. Each kind of fault takes what it has taken.
//!
//! **A trial** decides. The program's own user time in a second is its progress. The new size stays
//! if the program makes clearly more progress, else it is taken back. After a pause a smaller pool
//! is tried at its full size again; if that seems to pay, the smaller size is measured once more,
//! for the program may have changed at the same time. Each trial in vain doubles the pause.

use core::sync::atomic::{AtomicU64, Ordering};

use lowtide_core::vm::PAGE_SIZE;
use lowtide_wire::refault_depth::Counted;
use lowtide_wire::segment::{EPOCHS_A_LIMIT, FaultKind, Proc, REFAULT_AGES, add};

const WINDOW_US: u64 = 1_500_000;
/// Least progress that can be compared: user time is told in ticks.
const LEAST: f64 = 0.01;
/// The program fills the room in this time.
const SETTLES_US: u64 = 1_000_000;
/// A pool that has not reached its new size by then can't be measured.
const LONGEST_SETTLING_US: u64 = 8_000_000;
const PAUSE_US: u64 = 8_000_000;
const LONGEST_PAUSE_US: u64 = 128_000_000;
/// Larger pools are not tried: it would take too long to write one out.
const LARGEST: u64 = 512 << 20;
/// What is no choice of this process for so long ends what it has found out.
const FIXED_US: u64 = 1_000_000;
/// Waiting for pages, as a part of waiting and user time of all threads: from this on a smaller
/// pool may pay, ...
const WAITS: f64 = 0.5;
/// ... and below this the pool's size does not matter.
const RESTS: f64 = 0.05;
/// Least refaults that say something.
const ENOUGH: u64 = 1000;
/// With fewer faults from devices, one of these is taken to last at least so long.
const ENOUGH_OF_DEVICES: u64 = 100;
const DEVICE_NS: f64 = 100_000.0;
/// Predicted time of faults, as a part of the time that they take now.
const PROMISES: f64 = 2.0 / 3.0;
/// Progress in a trial, as a multiple of the progress without it.
const PAYS: f64 = 1.2;
/// Some ticks a window: each thread's user time is off by up to one.
const LEAST_GAIN: f64 = 0.02;
/// Parts of what the pool holds.
const PARTS: [f64; 3] = [0.5, 0.25, 0.0];
/// Nanoseconds of a fault beside its service, by kind: delivery, and for the pool the compression
/// of the page that leaves for it.
const BESIDE_NS: [f64; 2] = [16_000.0, 8000.0];

/// The pool's size, under trial or after it.
#[derive(Debug, Default)]
pub struct PoolTrial {
    phase: Phase,
    /// The pool's bytes; None: its whole share.
    limit: Option<u64>,
    /// The run's limit for which it was found.
    ram: u64,
    /// The beginning of the window, with the program's user time if that is worth reading.
    window: Option<(Snapshot, Option<u64>)>,
    fixed_since_us: Option<u64>,
    /// A further step down needs no pause.
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
        /// Bytes evicted before.
        evicted: u64,
    },
    Measures(Trial),
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Trial {
    size: Size,
    /// The progress without it.
    without: f64,
    /// The limit to go back to.
    back: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Size {
    Smaller,
    Whole,
    /// Smaller once more, after this progress with the whole share.
    Again(f64),
}

/// Whether this process may choose the size of its pool now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// It may.
    Free,
    /// The user has chosen, other processes have pools, no device takes pages, or user time does
    /// not tell the program's progress.
    Fixed,
}

#[derive(Debug)]
struct Snapshot {
    at_us: u64,
    evicted: u64,
    staged: u64,
    loaded: u64,
    /// From the pool, and from devices, as in all that follows.
    faults: [u64; 2],
    service_ns: [u64; 2],
    ages: [[u64; REFAULT_AGES]; 2],
}

const KINDS: [FaultKind; 2] = [FaultKind::Pool, FaultKind::Device];

impl Snapshot {
    fn of(proc: &Proc, at_us: u64) -> Snapshot {
        let c = &proc.counters;
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Snapshot {
            at_us,
            evicted: get(&c.evictions_pages),
            staged: get(&c.faults_staged),
            loaded: get(&c.pages_loaded),
            faults: KINDS.map(|kind| get(c.faults(kind))),
            service_ns: KINDS.map(|kind| get(&c.service_ns[kind as usize])),
            ages: [&c.refaults_pool, &c.refaults_device].map(|ages| ages.each_ref().map(get)),
        }
    }

    /// Microseconds that threads have waited since for pages.
    fn waited_us(&self, now: &Snapshot) -> f64 {
        let of = |kind: usize| {
            let faults = now.faults[kind].saturating_sub(self.faults[kind]) as f64;
            (now.service_ns[kind].saturating_sub(self.service_ns[kind])) as f64 + faults * BESIDE_NS[1]
        };
        (of(0) + of(1)) / 1e3
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
    /// The pool's limit in bytes, at most `share`, in a run with `ram` bytes. `user_us`: the user
    /// time of the program's threads in microseconds, if it can be read. Call at each look.
    pub fn look(
        &mut self,
        proc: &Proc,
        (ram, share): (u64, u64),
        choice: Choice,
        now_us: u64,
        user_us: impl FnOnce() -> Option<u64>,
    ) -> u64 {
        if choice == Choice::Fixed {
            self.is_not_free(now_us);
            return share;
        }
        self.fixed_since_us = None;
        if core::mem::replace(&mut self.ram, ram) != ram {
            self.begin_anew(now_us);
        }
        if let Phase::Settles { trial, since_us, evicted } = self.phase {
            match self.has_settled(proc, share, trial.size, now_us.saturating_sub(since_us), evicted) {
                Some(true) => {
                    self.phase = Phase::Measures(trial);
                    self.window = Some((Snapshot::of(proc, now_us), user_us()));
                }
                // So few pages leave that the device is slow: a pool is worth most there. And one
                // that can't be made small again stays as it is.
                Some(false) => self.is_over(trial, trial.size != Size::Smaller, now_us),
                None => {}
            }
        } else if self.window.as_ref().is_none_or(|(then, _)| now_us.saturating_sub(then.at_us) >= WINDOW_US) {
            let (now, then) = (Snapshot::of(proc, now_us), self.window.take());
            let waited_us = then.as_ref().map_or(0.0, |(then, _)| then.waited_us(&now));
            let is_worth = matches!(self.phase, Phase::Measures(_)) || waited_us > RESTS * WINDOW_US as f64;
            let user_us = if is_worth { user_us() } else { None };
            if let Some((then, before)) = then {
                let worked_us = user_us.zip(before).map(|(now, then)| now.saturating_sub(then) as f64);
                self.decide(proc, &then, &now, waited_us, worked_us);
            }
            self.window = Some((now, user_us));
        }
        self.limit.unwrap_or(share).min(share)
    }

    /// The pool is to shrink at once, to a size that was found or is tried.
    pub fn wants_shrinking(&self, proc: &Proc) -> bool {
        let settles = matches!(self.phase, Phase::Settles { .. }) && self.limit.is_some();
        settles || self.is_above(proc.pool_bytes.load(Ordering::Relaxed))
    }

    fn is_not_free(&mut self, now_us: u64) {
        if let Phase::Settles { trial, .. } | Phase::Measures(trial) = self.phase {
            self.is_over(trial, false, now_us);
        }
        self.window = None;
        if now_us.saturating_sub(*self.fixed_since_us.get_or_insert(now_us)) >= FIXED_US {
            self.limit = None;
        }
    }

    fn begin_anew(&mut self, now_us: u64) {
        *self = PoolTrial { ram: self.ram, next_us: now_us + SETTLES_US, ..PoolTrial::default() };
    }

    fn forget(&mut self, now_us: u64) {
        if self.limit.take().is_some() {
            self.next_us = now_us + self.pause_us;
        }
        self.has_paid = false;
    }

    /// None: not yet. False: it will not.
    fn has_settled(&self, proc: &Proc, share: u64, size: Size, took_us: u64, evicted: u64) -> Option<bool> {
        let pool = proc.pool_bytes.load(Ordering::Relaxed);
        let left = evicted_bytes(proc).saturating_sub(evicted);
        let (is_there, will_do) = match size {
            Size::Smaller | Size::Again(_) => (!self.is_above(pool), false),
            // Badly compressing pages fill three fifths, well compressing ones fill it slowly.
            Size::Whole => (left >= share && (pool >= share / 2 || left / 4 >= share), left >= LARGEST / 4),
        };
        match is_there {
            true if took_us >= SETTLES_US => Some(true),
            _ if took_us >= LONGEST_SETTLING_US => Some(will_do),
            _ => None,
        }
    }

    fn is_above(&self, pool: u64) -> bool {
        self.limit.is_some_and(|limit| pool > limit + self.ram / 32)
    }

    /// `worked_us`: None: unknown.
    fn decide(&mut self, proc: &Proc, then: &Snapshot, now: &Snapshot, waited_us: f64, worked_us: Option<f64>) {
        let took_us = (now.at_us - then.at_us) as f64;
        if let Phase::Measures(trial) = self.phase {
            match worked_us {
                Some(worked_us) => self.judge(proc, trial, worked_us / took_us, now.at_us),
                None => self.is_over(trial, false, now.at_us),
            }
            return;
        }
        let Some(worked_us) = worked_us else {
            let is_calm = waited_us < RESTS * took_us && now.at_us >= self.next_us;
            // The first window has no user time either.
            if is_calm || now.at_us >= self.next_us + 2 * WINDOW_US {
                self.forget(now.at_us);
            }
            return;
        };
        let (progress, pauses) = (worked_us / took_us, now.at_us < self.next_us);
        let waits = waited_us / (waited_us + worked_us).max(1.0);
        if waits < RESTS || progress < LEAST {
            // Nothing can be compared. What has just paid may be why nothing waits.
            if progress < LEAST || !pauses {
                self.forget(now.at_us);
            }
        } else if self.limit.is_some() && !pauses {
            self.begin(proc, Trial { size: Size::Whole, without: progress, back: self.limit }, None, now.at_us);
        } else if waits >= WAITS && (self.has_paid || !pauses) {
            let pool = proc.pool_bytes.load(Ordering::Relaxed);
            let get = |n: &AtomicU64| n.load(Ordering::Relaxed) as f64;
            let (stored, on_device) = (get(&proc.now_stored), get(&proc.now_on_device));
            let ratio = (stored - on_device).max(0.0) * PAGE_SIZE as f64 / (pool as f64).max(1.0);
            let sizes = Sizes { limit: self.ram as f64, pool: pool as f64, ratio, out: stored * PAGE_SIZE as f64 };
            if let Some(limit) = best(then, now, sizes).filter(|_| pool <= LARGEST) {
                let trial = Trial { size: Size::Smaller, without: progress, back: self.limit };
                self.begin(proc, trial, Some(limit), now.at_us);
            }
        }
    }

    fn begin(&mut self, proc: &Proc, trial: Trial, limit: Option<u64>, now_us: u64) {
        if !matches!(trial.size, Size::Again(_)) {
            add(&proc.counters.pool_trials, 1);
        }
        self.limit = limit;
        self.phase = Phase::Settles { trial, since_us: now_us, evicted: evicted_bytes(proc) };
    }

    fn judge(&mut self, proc: &Proc, trial: Trial, progress: f64, now_us: u64) {
        let (with, without) = match trial.size {
            Size::Again(with) => (with, progress),
            _ => (progress, trial.without),
        };
        let pays = with >= (PAYS * without).max(without + LEAST_GAIN);
        let can_be_written_out = proc.pool_bytes.load(Ordering::Relaxed) <= LARGEST;
        if pays && trial.size == Size::Whole && can_be_written_out {
            self.begin(proc, Trial { size: Size::Again(with), ..trial }, trial.back, now_us);
        } else {
            add(&proc.counters.pool_trials_paid, pays.into());
            self.is_over(trial, pays, now_us);
        }
    }

    fn is_over(&mut self, trial: Trial, pays: bool, now_us: u64) {
        self.phase = Phase::Watches;
        self.has_paid = pays && trial.size == Size::Smaller;
        self.limit = match (trial.size, pays) {
            (_, false) => trial.back,
            (Size::Smaller, true) => self.limit,
            (_, true) => None,
        };
        let twice = if pays { 0 } else { 2 * self.pause_us };
        self.pause_us = twice.clamp(PAUSE_US, LONGEST_PAUSE_US);
        self.next_us = now_us + self.pause_us;
    }
}

fn evicted_bytes(proc: &Proc) -> u64 {
    proc.counters.evictions_pages.load(Ordering::Relaxed) * PAGE_SIZE as u64
}

/// The size with the fewest seconds of faults, if these are far fewer than now.
fn best(then: &Snapshot, now: &Snapshot, sizes: Sizes) -> Option<u64> {
    let faults: [u64; 2] = core::array::from_fn(|kind| now.faults[kind].saturating_sub(then.faults[kind]));
    let ages: [[f64; REFAULT_AGES]; 2] = core::array::from_fn(|kind| {
        core::array::from_fn(|age| now.ages[kind][age].saturating_sub(then.ages[kind][age]) as f64)
    });
    if faults.iter().sum::<u64>() < ENOUGH {
        return None;
    }
    let mut each: [f64; 2] = core::array::from_fn(|kind| {
        let service = now.service_ns[kind].saturating_sub(then.service_ns[kind]) as f64;
        service / faults[kind].max(1) as f64 + BESIDE_NS[kind]
    });
    if faults[1] < ENOUGH_OF_DEVICES {
        each[1] = each[1].max(DEVICE_NS);
    }
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
    best.filter(|(seconds, _)| *seconds < PROMISES * today).map(|(_, pool)| pool as u64)
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
            limit = trial.look(proc, (RAM, SHARE), Choice::Free, now_us, || Some(program.user_us as u64));
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
            let before = core::mem::replace(
                &mut limit,
                trial.look(proc, (RAM, SHARE), Choice::Free, program.second * 1_000_000, || Some(user_us)),
            );
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
            limit = trial.look(proc, (RAM, SHARE), Choice::Free, program.second * 1_000_000, || Some(program.user_us as u64));
        }
        assert_eq!(limit, SHARE);
    }

    #[test]
    fn a_program_that_waits_no_more_has_its_share() {
        let mut trial = PoolTrial::default();
        let mut program = Program::new(1.25, 1.3, [20.0, 30.0]);
        assert!(limits(&mut trial, &mut program, 10)[9] < SHARE);
        program.works_us = 1000.0;
        assert_eq!(limits(&mut trial, &mut program, 20)[19], SHARE);
    }

    #[test]
    fn where_the_size_is_not_this_processs_to_choose_it_has_its_share() {
        let (mut trial, mut program) = (PoolTrial::default(), Program::new(1.25, 1.3, [20.0, 30.0]));
        let found = limits(&mut trial, &mut program, 10)[9];
        assert!(found < SHARE);
        let run = segment();
        let proc = run.claim(1).unwrap();
        let mut look = |choice, us| trial.look(proc, (RAM, SHARE), choice, program.second * 1_000_000 + us, || None);
        assert_eq!([look(Choice::Fixed, 1), look(Choice::Free, 2)], [SHARE, found], "for a moment only");
        assert_eq!([look(Choice::Fixed, 3), look(Choice::Fixed, 3 + FIXED_US), look(Choice::Free, 4 + FIXED_US)], [SHARE; 3]);
    }

    #[test]
    fn another_limit_of_the_run_begins_anew() {
        let (mut trial, mut program) = (PoolTrial::default(), Program::new(1.25, 1.3, [20.0, 30.0]));
        assert!(limits(&mut trial, &mut program, 10)[9] < SHARE);
        let run = segment();
        let proc = run.claim(1).unwrap();
        assert_eq!(trial.look(proc, (2 * RAM, 2 * SHARE), Choice::Free, program.second * 1_000_000, || None), 2 * SHARE);
    }

    #[test]
    fn a_program_that_does_not_get_on_at_all_has_its_share() {
        let (mut trial, mut program) = (PoolTrial::default(), Program::new(1.25, 1.3, [20.0, 30.0]));
        assert!(limits(&mut trial, &mut program, 10)[9] < SHARE);
        program.costs = [20.0, 5000.0];
        program.works_us = 0.1;
        assert_eq!(limits(&mut trial, &mut program, 10)[9], SHARE);
    }

    #[test]
    fn user_time_that_can_not_be_read_decides_nothing() {
        let (mut trial, mut program) = (PoolTrial::default(), Program::new(1.25, 1.3, [20.0, 30.0]));
        let run = segment();
        let proc = run.claim(1).unwrap();
        for _ in 0..60 {
            program.run_for_a_second(proc, SHARE);
            assert_eq!(trial.look(proc, (RAM, SHARE), Choice::Free, program.second * 1_000_000, || None), SHARE);
        }
        assert_eq!(proc.counters.pool_trials.load(Ordering::Relaxed), 0);
    }
}
