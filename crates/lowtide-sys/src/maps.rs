//! Mappings from `/proc/self/maps`: by the ioctl PROCMAP_QUERY (Linux 6.11), or by reading.

use linux_raw_sys::general as sys;
use lowtide_core::kernel_text::open_own;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};

use crate::Range;
use crate::uffd::ioctl;

const PROCMAP_QUERY: Opcode = opcode::read_write::<sys::procmap_query>(sys::PROCFS_IOCTL_MAGIC, 17);
const OR_NEXT: u64 = sys::procmap_query_flags::PROCMAP_QUERY_COVERING_OR_NEXT_VMA as u64;

/// A mapping's rights. The kernel moves pages only between equal ones that allow reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// Read and write.
    Data,
    /// Read, write and execute.
    Code,
    /// Less: immovable.
    Less,
}

/// A mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// Its addresses.
    pub range: Range,
    /// Its access rights.
    pub protection: Protection,
    /// Private and without a file.
    pub is_anonymous: bool,
}

/// The mappings of a process.
#[derive(Debug)]
pub struct Maps {
    fd: OwnedFd,
}

/// Of another process.
impl From<OwnedFd> for Maps {
    fn from(fd: OwnedFd) -> Maps {
        Maps { fd }
    }
}

impl Maps {
    /// Opens the list; again in a forked child.
    ///
    /// # Errors
    /// Those of opening `/proc/self/maps`.
    pub fn open() -> Result<Maps, Errno> {
        Ok(Maps { fd: open_own(b"maps")? })
    }

    /// The mapping that contains `addr`.
    ///
    /// # Errors
    /// Those of reading the list.
    pub fn find(&self, addr: usize) -> Result<Option<Range>, Errno> {
        Ok(self.query(addr, 0)?.filter(|range| range.start <= addr))
    }

    /// The first mapping that ends behind `addr`.
    ///
    /// # Errors
    /// Those of reading the list.
    pub fn next(&self, addr: usize) -> Result<Option<Range>, Errno> {
        self.query(addr, OR_NEXT)
    }

    /// The same by the ioctl (Linux 6.11).
    pub fn next_or_none(&self, addr: usize) -> Option<Range> {
        self.ask(addr, OR_NEXT).ok().flatten()
    }

    /// [`Maps::next`] with properties.
    ///
    /// # Errors
    /// Those of reading the list.
    pub fn next_mapping(&self, addr: usize) -> Result<Option<Mapping>, Errno> {
        match self.ask_mapping(addr, OR_NEXT) {
            Err(Errno::NOTTY) => self.read(addr, &mut List::new()),
            answer => answer,
        }
    }

    /// Calls `f` with each mapping's part of `range`, by ascending address.
    ///
    /// # Errors
    /// Those of reading the list, and the first of `f`.
    pub fn each_part(&self, range: Range, mut f: impl FnMut(Range) -> Result<(), Errno>) -> Result<(), Errno> {
        let mut at = range.start;
        while at < range.end
            && let Some(mapping) = self.next(at)?.filter(|mapping| mapping.start < range.end)
        {
            let end = mapping.end.min(range.end);
            f(Range { start: mapping.start.max(at), end })?;
            at = end;
        }
        Ok(())
    }

    /// A walk by ascending address.
    pub fn walk(&self) -> Walk<'_> {
        Walk { mappings: self, list: List::new() }
    }

    /// Whether one mapping contains `range`. None: no ioctl.
    pub fn is_one(&self, range: Range) -> Option<bool> {
        let holds = |mapping: Range| mapping.start <= range.start && range.end <= mapping.end;
        self.ask(range.start, 0).ok().map(|mapping| mapping.is_some_and(holds))
    }

    /// Extends `range` to whole mappings. None: no ioctl.
    pub fn around(&self, range: Range) -> Option<Range> {
        let at = |addr| self.ask(addr, 0).ok().map(|mapping| mapping.unwrap_or(range));
        Some(Range { start: at(range.start)?.start.min(range.start), end: at(range.end - 1)?.end.max(range.end) })
    }

    /// The mapping at `addr`, or the next: always with [`OR_NEXT`], sometimes without.
    fn query(&self, addr: usize, flags: u64) -> Result<Option<Range>, Errno> {
        match self.ask(addr, flags) {
            Err(Errno::NOTTY) => Ok(self.read(addr, &mut List::new())?.map(|mapping| mapping.range)),
            answer => answer,
        }
    }

    fn read(&self, addr: usize, list: &mut List) -> Result<Option<Mapping>, Errno> {
        list.next(addr, |buffer, offset| rustix::io::pread(&self.fd, buffer, offset))
    }

    /// The mapping at `addr`. None: none, or no ioctl.
    pub fn at(&self, addr: usize) -> Option<Mapping> {
        self.ask_mapping(addr, 0).ok().flatten()
    }

    /// `NOTTY`: no ioctl.
    fn ask(&self, addr: usize, flags: u64) -> Result<Option<Range>, Errno> {
        Ok(self.ask_mapping(addr, flags)?.map(|mapping| mapping.range))
    }

    fn ask_mapping(&self, addr: usize, flags: u64) -> Result<Option<Mapping>, Errno> {
        // SAFETY: zeros are valid numbers.
        let mut query: sys::procmap_query = unsafe { core::mem::zeroed() };
        query.size = size_of::<sys::procmap_query>() as u64;
        query.query_flags = flags;
        query.query_addr = addr as u64;
        // SAFETY: a procmap_query without name and build id buffers.
        match unsafe { ioctl(self.fd.as_fd(), PROCMAP_QUERY, &mut query) } {
            Ok(_) => {
                let range = Range { start: query.vma_start as usize, end: query.vma_end as usize };
                let has = |flag: sys::procmap_query_flags| query.vma_flags & flag as u64 != 0;
                let protection = Protection::of(
                    has(sys::procmap_query_flags::PROCMAP_QUERY_VMA_READABLE),
                    has(sys::procmap_query_flags::PROCMAP_QUERY_VMA_WRITABLE),
                    has(sys::procmap_query_flags::PROCMAP_QUERY_VMA_EXECUTABLE),
                );
                let is_shared = has(sys::procmap_query_flags::PROCMAP_QUERY_VMA_SHARED);
                Ok(Some(Mapping { range, protection, is_anonymous: !is_shared && query.inode == 0 }))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl Protection {
    fn of(readable: bool, writable: bool, executable: bool) -> Protection {
        match (readable && writable, executable) {
            (true, false) => Protection::Data,
            (true, true) => Protection::Code,
            (false, _) => Protection::Less,
        }
    }
}

/// A walk over the mappings. Without the ioctl it reads the list once and must be the only reader:
/// the kernel would restart.
pub struct Walk<'a> {
    mappings: &'a Maps,
    list: List,
}

impl Walk<'_> {
    /// The first mapping that ends behind `addr`, which ascends. May miss mappings made since.
    ///
    /// # Errors
    /// Those of reading the list.
    pub fn next(&mut self, addr: usize) -> Result<Option<Range>, Errno> {
        Ok(self.next_mapping(addr)?.map(|mapping| mapping.range))
    }

    /// The same with properties.
    ///
    /// # Errors
    /// Those of reading the list.
    pub fn next_mapping(&mut self, addr: usize) -> Result<Option<Mapping>, Errno> {
        match self.mappings.ask_mapping(addr, OR_NEXT) {
            Err(Errno::NOTTY) => self.mappings.read(addr, &mut self.list),
            answer => answer,
        }
    }
}

struct List {
    buffer: [u8; 4096],
    unread: core::ops::Range<usize>,
    offset: u64,
    last: Option<Mapping>,
}

impl List {
    fn new() -> List {
        List { buffer: [0; 4096], unread: 0..0, offset: 0, last: None }
    }

    /// The first mapping that ends behind `addr`.
    fn next(&mut self, addr: usize, read: impl Fn(&mut [u8], u64) -> Result<usize, Errno>) -> Result<Option<Mapping>, Errno> {
        loop {
            if let Some(mapping) = self.last.filter(|mapping| addr < mapping.range.end) {
                return Ok(Some(mapping));
            }
            let unread = &self.buffer[self.unread.clone()];
            if let Some(n) = unread.iter().position(|&c| c == b'\n') {
                self.last = mapping_of(&unread[..n]);
                self.unread.start += n + 1;
                continue;
            }
            self.buffer.copy_within(self.unread.clone(), 0);
            // Keep an overlong line's addresses.
            self.unread = 0..match self.unread.len() {
                len if len == self.buffer.len() => len / 2,
                len => len,
            };
            let got = read(&mut self.buffer[self.unread.end..], self.offset)?;
            if got == 0 {
                return Ok(None);
            }
            self.unread.end += got;
            self.offset += got as u64;
        }
    }
}

fn mapping_of(line: &[u8]) -> Option<Mapping> {
    let range = range_of(line)?;
    // Addresses, rights, offset, device, inode.
    let mut fields = line.split(|&c| c == b' ').filter(|field| !field.is_empty()).skip(1);
    let may = fields.next().unwrap_or_default();
    let has = |at: usize, letter: u8| may.get(at) == Some(&letter);
    let is_anonymous = has(3, b'p') && fields.nth(2) == Some(b"0");
    Some(Mapping { range, protection: Protection::of(has(0, b'r'), has(1, b'w'), has(2, b'x')), is_anonymous })
}

/// Parses the range of a line.
pub fn range_of(line: &[u8]) -> Option<Range> {
    let addresses = line.split(|&c| c == b' ').next()?;
    let dash = addresses.iter().position(|&c| c == b'-')?;
    Some(Range { start: hex(&addresses[..dash])?, end: hex(&addresses[dash + 1..])? })
}

fn hex(text: &[u8]) -> Option<usize> {
    let digit = |c: &u8| (*c as char).to_digit(16);
    (!text.is_empty()).then(|| text.iter().try_fold(0usize, |n, c| Some(n << 4 | digit(c)? as usize)))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_core::vm::PAGE_SIZE;

    #[test]
    fn finds_a_mapping_and_what_is_none() {
        let mappings = Maps::open().unwrap();
        let m = lowtide_core::vm::map(3 * PAGE_SIZE, lowtide_core::vm::OnFork::Copy).unwrap();
        let whole = Range { start: m.addr(), end: m.addr() + m.len() };
        let read = |addr| mappings.read(addr, &mut List::new()).map(|found| found.map(|mapping| mapping.range));
        for addr in [whole.start, whole.start + 2 * PAGE_SIZE, whole.end - 1] {
            assert_eq!(mappings.find(addr), Ok(Some(whole)));
            assert_eq!(read(addr), Ok(Some(whole)), "as on a kernel without the ioctl");
            assert_ne!(mappings.is_one(Range { start: addr, end: whole.end }), Some(false));
            assert_ne!(mappings.is_one(Range { start: addr, end: whole.end + PAGE_SIZE }), Some(true));
            assert!(mappings.around(Range { start: addr, end: addr + 1 }).is_none_or(|around| around == whole));
        }
        assert_eq!(mappings.find(PAGE_SIZE), Ok(None));
        let first = mappings.next(PAGE_SIZE).unwrap();
        assert!(first.is_some_and(|range| range.start > PAGE_SIZE));
        assert_eq!(read(PAGE_SIZE), Ok(first));
        assert_eq!(mappings.next(whole.start - PAGE_SIZE).unwrap().map(|range| range.end), Some(whole.start), "the guard page");
        let behind_all = usize::MAX - PAGE_SIZE;
        assert_eq!((mappings.next(behind_all), read(behind_all)), (Ok(None), Ok(None)));
    }

    #[test]
    fn parts_go_over_holes_and_end_within_a_mapping() {
        let maps = Maps::open().unwrap();
        let m = lowtide_core::vm::map(5 * PAGE_SIZE, lowtide_core::vm::OnFork::Copy).unwrap();
        let page = |i: usize| m.addr() + i * PAGE_SIZE;
        // SAFETY: a page of the mapping, which nobody uses.
        unsafe { rustix::mm::munmap(page(2) as *mut _, PAGE_SIZE).unwrap() };
        let mut parts = std::vec::Vec::new();
        let all = maps.each_part(Range { start: page(1), end: page(4) }, |part| {
            parts.push((part.start, part.end));
            Ok(())
        });
        assert_eq!((all, parts), (Ok(()), std::vec![(page(1), page(2)), (page(3), page(4))]));
        let mut seen = 0;
        let refused = maps.each_part(Range { start: page(0), end: page(5) }, |_| {
            seen += 1;
            Err(Errno::AGAIN)
        });
        assert_eq!((refused, seen), (Err(Errno::AGAIN), 1));
    }

    #[test]
    fn a_walk_reads_the_list_once() {
        const MANY: usize = 5000;
        let line = |i: usize| {
            let name = if i % 7 == 3 { std::format!("/{}", "1-2 ".repeat(i % 1500)) } else { std::string::String::new() };
            std::format!("{:x}-{:x} rw-p 00000000 00:00 0 {name}\n", i * 2 * PAGE_SIZE, (i * 2 + 1) * PAGE_SIZE)
        };
        let text = (1..=MANY).map(line).collect::<std::string::String>().into_bytes();
        let bytes_read = core::cell::Cell::new(0);
        let read = |buffer: &mut [u8], offset: u64| {
            let rest = &text[offset as usize..];
            // Like the kernel: whole lines or less.
            let n = rest.len().min(buffer.len()).min(1 + offset as usize % 700);
            buffer[..n].copy_from_slice(&rest[..n]);
            bytes_read.set(bytes_read.get() + n);
            Ok(n)
        };
        let mut list = List::new();
        for i in 1..=MANY {
            let mapping = Range { start: i * 2 * PAGE_SIZE, end: (i * 2 + 1) * PAGE_SIZE };
            for addr in [mapping.start - PAGE_SIZE, mapping.start, mapping.end - 1] {
                let found = list.next(addr, read).unwrap();
                assert_eq!(
                    found,
                    Some(Mapping { range: mapping, protection: Protection::Data, is_anonymous: true }),
                    "of {i} from {addr:x} on"
                );
            }
        }
        assert_eq!(list.next(MANY * 3 * PAGE_SIZE, read), Ok(None));
        assert_eq!(bytes_read.get(), text.len());
    }

    #[test]
    fn a_walk_finds_what_single_questions_find() {
        let mappings = Maps::open().unwrap();
        let (mut walk, mut list, mut at) = (mappings.walk(), List::new(), PAGE_SIZE);
        let m = lowtide_core::vm::map(64 * PAGE_SIZE, lowtide_core::vm::OnFork::Copy).unwrap();
        for page in (0..64).step_by(2) {
            // SAFETY: an unused page.
            unsafe {
                rustix::mm::mprotect((m.addr() + page * PAGE_SIZE) as *mut _, PAGE_SIZE, rustix::mm::MprotectFlags::READ)
            }
            .unwrap();
        }
        (3..64).step_by(4).for_each(|page| m.set_executable(page * PAGE_SIZE, PAGE_SIZE, true).unwrap());
        let mut found = 0;
        while let Some(mapping) = walk.next_mapping(at).unwrap() {
            let range = mapping.range;
            if range.start >= m.addr() && range.end <= m.addr() + m.len() {
                assert_eq!(mappings.next(at), Ok(Some(range)));
                assert_eq!(mappings.read(at, &mut list), Ok(Some(mapping)), "as on a kernel without the ioctl");
                let expected = [Protection::Less, Protection::Data, Protection::Less, Protection::Code][found % 4];
                assert_eq!(mapping.protection, expected, "{found}");
                found += 1;
            }
            at = range.end;
        }
        assert_eq!(found, 64);
    }
}
