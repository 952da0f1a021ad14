//! Whether a file's disk is rotational, by sysfs (Documentation/ABI/stable/sysfs-block,
//! `rotational`).

use core::ffi::CStr;
use core::fmt::Write;

use arrayvec::ArrayString;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};

/// Whether the block device that an open file is or lies on is rotational. `None`: it has no
/// visible device (tmpfs, overlay, btrfs), or a virtio disk (`vda`), which cannot say, and which
/// Linux always calls rotational.
pub fn is_rotational(file: impl AsFd) -> Option<bool> {
    let stat = rustix::fs::fstat(file).ok()?;
    of_number(CWD, c"/sys/dev/block", device_of(&stat))
}

fn device_of(stat: &Stat) -> u64 {
    if FileType::from_raw_mode(stat.st_mode).is_block_device() { stat.st_rdev } else { stat.st_dev }
}

/// `dir`: sysfs's links from device numbers to the devices' directories.
fn of_number(at: BorrowedFd<'_>, dir: &CStr, number: u64) -> Option<bool> {
    let mut link: ArrayString<256> = ArrayString::new();
    let dir = dir.to_str().ok()?;
    write!(link, "{dir}/{}:{}", rustix::fs::major(number), rustix::fs::minor(number)).ok()?;
    // A partition's queue is its disk's.
    let text = ["queue", "../queue"].iter().find_map(|queue| {
        let mut path = link;
        write!(path, "/{queue}/rotational").ok()?;
        let fd = rustix::fs::openat(at, path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let mut text = [0u8; 1];
        (rustix::io::read(fd, &mut text) == Ok(1)).then_some(text[0])
    })?;
    let mut target = [0u8; 512];
    let len = rustix::fs::readlinkat_raw(at, link.as_str(), &mut target[..]).ok()?;
    // `.../virtio1/block/vda`, and for a partition `.../block/vda/vda1`.
    let is_virtio = target[..len].windows(9).any(|part| part == b"/block/vd");
    (!is_virtio).then_some(text == b'1')
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn disks_partitions_and_what_is_none() {
        let root = std::env::temp_dir().join(std::format!("lowtide-sysfs-{}", std::process::id()));
        let disk = |path: &str, rotational: &str, number: &str, partition: &str| {
            let dir = root.join("devices").join(path);
            fs::create_dir_all(dir.join("queue")).unwrap();
            fs::create_dir_all(dir.join("part1")).unwrap();
            fs::create_dir_all(root.join("dev")).unwrap();
            fs::write(dir.join("queue/rotational"), rotational).unwrap();
            symlink(std::format!("../devices/{path}"), root.join("dev").join(number)).unwrap();
            symlink(std::format!("../devices/{path}/part1"), root.join("dev").join(partition)).unwrap();
        };
        disk("pci/ata1/block/sda", "1\n", "8:0", "8:1");
        disk("pci/nvme0/nvme0n1", "0\n", "259:0", "259:1");
        disk("pci/virtio1/block/vda", "1\n", "254:0", "254:1");
        let at = fs::File::open(&root).unwrap();
        let ask = |major, minor| of_number(at.as_fd(), c"dev", rustix::fs::makedev(major, minor));
        let found = [(8, 0), (8, 1), (259, 0), (259, 1), (254, 0), (254, 1), (0, 27)].map(|(major, minor)| ask(major, minor));
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, [Some(true), Some(true), Some(false), Some(false), None, None, None]);
    }
}
