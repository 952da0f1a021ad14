//! Where the bytes of an area's slots go: a file or block device (`file.rs`), or a server in the network (`remote.rs`). What is
//! written there is sealed (`seal.rs`). Slots are numbered by their offset in the area, in pages. No lock may be held across a
//! call that reads or writes.

mod bounce;
pub mod channel;
#[cfg(any(test, feature = "faults"))]
mod faulty;
mod file;
mod objects;
mod remote;
mod rotational;
mod seal;
mod transfer;
mod uring;
pub mod wire;

use rustix::io::Errno;

use crate::vm::Page;

pub use file::FileDevice;
pub use objects::is_length;
pub use remote::{Opener, RemoteDevice};
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

impl DeviceName {
    /// What those of servers begin with, without TLS and with it.
    const SERVERS: [&str; 2] = ["redis://", "rediss://"];

    /// Of a server, as the user has written it.
    pub fn of_server(spec: &'static [u8], number: u8) -> DeviceName {
        let rest = |kind: &'static str| spec.strip_prefix(kind.as_bytes()).map(|path| DeviceName { kind, path, number });
        Self::SERVERS.into_iter().find_map(rest).unwrap_or(DeviceName { kind: Self::SERVERS[0], path: spec, number })
    }

    /// Whether it is a server's.
    pub fn is_server(&self) -> bool {
        Self::SERVERS.contains(&self.kind)
    }
}

/// One of the two copies of a page that is on servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhichCopy {
    /// The one that is read, as long as it can be.
    First,
    /// The other one.
    Second,
}

/// How it went to open a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opened {
    /// What came is not what was written.
    No,
    /// It is.
    Yes,
    /// Another copy is; this one came and is not, if that is known.
    ByOther(Option<WhichCopy>),
}

/// A device of either kind.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // there are a few of them in a process
pub enum Device {
    /// A file or block device.
    File(FileDevice),
    /// A server in the network.
    Remote(RemoteDevice),
}

impl Device {
    /// What the user calls it.
    pub fn name(&self) -> DeviceName {
        match self {
            Device::File(file) => file.name(),
            Device::Remote(remote) => remote.name(),
        }
    }

    /// The file, if it is one.
    pub fn file(&self) -> Option<&FileDevice> {
        match self {
            Device::File(file) => Some(file),
            Device::Remote(_) => None,
        }
    }

    /// Seals and writes runs of pages; each run gets its own result. Returns with how many I/Os.
    pub fn write_runs(&self, runs: &mut [WriteRun<'_>]) -> usize {
        match self {
            Device::File(file) => file.write_runs(runs),
            Device::Remote(remote) => remote.write_runs(runs),
        }
    }

    /// The same, of pages that may be changed by it.
    pub fn write_in_place(&self, runs: &mut [SealRun<'_>]) {
        match self {
            Device::File(file) => file.write_in_place(runs),
            Device::Remote(remote) => remote.write_in_place(runs),
        }
    }

    /// Reads runs of sealed pages; each run gets its own result, and each page is then to be opened.
    pub fn read_runs(&self, runs: &mut [ReadRun<'_>]) {
        match self {
            Device::File(file) => file.read_runs(runs),
            Device::Remote(remote) => remote.read_runs(runs),
        }
    }

    /// Makes a page that was read from `slot` what was written there, in place. False: it is not the page that got this tag
    /// when it was written to this slot of this device; `page` then holds garbage.
    #[must_use]
    pub fn open(&self, slot: u64, tag: Tag, page: &mut Page) -> bool {
        match self {
            Device::File(file) => file.open(slot, tag, page),
            Device::Remote(remote) => remote.open(slot, tag, page),
        }
    }

    /// The same, of other copies of a page, which are read, where what came could not be opened.
    ///
    /// # Errors
    /// A copy can't be had, `TIMEDOUT` where it was waited for, and none that can is what was written.
    pub fn open_other(&self, slot: u64, tag: Tag, page: &mut Page) -> Result<Opened, Errno> {
        match self {
            Device::File(_) => Ok(Opened::No),
            Device::Remote(remote) => remote.open_other(slot, tag, page),
        }
    }

    /// A copy of a page is not what was written there, which [`Device::open_other`] has found, and the page is still there: the
    /// user is told.
    pub fn report_wrong(&self, slot: u64, copy: WhichCopy) {
        if let Device::Remote(remote) = self {
            remote.report_wrong(slot, copy);
        }
    }

    /// The tag that `page` would get in `slot`: a page has one tag in a slot, and no other page has it.
    pub fn tag(&self, slot: u64, page: &Page) -> Tag {
        match self {
            Device::File(file) => file.tag(slot, page),
            Device::Remote(remote) => remote.tag(slot, page),
        }
    }

    /// Gives the space of `n` slots from `slot` on back; what they held is gone.
    ///
    /// # Errors
    /// What the device says.
    pub fn discard(&self, slot: u64, n: u64) -> Result<(), Errno> {
        match self {
            Device::File(file) => file.discard(slot, n),
            Device::Remote(remote) => remote.discard(slot, n),
        }
    }
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
