//! The clock of reclaim and of latencies.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the monotonic clock.
pub fn now_ns() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Microseconds of the monotonic clock.
pub fn now_us() -> u64 {
    now_ns() / 1000
}
