//! What passed between this process and the servers: counted by all threads, only reported.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lowtide_core::count::Counter;
use lowtide_core::latency::{LATENCY_BUCKETS, latency_bucket};

/// Counts since the area was put to use.
#[derive(Debug)]
pub struct Counts {
    /// Pages that are kept, as servers have said.
    pub pages_written: Counter,
    /// Pages that came back.
    pub pages_read: Counter,
    /// Bytes that were sent.
    pub sent_bytes: Counter,
    /// Bytes that were received.
    pub received_bytes: Counter,
    /// Connections that broke, or were given up; another is made in the place of each.
    pub reconnects: Counter,
    /// Replicas that were seen to have taken the places of their primaries.
    pub failovers: Counter,
    /// Pages that were read from their second copies.
    pub second_copies_read: Counter,
    /// Copies that their nodes had lost, where the other one was there, counted at each read.
    pub copies_lost: Counter,
    /// Copies that were not what was written, where the other one was, counted at each read.
    pub copies_wrong: Counter,
    /// Pages that were written where both of their copies are on one node.
    pub copies_together: Counter,
    /// Requests for pages by how long they took, in the buckets of [`latency_bucket`].
    reads: [AtomicU64; LATENCY_BUCKETS],
    /// The sum of that, and the longest, in nanoseconds.
    reads_ns: Counter,
    slowest_ns: AtomicU64,
}

/// How long requests for pages took.
#[derive(Debug)]
pub struct Reads {
    /// How many took how long, in the buckets of [`latency_bucket`].
    pub buckets: [u64; LATENCY_BUCKETS],
    /// All of it, in nanoseconds.
    pub sum_ns: u64,
    /// The longest, in nanoseconds.
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
    /// A request for pages has ended, after so long.
    pub fn read_took(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.reads[latency_bucket(ns)].fetch_add(1, Ordering::Relaxed);
        self.reads_ns.add(ns);
        self.slowest_ns.fetch_max(ns, Ordering::Relaxed);
    }

    /// How long they took.
    pub fn reads(&self) -> Reads {
        Reads {
            buckets: self.reads.each_ref().map(|count| count.load(Ordering::Relaxed)),
            sum_ns: self.reads_ns.get(),
            slowest_ns: self.slowest_ns.load(Ordering::Relaxed),
        }
    }
}
