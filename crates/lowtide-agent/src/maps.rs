//! The program's mappings, from `/proc/self/maps`, and which of them can be adopted.

use lowtide_core::vm;
use lowtide_pager::regions::Range;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Mappings smaller than this stay with the program: they gain little, and the kernel allows only so many ranges.
pub const SMALLEST: usize = 64 << 10;

/// Whether a mapping of this kind can be adopted: private, anonymous, not executable. Inaccessible ones too: allocators reserve
/// address space first and open it up later.
fn adoptable(perms: &[u8], inode: &[u8], name: &[u8]) -> bool {
    matches!(perms, b"rw-p" | b"---p") && inode == b"0" && (name.is_empty() || name == b"[heap]" || name.starts_with(b"[anon:"))
}

fn hex(text: &[u8]) -> Option<usize> {
    text.iter().try_fold(0usize, |n, &c| Some(n << 4 | (c as char).to_digit(16)? as usize))
}

/// The range of a line of the file if it can be adopted.
fn parse(line: &[u8]) -> Option<Range> {
    let mut fields = line.split(|&c| c == b' ').filter(|f| !f.is_empty());
    let addresses = fields.next()?;
    let (perms, _offset, _device, inode) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let name = fields.next().unwrap_or(b"");
    if !adoptable(perms, inode, name) {
        return None;
    }
    let dash = addresses.iter().position(|&c| c == b'-')?;
    Some(Range { start: hex(&addresses[..dash])?, end: hex(&addresses[dash + 1..])? })
}

/// Calls `f` with each range of the program that can be adopted. Ranges of lowtide's own are left out.
///
/// # Errors
/// Those of reading the file.
pub fn each_adoptable(mut f: impl FnMut(Range)) -> Result<(), Errno> {
    let fd = rustix::fs::open(c"/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut buffer = [0u8; 16 << 10];
    let mut len = 0;
    loop {
        let got = rustix::io::read(&fd, &mut buffer[len..])?;
        if got == 0 {
            return Ok(());
        }
        len += got;
        vm::settle();
        let mut start = 0;
        while let Some(n) = buffer[start..len].iter().position(|&c| c == b'\n') {
            if let Some(range) = parse(&buffer[start..start + n]) {
                without_own(range, &mut f);
            }
            start += n + 1;
        }
        buffer.copy_within(start..len, 0);
        len -= start;
        if len == buffer.len() {
            len = 0; // a line longer than the buffer: none of ours
        }
    }
}

/// Calls `f` with the parts of `range` that are not lowtide's own, if they are large enough.
fn without_own(range: Range, f: &mut impl FnMut(Range)) {
    let mut start = range.start;
    loop {
        // The own range that comes first at or after `start`.
        let mut next: Option<(usize, usize)> = None;
        vm::own_ranges(|s, e, _| {
            if e > start && s < range.end && next.is_none_or(|(first, _)| s < first) {
                next = Some((s, e));
            }
        });
        let end = next.map_or(range.end, |(s, _)| s.max(start));
        if end - start >= SMALLEST {
            f(Range { start, end });
        }
        match next {
            Some((_, e)) if e < range.end => start = e,
            _ => return,
        }
    }
}
