//! lowtide's own mappings: all memory that lowtide uses, never swapped.
//!
//! They lie away from the program's (`place.rs`), with guard pages that keep the kernel from
//! merging the two. The table of own ranges (`own.rs`), without guards, only grows: a retired range
//! stays, empty, for the next mapping of about its length ([`Mapping::retire`]). Large memory is
//! reserved and opened as it grows ([`reserve`], [`Mapping::open`]).

mod own;
mod place;
pub mod room;
mod scattered;

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use own::{MAKING, enter, table};
pub use own::{
    Whose, forget_in_child, own, own_count, own_ranges, own_ranges_in, reset_after_fork, unless_own, wait_for_makers,
};

/// Bytes in a page; lowtide supports only 4 KiB.
pub const PAGE_SIZE: usize = 4096;

/// The bytes of one page.
pub type Page = [u8; PAGE_SIZE];

static FROM_CHILDREN: AtomicBool = AtomicBool::new(false);

/// Leaves later mappings out of forked processes. Pages shared with a child could not be moved, and
/// each change of a table would copy a page.
///
/// A child must call [`forget_in_child`] before anything else of lowtide.
pub fn keep_from_children() {
    FROM_CHILDREN.store(true, Ordering::Relaxed);
}

fn keep_from_child(at: *mut core::ffi::c_void, len: usize) -> Result<(), Errno> {
    if !FROM_CHILDREN.load(Ordering::Relaxed) {
        return Ok(());
    }
    // SAFETY: a mapping just made, unchanged in this process.
    unsafe { rustix::mm::madvise(at, len, Advice::LinuxDontFork) }
}

static KEPT_BY: AtomicI32 = AtomicI32::new(0);

/// The error of the last failure to give memory back ([`Mapping::discard`]), as from a seccomp
/// filter.
pub fn kept_by() -> Option<Errno> {
    Some(KEPT_BY.load(Ordering::Relaxed)).filter(|number| *number != 0).map(Errno::from_raw_os_error)
}

/// A readable and writable mapping of lowtide's own, zero-filled on first touch.
#[derive(Debug, Clone, Copy)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a Mapping is only an address range; its users answer for accesses.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

const TABLE_BYTES: usize = 512 * PAGE_SIZE;

/// A mapping's behaviour at fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFork {
    /// The child gets a copy-on-write copy.
    Copy,
    /// Parent and child share the bytes.
    Share,
}

/// Maps `len` bytes (rounded up to pages) as an own range.
///
/// # Errors
/// `NOMEM` when the kernel refuses.
pub fn map(len: usize, on_fork: OnFork) -> Result<Mapping, Errno> {
    let mapping = reserve(len, on_fork)?;
    mapping.open(0, mapping.len)?;
    Ok(mapping)
}

/// The same, never retired, with its own page tables: up to 4 MiB more.
///
/// # Errors
/// As [`map`].
pub fn map_apart(len: usize, on_fork: OnFork) -> Result<Mapping, Errno> {
    let (len, tables) = (len.next_multiple_of(PAGE_SIZE), len.next_multiple_of(TABLE_BYTES));
    let around = reserve(tables + TABLE_BYTES, on_fork)?;
    let offset = around.addr().next_multiple_of(TABLE_BYTES) - around.addr();
    around.open(offset, len)?;
    // SAFETY: inside the reservation.
    let base = unsafe { around.base.add(offset) };
    Ok(Mapping { base, len })
}

/// Reserves `len` bytes (rounded up to pages) as an own range, inaccessible until
/// [`Mapping::open`], without memory or commit charge.
///
/// # Errors
/// `NOMEM` when the kernel refuses.
pub fn reserve(len: usize, on_fork: OnFork) -> Result<Mapping, Errno> {
    #[cfg(feature = "faults")]
    if crate::faults::fails(crate::faults::Op::Map) {
        return Err(Errno::NOMEM);
    }
    let len = len.next_multiple_of(PAGE_SIZE);
    let whole = len + 2 * PAGE_SIZE;
    let flags = match on_fork {
        OnFork::Copy => MapFlags::PRIVATE | MapFlags::NORESERVE,
        OnFork::Share => MapFlags::SHARED | MapFlags::NORESERVE,
    };
    let base = match map_again(whole, flags)? {
        Some(base) => base,
        None => {
            let mut making = MAKING.lock();
            let base = making.place.map(whole, flags)?;
            enter(&mut making, base as usize, base as usize + whole, Whose::Lowtide)?;
            base
        }
    };
    // SAFETY: inside the mapping just made.
    let inner = unsafe { base.cast::<u8>().add(PAGE_SIZE) };
    if on_fork == OnFork::Copy && rustix::process::getrlimit(rustix::process::Resource::Data).current.is_some() {
        let flags = flags | MapFlags::FIXED | MapFlags::GROWSDOWN;
        // With MAP_GROWSDOWN the kernel counts the mapping as stack, which RLIMIT_DATA does not
        // limit; the guard page stops its growth. Without that limit it would only cost huge pages.
        // SAFETY: inside the mapping just made.
        unsafe { rustix::mm::mmap_anonymous(inner.cast(), len, ProtFlags::empty(), flags)? };
    }
    keep_from_child(base, whole)?;
    // SAFETY: inside the mapping just made.
    unsafe {
        // Keeps lowtide's tables out of core dumps.
        let _ = rustix::mm::madvise(inner.cast(), len, Advice::LinuxDontDump);
    }
    Ok(Mapping { base: NonNull::new(inner).ok_or(Errno::NOMEM)?, len })
}

/// Maps a retired range of `whole` to `2 * whole` bytes again, inaccessible.
fn map_again(whole: usize, flags: MapFlags) -> Result<Option<*mut core::ffi::c_void>, Errno> {
    for slot in table() {
        let start = slot.start.load(Ordering::Relaxed);
        if !slot.retired.load(Ordering::Relaxed)
            || !(whole..=2 * whole).contains(&slot.end.load(Ordering::Acquire).wrapping_sub(start))
            // Acquire: pairs with the Release in `retire_at`, after the last use.
            || slot.retired.compare_exchange(true, false, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            continue;
        }
        let base = start as *mut core::ffi::c_void;
        let all = slot.end.load(Ordering::Acquire) - start;
        // SAFETY: a retired range has no references; the exchange makes it this thread's.
        let mapped = unsafe { rustix::mm::mmap_anonymous(base, all, ProtFlags::empty(), flags | MapFlags::FIXED) };
        return match mapped {
            Ok(base) => Ok(Some(base)),
            Err(errno) => {
                // Release: pairs with the Acquire of the exchange above.
                slot.retired.store(true, Ordering::Release);
                Err(errno)
            }
        };
    }
    Ok(None)
}

/// Writes the eight bytes at `addr` back, to have the page in memory and dirty. The compiler drops
/// an atomic no-op.
///
/// # Safety
/// Writable aligned memory, which others access only as atomics meanwhile.
pub unsafe fn write_nothing(addr: usize) {
    // SAFETY: the caller's.
    unsafe {
        core::arch::asm!("lock or qword ptr [{}], 0", in(reg) addr, options(nostack));
    }
}

/// [`Mapping::retire`] for the mapping at this address.
///
/// # Safety
/// As there.
pub unsafe fn retire_at(addr: usize) {
    let base = addr - PAGE_SIZE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    let Some(slot) = table().iter().find(|slot| slot.start.load(Ordering::Relaxed) == base) else { return };
    let whole = slot.end.load(Ordering::Acquire) - base;
    // SAFETY: replaces the unused mapping and its guards.
    if let Ok(empty) = unsafe { rustix::mm::mmap_anonymous(base as *mut _, whole, ProtFlags::empty(), flags) } {
        // Failure costs a child only these addresses.
        let _ = keep_from_child(empty, whole);
        // Release: pairs with the Acquire in `map_again`.
        slot.retired.store(true, Ordering::Release);
    }
}

impl Mapping {
    /// First address.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// First address as a number.
    pub fn addr(&self) -> usize {
        self.base.as_ptr() as usize
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the mapping has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes `len` bytes from `offset` on of a [reserved](reserve) mapping accessible; multiples of
    /// a page.
    ///
    /// # Errors
    /// `NOMEM` when the kernel refuses; nothing changes.
    pub fn open(&self, offset: usize, len: usize) -> Result<(), Errno> {
        assert!(offset.is_multiple_of(PAGE_SIZE) && len.is_multiple_of(PAGE_SIZE) && offset + len <= self.len);
        // SAFETY: inside the mapping; no byte becomes inaccessible.
        unsafe { rustix::mm::mprotect(self.as_ptr().add(offset).cast(), len, MprotectFlags::READ | MprotectFlags::WRITE) }
    }

    /// Leaves the mapping out of forked children.
    ///
    /// # Errors
    /// `NOMEM` when the kernel refuses: they get a copy.
    pub fn keep_from_children(&self) -> Result<(), Errno> {
        // SAFETY: unchanged in this process; the caller answers for its children.
        unsafe { rustix::mm::madvise(self.as_ptr().cast(), self.len, Advice::LinuxDontFork) }
    }

    /// Makes `len` accessible bytes from `offset` on executable, or not; multiples of a page.
    ///
    /// # Errors
    /// `NOMEM`: too many mappings. `ACCESS`, `PERM`: executable memory is forbidden. Nothing
    /// changes.
    pub fn set_executable(&self, offset: usize, len: usize, executable: bool) -> Result<(), Errno> {
        assert!(offset.is_multiple_of(PAGE_SIZE) && len.is_multiple_of(PAGE_SIZE) && offset + len <= self.len);
        let mut may = MprotectFlags::READ | MprotectFlags::WRITE;
        may.set(MprotectFlags::EXEC, executable);
        // SAFETY: inside the mapping; it stays readable and writable.
        unsafe { rustix::mm::mprotect(self.as_ptr().add(offset).cast(), len, may) }
    }

    /// Pages with memory; 0 without /proc/self/pagemap.
    pub(crate) fn populated_pages(&self) -> usize {
        let Ok(fd) = crate::kernel_text::open_own(b"pagemap") else { return 0 };
        let (first, pages) = (self.addr() / PAGE_SIZE, self.len / PAGE_SIZE);
        let (mut populated, mut at) = (0, 0);
        let mut words = [0u8; 2048];
        while at < pages {
            let want = ((pages - at) * 8).min(words.len());
            let Ok(n) = rustix::io::pread(&fd, &mut words[..want], ((first + at) * 8) as u64) else { break };
            populated += words[..n].chunks(8).filter(|w| w.last().is_some_and(|top| top & 0xc0 != 0)).count();
            at += n.div_ceil(8).max(1);
        }
        populated
    }

    /// Gives the memory back and leaves the range, inaccessible, to a later [`map`].
    ///
    /// # Safety
    /// Neither the mapping nor a copy of it may be used from here on.
    pub unsafe fn retire(self) {
        // SAFETY: the caller's.
        unsafe { retire_at(self.addr()) }
    }

    /// Gives the pages of `offset .. offset + len` back; they read as zero afterwards.
    ///
    /// # Safety
    /// No reference into the range exists.
    pub unsafe fn discard(&self, offset: usize, len: usize) {
        debug_assert!(offset.is_multiple_of(PAGE_SIZE) && len.is_multiple_of(PAGE_SIZE) && offset + len <= self.len);
        // SAFETY: inside the mapping; the caller answers for references.
        let discarded = unsafe { rustix::mm::madvise(self.as_ptr().add(offset).cast(), len, Advice::LinuxDontNeed) };
        if let Err(error) = discarded {
            KEPT_BY.store(error.raw_os_error(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    #[test]
    fn a_mapping_is_zero_and_own_and_forgets_when_discarded() {
        let m = map(3 * PAGE_SIZE + 1, OnFork::Copy).unwrap();
        assert_eq!(m.len(), 4 * PAGE_SIZE);
        let mut found = false;
        own_ranges(|s, e, _| found |= s == m.addr() - PAGE_SIZE && e >= m.addr() + m.len() + PAGE_SIZE);
        assert!(found, "the mapping with its guards is in the table of own ranges");
        // SAFETY: this test's mapping.
        unsafe {
            assert_eq!(*m.as_ptr(), 0);
            *m.as_ptr() = 7;
            *m.as_ptr().add(PAGE_SIZE) = 8;
            m.discard(0, PAGE_SIZE);
            assert_eq!((*m.as_ptr(), *m.as_ptr().add(PAGE_SIZE)), (0, 8));
        }
    }

    #[test]
    fn what_is_written_without_a_change_is_kept() {
        // New pages each time: freed ones may wait in another CPU's list.
        let is_dropped = |_| {
            let m = map(2 * PAGE_SIZE, OnFork::Copy).unwrap();
            // SAFETY: this test's mapping.
            unsafe {
                m.as_ptr().write_volatile(7);
                m.as_ptr().add(PAGE_SIZE).write_volatile(8);
                rustix::mm::madvise(m.as_ptr().cast(), m.len(), Advice::LinuxFree).unwrap();
                write_nothing(m.addr());
                rustix::mm::madvise(m.as_ptr().cast(), m.len(), Advice::LinuxPageOut).unwrap();
                assert_eq!(m.as_ptr().read_volatile(), 7);
                m.as_ptr().add(PAGE_SIZE).read_volatile() == 0
            }
        };
        assert!((0..100).any(is_dropped), "the other page is never dropped");
    }

    #[test]
    fn a_retired_range_is_used_again_and_is_zero() {
        // No concurrent test maps this length, nor half of it.
        let len = 77_777 * PAGE_SIZE;
        let m = map(len, OnFork::Copy).unwrap();
        // SAFETY: this test's mapping, unused afterwards.
        unsafe {
            *m.as_ptr() = 7;
            m.retire();
        }
        let again = map(len, OnFork::Share).unwrap();
        assert_eq!(again.addr(), m.addr());
        // SAFETY: this test's mapping.
        assert_eq!(unsafe { *again.as_ptr() }, 0);
    }

    #[test]
    fn mappings_are_no_data_of_the_programs() {
        let data = || {
            let mut text = [0u8; 2048];
            let status = crate::kernel_text::read(c"/proc/self/status", &mut text).unwrap();
            let line = status.split(|c| *c == b'\n').find_map(|line| line.strip_prefix(b"VmData:")).unwrap();
            crate::kernel_text::number(line.trim_ascii_start()) << 10
        };
        let limit = rustix::process::getrlimit(rustix::process::Resource::Data);
        let limited = rustix::process::Rlimit { current: Some(1 << 46), ..limit };
        rustix::process::setrlimit(rustix::process::Resource::Data, limited).unwrap();
        let (before, large) = (data(), 64 << 30);
        let m = map(large, OnFork::Copy).unwrap();
        // SAFETY: this test's mapping.
        unsafe { (*m.as_ptr(), *m.as_ptr().add(large - 1)) = (1, 2) };
        assert!(data() < before + large as u64 / 2, "it counts for RLIMIT_DATA");
        // SAFETY: unused afterwards.
        unsafe { m.retire() };
    }

    fn child_has(addr: usize) -> bool {
        let mut command = Command::new("true");
        // SAFETY: a system call that changes nothing.
        unsafe {
            command.pre_exec(move || Ok(rustix::mm::madvise(addr as *mut _, PAGE_SIZE, Advice::Normal)?));
        }
        let failed = command.status().err().map(|error| error.raw_os_error());
        assert!([None, Some(Some(Errno::NOMEM.raw_os_error()))].contains(&failed), "{failed:?}");
        failed.is_none()
    }

    #[test]
    fn a_child_has_nothing_that_is_kept_from_it_in_use_or_retired() {
        let m = map(80_222_222 * PAGE_SIZE, OnFork::Copy).unwrap();
        assert!(child_has(m.addr()));
        // SAFETY: this test's mapping, unused afterwards.
        unsafe { m.retire() };
        // Concurrent tests need no mapping in a child.
        keep_from_children();
        let again = map(80_222_222 * PAGE_SIZE, OnFork::Copy).unwrap();
        assert_eq!((again.addr(), child_has(again.addr())), (m.addr(), false));
        // SAFETY: as above.
        unsafe { again.retire() };
        assert!(!child_has(again.addr()));
    }
}
