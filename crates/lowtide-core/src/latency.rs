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

#[cfg(test)]
mod tests {
    use super::*;

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
