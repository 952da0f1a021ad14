//! The two memfds of a run: the agent's file and the segment. Both close on exec, so only this process holds them; the program
//! reaches them through `/proc/PID/fd`, and nothing is left of them when it ends.

use crate::error::Failure;
use crate::plan::Plan;
use crate::probe;
use crate::swap_spec::{Swap, Where};
use lowtide_pager::segment::{self, Segment, SwapArea};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;

/// The agent, built by build.rs.
static AGENT: &[u8] = include_bytes!(env!("LOWTIDE_AGENT_SO"));

/// What the processes of a run share.
pub struct Shared {
    agent: OwnedFd,
    segment_file: OwnedFd,
    segment: &'static Segment,
    /// The value that LD_PRELOAD begins with.
    pub preload: String,
    /// The value of LOWTIDE_SEGMENT.
    pub segment_path: String,
}

impl Shared {
    /// Makes both files and writes the settings.
    pub fn new(plan: &Plan) -> Result<Shared, Failure> {
        let pid = std::process::id();
        if std::fs::read_link("/proc/self").ok().as_deref() != Some(Path::new(&pid.to_string())) {
            return Err(Failure::failed(
                "/proc is missing or belongs to other processes: mount it (`mount -t proc proc /proc`)",
            ));
        }
        Self::make(plan, pid)
            .map_err(|error| Failure::failed(format!("can't make the shared memory of the run ({})", probe::text(error))))
    }

    fn make(plan: &Plan, pid: u32) -> Result<Shared, Errno> {
        let agent = memfd(c"lowtide-agent")?;
        let mut rest = AGENT;
        while !rest.is_empty() {
            let n = rustix::io::retry_on_intr(|| rustix::io::write(&agent, rest))?;
            rest = &rest[n..];
        }
        let fixed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&agent, fixed | SealFlags::WRITE)?;

        let segment_file = memfd(c"lowtide-run")?;
        rustix::fs::ftruncate(&segment_file, Segment::SIZE as u64)?;
        rustix::fs::fcntl_add_seals(&segment_file, fixed)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), Segment::SIZE, prot, MapFlags::SHARED, &segment_file, 0)? };
        let at: *mut Segment = at.cast();

        let path = |fd: BorrowedFd<'_>| format!("/proc/{pid}/fd/{}", fd.as_raw_fd());
        let (preload, segment_path) = (path(agent.as_fd()), path(segment_file.as_fd()));
        // SAFETY: the mapping is as large as a Segment, page-aligned, all zero, which is a valid Segment, and nobody else knows it
        // before the program starts.
        let to = unsafe { &mut *at };
        to.version = segment::VERSION;
        to.supervisor = pid;
        let settings = &mut to.settings;
        *settings.ram_limit.get_mut() = plan.ram;
        *settings.pool_limit.get_mut() = plan.pool;
        settings.codec = plan.codec;
        settings.codec_level = plan.codec_level;
        settings.when_full = plan.when_full;
        settings.verbose = u32::from(plan.verbose);
        for (swap, area) in plan.swap.iter().zip(&mut settings.swap) {
            describe(swap, area, path)?;
        }
        put(&mut settings.preload, preload.as_bytes())?;
        to.magic.store(segment::MAGIC, Ordering::Release);

        // SAFETY: as above; the mapping stays until this process ends, and from here on only atomics are written.
        let segment = unsafe { &*at };
        Ok(Shared { agent, segment_file, segment, preload, segment_path })
    }

    /// The segment.
    pub fn segment(&self) -> &'static Segment {
        self.segment
    }

    /// Resident bytes of both files.
    pub fn resident(&self) -> u64 {
        let of = |fd: &OwnedFd| rustix::fs::fstat(fd).map_or(0, |stat| stat.st_blocks as u64 * 512);
        of(&self.agent) + of(&self.segment_file)
    }
}

/// Writes down a swap area. `path`: where agents find what this process has open.
fn describe(swap: &Swap, area: &mut SwapArea, path: impl Fn(BorrowedFd<'_>) -> String) -> Result<(), Errno> {
    (area.size, area.prio, area.discard) = (swap.size, swap.prio, swap.discard.into());
    match &swap.place {
        Where::Dir(dir) => {
            area.kind = segment::SWAP_DIR;
            put(&mut area.dir, dir.as_os_str().as_bytes())
        }
        Where::File(file) => {
            area.kind = segment::SWAP_FILE;
            put(&mut area.file, path(file.file.as_fd()).as_bytes())?;
            let name = file.path.as_os_str().as_bytes();
            // Of a long one the end, as in messages.
            let cut = name.len().saturating_sub(area.file_name.len() - 1);
            put(&mut area.file_name, &name[cut..])?;
            if !file.is_device {
                let dir = file.path.parent().ok_or(Errno::INVAL)?;
                put(&mut area.dir, dir.as_os_str().as_bytes())?;
            }
            Ok(())
        }
    }
}

/// A memfd that closes on exec and whose file can't be executed; mapping it as code stays possible, whatever vm.memfd_noexec says.
fn memfd(name: &std::ffi::CStr) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        other => other,
    }
}

/// Copies `text` into a field that ends with a NUL.
fn put(field: &mut [u8], text: &[u8]) -> Result<(), Errno> {
    if text.len() >= field.len() {
        return Err(Errno::NAMETOOLONG);
    }
    field[..text.len()].copy_from_slice(text);
    Ok(())
}
