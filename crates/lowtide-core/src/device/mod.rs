//! Devices of areas: a file or block device (`file.rs`), or a server (`remote.rs`), with sealed
//! data (`seal.rs`). Slots are numbered by their offset in the area, in pages. No lock may be held
//! across a call that reads or writes.

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

/// The user's SPEC of a device, as in `dir:/var/tmp`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceName {
    /// With the colon; empty for an area without a device.
    pub kind: &'static str,
    /// The rest: a path.
    pub path: &'static [u8],
    /// Its swap area in the run, from 0.
    pub number: u8,
}

impl DeviceName {
    /// URL schemes of servers, without and with TLS.
    const SERVERS: [&str; 2] = ["redis://", "rediss://"];

    /// The name of a server.
    pub fn of_server(spec: &'static [u8], number: u8) -> DeviceName {
        let rest = |kind: &'static str| spec.strip_prefix(kind.as_bytes()).map(|path| DeviceName { kind, path, number });
        Self::SERVERS.into_iter().find_map(rest).unwrap_or(DeviceName { kind: Self::SERVERS[0], path: spec, number })
    }

    /// Whether it is a server's.
    pub fn is_server(&self) -> bool {
        Self::SERVERS.contains(&self.kind)
    }
}

/// One of the two copies of a page on servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhichCopy {
    /// The copy that is read while possible.
    First,
    /// The other one.
    Second,
}

/// Outcome of opening a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opened {
    /// The data is wrong.
    No,
    /// The data is right.
    Yes,
    /// Another copy is right; the wrong one, if known.
    ByOther(Option<WhichCopy>),
}

/// A device.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // there are a few of them in a process
pub enum Device {
    /// A file or block device.
    File(FileDevice),
    /// A server in the network.
    Remote(RemoteDevice),
}

impl Device {
    /// The user's name for it.
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

    /// Seals and writes runs of pages, each with its own result. Returns the number of I/Os.
    pub fn write_runs(&self, runs: &mut [WriteRun<'_>]) -> usize {
        match self {
            Device::File(file) => file.write_runs(runs),
            Device::Remote(remote) => remote.write_runs(runs),
        }
    }

    /// The same; it may change the pages.
    pub fn write_in_place(&self, runs: &mut [SealRun<'_>]) {
        match self {
            Device::File(file) => file.write_in_place(runs),
            Device::Remote(remote) => remote.write_in_place(runs),
        }
    }

    /// Reads runs of sealed pages, each with its own result. The caller opens them.
    pub fn read_runs(&self, runs: &mut [ReadRun<'_>]) {
        match self {
            Device::File(file) => file.read_runs(runs),
            Device::Remote(remote) => remote.read_runs(runs),
        }
    }

    /// Opens a page read from `slot`, in place. False: it is not the page of this tag there; `page`
    /// holds garbage.
    #[must_use]
    pub fn open(&self, slot: u64, tag: Tag, page: &mut Page) -> bool {
        match self {
            Device::File(file) => file.open(slot, tag, page),
            Device::Remote(remote) => remote.open(slot, tag, page),
        }
    }

    /// Reads and opens other copies of a page that could not be opened.
    ///
    /// # Errors
    /// Some copy is unavailable (`TIMEDOUT` after a wait), and no available one is right.
    pub fn open_other(&self, slot: u64, tag: Tag, page: &mut Page) -> Result<Opened, Errno> {
        match self {
            Device::File(_) => Ok(Opened::No),
            Device::Remote(remote) => remote.open_other(slot, tag, page),
        }
    }

    /// Tells the user of a wrong copy, found by [`Device::open_other`], while the slot still has
    /// that page.
    pub fn report_wrong(&self, slot: u64, copy: WhichCopy) {
        if let Device::Remote(remote) = self {
            remote.report_wrong(slot, copy);
        }
    }

    /// The tag of `page` in `slot`; no other page has it there.
    pub fn tag(&self, slot: u64, page: &Page) -> Tag {
        match self {
            Device::File(file) => file.tag(slot, page),
            Device::Remote(remote) => remote.tag(slot, page),
        }
    }

    /// Gives the space of `n` slots from `slot` on back.
    ///
    /// # Errors
    /// The device's.
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
    /// Receives the pages' tags.
    pub tags: &'a mut [Tag],
    /// After an error any part may have been written.
    pub result: Result<(), Errno>,
}

/// Pages to write to consecutive slots; the device may change them.
#[derive(Debug)]
pub struct SealRun<'a> {
    /// The first slot.
    pub slot: u64,
    /// The pages, page-aligned; sealed afterwards.
    pub pages: &'a mut [Page],
    /// Receives the pages' tags.
    pub tags: &'a mut [Tag],
    /// After an error any part may have been written.
    pub result: Result<(), Errno>,
}

/// Pages to read from consecutive slots.
#[derive(Debug)]
pub struct ReadRun<'a> {
    /// The first slot.
    pub slot: u64,
    /// Receives the sealed pages. Faster when page-aligned.
    pub into: &'a mut [Page],
    /// The kernel's error, or `IO` beyond the device's end; `into` holds garbage.
    pub result: Result<(), Errno>,
}
