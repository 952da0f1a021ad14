//! Predicts what the run would have done with another limit, from how far away its refaulted pages
//! were.
//!
//! **Which faults more memory saves**: those of less depth (`refault_depth.rs`).
//!
//! **How many pages more RAM holds.** A resident page needs no compressed copy, so the pool
//! shrinks: a MiB more of limit holds more than a MiB of pages. With a full pool and a device the
//! pool keeps its share of the limit, and pages move from the device into it.
//!
//! **How long it takes.** Each saved fault saves the mean time of its kind.

use crate::stats::Stats;
use crate::supervisor::series::{Sample, by_kind};
use lowtide_core::vm::PAGE_SIZE;
use lowtide_wire::Watermarks;
use lowtide_wire::refault_depth::Counted;
use lowtide_wire::segment::{EPOCHS_A_LIMIT, FaultKind, REFAULT_AGES};
use std::time::Duration;

const PAGE: f64 = PAGE_SIZE as f64;
/// Bounds of a fault's cost beside its service, in seconds: the kernel notifies a handler and wakes
/// the thread. The program's CPU time and the run's time decide within these bounds.
const DELIVERY: [f64; 2] = [3e-6, 15e-6];
/// Seconds of CPU time of the faulting thread itself for each fault, measured with random touches
/// on a virtual machine with two CPUs.
const OWN_PART: f64 = 3.5e-6;
/// Share of its limit from which the pool counts as full.
const FULL: f64 = 0.9;

#[derive(Debug, Clone, Default)]
pub struct Observed {
    pub seconds: f64,
    /// CPU time without lowtide's threads.
    pub program_cpu: f64,
    pub limit: f64,
    /// Means over the run, weighted by refaults, in bytes: the program's resident pages, ...
    pub resident: f64,
    /// ... memory of the pool, ...
    pub pool: f64,
    /// ... the pages in it, uncompressed, ...
    pub in_pool: f64,
    /// ... and those on devices.
    pub on_device: f64,
    pub pool_limit: f64,
    pub evicted: f64,
    pub taken_back: f64,
    /// Of these, pages that came back from pool and devices, read-ahead included.
    pub loaded: f64,
    /// Faults by kind, and their seconds of service.
    pub faults: [f64; FaultKind::ALL.len()],
    pub service: [f64; FaultKind::ALL.len()],
    /// Faults on pages in the pool by how much the run had evicted since, in steps of a 16th of the
    /// limit; ...
    pub pool_ages: Vec<f64>,
    /// ... and on devices.
    pub device_ages: Vec<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Bytes.
    pub limit: f64,
    pub pool_faults: f64,
    pub device_faults: f64,
    pub seconds: f64,
}

impl Prediction {
    pub fn refaults(&self) -> f64 {
        self.pool_faults + self.device_faults
    }
}

impl Observed {
    /// `program_cpu`: of all processes of the run, lowtide's threads included.
    pub fn new(stats: &Stats, samples: &[Sample], service_ns: [u64; FaultKind::ALL.len()], cpu: Duration) -> Observed {
        let real = |n: u64| n as f64;
        let refaults = &stats.refault_distances;
        let faults = by_kind(&stats.faults).map(real);
        let ahead = real(stats.pages.loaded) - real(stats.faults.zero) - real(stats.faults.staged);
        let mut observed = Observed {
            seconds: stats.elapsed_seconds,
            program_cpu: (cpu.as_secs_f64() - stats.work.cpu_seconds).max(0.0),
            limit: real(stats.memory.ram_limit),
            pool_limit: real(stats.memory.pool_limit),
            evicted: real(stats.evictions.pages),
            taken_back: real(stats.faults.staged),
            loaded: ahead.max(0.0),
            faults,
            service: service_ns.map(|ns| real(ns) / 1e9),
            pool_ages: refaults.pool.iter().copied().map(real).collect(),
            device_ages: refaults.device.iter().copied().map(real).collect(),
            ..Observed::default()
        };
        let mut weights = 0.0;
        for pair in samples.windows(2) {
            let (then, now) = (&pair[0], &pair[1]);
            let weight = real(now.refaults().saturating_sub(then.refaults()));
            // The program's end frees its pages.
            let now = if now.stored_pages < then.stored_pages / 2 { then } else { now };
            let device = real(now.device_pages) * PAGE;
            weights += weight;
            observed.resident += weight * real(now.resident());
            observed.pool += weight * real(now.pool);
            observed.in_pool += weight * (real(now.stored_pages) * PAGE - device).max(0.0);
            observed.on_device += weight * device;
        }
        for mean in [&mut observed.resident, &mut observed.pool, &mut observed.in_pool, &mut observed.on_device] {
            *mean = if weights > 0.0 { *mean / weights } else { 0.0 };
        }
        observed
    }

    pub fn refaults(&self) -> f64 {
        self.faults[FaultKind::Pool as usize] + self.faults[FaultKind::Device as usize]
    }

    /// Seconds that the program waited for faults of a kind, delivery included, capped by the run's
    /// time.
    pub fn waited(&self, kind: FaultKind) -> f64 {
        let all: f64 = self.service.iter().sum::<f64>() + self.faults.iter().sum::<f64>() * self.delivery();
        // Threads that wait at the same time cost the run only once.
        let shared = if all > 0.0 { (self.seconds / all).min(1.0) } else { 1.0 };
        shared * (self.service[kind as usize] + self.faults[kind as usize] * self.delivery())
    }

    pub fn waited_at(&self, kind: usize) -> f64 {
        self.waited(FaultKind::ALL[kind])
    }

    fn delivery(&self) -> f64 {
        let faults: f64 = self.faults.iter().sum();
        let unexplained = self.seconds - self.program_cpu - self.service.iter().sum::<f64>();
        (unexplained / faults.max(1.0)).clamp(DELIVERY[0], DELIVERY[1]) + OWN_PART
    }

    /// Compressed size of pages in the pool, as a part of their size.
    fn ratio(&self) -> f64 {
        if self.in_pool > 0.0 { (self.pool / self.in_pool).min(0.95) } else { 0.0 }
    }

    /// Bytes of resident pages and of pages in the pool, under another limit.
    fn places(&self, limit: f64) -> (f64, f64) {
        let ratio = self.ratio();
        let stored = self.in_pool + self.on_device;
        let footprint = self.resident + stored;
        let other = (self.limit - self.resident - self.pool).max(0.0);
        // Share of the pages out that goes to the pool. If the pool was not full, pages on devices
        // do not compress.
        let full = self.on_device > 0.0 && self.pool > FULL * self.room(other).min(self.pool_share() * self.limit);
        let compressible = if full || stored == 0.0 { 1.0 } else { self.in_pool / stored };
        let each = ratio * compressible;
        let resident = ((limit - other - each * footprint) / (1.0 - each)).clamp(0.0, footprint);
        let pool = each * (footprint - resident);
        let most = if full { self.pool * limit / self.limit } else { self.pool_limit * limit / self.limit };
        if pool <= most || ratio == 0.0 {
            return (resident, compressible * (footprint - resident));
        }
        ((limit - other - most).clamp(0.0, footprint), most / ratio)
    }

    /// The pool's upper bound beside lowtide's other memory.
    fn room(&self, other: f64) -> f64 {
        self.pool_limit.min(Watermarks::of(self.limit as u64).room_for_pools(other as u64) as f64)
    }

    /// With a swap file, only well-compressing pages use the upper part of the pool.
    fn pool_share(&self) -> f64 {
        0.6 * self.pool_limit / self.limit.max(1.0)
    }

    /// In bytes.
    fn depths(&self) -> [f64; REFAULT_AGES] {
        let refaults = std::array::from_fn(|age| self.pool_ages[age] + self.device_ages[age]);
        let counted = Counted { evicted: self.evicted, taken_back: self.taken_back, loaded: self.loaded, refaults: &refaults };
        counted.depths().map(|limits| limits * self.limit)
    }

    /// Predicts the run with a limit not below its own.
    pub fn at(&self, limit: f64) -> Prediction {
        let ((resident, _), (new_resident, new_pool)) = (self.places(self.limit), self.places(limit));
        // The difference carries the model's error on both sides.
        let kept = (new_resident - resident).max(0.0);
        let (_, pool) = self.places(self.limit);
        let mut faults = [0.0; 2];
        let step = self.limit / EPOCHS_A_LIMIT as f64;
        // No depth exceeds all that is out. (Ages wrap around.)
        let deepest = self.in_pool + self.on_device;
        for (age, depth) in self.depths().into_iter().enumerate() {
            // Spreads a step's faults over its width.
            let half = (step / 2.0 * if age == 0 { 0.6 } else { 1.0 }).min(deepest / 2.0).max(1.0);
            let depth = depth.min((deepest - half).max(half));
            let above = |edge: f64| ((depth + half - edge) / (2.0 * half)).clamp(0.0, 1.0);
            let missed = above(kept);
            // Pages on a device because the pool was full lie deeper than the pool.
            let in_pool_now = if depth > pool { missed - above(kept + new_pool).min(missed) } else { 0.0 };
            faults[0] += self.pool_ages[age] * missed + self.device_ages[age] * in_pool_now;
            faults[1] += self.device_ages[age] * (missed - in_pool_now);
        }
        if limit <= self.limit {
            faults = [self.faults[FaultKind::Pool as usize], self.faults[FaultKind::Device as usize]];
        }
        let [pool_faults, device_faults] = faults;
        let remain = (pool_faults + device_faults) / self.refaults().max(1.0);
        let seconds = self.seconds
            - FaultKind::ALL.iter().map(|kind| self.waited(*kind) - self.would_wait(*kind, faults, remain)).sum::<f64>();
        Prediction { limit, pool_faults, device_faults, seconds }
    }

    fn would_wait(&self, kind: FaultKind, [pool, device]: [f64; 2], remain: f64) -> f64 {
        let was = self.faults[kind as usize];
        let would = match kind {
            FaultKind::Pool => pool,
            FaultKind::Device => device,
            FaultKind::FirstTouch => was,
            // Evictions cause these, one for each page that comes back.
            FaultKind::Zero | FaultKind::Staged => was * remain,
        };
        let each = if was > 0.0 { self.waited(kind) / was } else { 0.0 };
        // This run had no page in the pool: assumes the cost of a staged page, or a guess.
        let each = if was == 0.0 && would > 0.0 { 2.0 * self.delivery() } else { each };
        would * each
    }

    /// Predictions from this limit up to the one without refaults (or eight times as much).
    pub fn curve(&self) -> Vec<Prediction> {
        let at = |sixteenths: i32| self.at(self.limit * f64::from(sixteenths) / 16.0);
        let mut all = vec![at(16)];
        for sixteenths in 17..=128 {
            let next = at(sixteenths);
            all.push(next);
            if next.refaults() <= 0.01 * self.refaults() {
                break;
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: f64 = 1048576.0;

    /// A run of `total` MiB of incompressible pages in 64 MiB, all on a device, with the ages of
    /// its faults.
    fn run(total: f64, ages: impl Fn(f64) -> f64) -> Observed {
        let step = 4.0;
        let device_ages: Vec<f64> = (0..64).map(|age| 1e5 * ages(f64::from(age) * step)).collect();
        let faults: f64 = device_ages.iter().sum();
        let mut kinds = [0.0; 5];
        kinds[FaultKind::Device as usize] = faults;
        Observed {
            seconds: 2.0 + faults * 100e-6,
            program_cpu: 2.0,
            limit: 64.0 * MIB,
            resident: 64.0 * MIB,
            on_device: (total - 64.0) * MIB,
            evicted: faults,
            loaded: faults,
            faults: kinds,
            service: kinds.map(|faults| faults * 90e-6),
            pool_ages: vec![0.0; 64],
            device_ages,
            ..Observed::default()
        }
    }

    #[test]
    fn random_touches_miss_in_proportion_to_what_is_out() {
        // Each page is equally likely to be next, so the time a page stays away is exponential with
        // the mean of what is out. Its age counts ends of steps: where in a step it left is random.
        let left = |evicted: f64| (-evicted.max(0.0) / 32.0).exp();
        let of_age = |from: f64| {
            (0..100).map(|i| 4.0 * f64::from(i) / 100.0).map(|u| left(from - u) - left(from - u + 4.0)).sum::<f64>()
        };
        let observed = run(96.0, |evicted| of_age(evicted) / 100.0);
        for (limit, remain) in [(64.0, 1.0), (72.0, 0.75), (80.0, 0.5), (88.0, 0.25)] {
            let found = observed.at(limit * MIB).refaults() / observed.refaults();
            assert!((found - remain).abs() < 0.02, "{limit} MiB: {found}, not {remain}");
        }
    }

    #[test]
    fn what_is_read_round_and_round_is_missed_until_all_of_it_fits() {
        let observed = run(128.0, |evicted| f64::from(u8::from(evicted == 64.0)));
        for (limit, remain) in [(80.0, 1.0), (112.0, 1.0), (136.0, 0.0)] {
            let found = observed.at(limit * MIB).refaults() / observed.refaults();
            assert!((found - remain).abs() < 0.05, "{limit} MiB: {found}, not {remain}");
        }
        let last = observed.curve().last().copied().unwrap();
        assert!((last.seconds - 2.0).abs() < 0.5, "the program alone: {last:?}");
    }

    #[test]
    fn once_all_of_it_fits_nothing_is_missed_however_little_is_out() {
        for out in [1.0, 4.0, 20.0] {
            let observed = run(64.0 + out, |evicted| f64::from(u8::from(evicted <= 4.0)));
            assert_eq!(observed.at((65.0 + out) * MIB).refaults(), 0.0, "{out} MiB out");
        }
    }

    #[test]
    fn what_is_in_memory_is_not_in_the_pool() {
        // 128 MiB of pages 4:1 in 64 MiB: 42.7 in memory, 85.3 in a pool of 21.3.
        let mut observed = run(128.0, |_| 1.0 / 64.0);
        std::mem::swap(&mut observed.pool_ages, &mut observed.device_ages);
        (observed.resident, observed.pool, observed.in_pool, observed.on_device) = (42.66 * MIB, 21.33 * MIB, 85.33 * MIB, 0.0);
        observed.pool_limit = 52.0 * MIB;
        let (resident, pool) = observed.places(64.0 * MIB);
        assert!((resident / MIB - 42.66).abs() < 0.1 && (pool / MIB - 85.33).abs() < 0.1);
        let (resident, _) = observed.places(80.0 * MIB);
        assert!((resident / MIB - 64.0).abs() < 0.1, "16 MiB more hold 21.3 MiB of pages: {}", resident / MIB);
        let (resident, pool) = observed.places(200.0 * MIB);
        assert!((resident / MIB - 128.0).abs() < 0.1 && pool < 1.0, "all of it fits");
    }

    #[test]
    fn a_run_without_faults_has_nothing_to_gain() {
        let observed = Observed {
            seconds: 3.0,
            limit: 64.0 * MIB,
            pool_ages: vec![0.0; 64],
            device_ages: vec![0.0; 64],
            ..Observed::default()
        };
        let there = observed.at(128.0 * MIB);
        assert_eq!((there.refaults(), there.seconds), (0.0, 3.0));
        assert_eq!(observed.curve().len(), 2);
    }
}
