//! A directory for swap files, and what its files can do.

use lowtide_config::place::{self, RAMFS, TMPFS, file_system};
use lowtide_config::reason;
use lowtide_core::device::{DeviceName, FileDevice, is_rotational};
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub struct Place {
    /// Absolute.
    pub dir: PathBuf,
    /// Free bytes.
    pub free: u64,
    /// Size of an area there without `size=`, in bytes.
    pub default_size: u64,
    pub in_ram: bool,
    /// A rotational disk, by option or as far as visible.
    pub rotating: bool,
    /// How files there are read and written, in words.
    pub how: String,
}

impl Place {
    /// Examines a directory by making a file in it. `rotating`: the user's option. The error says
    /// what is wrong.
    pub fn new(dir: &Path, rotating: Option<bool>) -> Result<Place, String> {
        Self::of(place::Place::open(dir)?, rotating)
    }

    /// The place that `auto` uses, or why it can't.
    pub fn auto() -> Result<Place, String> {
        Self::of(place::Place::auto()?, None)
    }

    fn of(place: place::Place, rotating: Option<bool>) -> Result<Place, String> {
        // The settings' field is shorter.
        if place.dir.as_os_str().len() >= 1024 {
            return Err("the path is too long".to_owned());
        }
        let rotating = turns(&place.file, rotating)?;
        let (free, default_size, in_ram) = (place.free, place.default_size(), place.in_ram);
        let device = FileDevice::new(place.file, DeviceName::default()).map_err(reason)?;
        Ok(Place { dir: place.dir, free, default_size, in_ram, rotating, how: how(&device, rotating) })
    }
}

/// How a swap file is read and written, in words.
pub fn how(device: &FileDevice, rotating: bool) -> String {
    let sequence = if rotating { ", in one sequence (the disk turns)" } else { "" };
    let cache = if device.is_direct() { "O_DIRECT" } else { "through the page cache (no O_DIRECT there)" };
    match device.has_rings() {
        Ok(()) => format!("{cache}, io_uring{sequence}"),
        Err(errno) => format!("{cache}, pread and pwrite (io_uring: {}){sequence}", reason(errno)),
    }
}

/// Whether the file's disk is rotational: by the user's option (`asked`), or by the kernel. The
/// error: it can't be.
pub fn turns(file: impl rustix::fd::AsFd, asked: Option<bool>) -> Result<bool, String> {
    match (asked, diskless(&file)) {
        (Some(true), Some(kind)) => {
            Err(format!("`rotational` is for disks, and its file system ({kind}) has none: leave `rotational` out"))
        }
        (Some(rotating), _) => Ok(rotating),
        (None, _) => Ok(is_rotational(file) == Some(true)),
    }
}

/// The file system of a file, if it surely has no rotational disk below. Some (btrfs, overlay) hide
/// their disk: the user's option decides there.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swap::area::resolve;

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
