//! The memfds of a run: the agent's file, the settings and the segment. They close on exec, so only
//! this process holds them; the program reaches them through `/proc/PID/fd`, and they vanish with
//! this process. The first two are sealed: no privilege can change what all processes of the run
//! load and obey.

use crate::error::Failure;
use crate::plan::Plan;
use crate::swap::area::{Swap, Where};
use lowtide_config::reason;
use lowtide_core::codec::Codec;
use lowtide_wire::segment::{self, AreaSpec, FileId, Phase, Segment, Settings, transient};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::{Errno, FdFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;

pub static AGENT: &[u8] = include_bytes!(env!("LOWTIDE_AGENT_SO"));

pub struct Shared {
    agent: OwnedFd,
    settings_file: OwnedFd,
    settings: &'static Settings,
    segment_file: OwnedFd,
    segment: &'static Segment,
    /// The first entry of LD_PRELOAD.
    pub preload: String,
    pub origin: String,
}

impl Shared {
    /// Makes the files and writes the settings. `broker`: the socket's name, for processes that
    /// can't follow the paths.
    pub fn new(plan: &Plan, broker: &str) -> Result<Shared, Failure> {
        let pid = std::process::id();
        if std::fs::read_link("/proc/self").ok().as_deref() != Some(Path::new(&pid.to_string())) {
            return Err(Failure::failed(
                "/proc is missing or belongs to other processes: mount it (`mount -t proc proc /proc`)",
            ));
        }
        Self::make(plan, broker, pid)
            .map_err(|error| Failure::failed(format!("can't make the shared memory of the run ({})", reason(error))))
    }

    fn make(plan: &Plan, broker: &str, pid: u32) -> Result<Shared, Errno> {
        let agent = memfd(c"lowtide-agent")?;
        let mut rest = AGENT;
        while !rest.is_empty() {
            let n = rustix::io::retry_on_intr(|| rustix::io::write(&agent, rest))?;
            rest = &rest[n..];
        }
        let fixed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        // Without mappings, FUTURE_WRITE prevents all writes. (F_SEAL_WRITE fails with EBUSY while
        // the kernel holds a page of the file.)
        rustix::fs::fcntl_add_seals(&agent, fixed | SealFlags::FUTURE_WRITE)?;

        let (segment_file, segment) = mapped(c"lowtide-run", Segment::SIZE, fixed)?;
        // SAFETY: the mapping is page-aligned, as large as a Segment, all zero, which is a valid
        // Segment, and lasts until this process ends; all fields are atomics.
        let segment: &Segment = unsafe { &*segment.cast() };
        segment.magic.store(segment::MAGIC, Ordering::Release);

        let (settings_file, settings) = mapped(c"lowtide-settings", Settings::SIZE, segment::SEALS)?;
        let path = |fd: BorrowedFd<'_>| path(pid, fd);
        let (preload, settings_path) = (path(agent.as_fd()), path(settings_file.as_fd()));
        // SAFETY: the mapping is page-aligned, as large as Settings, all zero, which is valid, and
        // no other code has it before the program starts.
        let to: &mut Settings = unsafe { &mut *settings.cast() };
        (to.version, to.supervisor) = (segment::VERSION, pid);
        *to.ram_limit.get_mut() = plan.ram;
        *to.ram_ceiling.get_mut() = plan.ram;
        *to.pool_limit.get_mut() = plan.pool;
        to.pool_is_given = plan.pool_given.is_some().into();
        (to.codec, to.codec_level) = match plan.codec {
            Codec::Lz4 => (segment::CODEC_LZ4, 0),
            Codec::Zstd(level) => (segment::CODEC_ZSTD, level),
        };
        (to.faults, to.tells_changes) = (plan.faults, plan.tells_changes.into());
        (to.when_full, to.verbose) = (plan.when_full, plan.verbose.into());
        (to.slots, to.folio_order) = (plan.slots.slots, plan.slots.folio_order);
        for (swap, area) in plan.swap.iter().zip(&to.swap) {
            // SAFETY: the area has never been on.
            unsafe { area.rewrite(&describe(swap, path)?) };
            area.give(Phase::On);
        }
        put(&mut to.preload, preload.as_bytes())?;
        let stat = rustix::fs::fstat(&agent)?;
        to.agent = FileId { device: stat.st_dev, inode: stat.st_ino };
        let stat = rustix::fs::stat(c"/proc/self/ns/pid")?;
        to.pid_namespace = FileId { device: stat.st_dev, inode: stat.st_ino };
        put(&mut to.broker, broker.as_bytes())?;
        put(&mut to.segment, path(segment_file.as_fd()).as_bytes())?;
        to.magic = segment::MAGIC;

        // SAFETY: as above; the mapping lasts until this process ends, and from here on only its
        // atomics are written, and descriptions by `SwapArea::rewrite`.
        let settings = unsafe { &*settings.cast() };
        let follows = char::from(segment::BROKER_FOLLOWS);
        let origin = if broker.is_empty() { settings_path } else { format!("{settings_path}{follows}{broker}") };
        Ok(Shared { agent, settings_file, settings, segment_file, segment, preload, origin })
    }

    pub fn settings(&self) -> &'static Settings {
        self.settings
    }

    pub fn segment(&self) -> &'static Segment {
        self.segment
    }

    pub fn library(&self) -> BorrowedFd<'_> {
        self.agent.as_fd()
    }

    /// A descriptor of the agent's file that survives exec, and its entry for LD_PRELOAD.
    ///
    /// # Errors
    /// Those of duplicating a descriptor.
    pub fn open_library(&self) -> Result<(OwnedFd, String), Errno> {
        let library = stays_open(self.agent.as_fd())?;
        let entry = format!("{}{}", transient::PREFIX, library.as_raw_fd());
        Ok((library, entry))
    }

    /// Descriptors of [`Shared::files`] that survive exec.
    ///
    /// # Errors
    /// Those of duplicating a descriptor.
    pub fn open_files(&self) -> Result<[OwnedFd; 2], Errno> {
        let [settings, segment] = self.files();
        Ok([stays_open(settings)?, stays_open(segment)?])
    }

    /// The files of the settings and of the segment.
    pub fn files(&self) -> [BorrowedFd<'_>; 2] {
        [self.settings_file.as_fd(), self.segment_file.as_fd()]
    }

    /// Describes a swap area to the run's processes.
    ///
    /// # Errors
    /// `NAMETOOLONG`: its path is.
    pub fn describe(&self, swap: &Swap) -> Result<AreaSpec, Errno> {
        describe(swap, |fd| path(std::process::id(), fd))
    }

    /// Opens the named file of a swap area once more.
    ///
    /// # Errors
    /// Those of open; `NOENT`: that area has none.
    pub fn open_swap_file(&self, number: usize) -> Result<OwnedFd, Errno> {
        let area = self.settings.swap.get(number).filter(|area| area.is_on()).ok_or(Errno::NOENT)?;
        let path = CStr::from_bytes_until_nul(&area.spec().file).map_err(|_| Errno::NOENT)?;
        rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
    }

    pub fn resident(&self) -> u64 {
        let of = |fd: &OwnedFd| rustix::fs::fstat(fd).map_or(0, |stat| stat.st_blocks as u64 * 512);
        of(&self.agent) + of(&self.settings_file) + of(&self.segment_file)
    }
}

/// Duplicates without close-on-exec, to a number that programs do not expect to be free.
fn stays_open(file: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let open = |first| rustix::io::fcntl_dupfd_cloexec(file, first);
    let file = open(transient::FIRST).or_else(|_| open(0))?;
    rustix::io::fcntl_setfd(&file, FdFlags::empty())?;
    Ok(file)
}

/// The path of this process's (`pid`) descriptor for other processes.
fn path(pid: u32, fd: BorrowedFd<'_>) -> String {
    format!("/proc/{pid}/fd/{}", fd.as_raw_fd())
}

/// `path`: maps a descriptor of this process to its path in other processes.
fn describe(swap: &Swap, path: impl Fn(BorrowedFd<'_>) -> String) -> Result<AreaSpec, Errno> {
    let mut area = AreaSpec::default();
    (area.size, area.prio, area.discard) = (swap.size, swap.prio, swap.discard.into());
    area.rotating = swap.rotating.into();
    match &swap.place {
        Where::Dir(dir) => {
            area.kind = segment::SWAP_DIR;
            put(&mut area.dir, dir.as_os_str().as_bytes())?;
        }
        Where::File(file) => {
            area.kind = segment::SWAP_FILE;
            put(&mut area.file, path(file.file.as_fd()).as_bytes())?;
            let name = file.path.as_os_str().as_bytes();
            // Keeps the end of a long name, as messages do.
            let cut = name.len().saturating_sub(area.name.len() - 1);
            put(&mut area.name, &name[cut..])?;
            if !file.is_device {
                let dir = file.path.parent().ok_or(Errno::INVAL)?;
                put(&mut area.dir, dir.as_os_str().as_bytes())?;
            }
        }
        Where::Remote(relay) => {
            area.kind = segment::SWAP_REMOTE;
            put(&mut area.file, relay.name.as_bytes())?;
            put(&mut area.name, relay.server.to_string().as_bytes())?;
        }
    }
    Ok(area)
}

/// A memfd that closes on exec and can't be executed; vm.memfd_noexec does not affect mapping it as
/// code.
fn memfd(name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        other => other,
    }
}

/// A zeroed memfd of this size, mapped writable and then sealed.
fn mapped(name: &CStr, size: usize, seals: SealFlags) -> Result<(OwnedFd, *mut u8), Errno> {
    let file = memfd(name)?;
    rustix::fs::ftruncate(&file, size as u64)?;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), size, prot, MapFlags::SHARED, &file, 0)? };
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok((file, at.cast()))
}

/// Copies `text` into a NUL-terminated field.
fn put(field: &mut [u8], text: &[u8]) -> Result<(), Errno> {
    if text.len() >= field.len() {
        return Err(Errno::NAMETOOLONG);
    }
    field[..text.len()].copy_from_slice(text);
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn segment() -> Box<Segment> {
        let layout = std::alloc::Layout::new::<Segment>();
        // SAFETY: zeros are a valid Segment, and the global allocator's memory has this layout.
        unsafe { Box::from_raw(std::alloc::alloc_zeroed(layout).cast()) }
    }
}
