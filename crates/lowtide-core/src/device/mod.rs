//! Where the bytes of an area's slots go: a file or block device (`file.rs`). What is written there is sealed (`seal.rs`);
//! transfers are page-aligned, so that they can go past the kernel's page cache. Slots are numbered by their offset in the
//! area, in pages. No lock may be held across a call that reads or writes.

mod bounce;
#[cfg(any(test, feature = "faults"))]
mod faulty;
mod file;
mod rotational;
mod seal;
mod transfer;
mod uring;

use rustix::io::Errno;

use crate::vm::Page;

pub use file::FileDevice;
pub use rotational::is_rotational;
pub use seal::{TAG_BITS, Tag};

/// What the user calls a device: its SPEC, as in `dir:/var/tmp`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceName {
    /// With the colon; empty for an area without a device.
    pub kind: &'static str,
    /// What follows the colon: a path.
    pub path: &'static [u8],
    /// Which of the run's swap areas it belongs to, from 0.
    pub number: u8,
}

/// Pages to write to consecutive slots.
#[derive(Debug)]
pub struct WriteRun<'a> {
    /// The first slot.
    pub slot: u64,
    /// The pages.
    pub pages: &'a [&'a Page],
    /// As long as `pages`: receives the tags of the sealed pages, which [`FileDevice::open`] needs.
    pub tags: &'a mut [Tag],
    /// How it ended. After an error any part may have been written.
    pub result: Result<(), Errno>,
}

/// Pages to write to consecutive slots, from memory that the device may change.
#[derive(Debug)]
pub struct SealRun<'a> {
    /// The first slot.
    pub slot: u64,
    /// The pages, page-aligned; sealed afterwards.
    pub pages: &'a mut [Page],
    /// As long as `pages`: receives the tags of the sealed pages, which [`FileDevice::open`] needs.
    pub tags: &'a mut [Tag],
    /// How it ended. After an error any part may have been written.
    pub result: Result<(), Errno>,
}

/// Pages to read from consecutive slots.
#[derive(Debug)]
pub struct ReadRun<'a> {
    /// The first slot.
    pub slot: u64,
    /// Receives the sealed pages. Faster when page-aligned.
    pub into: &'a mut [Page],
    /// How it ended: what the kernel said, or `IO` beyond the end of the device; `into` then holds garbage.
    pub result: Result<(), Errno>,
}
