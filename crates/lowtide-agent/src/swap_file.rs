//! The swap file of a process.

use core::ffi::CStr;
use core::sync::atomic::Ordering;

use lowtide_core::device::DeviceName;
use lowtide_core::store::FileConfig;
use lowtide_pager::line::Line;
use lowtide_pager::segment::{self, Settings};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::{agent, say};

/// Opens the swap file of this process, if the run has them: the named one if there is one and no process has claimed it yet, else
/// one without a name, so that nothing is left of it whatever happens. Says so when it fails.
pub fn open() -> Option<FileConfig> {
    let run = agent::segment();
    let set = &run.settings;
    if set.swap_kind == segment::SWAP_RAM {
        return None;
    }
    let named = set.swap_kind == segment::SWAP_FILE && run.swap_claimed.swap(1, Ordering::AcqRel) == 0;
    match if named { open_path(&set.swap_file) } else { unnamed(set) } {
        Ok(fd) => {
            let name = if named {
                DeviceName { kind: "file:", path: text(&set.swap_file_name) }
            } else {
                DeviceName { kind: "dir:", path: text(&set.swap_dir) }
            };
            Some(FileConfig { fd, name, size: set.swap_size, budget: Some(&run.swap_used), budget_limit: set.swap_size })
        }
        Err(Errno::BUSY) => {
            say::warn(b"another process of the run has the swap device: this one uses compressed RAM only");
            None
        }
        Err(e) => {
            let mut line = Line::new();
            line.push(b"no swap file could be ");
            match named {
                true => line.push(b"opened"),
                false => line.push(b"made in ").push(text(&set.swap_dir)),
            };
            line.push(b", error ").number(e.raw_os_error() as u64).push(b": only compressed RAM is used");
            say::warn(line.bytes());
            None
        }
    }
}

/// A NUL-terminated text.
fn text(field: &[u8]) -> &[u8] {
    CStr::from_bytes_until_nul(field).map_or(&[], CStr::to_bytes)
}

/// BUSY: the run has no directory for such files.
fn unnamed(set: &Settings) -> Result<OwnedFd, Errno> {
    let dir = CStr::from_bytes_until_nul(&set.swap_dir).map_err(|_| Errno::INVAL)?;
    if dir.is_empty() {
        return Err(Errno::BUSY);
    }
    rustix::fs::open(dir, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)
}

/// Opens what a NUL-terminated path names, for reading and writing.
///
/// # Errors
/// Those of open.
pub fn open_path(path: &[u8]) -> Result<OwnedFd, Errno> {
    let path = CStr::from_bytes_until_nul(path).map_err(|_| Errno::INVAL)?;
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}
