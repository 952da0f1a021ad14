//! Which pages are in memory: the PAGEMAP_SCAN ioctl (Linux 6.7) on `/proc/self/pagemap`.

use linux_raw_sys::general as sys;
use rustix::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};

#[cfg(feature = "faults")]
use lowtide_core::faults::{Fault, Op};
use lowtide_core::vm::PAGE_SIZE;

use crate::sys::maps::Mappings;
use crate::sys::uffd::ioctl;

const PAGEMAP_SCAN: Opcode = opcode::read_write::<sys::pm_scan_arg>(sys::PROCFS_IOCTL_MAGIC, 16);

/// In an entry of `/proc/self/pagemap`: written, or newly mapped, since somebody has cleared these bits (`clear_refs`).
const SOFT_DIRTY: u64 = 1 << 55;
/// The same: no other process maps the page, and this one maps it once.
const EXCLUSIVE: u64 = 1 << 56;
/// The same: it is write-protected ([`Uffd::protect`]).
///
/// [`Uffd::protect`]: crate::sys::uffd::Uffd::protect
const PROTECTED: u64 = 1 << 57;
/// The same: there is a page, in memory or in the kernel's own swap.
const THERE: u64 = 0b11 << 62;
/// Kinds of pages in memory that are not the program's own: of a file, and the shared zero page.
const UNWANTED: u64 = (sys::PAGE_IS_FILE | sys::PAGE_IS_PFNZERO) as u64;
/// PAGE_IS_ACCESSED (Linux 7.3): not armed ([`Uffd::arm`]), in memory that is registered for accesses.
///
/// [`Uffd::arm`]: crate::sys::uffd::Uffd::arm
const ACCESSED: u64 = 1 << 9;
const NO_REGION: sys::page_region = sys::page_region { start: 0, end: 0, categories: 0 };

/// Ranges that one scan returns at most.
pub const MAX_RANGES: usize = 128;

/// The open page map of this process, and the list of its mappings.
#[derive(Debug)]
pub struct Present {
    fd: OwnedFd,
    /// The list.
    pub mappings: Mappings,
    /// `/proc/self/smaps`, if it can be read: opened while there are descriptors.
    pub(crate) smaps: Option<OwnedFd>,
}

/// What there is at a place, to a thread that evicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A private page of the program.
    Page,
    /// The same, and it was accessed since it was armed, or never was armed. Found only where that is asked for.
    Accessed,
    /// The kernel's shared page of zeros.
    ZeroPage,
    /// What must stay.
    Other,
}

/// Pages that a write would copy, a bit for each page, the first by the lowest ([`Present::shared`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SharedPages {
    /// All of them.
    pub all: u64,
    /// Those that are write-protected, of all.
    pub protected: u64,
}

/// Whether a write to a page with these bits would copy it.
fn is_shared(bits: u64) -> bool {
    bits & THERE != 0 && bits & EXCLUSIVE == 0
}

/// The answer of one scan.
pub struct Ranges {
    regions: [sys::page_region; MAX_RANGES],
    len: usize,
    /// Where the scan stopped: everything before has been looked at.
    pub walk_end: usize,
}

impl Ranges {
    /// As a scan that has found these ranges `(start, end)`, and whether each was accessed, up to `walk_end`.
    #[cfg(test)]
    pub(crate) fn of(found: &[(usize, usize, bool)], walk_end: usize) -> Ranges {
        let mut ranges = Ranges { len: found.len(), walk_end, ..Ranges::none() };
        for (region, &(start, end, accessed)) in ranges.regions.iter_mut().zip(found) {
            let categories = u64::from(sys::PAGE_IS_PRESENT) | if accessed { ACCESSED } else { 0 };
            *region = sys::page_region { start: start as u64, end: end as u64, categories };
        }
        ranges
    }

    /// No pages.
    pub(crate) fn none() -> Ranges {
        Ranges { regions: [NO_REGION; MAX_RANGES], len: 0, walk_end: 0 }
    }

    /// Leaves out the pages that another process maps as well. What is not looked at, because there are too many ranges, is
    /// left to the next scan.
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
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many pages they have.
    pub(crate) fn pages(&self) -> usize {
        self.iter().map(|(start, end)| (end - start) / PAGE_SIZE).sum()
    }

    /// Adds a page behind all others; false: there is no room for another range.
    pub(crate) fn push(&mut self, page: usize) -> bool {
        self.add(page, page + PAGE_SIZE)
    }

    /// The same of several pages.
    pub(crate) fn add(&mut self, start: usize, end: usize) -> bool {
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

    /// Of what [`Present::scan_accesses`] has found, keeps what was not accessed, up to this many pages, and says what was
    /// accessed among it. What is behind the last page that is kept is left to the next scan.
    pub(crate) fn keep_idle(&mut self, most: usize) -> Accessed {
        let all = core::mem::replace(&mut self.regions, [NO_REGION; MAX_RANGES]);
        let len = core::mem::take(&mut self.len);
        let (mut idle, mut accessed) = (0, Accessed::default());
        for region in &all[..len] {
            let (start, end) = (region.start as usize, region.end as usize);
            if region.categories & ACCESSED != 0 {
                accessed.add(start, end);
                continue;
            }
            let pages = ((end - start) / PAGE_SIZE).min(most - idle);
            let stop = start + pages * PAGE_SIZE;
            if pages > 0 {
                self.regions[self.len] = sys::page_region { start: region.start, end: stop as u64, categories: 0 };
                (self.len, idle) = (self.len + 1, idle + pages);
            }
            if idle == most {
                self.walk_end = stop;
                break;
            }
        }
        accessed
    }

    /// Of what [`Present::scan_all`] has found, the ranges `(start, end)` in order of address, and what is there.
    pub fn kinds(&self) -> impl Iterator<Item = (usize, usize, Kind)> + '_ {
        const PRESENT: u64 = sys::PAGE_IS_PRESENT as u64;
        const IN_USE: u64 = PRESENT | ACCESSED;
        const ZERO_PAGE: u64 = PRESENT | sys::PAGE_IS_PFNZERO as u64;
        let kind = |categories: u64| match categories & (PRESENT | UNWANTED | ACCESSED) {
            PRESENT => Kind::Page,
            IN_USE => Kind::Accessed,
            ZERO_PAGE => Kind::ZeroPage,
            _ => Kind::Other,
        };
        self.regions[..self.len].iter().map(move |r| (r.start as usize, r.end as usize, kind(r.categories)))
    }

    /// The part of `part` around the page at `addr` in which nothing of this is. None: something of it is at `addr`.
    pub(crate) fn gap(&self, addr: usize, mut part: (usize, usize)) -> Option<(usize, usize)> {
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

    /// The ranges `(start, end)` with pages in memory, in order of address.
    pub fn iter(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.regions[..self.len].iter().map(|r| (r.start as usize, r.end as usize))
    }
}

/// What was accessed of what a scan has looked at.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Accessed {
    /// The pages.
    pub pages: usize,
    /// From the first to behind the last; there may be others between them.
    pub start: usize,
    pub end: usize,
}

impl Accessed {
    fn add(&mut self, start: usize, end: usize) {
        if self.pages == 0 {
            self.start = start;
        }
        (self.end, self.pages) = (end, self.pages + (end - start) / PAGE_SIZE);
    }
}

impl Present {
    /// The same with another descriptor, whose number is this or higher.
    ///
    /// # Errors
    /// Those of fcntl, and of opening the list of mappings.
    pub(crate) fn raised(&self, least: RawFd) -> Result<Present, Errno> {
        Present::opened(rustix::io::fcntl_dupfd_cloexec(&self.fd, least)?)
    }

    /// The descriptor's number.
    pub(crate) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Opens both. Must be called in the process itself, and again in a forked child.
    ///
    /// # Errors
    /// Those of opening `/proc/self/pagemap` and `/proc/self/maps`.
    pub fn open() -> Result<Present, Errno> {
        let fd = rustix::fs::open(c"/proc/self/pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Present::opened(fd)
    }

    /// With the page map of this process that another one has opened for it. (The list of mappings anybody may read.)
    ///
    /// # Errors
    /// Those of opening `/proc/self/maps`.
    pub fn opened(fd: OwnedFd) -> Result<Present, Errno> {
        let smaps = rustix::fs::open(c"/proc/self/smaps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok();
        Ok(Present { fd, mappings: Mappings::open()?, smaps })
    }

    /// Whether there is a page at `addr`, in memory or in the kernel's own swap. If it can't be told, there is.
    pub fn holds_page(&self, addr: usize) -> bool {
        let mut entry = [0u8; 8];
        match rustix::io::pread(&self.fd, &mut entry, (addr / PAGE_SIZE * 8) as u64) {
            Ok(8) => u64::from_ne_bytes(entry) & THERE != 0,
            _ => true,
        }
    }

    /// Up to the last one that there is of the pages from `start` on, of which it looks at `pages` ([`MAX_RANGES`] at most): how many
    /// that are. If it can't be told, all.
    pub(crate) fn pages_to_last(&self, start: usize, pages: usize) -> usize {
        let mut bits = [0u64; MAX_RANGES];
        match self.bits(start, start + pages * PAGE_SIZE, &mut bits) {
            Ok(seen) if seen == pages => bits[..seen].iter().rposition(|bits| bits & THERE != 0).map_or(0, |last| last + 1),
            _ => pages,
        }
    }

    /// Whether the kernel says of the page at `addr` that it was written, or newly mapped, since somebody has cleared these bits.
    /// None: it can't be told.
    pub(crate) fn is_soft_dirty(&self, addr: usize) -> Option<bool> {
        let mut bits = [0];
        let at = addr / PAGE_SIZE * PAGE_SIZE;
        self.bits(at, at + PAGE_SIZE, &mut bits).ok()?;
        Some(bits[0] & SOFT_DIRTY != 0)
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

    /// The kernel's bits of the pages in `start .. end`, as many as there is room for; how many.
    fn bits(&self, start: usize, end: usize, bits: &mut [u64]) -> Result<usize, Errno> {
        let wanted = ((end - start) / PAGE_SIZE).min(bits.len());
        let (head, bytes, tail) = {
            // SAFETY: bytes of integers, which may have any value.
            unsafe { bits[..wanted].align_to_mut::<u8>() }
        };
        debug_assert!(head.is_empty() && tail.is_empty());
        let n = rustix::io::pread(&self.fd, bytes, (start / PAGE_SIZE * size_of::<u64>()) as u64)?;
        if n < size_of::<u64>() { Err(Errno::IO) } else { Ok(n / size_of::<u64>()) }
    }

    /// Which of the pages from `start` on, of which it looks at `pages` (64 at most), a write would copy: those that another
    /// process maps, and the shared zero page. What can't be told is one, and protected.
    pub(crate) fn shared(&self, start: usize, pages: usize) -> SharedPages {
        let mut bits = [0u64; u64::BITS as usize];
        let seen = self.bits(start, start + pages * PAGE_SIZE, &mut bits).unwrap_or(0);
        let unseen = u64::MAX.checked_shl(seen as u32).unwrap_or(0) & u64::MAX >> (u64::BITS as usize - pages);
        let mut shared = SharedPages { all: unseen, protected: unseen };
        for (i, bits) in bits[..seen].iter().enumerate() {
            shared.all |= u64::from(is_shared(*bits)) << i;
            shared.protected |= u64::from(is_shared(*bits) && bits & PROTECTED != 0) << i;
        }
        shared
    }

    /// Calls `f` with runs `(start, end)` of `start .. end` that hold pages that a write would copy, and none that are this
    /// process's alone. What is missing may be in them. A run is told at once, and ends where a huge page may.
    ///
    /// # Errors
    /// Those of reading `/proc/self/pagemap`, and the first one of `f`.
    pub(crate) fn each_shared(
        &self,
        start: usize,
        end: usize,
        mut f: impl FnMut(usize, usize) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let (mut at, mut run) = (start, None);
        let mut bits = [0u64; 512];
        while at < end {
            // A page may be copied after it was looked at: no more than one huge page is looked at before `f`.
            let huge_end = (at / (bits.len() * PAGE_SIZE) + 1) * bits.len() * PAGE_SIZE;
            let pages = self.bits(at, end.min(huge_end), &mut bits)?;
            for bits in &bits[..pages] {
                let next = at + PAGE_SIZE;
                if is_shared(*bits) {
                    run = Some((run.map_or(at, |(first, _)| first), next));
                } else if bits & THERE != 0
                    && let Some((first, last)) = run.take()
                {
                    f(first, last)?;
                }
                at = next;
            }
            if let Some((first, last)) = run.take() {
                f(first, last)?;
            }
        }
        Ok(())
    }

    /// Finds all of `start .. end` that is not missing altogether: pages in memory of any kind, in the kernel's own swap, or on
    /// their way between places of memory, and guard markers. [`Ranges::kinds`] says what it is; with `accesses` also what was
    /// accessed, which takes a userfaultfd with accessed bits.
    ///
    /// # Errors
    /// As [`Present::scan`].
    pub fn scan_all(&self, start: usize, end: usize, accesses: bool) -> Result<Ranges, Errno> {
        let any = u64::from(sys::PAGE_IS_PRESENT | sys::PAGE_IS_SWAPPED);
        self.ask(start, end, |arg| {
            arg.category_anyof_mask = any;
            arg.return_mask = any | UNWANTED | if accesses { ACCESSED } else { 0 };
        })
    }

    /// Finds what is neither missing nor in memory in `start .. end`: guard markers, and pages in the kernel's own swap.
    ///
    /// # Errors
    /// As [`Present::scan`].
    pub fn scan_markers(&self, start: usize, end: usize) -> Result<Ranges, Errno> {
        self.ask(start, end, |arg| {
            arg.category_mask = u64::from(sys::PAGE_IS_SWAPPED);
            arg.return_mask = u64::from(sys::PAGE_IS_SWAPPED);
        })
    }

    /// Finds private pages in memory (the shared zero page is none) in `start .. end`, at most `max_pages` of them (0: any
    /// number).
    ///
    /// # Errors
    /// `NOTTY`: the kernel is older than 6.7.
    pub fn scan(&self, start: usize, end: usize, max_pages: usize) -> Result<Ranges, Errno> {
        self.ask(start, end, |arg| {
            arg.max_pages = max_pages as u64;
            arg.category_inverted = UNWANTED;
            arg.category_mask = u64::from(sys::PAGE_IS_PRESENT) | UNWANTED;
            arg.return_mask = u64::from(sys::PAGE_IS_PRESENT);
        })
    }

    /// The same, apart by whether they were accessed ([`Ranges::keep_idle`]); takes a userfaultfd with accessed bits.
    ///
    /// # Errors
    /// `INVAL`: the kernel is older than 7.3.
    pub(crate) fn scan_accesses(&self, start: usize, end: usize, max_pages: usize) -> Result<Ranges, Errno> {
        self.ask(start, end, |arg| {
            arg.max_pages = max_pages as u64;
            arg.category_inverted = UNWANTED;
            arg.category_mask = u64::from(sys::PAGE_IS_PRESENT) | UNWANTED;
            arg.return_mask = u64::from(sys::PAGE_IS_PRESENT) | ACCESSED;
        })
    }

    /// The first place in `start .. end` where the shared zero page is.
    ///
    /// # Errors
    /// As [`Present::scan`].
    pub fn first_zero_page(&self, start: usize, end: usize) -> Result<Option<usize>, Errno> {
        Ok(self.scan_zero_page(start, end, 1)?.iter().next().map(|(page, _)| page))
    }

    /// Where the shared zero page is in `start .. end`, this many places at most (0: as many as there is room for).
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
        match crate::sys::uffd::struck(Op::Scan) {
            Some(Fault::NoMemory) => return Err(Errno::NOMEM),
            Some(Fault::Page) => arg.vec_len = 1,
            _ => {}
        }
        // SAFETY: PAGEMAP_SCAN takes a pm_scan_arg; `vec` points to `vec_len` regions of ours.
        out.len = unsafe { ioctl(self.fd.as_fd(), PAGEMAP_SCAN, &mut arg)? } as usize;
        out.walk_end = arg.walk_end as usize;
        Ok(out)
    }
}

/// The bytes of this process, for reading: what is unmapped or missing is an error, not the end. None: they can't be opened.
pub fn open_memory() -> Option<OwnedFd> {
    rustix::fs::open(c"/proc/self/mem", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}
