//! Which pages are in memory: the PAGEMAP_SCAN ioctl (Linux 6.7) on `/proc/self/pagemap`.

use linux_raw_sys::general as sys;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::Opcode;

use lowtide_core::vm::PAGE_SIZE;

use crate::mapping::Mappings;
use crate::uffd::ioctl;

const PAGEMAP_SCAN: Opcode = 0xc060_6610;

/// Ranges that one scan returns at most.
pub const MAX_RANGES: usize = 64;

/// The open page map of this process, and the list of its mappings.
#[derive(Debug)]
pub struct Present {
    fd: OwnedFd,
    /// The list.
    pub mappings: Mappings,
}

/// The answer of one scan.
pub struct Ranges {
    regions: [sys::page_region; MAX_RANGES],
    len: usize,
    /// Where the scan stopped: everything before has been looked at.
    pub walk_end: usize,
}

impl Ranges {
    /// The ranges `(start, end)` with pages in memory, in order of address.
    pub fn iter(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.regions[..self.len].iter().map(|r| (r.start as usize, r.end as usize))
    }
}

impl Present {
    /// Opens both. Must be called in the process itself, and again in a forked child.
    ///
    /// # Errors
    /// Those of opening `/proc/self/pagemap` and `/proc/self/maps`.
    pub fn open() -> Result<Present, Errno> {
        let fd = rustix::fs::open(c"/proc/self/pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Present { fd, mappings: Mappings::open()? })
    }

    /// With the page map of this process that another one has opened for it. (The list of mappings anybody may read.)
    ///
    /// # Errors
    /// Those of opening `/proc/self/maps`.
    pub fn opened(fd: OwnedFd) -> Result<Present, Errno> {
        Ok(Present { fd, mappings: Mappings::open()? })
    }

    /// Whether there is a page at `addr`, in memory or in the kernel's own swap. If it can't be told, there is.
    pub fn holds_page(&self, addr: usize) -> bool {
        let mut entry = [0u8; 8];
        match rustix::io::pread(&self.fd, &mut entry, (addr / PAGE_SIZE * 8) as u64) {
            // Bits 63 and 62 of an entry of the page map.
            Ok(8) => u64::from_ne_bytes(entry) >> 62 != 0,
            _ => true,
        }
    }

    /// Bytes of private memory in `start .. end` (the shared zero page and shared mappings are none): what the kernel counts as
    /// resident anonymous memory. Takes time by the page tables that are there, not by the length.
    ///
    /// # Errors
    /// As [`Present::scan`].
    pub fn bytes(&self, start: usize, end: usize) -> Result<usize, Errno> {
        let (mut at, mut bytes) = (start, 0);
        while at < end {
            let found = self.scan(at, end, 0)?;
            bytes += found.iter().map(|(from, to)| to - from).sum::<usize>();
            at = found.walk_end.max(at + PAGE_SIZE);
        }
        Ok(bytes)
    }

    /// Finds private pages in memory (the shared zero page is none) in `start .. end`, at most `max_pages` of them (0: any number).
    ///
    /// # Errors
    /// `NOTTY`: the kernel is older than 6.7.
    pub fn scan(&self, start: usize, end: usize, max_pages: usize) -> Result<Ranges, Errno> {
        let mut out =
            Ranges { regions: [sys::page_region { start: 0, end: 0, categories: 0 }; MAX_RANGES], len: 0, walk_end: start };
        let unwanted = u64::from(sys::PAGE_IS_FILE | sys::PAGE_IS_PFNZERO);
        let mut arg = sys::pm_scan_arg {
            size: size_of::<sys::pm_scan_arg>() as u64,
            flags: 0,
            start: start as u64,
            end: end as u64,
            walk_end: 0,
            vec: out.regions.as_mut_ptr() as u64,
            vec_len: MAX_RANGES as u64,
            max_pages: max_pages as u64,
            category_inverted: unwanted,
            category_mask: u64::from(sys::PAGE_IS_PRESENT) | unwanted,
            category_anyof_mask: 0,
            return_mask: u64::from(sys::PAGE_IS_PRESENT),
        };
        // SAFETY: PAGEMAP_SCAN takes a pm_scan_arg; `vec` points to `vec_len` regions of ours.
        out.len = unsafe { ioctl(self.fd.as_fd(), PAGEMAP_SCAN, &mut arg)? } as usize;
        out.walk_end = arg.walk_end as usize;
        Ok(out)
    }
}
