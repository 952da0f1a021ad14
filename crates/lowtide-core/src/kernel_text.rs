//! Small files in which the kernel says things as text (/proc, /sys), read without the heap.

use rustix::fs::{Mode, OFlags};
use rustix::path::Arg;

/// The beginning of a file: as much of it as fits into `text`. None: it can't be read.
pub fn read(path: impl Arg, text: &mut [u8]) -> Option<&[u8]> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let len = rustix::io::read(&file, &mut *text).ok()?;
    Some(&text[..len])
}

/// The number that a text begins with; 0: none.
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
