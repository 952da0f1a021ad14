//! The tails of a run: how long its touches of memory that was not there, or its client's requests,
//! take at most in all but a few cases.

use std::time::Duration;

use lowtide_core::latency::{LATENCY_BUCKETS, latency_bucket, latency_quantile_ns};

pub const SHARES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];
/// A touch of memory that is there takes less, a fault more.
pub const FAULT: Duration = Duration::from_micros(1);
const PREFIX: &str = "tails ";

/// Microseconds for each of [`SHARES`].
pub type Tails = [f64; SHARES.len()];

#[derive(Debug, Clone)]
pub struct Times([u64; LATENCY_BUCKETS]);

impl Times {
    pub fn new() -> Times {
        Times([0; LATENCY_BUCKETS])
    }

    pub fn add(&mut self, took: Duration) {
        self.0[latency_bucket(took.as_nanos() as u64)] += 1;
    }

    pub fn add_all(&mut self, others: &Times) {
        self.0.iter_mut().zip(others.0).for_each(|(sum, more)| *sum += more);
    }

    /// None: there were no times.
    pub fn tails(&self) -> Option<Tails> {
        let at = |share| latency_quantile_ns(&self.0, share).map(|ns| ns as f64 / 1e3);
        Some([at(SHARES[0].1)?, at(SHARES[1].1)?, at(SHARES[2].1)?])
    }
}

/// What a load prints on standard error, without the newline.
pub fn line(tails: Tails) -> String {
    format!("{PREFIX}{}", tails.map(|us| us.to_string()).join(" "))
}

/// Reads it from what a load has printed.
pub fn of(said: &str) -> Option<Tails> {
    let words = said.lines().find_map(|line| line.strip_prefix(PREFIX))?;
    let tails: Vec<f64> = words.split(' ').map(|us| us.parse().ok()).collect::<Option<_>>()?;
    tails.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_are_what_all_but_a_few_take_and_are_read_back() {
        let mut times = Times::new();
        assert_eq!(times.tails(), None);
        let add = |times: &mut Times, us, count| (0..count).for_each(|_| times.add(Duration::from_micros(us)));
        add(&mut times, 10, 985);
        let mut slow = Times::new();
        add(&mut slow, 100, 13);
        add(&mut slow, 5000, 2);
        times.add_all(&slow);
        let tails = times.tails().unwrap();
        for (us, about) in tails.into_iter().zip([10.0, 100.0, 5000.0]) {
            // At most half a bucket from it.
            assert!((us / about - 1.0).abs() < 0.0625, "{tails:?}");
        }
        assert_eq!(of(&format!("seconds 1.0\n{}\n", line(tails))), Some(tails));
        assert_eq!([of("tails 1 2"), of("tails 1 2 x"), of("tales 1 2 3")], [None; 3]);
    }
}
