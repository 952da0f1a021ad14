//! Samples a run over time. The supervisor's looks at the tree drive it, so it needs no timer. When
//! the samples reach their bound, every other one goes and the step doubles.

use crate::live::Live;
use crate::stats::list::Faults;
use crate::stats::totals;
use lowtide_wire::segment::FaultKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const FIRST_STEP: Duration = Duration::from_millis(100);
/// A minute of the first step.
const MOST: usize = 600;

/// Memory is of the moment, in bytes; counts are since the start.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    /// Seconds since the program's start.
    pub at: f64,
    pub limit: u64,
    pub ram: u64,
    pub own: u64,
    /// Of that, staging, ...
    pub staged: u64,
    /// ... and the pool.
    pub pool: u64,
    pub stored_pages: u64,
    pub device_pages: u64,
    pub faults: [u64; FaultKind::ALL.len()],
    pub service_ns: [u64; FaultKind::ALL.len()],
}

impl Sample {
    pub fn resident(&self) -> u64 {
        self.ram.saturating_sub(self.own)
    }

    /// Faults on stored pages, some of which more RAM would have saved.
    pub fn refaults(&self) -> u64 {
        self.faults[FaultKind::Pool as usize] + self.faults[FaultKind::Device as usize]
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    pub cpu: Duration,
    pub wakeups: u64,
}

#[derive(Debug)]
pub struct Series {
    samples: Vec<Sample>,
    step: Duration,
    next: Duration,
    /// Includes dropped samples.
    pub taken: u64,
    /// CPU time of sampling.
    pub cpu: Duration,
}

impl Default for Series {
    fn default() -> Self {
        Series { samples: Vec::new(), step: FIRST_STEP, next: Duration::ZERO, taken: 0, cpu: Duration::ZERO }
    }
}

impl Series {
    /// Takes a sample when due. Call it at each look at the tree.
    pub fn look(&mut self, run: &Live<'_>) {
        let now = run.started.elapsed();
        if now < self.next {
            return;
        }
        let before = thread_cpu();
        self.add(Sample::new(run, now));
        self.cpu += thread_cpu().saturating_sub(before);
    }

    pub fn finish(&mut self, run: &Live<'_>, elapsed: Duration) {
        self.samples.push(Sample::new(run, elapsed));
    }

    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

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

/// Fault counts in the order of [`FaultKind`].
pub fn by_kind(faults: &Faults) -> [u64; FaultKind::ALL.len()] {
    FaultKind::ALL.map(|kind| match kind {
        FaultKind::Zero => faults.zero,
        FaultKind::Staged => faults.staged,
        FaultKind::Pool => faults.pool,
        FaultKind::Device => faults.device,
        FaultKind::FirstTouch => faults.first_touch,
    })
}

fn thread_cpu() -> Duration {
    cpu(rustix::time::ClockId::ThreadCPUTime)
}

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
