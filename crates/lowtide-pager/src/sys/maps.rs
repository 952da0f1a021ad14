//! Where the mapping that holds an address begins and ends, and what may be done there, from `/proc/self/maps`: by its ioctl
//! PROCMAP_QUERY (Linux 6.11), or by reading it.

use linux_raw_sys::general as sys;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};

use crate::mappings::regions::Range;
use crate::sys::uffd::ioctl;

const PROCMAP_QUERY: Opcode = opcode::read_write::<sys::procmap_query>(sys::PROCFS_IOCTL_MAGIC, 17);
const OR_NEXT: u64 = sys::procmap_query_flags::PROCMAP_QUERY_COVERING_OR_NEXT_VMA as u64;

/// What the program may do in a mapping: the kernel moves pages between mappings of one protection, and only of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// Read and write.
    Data,
    /// Read, write and execute.
    Code,
    /// Less than read and write: no page can be moved from there or to there.
    Less,
}

/// A mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// Where it is.
    pub range: Range,
    /// What may be done there.
    pub protection: Protection,
    /// It is private, and of no file.
    pub is_anonymous: bool,
}

/// The mappings of this process.
#[derive(Debug)]
pub struct Mappings {
    fd: OwnedFd,
}

impl Mappings {
    /// Opens the list. Must be called in the process itself, and again in a forked child.
    ///
    /// # Errors
    /// Those of opening `/proc/self/maps`.
    pub fn open() -> Result<Mappings, Errno> {
        Ok(Mappings { fd: rustix::fs::open(c"/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())? })
    }

    /// The mapping that holds `addr`; None: there is none.
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

    /// The same where the kernel tells without making the whole list (from Linux 6.11 on).
    pub fn next_or_none(&self, addr: usize) -> Option<Range> {
        self.ask(addr, OR_NEXT).ok().flatten()
    }

    /// The same as [`Mappings::next`], and what it is.
    ///
    /// # Errors
    /// As there.
    pub fn next_mapping(&self, addr: usize) -> Result<Option<Mapping>, Errno> {
        match self.ask_mapping(addr, OR_NEXT) {
            Err(Errno::NOTTY) => self.read(addr, &mut List::new()),
            answer => answer,
        }
    }

    /// To look for mappings in order of address.
    pub fn walk(&self) -> Walk<'_> {
        Walk { mappings: self, list: List::new() }
    }

    /// Whether one mapping holds all of `range`. None: the kernel does not tell without making the whole list (before Linux
    /// 6.11).
    pub fn is_one(&self, range: Range) -> Option<bool> {
        let holds = |mapping: Range| mapping.start <= range.start && range.end <= mapping.end;
        self.ask(range.start, 0).ok().map(|mapping| mapping.is_some_and(holds))
    }

    /// `range` with all of the mappings that hold its ends. None: as for [`Mappings::is_one`].
    pub fn around(&self, range: Range) -> Option<Range> {
        let at = |addr| self.ask(addr, 0).ok().map(|mapping| mapping.unwrap_or(range));
        Some(Range { start: at(range.start)?.start.min(range.start), end: at(range.end - 1)?.end.max(range.end) })
    }

    /// The mapping that holds `addr`, or, always with [`OR_NEXT`] and perhaps without, the one that follows.
    fn query(&self, addr: usize, flags: u64) -> Result<Option<Range>, Errno> {
        match self.ask(addr, flags) {
            Err(Errno::NOTTY) => Ok(self.read(addr, &mut List::new())?.map(|mapping| mapping.range)),
            answer => answer,
        }
    }

    /// The first mapping that ends behind `addr`, by reading on in the list.
    fn read(&self, addr: usize, list: &mut List) -> Result<Option<Mapping>, Errno> {
        list.next(addr, |buffer, offset| rustix::io::pread(&self.fd, buffer, offset))
    }

    /// The mapping that holds `addr`, and what may be done there. None: there is none, or as for [`Mappings::is_one`].
    pub fn at(&self, addr: usize) -> Option<Mapping> {
        self.ask_mapping(addr, 0).ok().flatten()
    }

    /// The first mapping that ends behind `addr` by the ioctl alone, and only where the mapping is. `NOTTY`: there is no such ioctl.
    fn ask(&self, addr: usize, flags: u64) -> Result<Option<Range>, Errno> {
        Ok(self.ask_mapping(addr, flags)?.map(|mapping| mapping.range))
    }

    /// The same, and what may be done there.
    fn ask_mapping(&self, addr: usize, flags: u64) -> Result<Option<Mapping>, Errno> {
        // SAFETY: all fields are numbers, for which zero is a value.
        let mut query: sys::procmap_query = unsafe { core::mem::zeroed() };
        query.size = size_of::<sys::procmap_query>() as u64;
        query.query_flags = flags;
        query.query_addr = addr as u64;
        // SAFETY: PROCMAP_QUERY takes a procmap_query; without a name and a build id it writes nowhere else.
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

/// A look at one mapping after the other. Where the kernel does not answer single questions (before Linux 6.11), all of them
/// together read the list once. Nobody else may ask meanwhile: the kernel, too, would begin at the start again.
pub struct Walk<'a> {
    mappings: &'a Mappings,
    list: List,
}

impl Walk<'_> {
    /// The first mapping that ends behind `addr`, which is not below that of the question before. What was mapped since that
    /// one may be missing.
    ///
    /// # Errors
    /// Those of reading the list.
    pub fn next(&mut self, addr: usize) -> Result<Option<Range>, Errno> {
        Ok(self.next_mapping(addr)?.map(|mapping| mapping.range))
    }

    /// The same, and what may be done there.
    ///
    /// # Errors
    /// As there.
    pub fn next_mapping(&mut self, addr: usize) -> Result<Option<Mapping>, Errno> {
        match self.mappings.ask_mapping(addr, OR_NEXT) {
            Err(Errno::NOTTY) => self.mappings.read(addr, &mut self.list),
            answer => answer,
        }
    }
}

/// How far the list has been read.
struct List {
    buffer: [u8; 4096],
    /// What of the buffer was read and not looked at.
    unread: core::ops::Range<usize>,
    /// Where in the list that ends.
    offset: u64,
    /// The mapping of the last line.
    last: Option<Mapping>,
}

impl List {
    fn new() -> List {
        List { buffer: [0; 4096], unread: 0..0, offset: 0, last: None }
    }

    /// The first mapping from the last one on that ends behind `addr`; `read` brings bytes of the list from an offset on.
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
            // Of a line that is longer than the buffer the addresses stay, with which it begins.
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

/// The mapping that a line of the list, or the beginning of one, is about.
fn mapping_of(line: &[u8]) -> Option<Mapping> {
    let range = range_of(line)?;
    // Addresses, what may be done, offset, device, inode.
    let mut fields = line.split(|&c| c == b' ').filter(|field| !field.is_empty()).skip(1);
    let may = fields.next().unwrap_or_default();
    let has = |at: usize, letter: u8| may.get(at) == Some(&letter);
    let is_anonymous = has(3, b'p') && fields.nth(2) == Some(b"0");
    Some(Mapping { range, protection: Protection::of(has(0, b'r'), has(1, b'w'), has(2, b'x')), is_anonymous })
}

/// The range that a line of the list, or the beginning of one, is about.
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
        let mappings = Mappings::open().unwrap();
        // Between two guard pages, hence a mapping by itself.
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
        // Nothing is that low.
        assert_eq!(mappings.find(PAGE_SIZE), Ok(None));
        let first = mappings.next(PAGE_SIZE).unwrap();
        assert!(first.is_some_and(|range| range.start > PAGE_SIZE));
        assert_eq!(read(PAGE_SIZE), Ok(first));
        assert_eq!(mappings.next(whole.start - PAGE_SIZE).unwrap().map(|range| range.end), Some(whole.start), "the guard page");
        let behind_all = usize::MAX - PAGE_SIZE;
        assert_eq!((mappings.next(behind_all), read(behind_all)), (Ok(None), Ok(None)));
    }

    /// A list of so many mappings of one page with a page between them, and what a walk from one to the next reads of it.
    #[test]
    fn a_walk_reads_the_list_once() {
        const MANY: usize = 5000;
        let line = |i: usize| {
            // Some are of files, of which one has a name longer than the buffer.
            let name = if i % 7 == 3 { std::format!("/{}", "1-2 ".repeat(i % 1500)) } else { std::string::String::new() };
            std::format!("{:x}-{:x} rw-p 00000000 00:00 0 {name}\n", i * 2 * PAGE_SIZE, (i * 2 + 1) * PAGE_SIZE)
        };
        let text = (1..=MANY).map(line).collect::<std::string::String>().into_bytes();
        let bytes_read = core::cell::Cell::new(0);
        let read = |buffer: &mut [u8], offset: u64| {
            let rest = &text[offset as usize..];
            // As the kernel does: whole lines or less.
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
        let mappings = Mappings::open().unwrap();
        let (mut walk, mut list, mut at) = (mappings.walk(), List::new(), PAGE_SIZE);
        // Others map and unmap meanwhile, in tests that run beside this one; nothing of theirs is in here.
        let m = lowtide_core::vm::map(64 * PAGE_SIZE, lowtide_core::vm::OnFork::Copy).unwrap();
        for page in (0..64).step_by(2) {
            // SAFETY: a page of the mapping that was made above, which nobody uses.
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
