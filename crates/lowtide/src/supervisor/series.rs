//! What a run had and did over time: a look at the counters now and then, at the supervisor's own looks at the tree, so
//! that it needs no timer of its own. When there are many samples every other one goes, and from then on looks are half
//! as frequent: memory stays bounded.

use crate::live::Live;
use crate::stats::list::Faults;
use crate::stats::totals;
use lowtide_pager::segment::FaultKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The time between the first samples.
const FIRST_STEP: Duration = Duration::from_millis(100);
/// Most samples: a minute of the first step.
const MOST: usize = 600;

/// One look. Memory in bytes is of the moment, counts are since the start.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    /// Since the start of the program, in seconds.
    pub at: f64,
    /// The limit.
    pub limit: u64,
    /// All that the run has of RAM.
    pub ram: u64,
    /// Of that, lowtide's own.
    pub own: u64,
    /// Of lowtide's own, staging, ...
    pub staged: u64,
    /// ... and the pool.
    pub pool: u64,
    /// Pages stored (pool and device).
    pub stored_pages: u64,
    /// Of these, on a device.
    pub device_pages: u64,
    /// Faults by [`FaultKind`].
    pub faults: [u64; FaultKind::ALL.len()],
    /// Nanoseconds of service, by kind.
    pub service_ns: [u64; FaultKind::ALL.len()],
}

impl Sample {
    /// Pages of the program in memory, in bytes.
    pub fn resident(&self) -> u64 {
        self.ram.saturating_sub(self.own)
    }

    /// Faults on pages that had been stored: more RAM would have saved some.
    pub fn refaults(&self) -> u64 {
        self.faults[FaultKind::Pool as usize] + self.faults[FaultKind::Device as usize]
    }
}

/// What the supervisor itself has cost.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    /// CPU time of its process.
    pub cpu: Duration,
    /// Times that it woke up.
    pub wakeups: u64,
}

/// The samples of a run, evenly spaced.
#[derive(Debug)]
pub struct Series {
    samples: Vec<Sample>,
    step: Duration,
    next: Duration,
    /// Samples taken, also those that are gone.
    pub taken: u64,
    /// CPU time that taking them took.
    pub cpu: Duration,
}

impl Default for Series {
    fn default() -> Self {
        Series { samples: Vec::new(), step: FIRST_STEP, next: Duration::ZERO, taken: 0, cpu: Duration::ZERO }
    }
}

impl Series {
    /// Takes a sample if it is time. To be called at each look at the tree.
    pub fn look(&mut self, run: &Live<'_>) {
        let now = run.started.elapsed();
        if now < self.next {
            return;
        }
        let before = thread_cpu();
        self.add(Sample::new(run, now));
        self.cpu += thread_cpu().saturating_sub(before);
    }

    /// The last one, of the end.
    pub fn finish(&mut self, run: &Live<'_>, elapsed: Duration) {
        self.samples.push(Sample::new(run, elapsed));
    }

    /// All of them, in order of time.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// The time between two samples now.
    pub fn step(&self) -> Duration {
        self.step
    }

    fn add(&mut self, sample: Sample) {
        if self.samples.len() >= MOST {
            let mut keep = false;
            self.samples.retain(|_| {
                keep = !keep;
                keep
            });
            self.step *= 2;
        }
        self.next = Duration::from_secs_f64(sample.at) + self.step;
        self.samples.push(sample);
        self.taken += 1;
    }
}

impl Sample {
    fn new(run: &Live<'_>, at: Duration) -> Sample {
        let now = run.tree.now();
        let counters = totals(run.shared.segment());
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Sample {
            at: at.as_secs_f64(),
            limit: run.limits.ram(),
            ram: now.ram,
            own: now.own,
            staged: now.staged,
            pool: now.pool,
            stored_pages: now.now_stored,
            device_pages: now.now_on_device,
            faults: by_kind(&Faults::counted(&counters)),
            service_ns: std::array::from_fn(|kind| of(&counters.service_ns[kind])),
        }
    }
}

/// The counts of faults in the order of [`FaultKind`].
pub fn by_kind(faults: &Faults) -> [u64; FaultKind::ALL.len()] {
    FaultKind::ALL.map(|kind| match kind {
        FaultKind::Zero => faults.zero,
        FaultKind::Staged => faults.staged,
        FaultKind::Pool => faults.pool,
        FaultKind::Device => faults.device,
        FaultKind::FirstTouch => faults.first_touch,
    })
}

/// CPU time of the calling thread.
fn thread_cpu() -> Duration {
    cpu(rustix::time::ClockId::ThreadCPUTime)
}

/// CPU time of this process.
pub fn process_cpu() -> Duration {
    cpu(rustix::time::ClockId::ProcessCPUTime)
}

fn cpu(clock: rustix::time::ClockId) -> Duration {
    let time = rustix::time::clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_stays_bounded_and_samples_stay_even() {
        let mut series = Series::default();
        let mut at = 0.0;
        for _ in 0..10 * MOST {
            at = series.next.as_secs_f64().max(at);
            series.add(Sample { at, ..Sample::default() });
        }
        let samples = series.samples();
        assert!((MOST / 2..=MOST).contains(&samples.len()) && samples[0].at == 0.0 && series.taken == 10 * MOST as u64);
        let step = series.step().as_secs_f64();
        assert!(samples.windows(2).all(|pair| (pair[1].at - pair[0].at - step).abs() < 1e-6), "{step}");
    }
}
