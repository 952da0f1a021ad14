//! Measuring on a shared machine: compared variants run in turn, figures are medians with their
//! spread, and time without the CPU does not count.

use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

#[derive(Debug, Clone, Default)]
pub struct Sample(Vec<f64>);

impl Sample {
    pub fn add(&mut self, value: f64) {
        self.0.push(value);
    }

    /// NaN without measurements.
    pub fn last(&self) -> f64 {
        self.0.last().copied().unwrap_or(f64::NAN)
    }

    /// The quantile `q` (0 to 1); NaN without measurements.
    fn quantile(&self, q: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => f64::NAN,
            n => {
                let at = q * (n - 1) as f64;
                let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
                if low == high { low } else { low + (high - low) * at.fract() }
            }
        }
    }

    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Half the distance between the quartiles, relative to the median.
    pub fn spread(&self) -> f64 {
        (self.quantile(0.75) - self.quantile(0.25)) / 2.0 / self.median().abs()
    }

    /// The ratio of paired measurements: both were taken in turn, under similar disturbance.
    pub fn over(&self, other: &Sample) -> Sample {
        Sample(self.0.iter().zip(&other.0).map(|(a, b)| a / b).collect())
    }

    /// The sum of paired measurements; an empty sample counts as zeros.
    pub fn plus(&self, other: &Sample) -> Sample {
        match self.0.is_empty() {
            true => other.clone(),
            false => Sample(self.0.iter().zip(&other.0).map(|(a, b)| a + b).collect()),
        }
    }
}

/// Calls `run` with each variant in turn, `rounds` times; every other round goes backwards, to vary
/// each one's predecessor. Stops at the first error.
pub fn in_turn<V, E>(variants: &[V], rounds: usize, mut run: impl FnMut(usize, &V) -> Result<(), E>) -> Result<(), E> {
    for round in 0..rounds {
        for i in 0..variants.len() {
            let at = if round % 2 == 0 { i } else { variants.len() - 1 - i };
            run(at, &variants[at])?;
        }
    }
    Ok(())
}

/// Nanoseconds of this thread's CPU time in `f`: for work without waits.
pub fn cpu_ns<T>(f: impl FnOnce() -> T) -> (T, f64) {
    let now = || {
        let t = clock_gettime(ClockId::ThreadCPUTime);
        t.tv_sec as f64 * 1e9 + t.tv_nsec as f64
    };
    let began = now();
    let value = f();
    (value, now() - began)
}

/// The time of a thread that may wait for others.
#[derive(Debug)]
pub struct Stopwatch {
    began: Instant,
    queued_ns: u64,
}

impl Stopwatch {
    pub fn start() -> Stopwatch {
        // The watch starts before the read of the queue and ends after it: the subtracted time lies
        // within the measured one.
        let began = Instant::now();
        Stopwatch { queued_ns: queued_ns(), began }
    }

    pub fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Seconds since the start without those in which this thread was runnable without a CPU. If
    /// the experiment has a CPU for each of its threads, only other programs can have had it.
    pub fn own_seconds(&self) -> f64 {
        let queued = queued_ns() - self.queued_ns;
        self.seconds() - queued as f64 / 1e9
    }
}

/// This thread's wait for a CPU, in nanoseconds; 0 if the kernel doesn't say.
fn queued_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads;

    #[test]
    fn medians_and_spread() {
        let sample = Sample(vec![5.0, 1.0, 3.0, 2.0, 4.0]);
        assert_eq!(sample.median(), 3.0);
        assert!((sample.spread() - 1.0 / 3.0).abs() < 1e-12);
        assert!(Sample::default().median().is_nan());
        assert_eq!(sample.over(&Sample(vec![5.0, 2.0, 3.0, 2.0, 4.0])).0, [1.0, 0.5, 1.0, 1.0, 1.0]);
        assert_eq!(Sample::default().plus(&sample).plus(&sample).median(), 6.0);
    }

    #[test]
    fn sleep_takes_time_but_no_cpu() {
        let pause = std::time::Duration::from_millis(5);
        let watch = Stopwatch::start();
        let ((), cpu) = cpu_ns(|| std::thread::sleep(pause));
        assert!(watch.seconds() >= pause.as_secs_f64() && cpu < pause.as_nanos() as f64);
        assert!(watch.own_seconds() <= watch.seconds());
    }

    #[test]
    fn what_others_took_is_never_more_than_what_passed() {
        // More threads than CPUs, so that each waits again and again: also between the two readings
        // of a start or an end.
        let threads = 4 * threads::allowed().unwrap().len();
        let all = threads::pinned(threads, |_| (0..500).all(|_| Stopwatch::start().own_seconds() > 0.0), || ());
        assert!(all.unwrap().into_iter().all(|positive| positive));
    }

    #[test]
    fn every_variant_runs_in_every_round() {
        let mut seen = vec![];
        let done: Result<(), ()> = in_turn(&["a", "b", "c"], 2, |i, v| {
            seen.push((i, *v));
            Ok(())
        });
        assert!(done.is_ok());
        assert_eq!(seen, [(0, "a"), (1, "b"), (2, "c"), (2, "c"), (1, "b"), (0, "a")]);
    }
}
