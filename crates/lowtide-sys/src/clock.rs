//! The clock of reclaim and of latencies.

use rustix::thread::Timespec;
use rustix::time::{ClockId, clock_gettime};

/// `ms` milliseconds; negative: for ever (`None`).
pub fn timeout(ms: i32) -> Option<Timespec> {
    (ms >= 0).then(|| Timespec { tv_sec: i64::from(ms) / 1000, tv_nsec: i64::from(ms) % 1000 * 1_000_000 })
}

/// Nanoseconds of the monotonic clock.
pub fn now_ns() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Microseconds of the monotonic clock.
pub fn now_us() -> u64 {
    now_ns() / 1000
}

/// Microseconds of the calling thread's CPU time.
pub fn thread_cpu_us() -> u64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec as u64 * 1_000_000 + t.tv_nsec as u64 / 1000
}
