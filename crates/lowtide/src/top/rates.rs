//! The difference of two samples.

use super::sample::{Counts, KINDS, Sample};
use crate::stats::REFAULT_KINDS;
use lowtide_core::vm::PAGE_SIZE;
use lowtide_wire::segment::{LATENCY_BUCKETS, latency_quantile_ns};

const PAGE: f64 = PAGE_SIZE as f64;

/// All but the shares are per second.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rates {
    /// By kind, as in [`Counts::faults`].
    pub faults: [f64; KINDS],
    /// Median service time in microseconds; None: no faults.
    pub p50_us: Option<f64>,
    /// The 99th percentile.
    pub p99_us: Option<f64>,
    pub out_bytes: f64,
    pub in_bytes: f64,
    pub read_ahead: f64,
    /// The share of these that the program went on to use; None: there were none.
    pub read_ahead_used: Option<f64>,
    /// By distance: how much more RAM would have kept the page.
    pub refaults: [f64; REFAULT_KINDS],
    /// Share of the time in which a thread of the program waited for a page.
    pub stall: f64,
    pub cpu: f64,
    /// Bytes read from and written to each area, as in [`Sample::areas`].
    pub areas: Vec<(f64, f64)>,
}

impl Rates {
    /// From one sample to the next of the same run. None: no time has passed.
    pub fn between(before: &Sample, after: &Sample) -> Option<Rates> {
        let seconds = after.elapsed - before.elapsed;
        if seconds <= 0.0 {
            return None;
        }
        let (b, a) = (&before.counts, &after.counts);
        // Counts may go down: a look may miss a process that dies.
        let per_second = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
        let each = |of: fn(&Counts) -> u64| per_second(of(b), of(a));
        let latency: [u64; LATENCY_BUCKETS] = std::array::from_fn(|i| after.latency[i].saturating_sub(before.latency[i]));
        let read_ahead = each(|c| c.read_ahead);
        Some(Rates {
            faults: std::array::from_fn(|i| per_second(b.faults[i], a.faults[i])),
            p50_us: percentile_us(&latency, 0.5),
            p99_us: percentile_us(&latency, 0.99),
            out_bytes: each(|c| c.evicted) * PAGE,
            in_bytes: each(|c| c.loaded) * PAGE,
            read_ahead,
            // Some are used a while after they came in.
            read_ahead_used: (read_ahead > 0.0).then(|| (each(|c| c.read_ahead_used) / read_ahead).min(1.0)),
            refaults: std::array::from_fn(|i| per_second(b.refaults[i], a.refaults[i])),
            stall: ((a.stall_seconds - b.stall_seconds) / seconds).clamp(0.0, 1.0),
            cpu: ((a.cpu_seconds - b.cpu_seconds) / seconds).max(0.0),
            areas: after.areas.iter().map(|area| throughput(before, area, per_second)).collect(),
        })
    }

    pub fn all_faults(&self) -> f64 {
        self.faults.iter().sum()
    }

    pub fn all_refaults(&self) -> f64 {
        self.refaults.iter().sum()
    }
}

fn throughput(before: &Sample, area: &super::sample::Area, per_second: impl Fn(u64, u64) -> f64) -> (f64, f64) {
    // By name: areas come and go. A new one began at zero.
    let same = before.areas.iter().find(|old| old.spec == area.spec);
    let (read, written) = same.map_or((0, 0), |old| (old.read_bytes, old.write_bytes));
    (per_second(read, area.read_bytes), per_second(written, area.write_bytes))
}

pub fn percentile_us(buckets: &[u64; LATENCY_BUCKETS], share: f64) -> Option<f64> {
    latency_quantile_ns(buckets, share).map(|ns| ns as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn sample(value: Value) -> Sample {
        Sample::read(&value)
    }

    #[test]
    fn counts_become_rates_by_the_time_of_the_run() {
        let before = sample(json!({
            "elapsed_seconds": 10.0, "faults": { "pool": 100, "read_ahead_pages": 10, "read_ahead_used": 10 },
            "evictions": { "pages": 5 }, "stall_seconds": { "some": 1.0 }, "work": { "cpu_seconds": 2.0 },
            "areas": [{ "spec": "a", "read_bytes": 100, "write_bytes": 50 }], "refaults": [1, 0, 0, 8],
        }));
        let after = sample(json!({
            "elapsed_seconds": 12.0, "faults": { "pool": 300, "device": 20, "read_ahead_pages": 30, "read_ahead_used": 15 },
            "evictions": { "pages": 7 }, "stall_seconds": { "some": 1.5 }, "work": { "cpu_seconds": 2.5 },
            "areas": [{ "spec": "b", "read_bytes": 40 }, { "spec": "a", "read_bytes": 300, "write_bytes": 50 }],
            "refaults": [5, 0, 0, 10],
        }));
        let rates = Rates::between(&before, &after).unwrap();
        assert_eq!((rates.faults, rates.all_faults()), ([0.0, 0.0, 0.0, 100.0, 10.0], 110.0));
        assert_eq!((rates.out_bytes, rates.read_ahead, rates.read_ahead_used), (4096.0, 10.0, Some(0.25)));
        assert_eq!((rates.stall, rates.cpu), (0.25, 0.25));
        assert_eq!(rates.areas, [(20.0, 0.0), (100.0, 0.0)], "by name, not by place");
        assert_eq!((rates.refaults, rates.all_refaults()), ([2.0, 0.0, 0.0, 1.0], 3.0));
    }

    #[test]
    fn latency_is_that_of_the_time_between() {
        let at = |pairs: Value, seconds: f64| sample(json!({ "elapsed_seconds": seconds, "fault_latency_histogram": pairs }));
        let (before, after) = (at(json!([[1024.0, 1000]]), 1.0), at(json!([[8.192, 99], [131.072, 1], [1024.0, 1000]]), 2.0));
        let rates = Rates::between(&before, &after).unwrap();
        assert!(rates.p50_us.is_some_and(|us| (8.192..9.3).contains(&us)), "{rates:?}");
        assert_eq!(rates.p50_us, rates.p99_us);
        let idle = Rates::between(&after, &at(json!([[8.192, 99], [131.072, 1], [1024.0, 1000]]), 3.0)).unwrap();
        assert_eq!((idle.p50_us, idle.p99_us, idle.read_ahead_used), (None, None, None));
    }

    #[test]
    fn nothing_is_below_nothing_and_no_time_is_no_rate() {
        let one = sample(json!({ "elapsed_seconds": 1.0, "faults": { "pool": 9 }, "stall_seconds": { "some": 5.0 } }));
        let less = sample(json!({ "elapsed_seconds": 2.0, "faults": { "pool": 3 } }));
        let rates = Rates::between(&one, &less).unwrap();
        assert_eq!((rates.all_faults(), rates.stall), (0.0, 0.0));
        assert_eq!(Rates::between(&less, &less), None);
    }
}
