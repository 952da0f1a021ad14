//! A directory in which swap files are made, and what is found out about the files there.

use crate::swap_spec::LEAST;
use lowtide_core::device::{DeviceName, FileDevice};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// A directory where unnamed swap files can be made.
#[derive(Debug)]
pub struct Place {
    /// Absolute.
    pub dir: PathBuf,
    /// Bytes that are free there.
    pub free: u64,
    /// Its files are in RAM.
    pub in_ram: bool,
    /// How files there are read and written, in words.
    pub how: String,
}

impl Place {
    /// Looks at a directory by making a file in it. The error says what is wrong.
    pub fn new(dir: &Path) -> Result<Place, String> {
        let dir = dir.canonicalize().map_err(|error| reason(&error))?;
        if !dir.is_dir() {
            return Err("not a directory".to_owned());
        }
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(CWD, &dir, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => file,
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
                return Err(
                    "its file system has no unnamed files (O_TMPFILE): name a directory on ext4, xfs or btrfs".to_owned()
                );
            }
            Err(error) => return Err(format!("no file can be made there: {}", reason(&error.into()))),
        };
        if dir.as_os_str().len() >= 1024 {
            return Err("the path is too long".to_owned());
        }
        let space = rustix::fs::fstatvfs(&file).map_err(|error| reason(&error.into()))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        if free < LEAST {
            return Err("its file system is full: free some space, or name another directory".to_owned());
        }
        let in_ram = is_in_ram(&file);
        let device = FileDevice::new(file, DeviceName::default()).map_err(|error| reason(&error.into()))?;
        Ok(Place { dir, free, in_ram, how: how(&device) })
    }
}

/// How a swap file is read and written, in words.
pub fn how(device: &FileDevice) -> String {
    let cache = if device.is_direct() { "O_DIRECT" } else { "through the page cache (no O_DIRECT there)" };
    match device.has_rings() {
        Ok(()) => format!("{cache}, io_uring"),
        Err(errno) => format!("{cache}, pread and pwrite (io_uring: {})", reason(&errno.into())),
    }
}

/// Whether a file's bytes are in RAM (tmpfs, ramfs).
pub fn is_in_ram(file: impl rustix::fd::AsFd) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    rustix::fs::fstatfs(file).is_ok_and(|fs| [TMPFS, RAMFS].contains(&(fs.f_type as u64 & 0xffff_ffff)))
}

/// `No such file or directory (os error 2)` without the number.
pub fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swap_spec::resolve;

    #[test]
    fn places() {
        assert!(Place::new(Path::new("/nonexistent")).unwrap_err().contains("no such file"));
        if rustix::fs::statfs("/dev/shm").is_ok_and(|fs| fs.f_type as u64 == 0x0102_1994) {
            assert!(Place::new(Path::new("/dev/shm")).unwrap().in_ram);
            let (swap, warnings) = resolve(&["dir:/dev/shm,size=2M".to_owned()], 0).unwrap();
            assert!(swap[0].size == 2 << 20 && warnings[0].contains("tmpfs"));
        }
    }
}
