//! The second way into a program, for programs without a loader that preloads libraries: static
//! ones such as those of Go.
//!
//! lowtide traces the program for its exec only. Before the program's first instruction it makes
//! the program map the agent's file ([`image`]) and call the agent's entry on the program's stack,
//! as glibc's loader would call a constructor. Then it detaches, and the program begins
//! ([`tracee`]).
//!
//! Such a program has no hooks for the processes that it starts: a system call filter tells of its
//! execs ([`filter`], [`notices`], [`following`]) and of calls that change memory
//! ([`memory_calls`]), and a scan finds its forked children ([`copies`]).

mod calls_under_way;
mod copies;
mod entering;
mod executed;
mod filter;
mod following;
mod held;
mod image;
mod memory_calls;
mod notices;
mod tracee;

use crate::error::Failure;
use crate::signal_fd::SignalSet;
use crate::supervisor::shared_memory::{AGENT, Shared};
use image::Image;
use linux_raw_sys::general as sys;
use lowtide_wire::segment::ENV_SEGMENT;
use rustix::fd::RawFd;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use std::sync::OnceLock;
use tracee::{Tracee, Untraced};

pub use calls_under_way::{CallsUnderWay, is_there};
pub use copies::Copies;
pub use entering::{Call, EVENT_STOP, Entering, Seen, current_call, is_executing};
pub use following::{Following, may_be_traced};
pub use held::{hold as hold_thread, let_run};

/// Prepares the run's first program, in the new process between fork and exec, as the last step:
/// its exec will stop, and no signal interferes. Async-signal-safe.
///
/// # Errors
/// Tracing is not allowed here.
pub fn prepare() -> std::io::Result<()> {
    SignalSet::all_but(&[Signal::TRAP]).set_mask();
    tracee::trace_me().map_err(|_| MAY_NOT.into())
}

/// The error of [`prepare`]; exec never returns it.
pub const MAY_NOT: Errno = Errno::CANCELED;

pub struct Agent<'a> {
    pub run: &'a Shared,
    /// The agent's file as the program finds it.
    pub path: &'a str,
    /// The program's descriptors of the settings and the segment, if it can't follow their paths.
    pub files: Option<[RawFd; 2]>,
}

/// Brings the agent into a child of the calling thread that has called [`prepare`] and executed a
/// program, and detaches. `mask`: the program's blocked signals. `following`: the receiver of its
/// execs. Does not reap a child that dies meanwhile.
///
/// # Errors
/// What failed: the program has not begun, and is killed.
pub fn enter(child: Pid, agent: &Agent<'_>, mask: &SignalSet, following: &mut Following) -> Result<(), Failure> {
    match Tracee::of_mine(child).and_then(|tracee| bring(tracee, agent, Some(mask), Some(following))) {
        // The wait for the child reports its death.
        Ok(()) | Err(Untraced::Died) => Ok(()),
        Err(Untraced::Failed(what, errno)) => {
            // The child may not be held yet.
            let _ = rustix::process::kill_process(child, Signal::KILL);
            Err(Failure::failed(format!(
                "the program can't be entered while it is executed ({what}: {}): where tracing is not allowed, static programs \
                 can't be limited",
                lowtide_config::reason(std::io::Error::from(errno))
            )))
        }
    }
}

fn image() -> Result<&'static Image, Untraced> {
    // It is the same each time.
    static IMAGE: OnceLock<Option<Image>> = OnceLock::new();
    let image = IMAGE.get_or_init(|| Image::of(AGENT).ok()).as_ref();
    image.ok_or(Untraced::Failed("the agent's file", Errno::NOEXEC))
}

/// `mask`: its blocked signals; None keeps the present ones. `following`: the receiver of its
/// execs; None: one is set up already.
fn bring(
    mut tracee: Tracee,
    agent: &Agent<'_>,
    mask: Option<&SignalSet>,
    mut following: Option<&mut Following>,
) -> Result<(), Untraced> {
    let image = image()?;
    let mask = match mask {
        Some(mask) => mask.bits(),
        None => tracee.block_signals()?,
    };
    // A program that can't follow the path of the agent's file starts none that can.
    if let Some(following) = following.as_mut().filter(|_| agent.files.is_none()) {
        filter::install(&mut tracee, following)?;
    }
    let envp = tracee.environment()?;
    // -1: none.
    let [settings, segment] = agent.files.unwrap_or([-1; 2]).map(|file| file as u64);
    let entered =
        map(&mut tracee, image, agent.path).and_then(|base| tracee.call(base + image.entry, [envp, settings, segment, 0]));
    if tracee.is_first {
        entered?;
        return tracee.go_on(mask);
    }
    tracee.go_on(mask).and(entered)
}

/// Enters a process in the middle of what it does, on a temporary stack. An environment of its own
/// tells the agent where the run is. `parent`: whose copy it is.
fn bring_to_copy(mut tracee: Tracee, agent: &Agent<'_>, parent: u32) -> Result<(), Untraced> {
    let image = image()?;
    let mask = tracee.block_signals()?;
    let protection = u64::from(sys::PROT_READ | sys::PROT_WRITE);
    let room = [0, ROOM, protection, PRIVATE | ANONYMOUS, NO_FILE, 0];
    let entered = tracee.syscall("mmap", sys::__NR_mmap, room).and_then(|room| {
        tracee.works_at(room + ROOM);
        let variable = [ENV_SEGMENT.as_bytes(), b"=", agent.run.origin.as_bytes(), b"\0"].concat();
        let environment = [room + 16, 0].map(u64::to_le_bytes).concat();
        let entered = tracee.write(room, &[environment, variable].concat()).and_then(|()| map(&mut tracee, image, agent.path));
        let entered = entered.and_then(|base| tracee.call(base + image.entry, [room, u64::MAX, u64::MAX, parent.into()]));
        entered.and(tracee.syscall("munmap", sys::__NR_munmap, [room, ROOM, 0, 0, 0, 0]).map(drop))
    });
    tracee.go_on(mask).and(entered)
}

/// A stack, with the environment at its upper end.
const ROOM: u64 = 256 << 10;

const PRIVATE: u64 = sys::MAP_PRIVATE as u64;
const FIXED: u64 = sys::MAP_FIXED as u64;
const ANONYMOUS: u64 = sys::MAP_ANONYMOUS as u64;
const NO_FILE: u64 = u64::MAX;

/// Maps the agent as its loader would; returns the address. Unmaps it after a failure.
fn map(tracee: &mut Tracee, image: &Image, path: &str) -> Result<u64, Untraced> {
    let at = tracee.scratch(|_| [path.as_bytes(), b"\0"].concat())?;
    let here = sys::AT_FDCWD as u64;
    let arguments = [here, at, u64::from(sys::O_RDONLY | sys::O_CLOEXEC), 0, 0, 0];
    let file = tracee.syscall("open of the agent", sys::__NR_openat, arguments)?;
    let reserve = [0, image.span, u64::from(sys::PROT_NONE), PRIVATE | ANONYMOUS, NO_FILE, 0];
    let mapped = tracee.syscall("mmap", sys::__NR_mmap, reserve).and_then(|base| {
        let filled = fill(tracee, image, file, base);
        if filled.is_err() {
            let _ = tracee.syscall("munmap", sys::__NR_munmap, [base, image.span, 0, 0, 0, 0]);
        }
        filled.map(|()| base)
    });
    tracee.syscall("close", sys::__NR_close, [file, 0, 0, 0, 0, 0])?;
    mapped
}

/// Maps the parts over the reserved range at `base`, and writes their data.
fn fill(tracee: &mut Tracee, image: &Image, file: u64, base: u64) -> Result<(), Untraced> {
    for part in &image.parts {
        let (start, prot) = (base + part.start, u64::from(part.protection));
        if part.of_file > 0 {
            let arguments = [start, part.of_file, prot, PRIVATE | FIXED, file, part.offset];
            tracee.syscall("mmap of the agent", sys::__NR_mmap, arguments)?;
        }
        if part.len > part.of_file {
            let arguments = [start + part.of_file, part.len - part.of_file, prot, PRIVATE | FIXED | ANONYMOUS, NO_FILE, 0];
            tracee.syscall("mmap of the agent's data", sys::__NR_mmap, arguments)?;
        }
    }
    for (address, bytes) in image.relocated(base) {
        tracee.write(address, &bytes)?;
    }
    if let Some((start, len)) = image.constant {
        tracee.syscall("mprotect", sys::__NR_mprotect, [base + start, len, u64::from(sys::PROT_READ), 0, 0, 0])?;
    }
    Ok(())
}
