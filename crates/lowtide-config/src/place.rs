//! A directory for unnamed swap files.

use std::path::{Path, PathBuf};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::reason;

/// Smallest useful swap file, in bytes: one cluster.
pub const LEAST: u64 = 2 << 20;

/// `statfs` number of a file system in RAM.
pub const TMPFS: u64 = 0x0102_1994;
/// See [`TMPFS`].
pub const RAMFS: u64 = 0x8584_58f6;

/// Overrides [`DEFAULT_DIR`] for `auto`.
const DIR_VARIABLE: &str = "LOWTIDE_DIR";
const DEFAULT_DIR: &str = "/var/tmp";

/// A directory with an unnamed file in it.
#[derive(Debug)]
pub struct Place {
    /// Absolute.
    pub dir: PathBuf,
    /// The file, empty.
    pub file: OwnedFd,
    /// Free bytes.
    pub free: u64,
    /// Its files are in RAM.
    pub in_ram: bool,
}

impl Place {
    /// Makes a file in a directory.
    ///
    /// # Errors
    /// What is wrong, without the directory.
    pub fn open(dir: &Path) -> Result<Place, String> {
        let dir = dir.canonicalize().map_err(reason)?;
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
            Err(error) => return Err(format!("no file can be made there ({}): name another directory", reason(error))),
        };
        let free = free(&file).map_err(reason)?;
        if free < LEAST {
            return Err("its file system is full: free some space, or name another directory".to_owned());
        }
        let in_ram = is_in_ram(&file);
        Ok(Place { dir, file, free, in_ram })
    }

    /// The place of `auto`, see [`auto_dir`].
    ///
    /// # Errors
    /// Why it can't be used.
    pub fn auto() -> Result<Place, String> {
        let place = Place::open(&auto_dir())?;
        if place.in_ram {
            return Err("it is in RAM (tmpfs), so swapping to it saves nothing: name a directory on a disk".to_owned());
        }
        if place.default_size() < LEAST {
            return Err("its file system is nearly full".to_owned());
        }
        Ok(place)
    }

    /// Default size of a swap file there, in bytes: half of the free space.
    pub fn default_size(&self) -> u64 {
        self.free / 2
    }
}

/// The directory of `auto`: `$LOWTIDE_DIR`, else `/var/tmp`.
pub fn auto_dir() -> PathBuf {
    chosen_dir().unwrap_or_else(|| PathBuf::from(DEFAULT_DIR))
}

/// The user's directory for `auto`, which then must be usable.
pub fn chosen_dir() -> Option<PathBuf> {
    std::env::var_os(DIR_VARIABLE).filter(|dir| !dir.is_empty()).map(PathBuf::from)
}

/// Free bytes of a file's file system for unprivileged users.
///
/// # Errors
/// Those of fstatvfs.
pub fn free(file: impl AsFd) -> Result<u64, Errno> {
    let space = rustix::fs::fstatvfs(file)?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

/// The `statfs` type of a file's file system; None: unknown.
pub fn file_system(file: impl AsFd) -> Option<u64> {
    Some(rustix::fs::fstatfs(file).ok()?.f_type as u64 & 0xffff_ffff)
}

/// Whether a file's bytes are in RAM (tmpfs, ramfs).
pub fn is_in_ram(file: impl AsFd) -> bool {
    file_system(file).is_some_and(|kind| [TMPFS, RAMFS].contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_on_a_disk_in_ram_and_none() {
        assert!(Place::open(Path::new("/nonexistent")).unwrap_err().contains("no such file"));
        assert!(Place::open(Path::new("/dev/null")).unwrap_err().contains("not a directory"));
        let disk = tempfile::tempdir_in("/var/tmp").unwrap();
        let place = Place::open(disk.path()).unwrap();
        assert!(place.dir.is_absolute() && place.free >= LEAST);
        assert_eq!(std::fs::read_dir(disk.path()).unwrap().count(), 0, "the file has no name");
        if rustix::fs::statfs("/dev/shm").is_ok_and(|fs| fs.f_type as u64 == TMPFS) {
            assert!(Place::open(Path::new("/dev/shm")).unwrap().in_ram);
        }
    }
}
