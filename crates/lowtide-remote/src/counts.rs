//! Traffic with the servers: counted by all threads, only reported.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lowtide_core::count::Counter;
use lowtide_core::latency::{LATENCY_BUCKETS, latency_bucket};

/// Counts since the area was put to use.
#[derive(Debug)]
pub struct Counts {
    /// Pages acknowledged by servers.
    pub pages_written: Counter,
    /// Pages read back.
    pub pages_read: Counter,
    /// Bytes sent.
    pub sent_bytes: Counter,
    /// Bytes received.
    pub received_bytes: Counter,
    /// Broken or abandoned connections; another replaces each.
    pub reconnects: Counter,
    /// Replicas seen to have replaced their primaries.
    pub failovers: Counter,
    /// Pages read from their second copies.
    pub second_copies_read: Counter,
    /// Lost copies of which the other one was there, counted at each read.
    pub copies_lost: Counter,
    /// Wrong copies of which the other one was right, counted at each read.
    pub copies_wrong: Counter,
    /// Pages written with both copies on one node.
    pub copies_together: Counter,
    /// Requests by duration, in the buckets of [`latency_bucket`].
    reads: [AtomicU64; LATENCY_BUCKETS],
    /// Their sum and maximum, in nanoseconds.
    reads_ns: Counter,
    slowest_ns: AtomicU64,
}

/// Durations of page requests.
#[derive(Debug)]
pub struct Reads {
    /// Counts in the buckets of [`latency_bucket`].
    pub buckets: [u64; LATENCY_BUCKETS],
    /// Sum in nanoseconds.
    pub sum_ns: u64,
    /// Maximum in nanoseconds.
    pub slowest_ns: u64,
}

impl Default for Counts {
    fn default() -> Counts {
        Counts {
            pages_written: Counter::default(),
            pages_read: Counter::default(),
            sent_bytes: Counter::default(),
            received_bytes: Counter::default(),
            reconnects: Counter::default(),
            failovers: Counter::default(),
            second_copies_read: Counter::default(),
            copies_lost: Counter::default(),
            copies_wrong: Counter::default(),
            copies_together: Counter::default(),
            reads: [const { AtomicU64::new(0) }; LATENCY_BUCKETS],
            reads_ns: Counter::default(),
            slowest_ns: AtomicU64::new(0),
        }
    }
}

impl Counts {
    /// Counts a request of this duration.
    pub fn read_took(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.reads[latency_bucket(ns)].fetch_add(1, Ordering::Relaxed);
        self.reads_ns.add(ns);
        self.slowest_ns.fetch_max(ns, Ordering::Relaxed);
    }

    /// The durations so far.
    pub fn reads(&self) -> Reads {
        Reads {
            buckets: self.reads.each_ref().map(|count| count.load(Ordering::Relaxed)),
            sum_ns: self.reads_ns.get(),
            slowest_ns: self.slowest_ns.load(Ordering::Relaxed),
        }
    }
}
