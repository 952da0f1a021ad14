//! The program's mappings, from `/proc/self/maps`, and which of them can be adopted.

use arrayvec::ArrayVec;
use lowtide_core::vm;
use lowtide_pager::mapping;
use lowtide_pager::regions::Range;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Mappings smaller than this stay with the program: they gain little, and the kernel allows only so many ranges.
pub const SMALLEST: usize = 64 << 10;

/// Most neighbouring mappings that are adopted by one call.
const MOST_PIECES: usize = 32;

/// Whether a mapping of this kind can be adopted: private, anonymous, not executable. Inaccessible ones too: allocators reserve
/// address space first and open it up later. And read-only ones: see [`each_adoptable`].
fn adoptable(perms: &[u8], inode: &[u8], name: &[u8]) -> bool {
    matches!(perms, b"rw-p" | b"r--p" | b"---p")
        && inode == b"0"
        && (name.is_empty() || name == b"[heap]" || name.starts_with(b"[anon:"))
}

/// The range of a line of the file if it can be adopted.
fn parse(line: &[u8]) -> Option<Range> {
    let mut fields = line.split(|&c| c == b' ').filter(|f| !f.is_empty());
    let _addresses = fields.next()?;
    let (perms, _offset, _device, inode) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let name = fields.next().unwrap_or(b"");
    if !adoptable(perms, inode, name) {
        return None;
    }
    mapping::range_of(line)
}

/// Adopts each range of the program that can be adopted by calling `f`, which says whether it did. Ranges of lowtide's own are
/// left out. Returns the bytes that `f` refused.
///
/// Neighbouring mappings are one range, whatever they are used for just now: to the program they may be one mapping, a part of
/// which is read-only for a moment. Were only the other parts adopted, the kernel could never make one mapping of them again,
/// and mremap, which does one mapping, would fail where it does not natively.
///
/// # Errors
/// Those of reading the file.
pub fn each_adoptable(mut f: impl FnMut(Range) -> bool) -> Result<usize, Errno> {
    let mut pieces = ArrayVec::<Range, MOST_PIECES>::new();
    let mut refused = 0;
    let fd = rustix::fs::open(c"/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut buffer = [0u8; 16 << 10];
    let mut len = 0;
    loop {
        let got = rustix::io::read(&fd, &mut buffer[len..])?;
        if got == 0 {
            refused += adopt(&pieces, &mut f);
            return Ok(refused);
        }
        len += got;
        vm::wait_for_makers();
        let mut start = 0;
        while let Some(n) = buffer[start..len].iter().position(|&c| c == b'\n') {
            let range = parse(&buffer[start..start + n]);
            let goes_on = pieces.last().map(|p| p.end) == range.map(|r| r.start);
            if !pieces.is_empty() && (!goes_on || pieces.is_full()) {
                refused += adopt(&pieces, &mut f);
                pieces.clear();
            }
            pieces.extend(range);
            start += n + 1;
        }
        buffer.copy_within(start..len, 0);
        len -= start;
        if len == buffer.len() {
            len = 0; // a line longer than the buffer: none of ours
        }
    }
}

/// Adopts neighbouring mappings: together, or, if one of them can't be, each that can. Returns the bytes that can't.
fn adopt(pieces: &[Range], f: &mut impl FnMut(Range) -> bool) -> usize {
    let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return 0 };
    let mut refused = 0;
    without_own(Range { start: first.start, end: last.end }, |part| {
        if f(part) {
            return;
        }
        let cut = |p: &Range| Range { start: p.start.max(part.start), end: p.end.min(part.end) };
        for piece in pieces.iter().map(cut).filter(|piece| piece.start < piece.end) {
            if pieces.len() == 1 || !f(piece) {
                refused += piece.end - piece.start;
            }
        }
    });
    refused
}

/// Calls `f` with the parts of `range` that are not lowtide's own, if they are large enough.
fn without_own(range: Range, mut f: impl FnMut(Range)) {
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
