//! The latency histogram.

/// Buckets: see [`latency_bucket`].
pub const LATENCY_BUCKETS: usize = 160;

/// The bucket of a latency: eight an octave (12 % wide) from 256 ns; the last one holds the rest.
pub fn latency_bucket(ns: u64) -> usize {
    let ns = ns.max(256);
    let octave = 63 - ns.leading_zeros() as usize;
    ((octave - 8) * 8 + ((ns >> (octave - 3)) & 7) as usize).min(LATENCY_BUCKETS - 1)
}

/// Lower bound of bucket `i` in nanoseconds.
pub fn latency_floor_ns(i: usize) -> u64 {
    let (octave, step) = (i / 8 + 8, (i % 8) as u64);
    (8 + step) << (octave - 3)
}

/// The middle of the bucket that ends a share (0 to 1) of the latencies, in nanoseconds; the last
/// bucket has no end, so its floor. None: there are no latencies.
pub fn latency_quantile_ns(buckets: &[u64; LATENCY_BUCKETS], share: f64) -> Option<u64> {
    let wanted = buckets.iter().sum::<u64>() as f64 * share;
    let mut seen = 0;
    let bucket = buckets.iter().position(|count| {
        seen += count;
        seen > 0 && seen as f64 >= wanted
    })?;
    let floor = latency_floor_ns(bucket);
    Some(if bucket + 1 < LATENCY_BUCKETS { floor.midpoint(latency_floor_ns(bucket + 1)) } else { floor })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_in_the_bucket_that_ends_its_share() {
        let mut buckets = [0; LATENCY_BUCKETS];
        let at = |buckets: &_, share| latency_quantile_ns(buckets, share).map(latency_bucket);
        assert_eq!(at(&buckets, 0.5), None);
        buckets[10] = 98;
        buckets[20] = 1;
        buckets[LATENCY_BUCKETS - 1] = 1;
        let shares = [0.0, 0.5, 0.98, 0.985, 0.99, 0.995, 1.0];
        let last = LATENCY_BUCKETS - 1;
        assert_eq!(shares.map(|share| at(&buckets, share).unwrap()), [10, 10, 10, 20, 20, last, last]);
    }

    #[test]
    fn buckets_and_floors_agree() {
        for i in 0..LATENCY_BUCKETS {
            assert_eq!(latency_bucket(latency_floor_ns(i)), i);
            assert_eq!(latency_bucket(latency_floor_ns(i + 1) - 1), i);
        }
        assert_eq!(latency_bucket(0), 0);
        assert_eq!(latency_bucket(u64::MAX), LATENCY_BUCKETS - 1);
    }
}
