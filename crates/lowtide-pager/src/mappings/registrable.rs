//! The program's mappings, from `/proc/thread-self/maps`, and which of them can be registered.

use arrayvec::ArrayVec;
use lowtide_core::vm;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use lowtide_sys::{Range, maps};

/// Smaller mappings gain little, and the kernel limits the number of ranges.
pub const SMALLEST: usize = 64 << 10;

const MOST_PIECES: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// No code: read and write, or less.
    Data,
    /// Read, write and execute: the heap of a runtime that puts code beside data.
    Heap,
    /// Read and execute: a runtime's code, which can't be evicted.
    Code,
}

#[derive(Debug, Clone, Copy)]
struct Piece {
    range: Range,
    kind: Kind,
}

/// Private and anonymous. Also inaccessible, because allocators reserve address space first, and
/// read-only: see [`each_registrable`].
fn kind(perms: &[u8], inode: &[u8], name: &[u8]) -> Option<Kind> {
    let kind = match perms {
        b"rw-p" | b"r--p" | b"---p" => Kind::Data,
        b"rwxp" => Kind::Heap,
        b"r-xp" => Kind::Code,
        _ => return None,
    };
    let is_anonymous = inode == b"0" && (name.is_empty() || name == b"[heap]" || name.starts_with(b"[anon:"));
    is_anonymous.then_some(kind)
}

fn parse(line: &[u8]) -> Option<Piece> {
    let mut fields = line.split(|&c| c == b' ').filter(|f| !f.is_empty());
    let _addresses = fields.next()?;
    let (perms, _offset, _device, inode) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let name = fields.next().unwrap_or(b"");
    let kind = kind(perms, inode, name)?;
    Some(Piece { range: maps::range_of(line)?, kind })
}

/// Calls `f` with each range of the program that can be registered; false: refused. Its second
/// argument: a part may be executed (a heap, or code beside one). Skips lowtide's own ranges.
/// Returns the bytes refused.
///
/// Neighbouring mappings are one range, whatever their protection: the program may make a part of
/// one mapping read-only for a moment. Registered in part, they could never merge again, and
/// mremap, which takes one mapping, would fail.
///
/// # Errors
/// Those of reading the file.
pub fn each_registrable(f: impl FnMut(Range, bool) -> bool) -> Result<usize, Errno> {
    // The main thread may have ended.
    let fd = rustix::fs::open(c"/proc/thread-self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    each_in(|buffer| rustix::io::read(&fd, buffer), f)
}

/// `read` returns 0 at the end.
fn each_in(
    mut read: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
    mut f: impl FnMut(Range, bool) -> bool,
) -> Result<usize, Errno> {
    let mut pieces = ArrayVec::<Piece, MOST_PIECES>::new();
    let mut refused = 0;
    let mut buffer = [0u8; 16 << 10];
    let mut len = 0;
    loop {
        let got = read(&mut buffer[len..])?;
        if got == 0 {
            refused += register(&pieces, &mut f);
            return Ok(refused);
        }
        len += got;
        vm::wait_for_makers();
        let mut start = 0;
        while let Some(n) = buffer[start..len].iter().position(|&c| c == b'\n') {
            let piece = parse(&buffer[start..start + n]);
            let goes_on = pieces.last().map(|p| p.range.end) == piece.map(|p| p.range.start);
            if !pieces.is_empty() && (!goes_on || pieces.is_full()) {
                refused += register(&pieces, &mut f);
                pieces.clear();
            }
            pieces.extend(piece);
            start += n + 1;
        }
        buffer.copy_within(start..len, 0);
        len -= start;
        if len == buffer.len() {
            len = 0; // a line longer than the buffer: none of ours
        }
    }
}

/// Code only beside a heap that may be written. Returns the bytes refused.
fn register(pieces: &[Piece], f: &mut impl FnMut(Range, bool) -> bool) -> usize {
    let has_heap = pieces.iter().any(|piece| piece.kind == Kind::Heap);
    let parts = pieces.split(|piece| piece.kind == Kind::Code && !has_heap);
    parts.map(|part| register_together(part, has_heap, f)).sum()
}

/// Together, or, if one is refused, each by itself. Returns the bytes refused.
fn register_together(pieces: &[Piece], has_heap: bool, f: &mut impl FnMut(Range, bool) -> bool) -> usize {
    let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return 0 };
    let mut refused = 0;
    without_own(Range { start: first.range.start, end: last.range.end }, |part| {
        if f(part, has_heap) {
            return;
        }
        for piece in pieces {
            let cut = piece.range.within(part);
            if cut.start < cut.end && (pieces.len() == 1 || !f(cut, piece.kind != Kind::Data)) {
                refused += cut.end - cut.start;
            }
        }
    });
    refused
}

fn without_own(range: Range, mut f: impl FnMut(Range)) {
    let mut start = range.start;
    loop {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;
    use std::vec::Vec;

    /// In pages from `BASE`, of a list read `at_a_time` bytes at a time; and the bytes refused.
    fn registered(list: &str, at_a_time: usize, refuses: impl Fn(Range) -> bool) -> (Vec<(usize, usize)>, usize) {
        let (found, refused) = registered_with_heaps(list, at_a_time, refuses);
        (found.iter().map(|&(start, end, _)| (start, end)).collect(), refused)
    }

    fn registered_with_heaps(
        list: &str,
        at_a_time: usize,
        refuses: impl Fn(Range) -> bool,
    ) -> (Vec<(usize, usize, bool)>, usize) {
        let (mut left, mut found) = (list.as_bytes(), Vec::new());
        let read = |buffer: &mut [u8]| {
            let n = left.len().min(at_a_time).min(buffer.len());
            buffer[..n].copy_from_slice(&left[..n]);
            left = &left[n..];
            Ok(n)
        };
        let refused = each_in(read, |range, has_heap| {
            let yes = !refuses(range);
            if yes {
                found.push(((range.start - BASE) >> 12, (range.end - BASE) >> 12, has_heap));
            }
            yes
        });
        (found, refused.unwrap())
    }

    /// Nothing of this process is here.
    const BASE: usize = 1 << 44;

    fn line(from: usize, to: usize, rest: &str) -> String {
        std::format!("{:x}-{:x} {rest}\n", BASE + (from << 12), BASE + (to << 12))
    }

    const PLAIN: &str = "rw-p 00000000 00:00 0 ";
    const HEAP: &str = "rwxp 00000000 00:00 0 ";
    const CODE: &str = "r-xp 00000000 00:00 0 ";

    #[test]
    fn private_anonymous_memory_is_registered_and_nothing_else() {
        for (rest, is) in [
            (PLAIN, true),
            ("r--p 00000000 00:00 0", true),
            ("---p 00000000 00:00 0", true),
            ("rw-p 00000000 00:00 0                          [heap]", true),
            ("rw-p 00000000 00:00 0                          [anon:glibc: malloc]", true),
            (HEAP, true),
            ("rwxp 00000000 00:00 0                          [heap]", true),
            (CODE, false),
            ("--xp 00000000 00:00 0 ", false),
            ("r-xp 00000000 00:00 0                          [vdso]", false),
            ("rwxp 00004000 08:01 4711                       /usr/lib/libc.so.6", false),
            ("rwxs 00000000 00:01 0 ", false),
            ("rw-s 00000000 00:01 0 ", false),
            ("rw-s 00000000 00:01 17                         /dev/zero (deleted)", false),
            ("rw-p 00004000 08:01 4711                       /usr/lib/libc.so.6", false),
            ("rw-p 00000000 00:00 0                          [stack]", false),
            ("r--p 00000000 00:00 0                          [vvar]", false),
            ("r--p 00000000 00:00 0                          [anon_shmem:x]", false),
            ("rw-p", false),
        ] {
            let expected = if is { std::vec![(16, 64)] } else { std::vec![] };
            assert_eq!(registered(&line(16, 64, rest), usize::MAX, |_| false), (expected, 0), "{rest}");
        }
        assert_eq!(registered("no address\n\n-\n", usize::MAX, |_| false), (Vec::new(), 0));
    }

    #[test]
    fn neighbours_are_one_range_and_small_ones_stay() {
        let list = [
            line(0, 8, PLAIN),
            line(8, 16, "r--p 00000000 00:00 0 "),
            line(32, 40, PLAIN),
            line(64, 128, PLAIN),
            line(128, 192, CODE),
            line(192, 256, PLAIN),
        ];
        for at_a_time in [1, 7, 100, usize::MAX] {
            let expected = std::vec![(0, 16), (64, 128), (192, 256)];
            assert_eq!(registered(&list.concat(), at_a_time, |_| false), (expected, 0), "{at_a_time} bytes at a time");
        }
        let many: String = (0..MOST_PIECES + 2).map(|i| line(i * 16, i * 16 + 16, PLAIN)).collect();
        let (all, _) = registered(&many, 512, |_| false);
        assert_eq!(all, [(0, MOST_PIECES * 16), (MOST_PIECES * 16, (MOST_PIECES + 2) * 16)]);
    }

    /// A collector may have made a part of the heap read-only.
    #[test]
    fn code_is_registered_in_a_heap_that_may_be_executed_and_nowhere_else() {
        let list = [
            line(0, 32, HEAP),
            line(32, 34, CODE),
            line(34, 64, HEAP),
            line(64, 80, PLAIN),
            line(100, 120, CODE),
            line(120, 140, PLAIN),
            line(140, 142, CODE),
            line(142, 160, PLAIN),
            line(200, 240, HEAP),
            line(300, 310, HEAP),
        ];
        let expected = std::vec![(0, 80, true), (120, 140, false), (142, 160, false), (200, 240, true)];
        assert_eq!(registered_with_heaps(&list.concat(), usize::MAX, |_| false), (expected, 0));
    }

    #[test]
    fn where_neighbours_can_not_be_one_range_each_is_tried() {
        let list = [line(0, 16, PLAIN), line(16, 48, PLAIN), line(48, 64, PLAIN)].concat();
        let middle = BASE + (16 << 12)..BASE + (48 << 12);
        let refuses = |range: Range| range.start < middle.end && range.end > middle.start;
        assert_eq!(registered(&list, usize::MAX, refuses), (std::vec![(0, 16), (48, 64)], 32 << 12));
    }

    #[test]
    fn of_this_process_lowtides_own_memory_is_left_out() {
        let own = vm::map(64 << 12, vm::OnFork::Copy).unwrap();
        let (start, end) = (own.addr(), own.addr() + own.len());
        let mut ranges = 0;
        each_registrable(|range, _| {
            assert!(range.end <= start || range.start >= end, "{range:?}");
            ranges += 1;
            true
        })
        .unwrap();
        assert!(ranges > 0, "the heap, the stacks of threads");
    }
}
