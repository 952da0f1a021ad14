//! A directory in which swap files are made, and what is found out about the files there.

use crate::swap::spec::LEAST;
use lowtide_core::device::{DeviceName, FileDevice, is_rotational};
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
    /// Its disk turns, as was said or as far as can be seen.
    pub rotating: bool,
    /// How files there are read and written, in words.
    pub how: String,
}

impl Place {
    /// Looks at a directory by making a file in it. `rotating`: whether its disk turns, if the user has said so. The error says
    /// what is wrong.
    pub fn new(dir: &Path, rotating: Option<bool>) -> Result<Place, String> {
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
        let rotating = turns(&file, rotating)?;
        let device = FileDevice::new(file, DeviceName::default()).map_err(|error| reason(&error.into()))?;
        Ok(Place { dir, free, in_ram, rotating, how: how(&device, rotating) })
    }
}

/// How a swap file is read and written, in words.
pub fn how(device: &FileDevice, rotating: bool) -> String {
    let sequence = if rotating { ", in one sequence (the disk turns)" } else { "" };
    let cache = if device.is_direct() { "O_DIRECT" } else { "through the page cache (no O_DIRECT there)" };
    match device.has_rings() {
        Ok(()) => format!("{cache}, io_uring{sequence}"),
        Err(errno) => format!("{cache}, pread and pwrite (io_uring: {}){sequence}", reason(&errno.into())),
    }
}

/// File systems in RAM, as `statfs` numbers them.
const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;

/// What kind of file system a file is on, as `statfs` numbers them.
fn file_system(file: impl rustix::fd::AsFd) -> Option<u64> {
    Some(rustix::fs::fstatfs(file).ok()?.f_type as u64 & 0xffff_ffff)
}

/// Whether a file's bytes are in RAM (tmpfs, ramfs).
pub fn is_in_ram(file: impl rustix::fd::AsFd) -> bool {
    file_system(file).is_some_and(|kind| [TMPFS, RAMFS].contains(&kind))
}

/// Whether the disk of a file turns: as the user has said (`asked`), or as the kernel says. The error: it can't.
pub fn turns(file: impl rustix::fd::AsFd, asked: Option<bool>) -> Result<bool, String> {
    match (asked, diskless(&file)) {
        (Some(true), Some(kind)) => {
            Err(format!("`rotational` is for disks, and its file system ({kind}) has none: leave `rotational` out"))
        }
        (Some(rotating), _) => Ok(rotating),
        (None, _) => Ok(is_rotational(file) == Some(true)),
    }
}

/// The file system of a file, where it surely has no disk below it that could turn. Some (btrfs, overlay) have one that can't be
/// seen: of those the user may know.
fn diskless(file: impl rustix::fd::AsFd) -> Option<String> {
    let stat = rustix::fs::fstat(&file).ok()?;
    let is_device = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_block_device();
    if is_device || rustix::fs::major(stat.st_dev) != 0 {
        return None;
    }
    match file_system(&file)? {
        // btrfs, bcachefs, zfs, overlay.
        0x9123_683e | 0xca45_1a4e | 0x2fc1_2fc1 | 0x794c_7630 => None,
        TMPFS => Some("tmpfs".to_owned()),
        RAMFS => Some("ramfs".to_owned()),
        0x6969 => Some("nfs".to_owned()),
        0x0102_1997 => Some("9p".to_owned()),
        0x6573_5546 => Some("fuse".to_owned()),
        kind => Some(format!("of type {kind:#x}")),
    }
}

/// `No such file or directory (os error 2)` without the number.
pub fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swap::spec::resolve;

    #[test]
    fn places() {
        assert!(Place::new(Path::new("/nonexistent"), None).unwrap_err().contains("no such file"));
        if rustix::fs::statfs("/dev/shm").is_ok_and(|fs| fs.f_type as u64 == 0x0102_1994) {
            assert!(Place::new(Path::new("/dev/shm"), None).unwrap().in_ram);
            let why = Place::new(Path::new("/dev/shm"), Some(true)).unwrap_err();
            assert!(why.contains("tmpfs") && why.contains("leave `rotational` out"), "{why}");
            assert!(!Place::new(Path::new("/dev/shm"), Some(false)).unwrap().rotating);
            let (swap, warnings) = resolve(&["dir:/dev/shm,size=2M".to_owned()], 0).unwrap();
            assert!(swap[0].size == 2 << 20 && warnings[0].contains("tmpfs"));
        }
    }
}
