//! `--swap file:PATH`: a named swap file or a block device, checked and locked before anything
//! starts, and marked once nothing else can refuse the run.
//!
//! Its first page holds [`MARK`] and no program's page: a file with other data can't be mistaken
//! for a swap file.

use lowtide_config::place::{LEAST, free, is_in_ram};
use lowtide_config::{reason, size};
use lowtide_core::vm::PAGE_SIZE;
use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

const MARK: &[u8] = b"lowtide swap file 1\n";
/// Offset and text of the kernel's mark of a swap file or partition.
const KERNEL_MARK: (usize, &[u8]) = (4086, b"SWAPSPACE2");

/// An open swap file, locked against other runs.
#[derive(Debug)]
pub struct SwapFile {
    pub file: File,
    /// Absolute.
    pub path: PathBuf,
    /// A block device has no directory beside it for more files.
    pub is_device: bool,
    /// Most bytes of it.
    pub size: u64,
    /// Return free space to the file system, which supports it.
    pub discard: bool,
    pub warnings: Vec<String>,
}

impl SwapFile {
    /// Opens, checks and locks it; writes nothing. The error says in one line what is wrong and
    /// what to do.
    pub fn open(path: &Path, size: Option<u64>, discard: bool) -> Result<SwapFile, String> {
        let shown = path.display();
        let path = path.canonicalize().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                format!("there is no such file; make it: `fallocate -l 8G {shown} && chmod 600 {shown}`")
            }
            _ => reason(error),
        })?;
        // Checked before the open, which has side effects on some devices.
        let is_device = check_kind(&rustix::fs::stat(&path).map_err(reason)?, &path)?;
        let mut flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        // O_EXCL on a block device fails if it is mounted or the kernel's swap.
        flags.set(OFlags::EXCL, is_device);
        let file = match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(Errno::BUSY | Errno::TXTBSY) => return Err("the system uses it: unmount it, or `swapoff` it".to_owned()),
            Err(Errno::ROFS) => return Err("its file system is read-only: name a file on another one".to_owned()),
            Err(error) => return Err(format!("can't be opened for reading and writing: {}", reason(error))),
        };
        // Checked again: the path may have changed.
        check_kind(&rustix::fs::fstat(&file).map_err(reason)?, &path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err("another run uses it: wait for that, or name another file".to_owned()),
            Err(error) => return Err(format!("can't be locked: {}", reason(error))),
        }
        let mut opened = SwapFile { file, path, is_device, size: 0, discard, warnings: Vec::new() };
        opened.measure(size)?;
        opened.check_content()?;
        Ok(opened)
    }

    /// Marks it, and with `discard` frees its old space: its content is lost. Errors as of
    /// [`SwapFile::open`].
    pub fn take(&mut self) -> Result<(), String> {
        self.mark()?;
        if self.discard && self.punch().is_err() {
            self.discard = false;
            self.warnings.push("discard has no effect: its file system can't punch holes".to_owned());
        }
        Ok(())
    }

    /// Whether a path leads to the same file or device.
    pub fn is(&self, path: &Path) -> bool {
        let id = |data: std::fs::Metadata| if self.is_device { (data.rdev(), 0) } else { (data.dev(), data.ino()) };
        let (mine, other) = (self.file.metadata().map(id), path.metadata().map(id));
        mine.is_ok_and(|mine| other.is_ok_and(|other| mine == other))
    }

    /// Sets the size, and checks the free space.
    fn measure(&mut self, wanted: Option<u64>) -> Result<(), String> {
        let len = rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0)).map_err(reason)?;
        self.size = wanted.unwrap_or(len);
        if self.size < LEAST {
            let (has, least) = (size::show(self.size), size::show(LEAST));
            return Err(format!("{has} is too small for a swap file, {least} are needed: make it larger, or give size="));
        }
        if self.is_device {
            if self.size > len {
                return Err(format!("size={} is more than the {} of the device", size::show(self.size), size::show(len)));
            }
            return Ok(());
        }
        let free = free(&self.file).map_err(reason)?;
        let has = self.file.metadata().map_err(reason)?.blocks() * 512;
        let can = has.saturating_add(free);
        if can < LEAST {
            return Err("its file system is full: free some space, or name a file on another one".to_owned());
        }
        if can < self.size {
            let line =
                format!("its file system has room for {} only, less than its {}", size::show(can), size::show(self.size));
            self.warnings.push(line);
        }
        if is_in_ram(&self.file) {
            self.warnings.push("it is in RAM (tmpfs), so swapping to it saves nothing".to_owned());
        }
        Ok(())
    }

    /// Checks by its first page that it holds nothing but swap.
    fn check_content(&self) -> Result<(), String> {
        let mut page = [0; PAGE_SIZE];
        let mut n = 0;
        while n < PAGE_SIZE {
            match self.file.read_at(&mut page[n..], n as u64) {
                Ok(0) => break,
                Ok(more) => n += more,
                Err(error) => return Err(format!("can't be read: {}", reason(error))),
            }
        }
        let (at, kernel) = KERNEL_MARK;
        let is_ours = page.starts_with(MARK) || page[at..] == *kernel || page.iter().all(|b| *b == 0);
        if !is_ours {
            let shown = self.path.display();
            let how = match self.is_device {
                true => format!("if nobody needs that, `dd if=/dev/zero of={shown} bs=4k count=1`"),
                false => format!("if nobody needs that, `truncate -s 0 {shown} && fallocate -l 8G {shown}`"),
            };
            return Err(format!("it holds other data, which swapping would destroy: {how}"));
        }
        Ok(())
    }

    fn mark(&self) -> Result<(), String> {
        let mut page = [0; PAGE_SIZE];
        page[..MARK.len()].copy_from_slice(MARK);
        match self.file.write_all_at(&page, 0) {
            Ok(()) => Ok(()),
            Err(error) if error.raw_os_error() == Some(Errno::TXTBSY.raw_os_error()) => {
                Err("it is swap of the kernel's: `swapoff` it first".to_owned())
            }
            Err(error) => Err(format!("can't be written: {}", reason(error))),
        }
    }

    /// Frees all but the first page now: a program short of memory could not wait for it.
    fn punch(&self) -> Result<(), Errno> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let first = PAGE_SIZE as u64;
        rustix::fs::fallocate(&self.file, flags, first, (self.size - first) / first * first)
    }
}

/// Whether it is a block device; refuses other files that are not regular, and files that others
/// can read.
fn check_kind(stat: &rustix::fs::Stat, path: &Path) -> Result<bool, String> {
    let (shown, mode) = (path.display(), stat.st_mode & 0o777);
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile if mode == 0o600 => Ok(false),
        FileType::RegularFile => Err(format!("its mode is {mode:04o} and must be 0600: `chmod 600 {shown}`")),
        FileType::BlockDevice if mode & 0o007 == 0 => Ok(true),
        FileType::BlockDevice => Err(format!("its mode is {mode:04o}, everyone can use it: `chmod o= {shown}`")),
        FileType::Directory => Err(format!("it is a directory: use dir:{shown}")),
        _ => Err("it is neither a regular file nor a block device".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn file(name: &str, len: u64, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join(name);
        File::create(&path).unwrap().set_len(len).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        (dir, path)
    }

    #[test]
    fn a_good_file_is_used_again_but_not_by_two_at_a_time() {
        let (_dir, path) = file("swap", 4 << 20, 0o600);
        let first = SwapFile::open(&path, None, false).unwrap();
        assert_eq!((first.size, first.is_device, first.warnings.len()), (4 << 20, false, 0));
        assert!(SwapFile::open(&path, None, false).unwrap_err().contains("another run"));
        first.file.write_all_at(&[7; PAGE_SIZE], 8 * PAGE_SIZE as u64).unwrap();
        drop(first);
        let mut again = SwapFile::open(&path, Some(8 << 20), true).unwrap();
        let is_left = |bytes: &[u8]| bytes[8 * PAGE_SIZE..9 * PAGE_SIZE] == [7; PAGE_SIZE];
        assert!(is_left(&std::fs::read(&path).unwrap()), "until it is taken");
        again.take().unwrap();
        assert_eq!((again.size, again.warnings.len()), (8 << 20, 0));
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.starts_with(MARK) && bytes[MARK.len()..].iter().all(|b| *b == 0), "what was left is gone");
    }

    #[test]
    fn other_data_is_not_destroyed() {
        let (_dir, path) = file("swap", 4 << 20, 0o600);
        std::fs::write(&path, "precious").unwrap();
        assert!(SwapFile::open(&path, Some(4 << 20), false).unwrap_err().contains("other data"));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        let mut page = [0; PAGE_SIZE];
        page[KERNEL_MARK.0..].copy_from_slice(KERNEL_MARK.1);
        std::fs::write(&path, page).unwrap();
        assert!(SwapFile::open(&path, Some(4 << 20), false).is_ok(), "a swap file of the kernel's that is not in use");
    }

    #[test]
    fn what_will_not_do() {
        for (len, mode, why) in [(4 << 20, 0o644, "chmod 600"), (4 << 20, 0o400, "chmod 600"), (1 << 20, 0o600, "too small")] {
            let (_dir, path) = file("swap", len, mode);
            assert!(SwapFile::open(&path, None, false).unwrap_err().contains(why), "{why}");
        }
        for (path, why) in [("/", "use dir:/"), ("/dev/null", "neither"), ("/nonexistent", "fallocate -l 8G /nonexistent")] {
            assert!(SwapFile::open(Path::new(path), None, false).unwrap_err().contains(why), "{path}");
        }
    }
}
