//! I/O counts of an area.

use crate::count::Counter;

/// The counts of one area.
#[derive(Debug, Default)]
pub struct IoCounts {
    /// Pages that are only on the device now.
    pub pages: Counter,
    /// Reads of runs of slots.
    pub reads: Counter,
    /// Writes of runs of slots.
    pub writes: Counter,
    /// Bytes read.
    pub read_bytes: Counter,
    /// Bytes written.
    pub write_bytes: Counter,
    /// Failed reads and writes, and pages that came back different.
    pub errors: Counter,
}

impl IoCounts {
    /// Adds the counts of `other`, except `pages`.
    pub fn fold(&self, other: &IoCounts) {
        self.reads.add(other.reads.get());
        self.writes.add(other.writes.get());
        self.read_bytes.add(other.read_bytes.get());
        self.write_bytes.add(other.write_bytes.get());
        self.errors.add(other.errors.get());
    }

    /// In a forked child: zeroes all but `pages`.
    pub fn after_fork(&self) {
        [&self.reads, &self.writes, &self.read_bytes, &self.write_bytes, &self.errors].into_iter().for_each(Counter::reset);
    }
}
