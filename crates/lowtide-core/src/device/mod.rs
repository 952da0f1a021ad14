//! Where the bytes of an area's slots go.

mod file;
mod none;

use rustix::io::Errno;

use crate::store::Page;

pub use file::FileDevice;
pub use none::NoDevice;

/// A device. Slots are numbered by their offset in the area, in pages. No lock may be held across a call.
#[derive(Debug)]
pub enum Device {
    /// RAM only.
    None(NoDevice),
    /// A file.
    File(FileDevice),
}

impl Device {
    /// Whether slots can have bytes on the device at all.
    pub fn takes_pages(&self) -> bool {
        matches!(self, Device::File(_))
    }

    /// Writes pages to consecutive slots from `slot` on: one operation unless the kernel cuts it short.
    ///
    /// # Errors
    /// What the kernel says; any part may then have been written.
    pub fn write_run(&self, slot: u64, pages: &[&Page]) -> Result<(), Errno> {
        match self {
            Device::None(d) => d.write_run(slot, pages),
            Device::File(d) => d.write_run(slot, pages),
        }
    }

    /// Gives the space of `n` slots from `slot` on back to the file system; they read as zeros then.
    ///
    /// # Errors
    /// What the kernel says, `NODEV` without a device.
    pub fn discard(&self, slot: u64, n: u64) -> Result<(), Errno> {
        match self {
            Device::None(_) => Err(Errno::NODEV),
            Device::File(d) => d.discard(slot, n),
        }
    }

    /// Reads consecutive slots from `slot` on: one operation unless the kernel cuts it short.
    ///
    /// # Errors
    /// What the kernel says, or `IO` beyond the end of the device; `into` then holds garbage.
    pub fn read_run(&self, slot: u64, into: &mut [Page]) -> Result<(), Errno> {
        match self {
            Device::None(d) => d.read_run(slot, into),
            Device::File(d) => d.read_run(slot, into),
        }
    }
}
