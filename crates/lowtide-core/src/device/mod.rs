//! Where the bytes of an area's slots go. What is written there is sealed (`seal.rs`); transfers are page-aligned, so that they
//! can go past the kernel's page cache.

mod bounce;
#[cfg(any(test, feature = "faults"))]
mod faulty;
mod file;
mod none;
mod rotational;
mod seal;
mod transfer;
mod uring;

use rustix::io::Errno;

use crate::vm::Page;

pub use file::FileDevice;
pub use none::NoDevice;
pub use rotational::is_rotational;
pub use seal::{TAG_BITS, Tag};

/// A device. Slots are numbered by their offset in the area, in pages. No lock may be held across a call that reads or writes.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // there are few, and one without a file
pub enum Device {
    /// RAM only.
    None(NoDevice),
    /// A file.
    File(FileDevice),
}

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
    /// As long as `pages`: receives the tags of the sealed pages, which [`Device::open`] needs.
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
    /// As long as `pages`: receives the tags of the sealed pages, which [`Device::open`] needs.
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

impl Device {
    /// Whether slots can have bytes on the device at all.
    pub fn takes_pages(&self) -> bool {
        matches!(self, Device::File(_))
    }

    /// The device's name.
    pub fn name(&self) -> DeviceName {
        match self {
            Device::None(_) => DeviceName::default(),
            Device::File(d) => d.name(),
        }
    }

    /// Seals and writes runs of pages; each run gets its own result. Returns with how many I/Os (as far as the kernel does not
    /// split them): one for each run, and for each buffer that a long one fills.
    pub fn write_runs(&self, runs: &mut [WriteRun<'_>]) -> usize {
        match self {
            Device::None(d) => d.write_runs(runs),
            Device::File(d) => d.write_runs(runs),
        }
    }

    /// Seals runs of pages where they are and writes each with one I/O; each run gets its own result.
    pub fn write_in_place(&self, runs: &mut [SealRun<'_>]) {
        match self {
            Device::None(_) => runs.iter_mut().for_each(|run| run.result = Err(Errno::NODEV)),
            Device::File(d) => d.write_in_place(runs),
        }
    }

    /// Reads runs of sealed pages; each run gets its own result, and each page is then to be opened.
    pub fn read_runs(&self, runs: &mut [ReadRun<'_>]) {
        match self {
            Device::None(d) => d.read_runs(runs),
            Device::File(d) => d.read_runs(runs),
        }
    }

    /// Makes a page that was read from `slot` what was written there, in place. False: it is not the page that got this tag
    /// when it was written to this slot of this device; `page` then holds garbage.
    #[must_use]
    pub fn open(&self, slot: u64, tag: Tag, page: &mut Page) -> bool {
        match self {
            Device::None(_) => false,
            Device::File(d) => d.open(slot, tag, page),
        }
    }

    /// The tag that `page` would get in `slot`: a page has one tag in a slot, and no other page has it. `None` without a
    /// device.
    pub fn tag(&self, slot: u64, page: &Page) -> Option<Tag> {
        match self {
            Device::None(_) => None,
            Device::File(d) => Some(d.tag(slot, page)),
        }
    }

    /// Gives the space of `n` slots from `slot` on, except slot 0, back to the file system; what they held is gone.
    ///
    /// # Errors
    /// What the kernel says, `NODEV` without a device.
    pub fn discard(&self, slot: u64, n: u64) -> Result<(), Errno> {
        crate::lock::assert_holds_none();
        match self {
            Device::None(_) => Err(Errno::NODEV),
            Device::File(d) => d.discard(slot, n),
        }
    }
}
