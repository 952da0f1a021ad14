//! The device of an area that lives in RAM only: its slots are names for objects in the pool, without bytes behind them.

use rustix::io::Errno;

use super::{ReadRun, WriteRun};

/// A device that takes nothing.
#[derive(Debug)]
pub struct NoDevice;

impl NoDevice {
    pub(super) fn write_runs(&self, runs: &mut [WriteRun<'_>]) -> usize {
        runs.iter_mut().for_each(|run| run.result = Err(Errno::NODEV));
        0
    }

    pub(super) fn read_runs(&self, runs: &mut [ReadRun<'_>]) {
        runs.iter_mut().for_each(|run| run.result = Err(Errno::NODEV));
    }
}
