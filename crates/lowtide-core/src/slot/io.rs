//! What an area's user does with its device, in figures.

use crate::count::Counter;

/// The figures of one area.
#[derive(Debug, Default)]
pub struct IoCounts {
    /// Pages that are on the device now and nowhere else.
    pub pages: Counter,
    /// Reads of runs of slots, each of which is one I/O if the device takes it whole.
    pub reads: Counter,
    /// Writes of runs of slots, as above.
    pub writes: Counter,
    /// Bytes that were read.
    pub read_bytes: Counter,
    /// Bytes that were written.
    pub write_bytes: Counter,
    /// Reads and writes that failed, and pages that came back as something else than was written.
    pub errors: Counter,
}

impl IoCounts {
    /// What has happened there also happened here.
    pub fn fold(&self, other: &IoCounts) {
        self.reads.add(other.reads.get());
        self.writes.add(other.writes.get());
        self.read_bytes.add(other.read_bytes.get());
        self.write_bytes.add(other.write_bytes.get());
        self.errors.add(other.errors.get());
    }

    /// In a forked child: what happened before was the parent's doing.
    pub fn after_fork(&self) {
        [&self.reads, &self.writes, &self.read_bytes, &self.write_bytes, &self.errors].into_iter().for_each(Counter::reset);
    }
}
