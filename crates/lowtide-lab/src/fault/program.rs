//! The measured program under `lowtide run`: threads that read single pages at random, each read
//! timed and verified. The lab runs itself for it.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use lowtide_sys::clock::now_ns;
use lowtide_wire::segment::{LATENCY_BUCKETS, latency_bucket, latency_quantile_ns};
use serde::{Deserialize, Serialize};

use crate::race::{Content, RECORDS, WORDS};

pub const NAME: &str = "fault-load";
/// Longer accesses were no hits in memory: no way of serving a fault is as fast.
const FAULT_NS: u64 = 2000;

#[derive(Debug, Serialize, Deserialize)]
pub struct Told {
    pub seconds: f64,
    /// Touches longer than a hit in memory.
    pub faults: u64,
    /// Median in microseconds.
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// Latencies in lowtide's buckets.
struct Histogram {
    buckets: [u64; LATENCY_BUCKETS],
    max: u64,
}

impl Histogram {
    fn new() -> Histogram {
        Histogram { buckets: [0; LATENCY_BUCKETS], max: 0 }
    }

    fn add(&mut self, ns: u64) {
        self.max = self.max.max(ns);
        if ns >= FAULT_NS {
            self.buckets[latency_bucket(ns)] += 1;
        }
    }

    fn merge(mut self, other: Histogram) -> Histogram {
        self.buckets.iter_mut().zip(other.buckets).for_each(|(to, from)| *to += from);
        self.max = self.max.max(other.max);
        self
    }

    fn faults(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The quantile `q` in microseconds; 0 without faults.
    fn quantile(&self, q: f64) -> f64 {
        latency_quantile_ns(&self.buckets, q).map_or(0.0, |ns| ns.min(self.max) as f64 / 1000.0)
    }

    fn told(&self, seconds: f64) -> Told {
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|q| self.quantile(q));
        Told { seconds, faults: self.faults(), p50, p99, p999, max: self.max as f64 / 1000.0 }
    }
}

/// The program: `THREADS PAGES SECONDS FILE`. Writes its result into the file as JSON.
pub fn main(args: &[String]) -> ExitCode {
    let numbers: Vec<f64> = args.iter().take(3).filter_map(|arg| arg.parse().ok()).collect();
    let (&[threads, pages, seconds], Some(file)) = (numbers.as_slice(), args.get(3)) else {
        eprintln!("lowtide-lab: {NAME} is started by the experiment only");
        return ExitCode::from(2);
    };
    let told = touch_all(threads as usize, (pages as usize).max(1), Duration::from_secs_f64(seconds.clamp(0.0, 1e6)));
    let written = told.and_then(|told| {
        let text = serde_json::to_string(&told).map_err(|e| e.to_string())?;
        std::fs::write(file, text).map_err(|e| format!("{file}: {e}"))
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(line) => {
            eprintln!("{line}");
            ExitCode::FAILURE
        }
    }
}

fn touch_all(threads: usize, pages: usize, time: Duration) -> Result<Told, String> {
    let mut data = vec![0u64; pages * WORDS];
    data.chunks_exact_mut(WORDS).enumerate().for_each(|(i, page)| Content::COMPRESSIBLE.fill(i, page));
    let (data, began) = (&*data, Instant::now());
    let all = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|seed| scope.spawn(move || touch(data, seed as u64, time))).collect();
        // A panic ends the process.
        let joined = running.into_iter().map(|thread| thread.join().unwrap_or(Err(0)));
        joined.reduce(|a, b| Ok(a?.merge(b?))).unwrap_or_else(|| Ok(Histogram::new()))
    });
    let seconds = began.elapsed().as_secs_f64();
    all.map(|all| all.told(seconds)).map_err(|page| format!("wrong data in page {page}"))
}

/// Reads for `time`. The error is the number of a page with wrong data.
fn touch(data: &[u64], seed: u64, time: Duration) -> Result<Histogram, usize> {
    let mut random = fastrand::Rng::with_seed(seed + 1);
    let (mut histogram, began) = (Histogram::new(), now_ns());
    loop {
        let (i, record) = (random.usize(..data.len() / WORDS), random.usize(..RECORDS));
        let page = &data[i * WORDS..(i + 1) * WORDS];
        let start = now_ns();
        std::hint::black_box(page[0]);
        let end = now_ns();
        histogram.add(end - start);
        Content::COMPRESSIBLE.verify(i, record, page, 0)?;
        if u128::from(end - began) >= time.as_nanos() {
            return Ok(histogram);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_faults_and_the_slowest_is_of_all() {
        let mut histogram = Histogram::new();
        (0..10_000).for_each(|_| histogram.add(100));
        assert_eq!((histogram.faults(), histogram.quantile(0.5)), (0, 0.0));
        (0..990).for_each(|_| histogram.add(10_000));
        (0..10).for_each(|_| histogram.add(40_000_000));
        let told = histogram.told(1.0);
        assert_eq!((told.faults, told.max), (1000, 40_000.0));
        assert!((9.0..11.5).contains(&told.p50) && (9.0..11.5).contains(&told.p99), "{told:?}");
        assert!((36_000.0..=40_000.0).contains(&told.p999), "{told:?}");
    }

    #[test]
    fn wrong_data_is_found() {
        let mut data = vec![0; WORDS];
        Content::COMPRESSIBLE.fill(0, &mut data);
        assert!(touch(&data, 1, Duration::from_millis(5)).is_ok());
        data.iter_mut().for_each(|word| *word ^= 1);
        assert_eq!(touch(&data, 1, Duration::from_secs(60)).err(), Some(0));
    }
}
