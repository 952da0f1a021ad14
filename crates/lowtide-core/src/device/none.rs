//! The device of an area that lives in RAM only: its slots are names for objects in the pool, without bytes behind them.

use rustix::io::Errno;

use crate::store::Page;

/// A device that takes nothing.
#[derive(Debug)]
pub struct NoDevice;

impl NoDevice {
    pub(super) fn write_run(&self, _slot: u64, _pages: &[&Page]) -> Result<(), Errno> {
        Err(Errno::NODEV)
    }

    pub(super) fn read_run(&self, _slot: u64, _into: &mut [Page]) -> Result<(), Errno> {
        Err(Errno::NODEV)
    }
}
