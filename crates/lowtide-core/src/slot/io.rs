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
    /// Reads and writes that failed.
    pub errors: Counter,
}

impl IoCounts {
    /// In a forked child: what happened before was the parent's doing.
    pub(super) fn after_fork(&self) {
        [&self.reads, &self.writes, &self.read_bytes, &self.write_bytes, &self.errors].into_iter().for_each(Counter::reset);
    }
}
