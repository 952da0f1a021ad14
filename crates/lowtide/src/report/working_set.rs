//! What the run would have done with another limit, from what it did with its own: how far away the pages were that came back.
//!
//! **Which faults more memory saves.** A page that came back after R others had been evicted would have stayed if those
//! of the R that were still out then had fitted beside it. How many that are follows from the same counts: of the pages
//! evicted some time ago, those that had not come back yet. So a fault has a depth, in pages of memory beyond what the
//! program had: `depth(R)` is the sum over the R evictions of the share of pages that are still out after this many. For
//! pages asked for at random, and for pages read round and round, this is exact.
//!
//! **How many pages more RAM is.** What is in memory need not be compressed, so the pool shrinks: a MiB more of limit
//! is more than a MiB of pages. With a full pool and a device the pool keeps its share of the limit, and pages move
//! from the device into it.
//!
//! **How long it takes.** Each fault that is saved saves what faults of its kind took on average.

use crate::stats::Stats;
use crate::supervisor::series::{Sample, by_kind};
use lowtide_core::vm::PAGE_SIZE;
use lowtide_pager::accounts::{RamBudget, pool_share};
use lowtide_pager::segment::{EPOCHS_A_LIMIT, FaultKind, limits_away};
use std::time::Duration;

const PAGE: f64 = PAGE_SIZE as f64;
/// What a fault takes beside its service, in seconds: the kernel tells a monitor, and wakes the thread. If the
/// program's own CPU time and the time of the run say less or more, they are believed within these bounds.
const DELIVERY: [f64; 2] = [3e-6, 15e-6];
/// The part of a fault that the program's thread does itself, in seconds: what its CPU time grows by for each one, of random
/// touches on a virtual machine with two CPUs.
const OWN_PART: f64 = 3.5e-6;
/// Below this share of the limit a pool is not full.
const FULL: f64 = 0.9;

/// What was seen of a run.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// Duration of the run.
    pub seconds: f64,
    /// CPU time of the program, without lowtide's threads.
    pub program_cpu: f64,
    /// Limit, bytes.
    pub limit: f64,
    /// Means over the run, weighted by refaults, in bytes: the program's pages in memory, ...
    pub resident: f64,
    /// ... memory of the pool, ...
    pub pool: f64,
    /// ... the pages in it, uncompressed, ...
    pub in_pool: f64,
    /// ... and those on devices.
    pub on_device: f64,
    /// The most that the pool may have.
    pub pool_limit: f64,
    /// Pages evicted.
    pub evicted: f64,
    /// Of these, pages taken back from staging.
    pub taken_back: f64,
    /// Of these, pages that came back from pool and devices, read-ahead included.
    pub loaded: f64,
    /// Faults by kind, and the seconds that they took.
    pub faults: [f64; FaultKind::ALL.len()],
    /// See `faults`.
    pub service: [f64; FaultKind::ALL.len()],
    /// Faults on pages in the pool by how much had been evicted since, in steps of a 16th of the limit; ...
    pub pool_ages: Vec<f64>,
    /// ... and on devices.
    pub device_ages: Vec<f64>,
}

/// What a run would do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// With this limit, bytes.
    pub limit: f64,
    /// Faults on pages in the pool.
    pub pool_faults: f64,
    /// Faults on pages on devices.
    pub device_faults: f64,
    /// Time.
    pub seconds: f64,
}

impl Prediction {
    /// Faults on pages that had been stored.
    pub fn refaults(&self) -> f64 {
        self.pool_faults + self.device_faults
    }
}

impl Observed {
    /// From the statistics of a run and its samples. `program_cpu`: of all its processes, lowtide's threads included.
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
            // What was held at the end went with the program.
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

    /// Faults on pages that had been stored.
    pub fn refaults(&self) -> f64 {
        self.faults[FaultKind::Pool as usize] + self.faults[FaultKind::Device as usize]
    }

    /// Seconds that the program waited for faults of a kind, delivery included, as far as the time of the run allows.
    pub fn waited(&self, kind: FaultKind) -> f64 {
        let all: f64 = self.service.iter().sum::<f64>() + self.faults.iter().sum::<f64>() * self.delivery();
        // Of several threads that wait at the same time the run waits once.
        let shared = if all > 0.0 { (self.seconds / all).min(1.0) } else { 1.0 };
        shared * (self.service[kind as usize] + self.faults[kind as usize] * self.delivery())
    }

    /// The same, by the number of the kind.
    pub fn waited_at(&self, kind: usize) -> f64 {
        self.waited(FaultKind::ALL[kind])
    }

    /// Seconds for each fault beside its service.
    fn delivery(&self) -> f64 {
        let faults: f64 = self.faults.iter().sum();
        let unexplained = self.seconds - self.program_cpu - self.service.iter().sum::<f64>();
        (unexplained / faults.max(1.0)).clamp(DELIVERY[0], DELIVERY[1]) + OWN_PART
    }

    /// What pages in the pool take, compressed, as a part of what they are.
    fn ratio(&self) -> f64 {
        if self.in_pool > 0.0 { (self.pool / self.in_pool).min(0.95) } else { 0.0 }
    }

    /// Bytes of the program's pages in memory, and of those in the pool, with another limit.
    fn places(&self, limit: f64) -> (f64, f64) {
        let ratio = self.ratio();
        let stored = self.in_pool + self.on_device;
        let footprint = self.resident + stored;
        let other = (self.limit - self.resident - self.pool).max(0.0);
        // What of the pages that are out goes to the pool: where it was not full, those on devices do not compress.
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

    /// The most that the pool gets beside what lowtide has besides.
    fn room(&self, other: f64) -> f64 {
        let budget = RamBudget::default();
        budget.set_limit(self.limit as u64);
        self.pool_limit.min(pool_share::room(&budget, other as u64) as f64)
    }

    /// With a swap file the upper part of the pool is for pages that compress well.
    fn pool_share(&self) -> f64 {
        0.6 * self.pool_limit / self.limit.max(1.0)
    }

    /// The depth of faults of each age, in bytes beyond what was in memory: see above.
    fn depths(&self) -> Vec<f64> {
        let missed = self.refaults().max(1.0);
        let (mut before, mut back) = (self.taken_back, self.taken_back);
        let mut depth = 0.0;
        let mut depths = Vec::new();
        for (age, count) in self.pool_ages.iter().zip(&self.device_ages).map(|(pool, device)| pool + device).enumerate() {
            let returned = self.loaded * count / missed;
            // Half of those of an age are back where it is in the mean.
            let back_there = back + returned / 2.0;
            let out = (1.0 - before.midpoint(back_there) / self.evicted.max(1.0)).max(0.0);
            // What is evicted from when those of the age before are back until these are.
            let width = limits_away(age) - age.checked_sub(1).map_or(0.0, limits_away);
            depth += self.limit * width * out;
            depths.push(depth);
            (before, back) = (back_there, back + returned);
        }
        depths
    }

    /// What the run would have done with another limit, not below its own.
    pub fn at(&self, limit: f64) -> Prediction {
        let ((resident, _), (new_resident, new_pool)) = (self.places(self.limit), self.places(limit));
        // Their difference, so that where the model does not fit the run its error is in both.
        let kept = (new_resident - resident).max(0.0);
        let (_, pool) = self.places(self.limit);
        let mut faults = [0.0; 2];
        let step = self.limit / EPOCHS_A_LIMIT as f64;
        // Nothing is deeper than all that is out. (Ages are counted modulo their number.)
        let deepest = self.in_pool + self.on_device;
        for (age, depth) in self.depths().into_iter().enumerate() {
            // A step's faults are spread over its width.
            let half = (step / 2.0 * if age == 0 { 0.6 } else { 1.0 }).min(deepest / 2.0).max(1.0);
            let depth = depth.min((deepest - half).max(half));
            let above = |edge: f64| ((depth + half - edge) / (2.0 * half)).clamp(0.0, 1.0);
            let missed = above(kept);
            // On a device because the pool was full, not because it did not compress: deeper than what the pool had.
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

    /// `remain`: which part of the refaults there still is.
    fn would_wait(&self, kind: FaultKind, [pool, device]: [f64; 2], remain: f64) -> f64 {
        let was = self.faults[kind as usize];
        let would = match kind {
            FaultKind::Pool => pool,
            FaultKind::Device => device,
            FaultKind::FirstTouch => was,
            // They come of evictions, of which there is one for each page that comes back.
            FaultKind::Zero | FaultKind::Staged => was * remain,
        };
        let each = if was > 0.0 { self.waited(kind) / was } else { 0.0 };
        // Pages that would come from the pool, of which this run had none: what one costs that is in staging, or a guess.
        let each = if was == 0.0 && would > 0.0 { 2.0 * self.delivery() } else { each };
        would * each
    }

    /// Limits from this one up to where nothing comes back any more (or eight times as much).
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

    /// A run of `total` MiB of incompressible pages in 64 MiB, all on a device; the ages of its faults by how much was
    /// evicted since.
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
        // Any page is equally likely to be next: how long a page stays away is exponential, with what is out as its mean.
        // Its age is how many ends of steps lie between: where in a step it left is chance.
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
