//! Finds pages in memory: the PAGEMAP_SCAN ioctl (Linux 6.7) on `/proc/self/pagemap`.

use linux_raw_sys::general as sys;
use rustix::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};

#[cfg(feature = "faults")]
use lowtide_core::faults::{Fault, Op};
use lowtide_core::kernel_text::open_own;
use lowtide_core::vm::PAGE_SIZE;

use crate::maps::Maps;
use crate::uffd::ioctl;

const PAGEMAP_SCAN: Opcode = opcode::read_write::<sys::pm_scan_arg>(sys::PROCFS_IOCTL_MAGIC, 16);

/// Pagemap bit: written or newly mapped since the last `clear_refs`.
const SOFT_DIRTY: u64 = 1 << 55;
/// Pagemap bit: mapped once, by this process only.
const EXCLUSIVE: u64 = 1 << 56;
/// Pagemap bits: present, in memory or in the kernel's swap.
const THERE: u64 = 0b11 << 62;
/// Not the program's own private pages.
const UNWANTED: u64 = (sys::PAGE_IS_FILE | sys::PAGE_IS_PFNZERO) as u64;
const NO_REGION: sys::page_region = sys::page_region { start: 0, end: 0, categories: 0 };

/// Most ranges of a result.
pub const MAX_RANGES: usize = 128;

/// Page map and mappings of this process.
#[derive(Debug)]
pub struct Present {
    fd: OwnedFd,
    /// The mappings.
    pub mappings: Maps,
    /// `/proc/self/smaps`, opened while descriptors are available.
    pub smaps: Option<OwnedFd>,
}

/// A page's kind, for eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A private page of the program.
    Page,
    /// The shared zero page.
    ZeroPage,
    /// Must stay.
    Other,
}

/// Result of a scan.
pub struct Ranges {
    regions: [sys::page_region; MAX_RANGES],
    len: usize,
    /// End of the scanned part.
    pub walk_end: usize,
}

impl Ranges {
    /// No pages.
    pub fn none() -> Ranges {
        Ranges { regions: [NO_REGION; MAX_RANGES], len: 0, walk_end: 0 }
    }

    /// Drops pages of other processes too. Excess ranges are left to the next scan.
    pub fn keep_exclusive(&mut self, present: &Present) -> Result<(), Errno> {
        let all = core::mem::replace(&mut self.regions, [NO_REGION; MAX_RANGES]);
        let len = core::mem::take(&mut self.len);
        for region in &all[..len] {
            let mut at = region.start as usize;
            while at < region.end as usize {
                let mut bits = [0u64; 64];
                let pages = present.bits(at, region.end as usize, &mut bits)?;
                for bits in &bits[..pages] {
                    if bits & EXCLUSIVE != 0 && !self.push(at) {
                        self.walk_end = at;
                        return Ok(());
                    }
                    at += PAGE_SIZE;
                }
            }
        }
        Ok(())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Their number.
    pub fn pages(&self) -> usize {
        self.iter().map(|(start, end)| (end - start) / PAGE_SIZE).sum()
    }

    /// False: too many ranges.
    pub fn push(&mut self, page: usize) -> bool {
        self.add(page, page + PAGE_SIZE)
    }

    /// Appends several pages.
    pub fn add(&mut self, start: usize, end: usize) -> bool {
        if let Some(last) = self.len.checked_sub(1)
            && self.regions[last].end == start as u64
        {
            self.regions[last].end = end as u64;
            return true;
        }
        let Some(next) = self.regions.get_mut(self.len) else { return false };
        *next = sys::page_region { start: start as u64, end: end as u64, categories: 0 };
        self.len += 1;
        true
    }

    /// Ranges and kinds from [`Present::scan_all`].
    pub fn kinds(&self) -> impl Iterator<Item = (usize, usize, Kind)> + '_ {
        const PRESENT: u64 = sys::PAGE_IS_PRESENT as u64;
        const ZERO_PAGE: u64 = PRESENT | sys::PAGE_IS_PFNZERO as u64;
        let kind = |categories: u64| match categories & (PRESENT | UNWANTED) {
            PRESENT => Kind::Page,
            ZERO_PAGE => Kind::ZeroPage,
            _ => Kind::Other,
        };
        self.regions[..self.len].iter().map(move |r| (r.start as usize, r.end as usize, kind(r.categories)))
    }

    /// The part of `part` around `addr` without ranges. None: `addr` is in one.
    pub fn gap(&self, addr: usize, mut part: (usize, usize)) -> Option<(usize, usize)> {
        for (start, end) in self.iter() {
            if end <= addr {
                part.0 = part.0.max(end);
            } else if start <= addr {
                return None;
            } else {
                part.1 = part.1.min(start);
            }
        }
        Some(part)
    }

    /// The ranges `(start, end)`, by address.
    pub fn iter(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.regions[..self.len].iter().map(|r| (r.start as usize, r.end as usize))
    }
}

impl Present {
    /// Duplicates to a descriptor of at least `least`.
    pub fn raised(&self, least: RawFd) -> Result<Present, Errno> {
        Present::opened(rustix::io::fcntl_dupfd_cloexec(&self.fd, least)?)
    }

    /// The descriptor's number.
    pub fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Opens both; again in a forked child.
    ///
    /// # Errors
    /// Those of opening `/proc/self/pagemap` and `/proc/self/maps`.
    pub fn open() -> Result<Present, Errno> {
        let fd = open_own(b"pagemap")?;
        Present::opened(fd)
    }

    /// Uses another process's descriptor of this page map.
    ///
    /// # Errors
    /// Those of opening `/proc/self/maps`.
    pub fn opened(fd: OwnedFd) -> Result<Present, Errno> {
        let smaps = open_own(b"smaps").ok();
        Ok(Present { fd, mappings: Maps::open()?, smaps })
    }

    /// Whether `addr` has a page, swapped by the kernel or not; true on errors.
    pub fn holds_page(&self, addr: usize) -> bool {
        let mut entry = [0u8; 8];
        match rustix::io::pread(&self.fd, &mut entry, (addr / PAGE_SIZE * 8) as u64) {
            Ok(8) => u64::from_ne_bytes(entry) & THERE != 0,
            _ => true,
        }
    }

    /// Pages up to the last present one of `pages` ([`MAX_RANGES`] at most); all on errors.
    pub fn pages_to_last(&self, start: usize, pages: usize) -> usize {
        let mut bits = [0u64; MAX_RANGES];
        match self.bits(start, start + pages * PAGE_SIZE, &mut bits) {
            Ok(seen) if seen == pages => bits[..seen].iter().rposition(|bits| bits & THERE != 0).map_or(0, |last| last + 1),
            _ => pages,
        }
    }

    /// None: unreadable.
    pub fn is_soft_dirty(&self, addr: usize) -> Option<bool> {
        let mut bits = [0];
        let at = addr / PAGE_SIZE * PAGE_SIZE;
        self.bits(at, at + PAGE_SIZE, &mut bits).ok()?;
        Some(bits[0] & SOFT_DIRTY != 0)
    }

    /// Resident anonymous bytes in `start .. end`. Time depends on page tables, not length.
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

    /// Reads as many pagemap entries as fit.
    fn bits(&self, start: usize, end: usize, bits: &mut [u64]) -> Result<usize, Errno> {
        let wanted = ((end - start) / PAGE_SIZE).min(bits.len());
        let (head, bytes, tail) = {
            // SAFETY: integers allow all bit patterns.
            unsafe { bits[..wanted].align_to_mut::<u8>() }
        };
        debug_assert!(head.is_empty() && tail.is_empty());
        let n = rustix::io::pread(&self.fd, bytes, (start / PAGE_SIZE * size_of::<u64>()) as u64)?;
        if n < size_of::<u64>() { Err(Errno::IO) } else { Ok(n / size_of::<u64>()) }
    }

    /// Finds all that is not missing: pages, swapped by the kernel or not, migration entries, guard
    /// markers. See [`Ranges::kinds`].
    ///
    /// # Errors
    /// As [`Present::scan`].
    pub fn scan_all(&self, start: usize, end: usize) -> Result<Ranges, Errno> {
        let any = u64::from(sys::PAGE_IS_PRESENT | sys::PAGE_IS_SWAPPED);
        self.ask(start, end, |arg| {
            arg.category_anyof_mask = any;
            arg.return_mask = any | UNWANTED;
        })
    }

    /// Finds guard markers and pages swapped by the kernel.
    ///
    /// # Errors
    /// As [`Present::scan`].
    pub fn scan_markers(&self, start: usize, end: usize) -> Result<Ranges, Errno> {
        self.ask(start, end, |arg| {
            arg.category_mask = u64::from(sys::PAGE_IS_SWAPPED);
            arg.return_mask = u64::from(sys::PAGE_IS_SWAPPED);
        })
    }

    /// Finds private pages except zero pages; at most `max_pages` (0: any number).
    ///
    /// # Errors
    /// `NOTTY`: before Linux 6.7.
    pub fn scan(&self, start: usize, end: usize, max_pages: usize) -> Result<Ranges, Errno> {
        self.ask(start, end, |arg| {
            arg.max_pages = max_pages as u64;
            arg.category_inverted = UNWANTED;
            arg.category_mask = u64::from(sys::PAGE_IS_PRESENT) | UNWANTED;
            arg.return_mask = u64::from(sys::PAGE_IS_PRESENT);
        })
    }

    /// The first zero page in `start .. end`.
    ///
    /// # Errors
    /// As [`Present::scan`].
    pub fn first_zero_page(&self, start: usize, end: usize) -> Result<Option<usize>, Errno> {
        Ok(self.scan_zero_page(start, end, 1)?.iter().next().map(|(page, _)| page))
    }

    /// At most `most` zero pages (0: as many as fit).
    ///
    /// # Errors
    /// As [`Present::scan`].
    pub fn scan_zero_page(&self, start: usize, end: usize, most: usize) -> Result<Ranges, Errno> {
        self.ask(start, end, |arg| {
            arg.max_pages = most as u64;
            arg.category_mask = u64::from(sys::PAGE_IS_PRESENT | sys::PAGE_IS_PFNZERO);
            arg.return_mask = u64::from(sys::PAGE_IS_PRESENT);
        })
    }

    fn ask(&self, start: usize, end: usize, wanted: impl FnOnce(&mut sys::pm_scan_arg)) -> Result<Ranges, Errno> {
        let mut out = Ranges::none();
        let mut arg = sys::pm_scan_arg {
            size: size_of::<sys::pm_scan_arg>() as u64,
            flags: 0,
            start: start as u64,
            end: end as u64,
            walk_end: 0,
            vec: out.regions.as_mut_ptr() as u64,
            vec_len: MAX_RANGES as u64,
            max_pages: 0,
            category_inverted: 0,
            category_mask: 0,
            category_anyof_mask: 0,
            return_mask: 0,
        };
        wanted(&mut arg);
        #[cfg(feature = "faults")]
        match crate::uffd::struck(Op::Scan) {
            Some(Fault::NoMemory) => return Err(Errno::NOMEM),
            Some(Fault::Page) => arg.vec_len = 1,
            _ => {}
        }
        // SAFETY: a pm_scan_arg with room for `vec_len` regions.
        out.len = unsafe { ioctl(self.fd.as_fd(), PAGEMAP_SCAN, &mut arg)? } as usize;
        out.walk_end = arg.walk_end as usize;
        Ok(out)
    }
}

/// This process's memory for reading; missing pages are errors, not the end.
pub fn open_memory() -> Option<OwnedFd> {
    open_own(b"mem").ok()
}
