//! Mappings whose memory a child does not get: a fork wipes them (MADV_WIPEONFORK, MAP_DROPPABLE).
//! Only `/proc/self/smaps` tells, for which the kernel walks all memory.

use arrayvec::ArrayVec;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

use lowtide_sys::Range;
use lowtide_sys::maps::range_of;

/// More than any library makes.
const MOST: usize = 64;

pub(super) type Wiped = ArrayVec<Range, MOST>;

/// Those in the file that `matter`.
///
/// # Errors
/// Those of reading it; `OVERFLOW`: there are too many.
pub(super) fn wiped(smaps: BorrowedFd<'_>, matter: impl Fn(Range) -> bool) -> Result<Wiped, Errno> {
    let mut offset = 0;
    wiped_in(matter, |buffer| {
        let got = rustix::io::pread(smaps, buffer, offset)?;
        offset += got as u64;
        Ok(got)
    })
}

/// `read` returns 0 at the end.
fn wiped_in(matter: impl Fn(Range) -> bool, mut read: impl FnMut(&mut [u8]) -> Result<usize, Errno>) -> Result<Wiped, Errno> {
    let (mut wiped, mut mapping) = (Wiped::new(), Range::NONE);
    let (mut buffer, mut len) = ([0u8; 4096], 0);
    loop {
        let got = read(&mut buffer[len..])?;
        if got == 0 {
            return Ok(wiped);
        }
        len += got;
        let mut start = 0;
        while let Some(n) = buffer[start..len].iter().position(|c| *c == b'\n') {
            let line = &buffer[start..start + n];
            if let Some(flags) = line.strip_prefix(b"VmFlags:") {
                if flags.split(|c| *c == b' ').any(|flag| flag == b"wf") && matter(mapping) {
                    wiped.try_push(mapping).map_err(|_| Errno::OVERFLOW)?;
                }
            } else if line.first().is_some_and(|c| c.is_ascii_digit() || c.is_ascii_lowercase()) {
                mapping = range_of(line).unwrap_or(mapping);
            }
            start += n + 1;
        }
        buffer.copy_within(start..len, 0);
        len -= start;
        // A line longer than the buffer begins with the addresses.
        if len == buffer.len() {
            len /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_core::vm::{self, OnFork, PAGE_SIZE};
    use lowtide_sys::present::Present;
    use rustix::fd::AsFd;
    use rustix::mm::Advice;

    #[test]
    fn the_kernel_says_what_is_wiped() {
        let memory = vm::map(4 * PAGE_SIZE, OnFork::Copy).unwrap();
        let part = Range { start: memory.addr() + PAGE_SIZE, end: memory.addr() + 3 * PAGE_SIZE };
        let smaps = Present::open().unwrap().smaps.unwrap();
        let wiped = |matter: bool| wiped(smaps.as_fd(), |_| matter).unwrap();
        assert!(!wiped(true).contains(&part));
        // SAFETY: nothing is forked here.
        unsafe { rustix::mm::madvise(part.start as *mut _, 2 * PAGE_SIZE, Advice::LinuxWipeOnFork).unwrap() };
        assert!(wiped(true).contains(&part) && wiped(false).is_empty());
    }

    #[test]
    fn the_list_may_come_in_any_pieces() {
        let name = "/".repeat(5000);
        let text = std::format!(
            "1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nVmFlags: rd wr mr wf ac \n3000-4000 r--p 00000000 08:01 7 {name}\nSize: 4 \
             kB\nVmFlags: rd mr \nf000-11000 rw-p 00000000 00:00 0\nVmFlags: wf\n"
        );
        for step in [1, 7, 4096] {
            let mut left = text.as_bytes();
            let found = wiped_in(
                |_| true,
                |buffer| {
                    let n = step.min(buffer.len()).min(left.len());
                    buffer[..n].copy_from_slice(&left[..n]);
                    left = &left[n..];
                    Ok(n)
                },
            );
            let expected = [Range { start: 0x1000, end: 0x3000 }, Range { start: 0xf000, end: 0x11000 }];
            assert_eq!(found.unwrap().as_slice(), expected, "{step}");
        }
    }
}
