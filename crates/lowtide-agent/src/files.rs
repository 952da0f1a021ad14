//! The two files of a run, mapped: the settings, which only `lowtide run` can write, and the segment, which every process of
//! the run can (see the pager's `segment`).

use core::ffi::CStr;
use core::sync::atomic::Ordering;

use lowtide_core::vm::{self, Whose};
use lowtide_pager::segment::{BROKER_FOLLOWS, MAGIC, SEALS, Segment, Settings, VERSION};
use lowtide_pager::sys::Line;
use lowtide_pager::sys::broker::FILES;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::broker;

/// Where the files of the run are to be had, as the environment says.
struct Origin<'a> {
    /// Of the settings.
    path: &'a [u8],
    /// The name of the socket of `lowtide run`; empty: there is none.
    broker: &'a [u8],
}

impl<'a> Origin<'a> {
    fn parse(text: &'a [u8]) -> Origin<'a> {
        let mut parts = text.splitn(2, |byte| *byte == BROKER_FOLLOWS);
        Origin { path: parts.next().unwrap_or(&[]), broker: parts.next().unwrap_or(&[]) }
    }

    /// Whose descriptor the path names: the pid of `lowtide run`.
    fn supervisor(&self) -> Option<u32> {
        let rest = self.path.strip_prefix(b"/proc/")?;
        core::str::from_utf8(rest.split(|byte| *byte == b'/').next()?).ok()?.parse().ok()
    }

    /// The settings and the segment, from `lowtide run` itself.
    fn ask(&self) -> Option<(OwnedFd, OwnedFd)> {
        let connection = broker::connect_to(self.broker, self.supervisor()?).ok()?;
        let [settings, segment] = connection.ask(FILES, None).ok()?.into_inner().ok()?;
        Some((settings, segment))
    }
}

/// Both, mapped.
pub struct Files {
    pub settings: &'static Settings,
    pub segment: &'static Segment,
    /// They were found by the number of `lowtide run` in /proc.
    pub by_number: bool,
}

/// Maps both. `origin`: what the environment says. None: they can't be had, or these are not files of a run, or not of this
/// version.
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

/// Maps both, which are open. None: as for [`map`].
pub fn map_open(settings: &OwnedFd, segment: &OwnedFd) -> Option<Files> {
    Some(Files { settings: map_settings(settings)?, segment: map_segment(segment)?, by_number: false })
}

fn open(path: &CStr, access: OFlags) -> Option<OwnedFd> {
    rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty()).ok()
}

fn map_settings(file: &OwnedFd) -> Option<&'static Settings> {
    // Without the seals it is a file that others can change, made by nobody knows whom.
    if !rustix::fs::fcntl_get_seals(file).ok()?.contains(SEALS) {
        return None;
    }
    let at: *const Settings = map_file(file, Settings::SIZE, ProtFlags::READ)?.cast();
    // SAFETY: all bytes are valid Settings; the seals keep the file as long and its bytes, but for the atomics, as they are.
    let settings = unsafe { &*at };
    (settings.magic == MAGIC && settings.version == VERSION).then_some(settings)
}

fn map_segment(file: &OwnedFd) -> Option<&'static Segment> {
    let at: *const Segment = map_file(file, Segment::SIZE, ProtFlags::READ | ProtFlags::WRITE)?.cast();
    // SAFETY: all bytes are valid for a Segment, whose fields are atomics; `lowtide run`, whose settings name the file, has
    // sealed its length.
    let segment = unsafe { &*at };
    // Acquire: pairs with the Release with which `lowtide run` writes it, last of all (`supervisor/shared_memory.rs`).
    (segment.magic.load(Ordering::Acquire) == MAGIC).then_some(segment)
}

/// Maps a whole file, for as long as the process lives, as lowtide's own memory.
fn map_file(file: &OwnedFd, len: usize, prot: ProtFlags) -> Option<*mut u8> {
    if (rustix::fs::fstat(file).ok()?.st_size as usize) < len {
        return None;
    }
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { rustix::mm::mmap(core::ptr::null_mut(), len, prot, MapFlags::SHARED, file, 0) }.ok()?;
    vm::own(at as usize, at as usize + len, Whose::Lowtide).ok()?;
    Some(at.cast())
}
