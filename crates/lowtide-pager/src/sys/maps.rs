//! Where the mapping that holds an address begins and ends, from `/proc/self/maps`: by its ioctl PROCMAP_QUERY (Linux 6.11), or
//! by reading it.

use linux_raw_sys::general as sys;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};

use crate::mappings::regions::Range;
use crate::sys::uffd::ioctl;

const PROCMAP_QUERY: Opcode = opcode::read_write::<sys::procmap_query>(sys::PROCFS_IOCTL_MAGIC, 17);
const OR_NEXT: u64 = sys::procmap_query_flags::PROCMAP_QUERY_COVERING_OR_NEXT_VMA as u64;

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
            Err(Errno::NOTTY) => self.read(addr),
            answer => answer,
        }
    }

    /// The same by the ioctl alone. `NOTTY`: there is none.
    fn ask(&self, addr: usize, flags: u64) -> Result<Option<Range>, Errno> {
        // SAFETY: all fields are numbers, for which zero is a value.
        let mut query: sys::procmap_query = unsafe { core::mem::zeroed() };
        query.size = size_of::<sys::procmap_query>() as u64;
        query.query_flags = flags;
        query.query_addr = addr as u64;
        // SAFETY: PROCMAP_QUERY takes a procmap_query; without a name and a build id it writes nowhere else.
        match unsafe { ioctl(self.fd.as_fd(), PROCMAP_QUERY, &mut query) } {
            Ok(_) => Ok(Some(Range { start: query.vma_start as usize, end: query.vma_end as usize })),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The first mapping that ends behind `addr`, by reading the list from its start.
    fn read(&self, addr: usize) -> Result<Option<Range>, Errno> {
        let (mut buffer, mut len, mut offset) = ([0u8; 4096], 0, 0);
        loop {
            let got = rustix::io::pread(&self.fd, &mut buffer[len..], offset)?;
            if got == 0 {
                return Ok(None);
            }
            (len, offset) = (len + got, offset + got as u64);
            let mut start = 0;
            while let Some(n) = buffer[start..len].iter().position(|&c| c == b'\n') {
                if let Some(range) = range_of(&buffer[start..start + n]).filter(|range| addr < range.end) {
                    return Ok(Some(range));
                }
                start += n + 1;
            }
            buffer.copy_within(start..len, 0);
            len -= start;
            if len == buffer.len() {
                // A longer line: its addresses were not those, or it ends the search at the next one.
                match range_of(&buffer).filter(|range| addr < range.end) {
                    Some(range) => return Ok(Some(range)),
                    None => len = 0,
                }
            }
        }
    }
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
        for addr in [whole.start, whole.start + 2 * PAGE_SIZE, whole.end - 1] {
            assert_eq!(mappings.find(addr), Ok(Some(whole)));
            assert_eq!(mappings.read(addr), Ok(Some(whole)), "as on a kernel without the ioctl");
            assert_ne!(mappings.is_one(Range { start: addr, end: whole.end }), Some(false));
            assert_ne!(mappings.is_one(Range { start: addr, end: whole.end + PAGE_SIZE }), Some(true));
            assert!(mappings.around(Range { start: addr, end: addr + 1 }).is_none_or(|around| around == whole));
        }
        // Nothing is that low.
        assert_eq!(mappings.find(PAGE_SIZE), Ok(None));
        let first = mappings.next(PAGE_SIZE).unwrap();
        assert!(first.is_some_and(|range| range.start > PAGE_SIZE));
        assert_eq!(mappings.read(PAGE_SIZE), Ok(first));
        assert_eq!(mappings.next(whole.start - PAGE_SIZE).unwrap().map(|range| range.end), Some(whole.start), "the guard page");
        assert_eq!((mappings.next(usize::MAX - PAGE_SIZE), mappings.read(usize::MAX - PAGE_SIZE)), (Ok(None), Ok(None)));
    }
}
