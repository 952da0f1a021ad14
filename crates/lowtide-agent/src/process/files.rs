//! The settings, which only `lowtide run` writes, and the segment, which all processes of the run
//! write (`lowtide-wire`'s `segment`).

use core::ffi::CStr;
use core::sync::atomic::Ordering;

use lowtide_core::vm::{self, Whose};
use lowtide_sys::Line;
use lowtide_wire::broker::FILES;
use lowtide_wire::segment::{BROKER_FOLLOWS, MAGIC, SEALS, Segment, Settings, VERSION};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::process::broker;

struct Origin<'a> {
    path: &'a [u8],
    /// `lowtide run`'s socket; empty: none.
    broker: &'a [u8],
}

impl<'a> Origin<'a> {
    fn parse(text: &'a [u8]) -> Origin<'a> {
        let mut parts = text.splitn(2, |byte| *byte == BROKER_FOLLOWS);
        Origin { path: parts.next().unwrap_or(&[]), broker: parts.next().unwrap_or(&[]) }
    }

    fn supervisor(&self) -> Option<u32> {
        let rest = self.path.strip_prefix(b"/proc/")?;
        core::str::from_utf8(rest.split(|byte| *byte == b'/').next()?).ok()?.parse().ok()
    }

    fn ask(&self) -> Option<(OwnedFd, OwnedFd)> {
        let connection = broker::connect_to(self.broker, self.supervisor()?).ok()?;
        let [settings, segment] = connection.ask(FILES, None).ok()?.into_inner().ok()?;
        Some((settings, segment))
    }
}

pub struct Files {
    pub settings: &'static Settings,
    pub segment: &'static Segment,
    pub by_number: bool,
}

/// None: unavailable, not files of a run, or another version.
pub fn map(origin: &[u8]) -> Option<Files> {
    let origin = Origin::parse(origin);
    let mut path = Line::new();
    let path = CStr::from_bytes_with_nul(path.push(origin.path).push(b"\0").bytes()).ok()?;
    let Some(settings) = open(path, OFlags::RDONLY) else {
        let (settings, segment) = origin.ask()?;
        return map_open(&settings, &segment);
    };
    let settings = map_settings(&settings)?;
    let segment = open(CStr::from_bytes_until_nul(&settings.segment).ok()?, OFlags::RDWR)?;
    Some(Files { settings, segment: map_segment(&segment)?, by_number: origin.supervisor() == Some(settings.supervisor) })
}

pub fn map_open(settings: &OwnedFd, segment: &OwnedFd) -> Option<Files> {
    Some(Files { settings: map_settings(settings)?, segment: map_segment(segment)?, by_number: false })
}

fn open(path: &CStr, access: OFlags) -> Option<OwnedFd> {
    rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty()).ok()
}

fn map_settings(file: &OwnedFd) -> Option<&'static Settings> {
    // Without seals any process could have made and changed it.
    if !rustix::fs::fcntl_get_seals(file).ok()?.contains(SEALS) {
        return None;
    }
    let at: *const Settings = map_file(file, Settings::SIZE, ProtFlags::READ)?.cast();
    // SAFETY: all bytes are valid Settings; the seals fix the length and leave only `lowtide run`
    // able to write: atomics, and descriptions as `SwapArea::rewrite` allows.
    let settings = unsafe { &*at };
    (settings.magic == MAGIC && settings.version == VERSION).then_some(settings)
}

fn map_segment(file: &OwnedFd) -> Option<&'static Segment> {
    let at: *const Segment = map_file(file, Segment::SIZE, ProtFlags::READ | ProtFlags::WRITE)?.cast();
    // SAFETY: all bytes are a valid Segment of atomics; `lowtide run`, whose settings name the
    // file, has sealed its length.
    let segment = unsafe { &*at };
    // Acquire: pairs with the Release of `lowtide run`'s last write
    // (`supervisor/shared_memory.rs`).
    (segment.magic.load(Ordering::Acquire) == MAGIC).then_some(segment)
}

fn map_file(file: &OwnedFd, len: usize, prot: ProtFlags) -> Option<*mut u8> {
    if (rustix::fs::fstat(file).ok()?.st_size as usize) < len {
        return None;
    }
    // SAFETY: a new mapping at the kernel's choice.
    let at = unsafe { rustix::mm::mmap(core::ptr::null_mut(), len, prot, MapFlags::SHARED, file, 0) }.ok()?;
    vm::own(at as usize, at as usize + len, Whose::Lowtide).ok()?;
    Some(at.cast())
}
