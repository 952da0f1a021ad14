//! Changing code that is mapped and that nobody executes meanwhile: where, and by which of three ways.
//!
//! Through `/proc/self/mem` the kernel writes to memory that its owner may only read and execute, as it does for debuggers: no
//! protection changes, there is no moment at which the code can't be executed, and what forbids a process to make memory
//! executable (prctl PR_SET_MDWE, systemd's MemoryDenyWriteExecute=) does not forbid this. Where that file can't be written (since
//! Linux 6.12 a kernel may be built so, and Debian's 7.2 is), the protection is changed and changed back, but only after the
//! change back has been rehearsed on a page that nobody needs: code that can't be made executable again would end the program
//! at its next call. Where that is forbidden, a changed copy of the code, in a file that is nowhere else, is mapped in its place:
//! no memory of the process becomes executable that was not mapped so.

use linux_raw_sys::general as sys;
use lowtide_core::vm::PAGE_SIZE;
use rustix::fd::AsRawFd;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::process::{Resource, getrlimit};

use crate::say;
use crate::thread::{syscall3, syscall4, syscall6};

/// Bytes of a [`Change`].
pub const LEN: usize = 14;

/// What is to be written where.
#[derive(Clone, Copy)]
pub struct Change {
    /// The first byte.
    pub at: usize,
    /// The bytes.
    pub bytes: [u8; LEN],
}

/// Makes all of the changes. False: none of them (they overlap, or the system does not allow it).
///
/// # Safety
/// The places are readable, executable memory of one mapping of the calling process, which has one thread that executes
/// elsewhere, and what is written is code that may stand there.
pub unsafe fn change(changes: &mut [Change]) -> bool {
    changes.sort_unstable_by_key(|change| change.at);
    if changes.windows(2).any(|pair| pair[1].at < pair[0].at + LEN) {
        return false;
    }
    // SAFETY: handed on to the caller.
    unsafe { by_file(changes) || by_protection(changes) || by_mapping(changes) }
}

/// The byte at a place.
///
/// # Safety
/// It is readable.
pub unsafe fn byte_at(at: usize) -> u8 {
    // SAFETY: handed on to the caller. Volatile, because the kernel may write there.
    unsafe { (at as *const u8).read_volatile() }
}

/// Through `/proc/self/mem`. `changes` are sorted by place. False: nothing was changed.
///
/// # Safety
/// As [`change`]; what lies between two changes on a page is readable. It is written as it was read: a debugger that set a
/// breakpoint there in these microseconds would lose it.
unsafe fn by_file(changes: &[Change]) -> bool {
    let Ok(mem) = rustix::fs::open(c"/proc/self/mem", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else { return false };
    let (mut before, mut after) = ([0u8; PAGE_SIZE], [0u8; PAGE_SIZE]);
    // Those that end on the page on which others begin are written together: each write costs a system call in each process of
    // a run.
    for (i, these) in changes.chunk_by(on_one_page).enumerate() {
        let start = these[0].at;
        let len = these[these.len() - 1].at + LEN - start;
        let (before, after) = (&mut before[..len], &mut after[..len]);
        for (at, byte) in (start..).zip(&mut *before) {
            // SAFETY: readable, says the caller.
            *byte = unsafe { byte_at(at) };
        }
        after.copy_from_slice(before);
        for change in these {
            after[change.at - start..][..LEN].copy_from_slice(&change.bytes);
        }
        let written = rustix::io::pwrite(&mem, &*after, start as u64) == Ok(len);
        // Kernels can be told to write nothing here without an error, or only in part: it counts what can be read afterwards.
        // SAFETY: as above.
        let holds = |bytes: &[u8]| (start..).zip(bytes).all(|(at, byte)| unsafe { byte_at(at) } == *byte);
        if !(written && holds(after)) {
            // The first one is how it is found out that it can't be done; that a later one fails where others did not is not
            // expected.
            if i > 0 || !holds(before) {
                say::fatal(b"the C library's code could be changed in part only");
            }
            return false;
        }
    }
    true
}

/// By changing the protection of the code, and back.
///
/// # Safety
/// As [`change`].
unsafe fn by_protection(changes: &[Change]) -> bool {
    let (start, len) = pages_of(changes);
    if !code_can_be_changed() || !protect(start, len, sys::PROT_READ | sys::PROT_WRITE) {
        return false;
    }
    // One change of protection for all, some 50 pages. Nothing of the C library is called in between.
    for change in changes {
        for (i, byte) in change.bytes.iter().enumerate() {
            // SAFETY: the caller says that this code may be changed; it is writable now.
            unsafe { (change.at as *mut u8).add(i).write_volatile(*byte) };
        }
    }
    if !protect(start, len, sys::PROT_READ | sys::PROT_EXEC) {
        // Against the rehearsal. To go on would end in the middle of the program, without a word.
        say::fatal(b"the C library's code can't be made executable again");
    }
    true
}

/// By mapping changed copies of the pages over them. False: nothing was changed. `changes` are sorted by place.
///
/// # Safety
/// As [`change`].
unsafe fn by_mapping(changes: &[Change]) -> bool {
    let (all, len) = pages_of(changes);
    // A write beyond that limit would be a signal.
    if getrlimit(Resource::Fsize).current.is_some_and(|most| most < len as u64) {
        return false;
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::EXEC;
    let Ok(file) = rustix::fs::memfd_create(c"lowtide-code", flags) else { return false };
    // Only pages with changes are copied: they are memory.
    let parts = || changes.chunk_by(on_one_page).map(pages_of);
    let write = |bytes: &[u8], at: usize| rustix::io::pwrite(&file, bytes, (at - all) as u64) == Ok(bytes.len());
    // SAFETY: readable, says the caller, and nobody changes it meanwhile.
    let page = |start, len| unsafe { core::slice::from_raw_parts(start as *const u8, len) };
    // All pages, and then the changes: two that are written apart may share a page.
    let is_written = parts().all(|(start, len)| write(page(start, len), start))
        && changes.iter().all(|change| write(&change.bytes, change.at));
    // Nobody can change the code once more.
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    if !is_written || rustix::fs::fcntl_add_seals(&file, seals).is_err() {
        return false;
    }
    let map = |at, len: usize, from: usize, flags: u32| {
        let (protection, fd) = ((sys::PROT_READ | sys::PROT_EXEC) as usize, file.as_raw_fd() as usize);
        // SAFETY: at no given place, or over code that may be changed, says the caller, by the same with the changes.
        unsafe { syscall6(sys::__NR_mmap, at, len, protection, (sys::MAP_PRIVATE | flags) as usize, fd, from - all) }
    };
    // The rehearsal: what is mapped at a given place is unmapped first, and might stay so.
    let elsewhere = map(0, PAGE_SIZE, all, 0);
    if (-4095..0).contains(&elsewhere) {
        return false;
    }
    // SAFETY: made above.
    unsafe { syscall4(sys::__NR_munmap, elsewhere as usize, PAGE_SIZE, 0, 0) };
    for (i, (start, len)) in parts().enumerate() {
        if map(start, len, start, sys::MAP_FIXED) != start as isize {
            // Some refusals come before what is there is unmapped: of sealed memory (mseal), for one. (Not all functions
            // changed is worse than none.)
            if i == 0 && is_mapped(start, len) {
                return false;
            }
            say::fatal(b"the C library's code can't be mapped again");
        }
    }
    true
}

/// Whether all of some pages are mapped. At most 16.
fn is_mapped(start: usize, len: usize) -> bool {
    let mut resident = [0u8; 16];
    // SAFETY: writes a byte for each page.
    len / PAGE_SIZE <= resident.len() && unsafe { syscall3(sys::__NR_mincore, start, len, resident.as_mut_ptr() as usize) } == 0
}

/// Whether the page on which a change begins is the one on which the next one ends.
fn on_one_page(first: &Change, next: &Change) -> bool {
    first.at / PAGE_SIZE == (next.at + LEN - 1) / PAGE_SIZE
}

/// Where the pages begin on which changes are, and how many bytes they have up to the last. There are changes.
fn pages_of(changes: &[Change]) -> (usize, usize) {
    let (low, high) = changes.iter().fold((usize::MAX, 0), |(low, high), change| (low.min(change.at), high.max(change.at)));
    let start = low & !(PAGE_SIZE - 1);
    (start, (high + LEN).next_multiple_of(PAGE_SIZE) - start)
}

/// Changes the protection of whole pages. False: refused.
pub fn protect(start: usize, len: usize, protection: u32) -> bool {
    // SAFETY: the callers answer for what they protect.
    unsafe { syscall3(sys::__NR_mprotect, start, len, protection as usize) == 0 }
}

/// Whether private code that is mapped from a file can be made writable, written, and made executable again. Tried with a page
/// of the program's own file: security modules ask where changed code came from.
fn code_can_be_changed() -> bool {
    let Ok(file) = rustix::fs::open(c"/proc/self/exe", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return false };
    let protection = (sys::PROT_READ | sys::PROT_EXEC) as usize;
    let fd = file.as_raw_fd() as usize;
    // SAFETY: a fresh mapping, which nobody else knows.
    let page = unsafe { syscall6(sys::__NR_mmap, 0, PAGE_SIZE, protection, sys::MAP_PRIVATE as usize, fd, 0) };
    if (-4095..0).contains(&page) {
        return false;
    }
    let page = page as usize;
    let can = protect(page, PAGE_SIZE, sys::PROT_READ | sys::PROT_WRITE) && {
        // SAFETY: writable, and private to this process: an ELF file has bytes at its start. The first one is not executed by
        // anyone.
        unsafe { (page as *mut u8).write_volatile((page as *const u8).read_volatile()) };
        protect(page, PAGE_SIZE, sys::PROT_READ | sys::PROT_EXEC)
    };
    // SAFETY: made above.
    unsafe { syscall4(sys::__NR_munmap, page, PAGE_SIZE, 0, 0) };
    can
}
