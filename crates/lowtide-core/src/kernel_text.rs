//! Small text files of the kernel (/proc, /sys), read without the heap.

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::path::Arg;

/// The beginning of a file, as much as fits into `text`. None: unreadable.
pub fn read(path: impl Arg, text: &mut [u8]) -> Option<&[u8]> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let len = rustix::io::read(&file, &mut *text).ok()?;
    Some(&text[..len])
}

/// Whether the first thread of this process has ended: then `/proc/self` shows no memory.
pub fn first_thread_has_ended() -> bool {
    read(c"/proc/self/statm", &mut [0u8; 8]).is_some_and(|text| text.starts_with(b"0 "))
}

/// Opens a file of this process in `/proc`. If the first thread has ended, it is the calling
/// thread's, and valid for its life.
///
/// # Errors
/// Those of open.
pub fn open_own(name: &[u8]) -> Result<OwnedFd, Errno> {
    let folder: &[u8] = if first_thread_has_ended() { b"/proc/thread-self/" } else { b"/proc/self/" };
    let mut path = [0u8; 48];
    path[..folder.len()].copy_from_slice(folder);
    path[folder.len()..][..name.len()].copy_from_slice(name);
    rustix::fs::open(&path[..folder.len() + name.len()], OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// The number at the start of a text, or 0.
pub fn number(text: &[u8]) -> u64 {
    let digits = text.iter().take_while(|c| c.is_ascii_digit());
    digits.fold(0u64, |n, c| n.saturating_mul(10).saturating_add(u64::from(c - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_far_as_there_is_room() {
        let mut text = [0u8; 4];
        assert_eq!(read(c"/proc/self/statm", &mut text).map(<[u8]>::len), Some(4));
        assert_eq!(read(c"/proc/self/no such file", &mut text), None);
    }

    #[test]
    fn numbers_end_where_something_else_begins() {
        for (text, expected) in [("", 0), ("x1", 0), ("0", 0), ("123 456", 123), ("99999999999999999999", u64::MAX)] {
            assert_eq!(number(text.as_bytes()), expected, "{text:?}");
        }
    }
}
